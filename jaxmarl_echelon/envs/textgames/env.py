"""Environment for the rules of any turn game: turns, forced plies, forfeits, results.

See docs/reference/selfplay.md 6.1 and 6.2.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
from flax import struct

from algos.defaults import FROM_FILE, take_defaults_from
from algos.types import PyTree
from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.results import Result, share_beaten
from jaxmarl_echelon.envs.textgames import scripts, text_face
from jaxmarl_echelon.envs.textgames.rules import GameRules, select_at
from jaxmarl_echelon.envs.textgames.transcript import GameViewer
from jaxmarl_echelon.language.tokenizers import Tokenizer

ROLE = "player"
WON_BY_INVALID = "won_by_invalid"


class GameState(struct.PyTreeNode):
    """A game in progress.

    Attributes:
      game: the state of the rules.
      ply: int32 number of plies so far, including forced ones.
      move: int32 action of the last ply (`[choices]` for several); -1 for a forced ply.
      offender: int32 seat that forfeited by an illegal action; -1 for none.
    """

    game: PyTree
    ply: jax.Array
    move: jax.Array
    offender: jax.Array


@take_defaults_from("env/textgames/tictactoe")
class TextGame(Environment):
    """A turn game as an environment with `EnvSpec.turns` seats of one role, `player`.

    Seat `ply mod N` is due at each ply. If the rules require another seat to decide (a pass, an eliminated
    seat, a betting round that asks one seat twice), the ply is forced: no seat is alive, and the game stays
    as it is. The reward is the final score. An illegal action forfeits the game: the offender gets
    `invalid_reward`, the others `invalid_other`.

    Results: `score/i`, the final score of seat i; per agent `points`, `win`, `loss` and `payoff` (the score);
    and the outcome of the game. `points` is 1 for a win and 0.5 for a draw. In games with stakes it is
    0.5 + 0.5 * score / stakes, clipped to [0, 1]. With prompts as observations, `won_by_invalid` counts per
    agent the games that another seat forfeited.

    Attributes:
      rules: the game.
      observe: `(game, seat) -> observation` of a state of the rules.
    """

    def __init__(
        self,
        rules: GameRules,
        own_scripts: Mapping[str, Callable] = MappingProxyType({}),
        *,
        opponent: str | None = FROM_FILE,
        invalid_reward: float = FROM_FILE,
        invalid_other: float = FROM_FILE,
        face: str = FROM_FILE,
        template: str = FROM_FILE,
        tokenizer: str | Tokenizer = FROM_FILE,
        chat: str = FROM_FILE,
        show_legal: bool = FROM_FILE,
    ):
        """Builds the environment.

        Args:
          rules: the game.
          own_scripts: scripts in addition to `random`: name to `(key, state) -> action` of the deciding seat.
          opponent: script that plays the other seats in evaluations; None: the learner itself.
          invalid_reward: score of a seat that forfeits.
          invalid_other: score of the other seats after a forfeit.
          face: `moves`, observations of numbers, or `text`, prompts of token ids.
          template, tokenizer, chat, show_legal: of prompts, see `text_face.make_text_face`.

        Raises:
          ValueError: one line, for an invalid setting.
          NotImplementedError: for prompts of a game that has none.
        """
        self.rules = rules
        players = {"random": scripts.random_legal(rules)} | dict(own_scripts)
        self.scripts = {name: scripts.make_scripted_policy(rules, player) for name, player in players.items()}
        self.baselines = tuple(players)
        if opponent is not None:
            self.opponents = {ROLE: settings.read_choice("opponent", opponent, self.baselines)}
        self._params = {
            "invalid_reward": jnp.float32(settings.read_number("invalid_reward", invalid_reward)),
            "invalid_other": jnp.float32(settings.read_number("invalid_other", invalid_other)),
        }
        wording = {"template": template, "tokenizer": tokenizer, "chat": chat, "show_legal": show_legal}
        self.observe, observation, language = text_face.make_face(rules, face, **wording)
        self.language = {} if language is None else {ROLE: language}
        self.spec = EnvSpec(
            name=rules.name,
            version=1,
            roles=(Role(ROLE, rules.seats, observation, rules.space),),
            decision_period=0.0,
            episode_limit=rules.plies,
            results=_results(rules.seats, text=language is not None),
            score="points",
            late=True,
            turns=rules.seats,
            hidden=rules.hidden,
            stakes=rules.stakes,
            # Points follow from ranks, or from scores with sum 0.
            constant_sum=True,
            won_by_invalid=None if language is None else WON_BY_INVALID,
        )
        self.viewer = GameViewer(rules, self.observe, language)

    def default_params(self) -> dict[str, jax.Array]:
        """Returns the scores of forfeited games."""
        return self._params

    def reset(self, key: jax.Array, params: PyTree) -> tuple[GameState, TimeStep]:
        """Starts a game."""
        state = GameState(
            game=self.rules.init(key),
            ply=jnp.int32(0),
            move=jnp.full(self.rules.space.shape, -1, jnp.int32),
            offender=jnp.int32(-1),
        )
        return state, self._show(state, params)

    def step(
        self, key: jax.Array, state: GameState, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[GameState, TimeStep]:
        """Plays one ply: applies the action of the seat that is due, unless the ply is forced."""
        seat = state.ply % self.rules.seats
        decides = self.decides(state)
        action = select_at(actions[ROLE].astype(jnp.int32), seat)
        allowed = self.rules.allows(state.game, action)
        played = self.rules.apply(key, state.game, action)
        state = GameState(
            game=jax.tree.map(lambda new, old: jnp.where(decides & allowed, new, old), played, state.game),
            ply=state.ply + 1,
            move=jnp.where(decides, action, -1),
            offender=jnp.where(decides & ~allowed, seat, -1).astype(jnp.int32),
        )
        return state, self._show(state, params)

    def decides(self, state: GameState) -> jax.Array:
        """Whether the seat that is due decides at this ply, i.e. the ply is not forced; bool."""
        return ~self.over(state) & (self.rules.turn(state.game) == state.ply % self.rules.seats)

    def over(self, state: GameState) -> jax.Array:
        """Whether the game has ended; bool."""
        return self.rules.over(state.game) | (state.offender >= 0)

    def scores(self, state: GameState, params: PyTree) -> jax.Array:
        """Final scores `[N]`; 0 while the game runs."""
        offends = jnp.arange(self.rules.seats) == state.offender
        forfeited = jnp.where(offends, params["invalid_reward"], params["invalid_other"])
        final = jnp.where(state.offender >= 0, forfeited, self.rules.scores(state.game))
        return jnp.where(self.over(state), final, 0.0)

    def _show(self, state: GameState, params: PyTree) -> TimeStep:
        rules, seats = self.rules, jnp.arange(self.rules.seats)
        due = (seats == state.ply % rules.seats) & self.decides(state)
        over, scores = self.over(state), self.scores(state, params)
        ended = jnp.broadcast_to(over, seats.shape)
        return TimeStep(
            obs={ROLE: jax.vmap(self.observe, (None, 0))(state.game, seats)},
            reward={ROLE: scores},
            terminated={ROLE: ended},
            truncated={ROLE: jnp.zeros_like(ended)},
            alive={ROLE: due},
            action_mask={ROLE: jnp.where(due[:, None], rules.legal(state.game), True)},
            over=over,
            info=_info(scores, over, state.offender, rules.stakes) | self._forfeits(state),
            present={ROLE: jnp.ones_like(ended)},
        )

    def _forfeits(self, state: GameState) -> dict[str, jax.Array]:
        """Returns which seats win by another's illegal answer, if observations are prompts."""
        if not self.language:
            return {}
        others = jnp.arange(self.rules.seats) != state.offender
        return {WON_BY_INVALID: ((state.offender >= 0) & others).astype(jnp.float32)}


def _results(seats: int, text: bool) -> tuple[Result, ...]:
    winners = tuple(f"seat_{seat}" for seat in range(seats))
    return (
        Result("outcome", kind="code", labels=(*winners, "draw", "invalid")),
        Result("points", role=ROLE, kind="rate"),
        Result("win", role=ROLE, kind="rate"),
        Result("loss", role=ROLE, kind="rate"),
        Result("draw", kind="rate", source="outcome", among=("draw",)),
        Result("invalid", kind="rate", source="outcome", among=("invalid",)),
        Result("payoff", role=ROLE),
        # Only where answers can be illegal: every result is part of the checkpoints of a run.
        *((Result(WON_BY_INVALID, role=ROLE, kind="rate"),) if text else ()),
        *(Result(f"score/{seat}") for seat in range(seats)),
    )


def _info(scores: jax.Array, over: jax.Array, offender: jax.Array, stakes: float) -> dict[str, jax.Array]:
    best = scores == jnp.max(scores)
    alone = jnp.sum(best) == 1
    ended = jnp.where(alone, jnp.argmax(scores), scores.shape[0])
    ended = jnp.where(offender >= 0, scores.shape[0] + 1, ended)
    worst = scores == jnp.min(scores)
    info = {
        "outcome": jnp.where(over, ended, -1).astype(jnp.int32),
        "points": jnp.where(over, _points(scores, stakes), 0.0),
        "win": (over & best & alone).astype(jnp.float32),
        "loss": (over & worst & ~jnp.all(worst)).astype(jnp.float32),
        "payoff": scores,
    }
    return info | {f"score/{seat}": score for seat, score in enumerate(scores)}


def _points(scores: jax.Array, stakes: float) -> jax.Array:
    """Converts final scores to points `[N]` in [0, 1]; see `TextGame`."""
    if not stakes:
        return share_beaten(scores)
    return jnp.clip(0.5 + 0.5 * scores / stakes, 0.0, 1.0)
