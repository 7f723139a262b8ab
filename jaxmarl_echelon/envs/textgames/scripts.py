"""Scripted players of turn games: `(key, state) -> action` of the deciding seat."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.textgames.rules import GameRules, State

ScriptedPlayer = Callable[[jax.Array, State], jax.Array]


def make_scripted_policy(rules: GameRules, player: ScriptedPlayer) -> ScriptedPolicy:
    """Wraps a player as a scripted policy of the environment, acting for the seat that is due."""

    def act(key, memory, state, params):
        del params
        return memory, jnp.broadcast_to(player(key, state.game), (rules.seats, *rules.space.shape))

    return ScriptedPolicy(init=lambda: (), act=act)


def random_legal(rules: GameRules) -> ScriptedPlayer:
    """Returns the player that samples uniformly from the legal options of each choice."""
    return lambda key, state: rules.space.sample(key, rules.legal(state))


def sample_option(key: jax.Array, wanted: jax.Array) -> jax.Array:
    """Samples uniformly from the options set in `wanted [n]`; int32."""
    return jax.random.categorical(key, jnp.where(wanted, 0.0, -jnp.inf)).astype(jnp.int32)


def greedy_win(rules: GameRules) -> ScriptedPlayer:
    """Returns a player that wins at once if possible, else avoids an immediate loss, else moves at random.

    For games of two seats without chance after the deal.
    """

    def wins(state, mine):
        """Masks `[n]` legal moves that win at once; also returns which end the game, and the states."""
        options = jnp.arange(rules.space.n)
        after = jax.vmap(rules.apply, (None, None, 0))(jax.random.key(0), state, options)
        over, scores = jax.vmap(rules.over)(after), jax.vmap(rules.scores)(after)
        return rules.legal(state) & over & (scores[:, mine] > 0), over, after

    def player(key, state):
        mine = rules.turn(state)
        legal = rules.legal(state)
        winning, over, after = wins(state, mine)
        threats, _, _ = jax.vmap(wins, (0, None))(after, 1 - mine)
        safe = legal & (over | ~jnp.any(threats, axis=1))
        wanted = jnp.where(jnp.any(safe), safe, legal)
        return sample_option(key, jnp.where(jnp.any(winning), winning, wanted))

    return player
