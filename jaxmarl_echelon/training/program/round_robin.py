"""Round robin between policies of one architecture and scripts: pairwise scores, and ratings from them."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.types import Agent, PyTree
from jaxmarl_echelon.envs.base import EnvSpec, Role
from jaxmarl_echelon.selfplay.ratings import DRAW, LOSS, WIN, PairResults, RatingSystem
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.acting.state import ControllerView
from jaxmarl_echelon.training.opponents.pool_role import Opponents, act_in_groups, score_margin
from jaxmarl_echelon.training.program import evaluation
from jaxmarl_echelon.training.program.agents import single_seat_role
from jaxmarl_echelon.training.program.program import Program
from jaxmarl_echelon.training.rollouts.turn_based_pool import index_rows, set_rows


class MatchRoles(NamedTuple):
    """Roles of a pair: the first plays `ours`, the second `theirs`; in turn-based games both are one role.

    Attributes:
      ours, theirs: names of roles.
      agent: the learner of which all policies are states.
    """

    ours: str
    theirs: str
    agent: Agent


def play_round_robin(
    program: Program,
    sides: MatchRoles,
    policies: PyTree,
    key: jax.Array,
    games: int,
    world: PyTree = None,
    scripts: Sequence[str] = (),
) -> jax.Array:
    """Plays a round robin; returns scores `[n, n, games]` of each entry as `ours` against each as `theirs`.

    Scores are 1 for a win and 1/2 for a draw, or in games for stakes the fraction that was won; NaN for games
    with values that are not finite. All pairs play the same games: task, start and later random numbers of
    the environment depend on the game's index alone.

    Args:
      program: program with the environment and task.
      sides: the roles.
      policies: states of the entries that are policies, leaves `[P, ...]`, reduced to acting.
      key: typed random key; policies sample their actions.
      games: games per ordered pair. In turn-based games the first entry rotates through the seats, so that
        this must be a multiple of their number.
      world: the program's world; None for its own.
      scripts: names of scripts of the environment, the other entries.

    Raises:
      ValueError: one line, for a script that is missing for one of the roles, or if seats are not played
        equally often.
    """
    require_even_seats(program.env.spec, games)
    parts = program.place(world)
    env = parts.env
    number = jax.tree.leaves(policies)[0].shape[0] + len(scripts)
    first, second = (x.ravel() for x in np.indices((number, number)))
    roles = {one.name: single_seat_role(env, one) for one in env.spec.roles}
    players = [
        assign_players(
            make_bank_controller(
                sides.agent if world is None else sides.agent.in_worlds(world.agents),
                roles[role],
                index_rows(policies, who[who < number - len(scripts)]),
            ),
            [
                controllers.make_script_controller(controllers.find_script(env, role, name, "--scripts"))
                for name in scripts
            ],
            np.maximum(who - (number - len(scripts) - 1), 0),
        )
        for role, who in ((sides.ours, first), (sides.theirs, second))
    ]
    seats = env.spec.turns
    if seats:
        playing = {sides.ours: controllers.play_one_seat_against(*players, seats)}
    else:
        playing = {sides.ours: players[0], sides.theirs: players[1]}
    others = {role: one for role, one in program.controllers(parts).items() if role not in playing}
    params = program.curriculum.evaluation(program.curriculum.init())
    pairs = number * number
    params = evaluation.evaluation_params(env, params, games)
    params = jax.tree.map(lambda x: jnp.concatenate([x] * pairs), params)
    how = {"number": pairs * games, "repeats": pairs}
    played = evaluation.play_episodes(env, playing | others, {}, key, params, **how)
    scores = jnp.where(played.quarantined, jnp.nan, _scores(program, sides, played, seats))
    return scores.reshape(number, number, games)


def require_even_seats(spec: EnvSpec, games: int) -> None:
    """Raises a one-line ValueError unless every seat is played equally often in `games` games."""
    if spec.turns and games % spec.turns:
        more = -(-games // spec.turns) * spec.turns
        raise ValueError(f"--games={games}: must be a multiple of the {spec.turns} seats, such as {more}")


def _scores(program: Program, sides: MatchRoles, played: evaluation.Evaluation, seats: int) -> jax.Array:
    """Scores `[N]` of the first player."""
    spec, finished = program.env.spec, played.finished
    if seats:
        scores, own = spec.scores(finished.results, sides.ours), jnp.arange(finished.mask.size) % seats
        return jnp.take_along_axis(scores, own[:, None], axis=1)[:, 0]
    return 0.5 + 0.5 * jnp.sign(score_margin(spec, sides.ours, sides.theirs, finished))


def make_bank_controller(agent: Agent, role: Role, bank: PyTree) -> Controller:
    """Builds a controller of P equal groups of environments, each with a policy of `bank [P, ...]`."""
    agent = agent._replace(asymmetric=False)
    # Sampled actions, but no exploration, of which earlier policies would have more than later ones.
    past = controllers.make_learner_controller(agent, role, "", greedy=agent.explores, warms_up=False)
    met = Opponents(None, bank, jnp.arange(jax.tree.leaves(bank)[0].shape[0]), ())

    def act(key, _state, carry, view, reset):
        carry, action = act_in_groups(past.act, key, met, carry, ControllerView(None, None, view.time), reset)
        return carry, action, None

    return Controller(past.init, act)


def assign_players(learned: Controller, scripts: Sequence[Controller], player: np.ndarray) -> Controller:
    """Builds a controller of P equal groups of environments, assigned to players by `player [P]`.

    0 stands for the policies of `learned`, which assigns its own groups; i for script i - 1.
    """
    if not scripts:
        return learned
    players = (learned, *scripts)

    def rows(number, environments):
        size = environments // len(player)
        return (np.flatnonzero(player == number)[:, None] * size + np.arange(size)).ravel()

    def init(num_envs):
        return tuple(one.init(num_envs) for one in players)

    def act(key, state, memories, view, reset):
        environments, action, remembered = reset.shape[0], None, []
        keys = jax.random.split(key, len(players))
        for number, (one, memory) in enumerate(zip(players, memories, strict=True)):
            mine, own_key = rows(number, environments), keys[number]
            kept, reply, _ = one.act(
                own_key, state, index_rows(memory, mine), index_rows(view, mine), reset[mine]
            )
            if action is None:
                action = jnp.zeros((environments, *reply.shape[1:]), reply.dtype)
            action = set_rows(action, mine, reply.astype(action.dtype))
            remembered.append(set_rows(memory, mine, kept))
        return tuple(remembered), action, None

    return Controller(init, act)


def fit_ratings(key: jax.Array, system: RatingSystem, scores: np.ndarray, *, graded: bool) -> np.ndarray:
    """Computes ratings `[n, D]` from the scores `[n, n, games]` of a round robin, starting at the prior.

    Args:
      key: random key, for systems that rate wins and losses, if `graded`.
      system: the rating system.
      scores: result of `play_round_robin`.
      graded: whether scores contain more than wins, draws and losses.
    """
    number, results = len(scores), count_results(scores)
    first, second = map(jnp.asarray, np.triu_indices(number, k=1))
    both = results + results.transpose(1, 0, 2)[..., [LOSS, DRAW, WIN]]
    played = np.isfinite(scores)
    points = np.where(played, scores, 0.0).sum(axis=2) + np.where(played, 1.0 - scores, 0.0).sum(axis=2).T
    won = jnp.asarray(points[first, second]) if graded else None
    pairs = PairResults(first, second, jnp.asarray(both[first, second]), won)
    rating = jnp.tile(jnp.array(system.prior, jnp.float32), (number, 1))
    return np.asarray(system.update(key, rating, pairs, jnp.zeros(number, bool)))


def count_results(scores: np.ndarray) -> np.ndarray:
    """Counts wins, draws and losses `[..., 3]` of games with scores `[..., games]`; ignores NaN."""
    return np.stack([scores > 0.5, scores == 0.5, scores < 0.5], axis=-1).sum(axis=-2)


def mean_scores(scores: np.ndarray) -> np.ndarray:
    """Mean scores `[...]` of games `[..., games]`; NaN without games."""
    played = np.isfinite(scores)
    number = played.sum(axis=-1)
    return np.where(number > 0, np.where(played, scores, 0.0).sum(axis=-1) / np.maximum(number, 1), np.nan)
