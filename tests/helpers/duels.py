"""A tiny game of two teams, simultaneous, whose episodes end at random times."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.spaces import Box, Discrete

LIMIT = 6
TEAMS = ("blue", "red")


@struct.dataclass
class DuelState:
    """Decisions to come, and how far blue leads, both scalars."""

    left: jax.Array
    lead: jax.Array


class Duel(Environment):
    """Two against one at odds and evens: blue is paid for equal choices, red for different ones.

    Blue has two agents, of which the first decides; the episode ends after 1 to `LIMIT` decisions, and who
    leads has won.
    """

    def __init__(self, red: int = 2):
        self.red = red
        self.scripts = {"still": always(0), "other": always(1), "coin": coin()}
        self.controllers = {"red": "still"}

    @property
    def spec(self) -> EnvSpec:
        space = Box((2,), -1.0, 1.0), Discrete(2)
        ends = results.standard_results(("blue_win", "red_win", "draw"), ("blue_win",))
        won = results.Result("red_success", kind="rate", source="outcome", among=("red_win",))
        roles = (Role("blue", 2, *space), Role("red", self.red, *space, "red_success"))
        return EnvSpec("duel", 1, roles, 0.0, LIMIT, (*ends, won), "success")

    def default_params(self):
        return {"pay": jnp.float32(1.0)}

    def reset(self, key, params):
        state = DuelState(jax.random.randint(key, (), 1, LIMIT + 1), jnp.float32(0.0))
        return state, self._time(state, jnp.float32(0.0))

    def step(self, key, state, actions, params):
        equal = actions["blue"][0] == actions["red"][0]
        gain = jnp.where(equal, 1.0, -1.0) * params["pay"]
        state = DuelState(state.left - 1, state.lead + gain)
        return state, self._time(state, gain)

    def _time(self, state, gain):
        over, sizes = state.left <= 0, dict(zip(TEAMS, (2, self.red), strict=True))
        outcome = jnp.where(over, jnp.where(state.lead > 0, 0, jnp.where(state.lead < 0, 1, 2)), -1)
        obs = jnp.stack([state.left / LIMIT, jnp.tanh(state.lead)]).astype(jnp.float32)
        signs = {"blue": 1.0, "red": -1.0}
        return TimeStep(
            obs={team: jnp.tile(obs, (n, 1)) for team, n in sizes.items()},
            reward={team: jnp.full(n, signs[team] * gain, jnp.float32) for team, n in sizes.items()},
            terminated={team: jnp.full(n, over) for team, n in sizes.items()},
            truncated={team: jnp.zeros(n, bool) for team, n in sizes.items()},
            alive={team: jnp.full(n, ~over) for team, n in sizes.items()},
            action_mask={},
            over=over,
            info={"outcome": outcome.astype(jnp.int32)},
        )


def always(choice: int) -> ScriptedPolicy:
    """Plays one choice, with one agent or two."""

    def act(key, memory, state, params):
        return memory, jnp.full(2, choice, jnp.int32)

    return ScriptedPolicy(lambda: jnp.int32(0), act)


def coin() -> ScriptedPolicy:
    """Plays at random, and counts its decisions in memory."""

    def act(key, memory, state, params):
        return memory + 1, jax.random.randint(key, (2,), 0, 2)

    return ScriptedPolicy(lambda: jnp.int32(0), act)
