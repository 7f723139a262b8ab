"""Small missions for tests: blue west of a wall, red east of it."""

import jax
import numpy as np
from echelon_battles import flat_bank

from jaxmarl_echelon.envs.echelon.commands import STATUS_REPORT
from jaxmarl_echelon.envs.echelon.missions.make import make
from jaxmarl_echelon.envs.echelon.missions.rewards import make_mission_reward

LIMIT = 24
WALL = ((18, 0, 0), (20, 40, 20))
WEST, EAST = ((6.0, 20.0), (6.0, 26.0)), ((36.0, 20.0), (36.0, 26.0))


def built(**given):
    settings = {
        "bank": flat_bank(boxes=(WALL,)),
        "blue": ["medium", "scout"],
        "red": ["medium", "light"],
        "friendly_count": 2,
        "enemy_count": 2,
        "pages": 0,
        "time_limit": LIMIT * 0.25,
        "objective": [10.0, 20.0],
        "objective_radius": 25.0,
    }
    return make(**{"reward": make_mission_reward()} | settings | given)


class Game:
    """One environment with its functions compiled once; blue west of a wall, red east of it."""

    def __init__(self, env):
        self.env, self.params = env, env.default_params()
        self.reset, self._step = jax.jit(env.reset), jax.jit(env.step)

    def start(self, verb="scout", against="hold", places=(*WEST, *EAST), **mechs):
        """An episode with these orders and places; `mechs` replaces their fields."""
        params = self.env.task_params({"mission": verb, "opposing": against})
        state, _ = self.reset(jax.random.key(0), params)
        bodies = state.echelon.battle.mechs
        position = np.array(bodies.position)
        position[:, :2] = places
        given = {name: np.asarray(value, getattr(bodies, name).dtype) for name, value in mechs.items()}
        bodies = bodies.replace(position=position, yaw=np.zeros(4, np.float32), **given)
        battle = state.echelon.battle.replace(mechs=bodies)
        by_mech = state.by_mech.replace(cell=self.env.ground.cell_of(position))
        return state.replace(echelon=state.echelon.replace(battle=battle), by_mech=by_mech)

    def step(self, state, actions=None, params=None, key=0):
        whole = {
            role.name: np.zeros((role.size, STATUS_REPORT + 1), np.float32) for role in self.env.spec.roles
        }
        whole |= actions or {}
        return self._step(jax.random.key(key), state, whole, self.params if params is None else params)

    def last(self, state, **facts):
        """The last decision of an episode, with facts of the teams replaced before it."""
        echelon = state.echelon.replace(decision=np.int32(LIMIT - 1))
        given = {name: np.asarray(v, getattr(state.by_team, name).dtype) for name, v in facts.items()}
        return self.step(state.replace(echelon=echelon, by_team=state.by_team.replace(**given)))

    def block(self, time, name, role="blue"):
        return self.env.layout.split(np.asarray(time.obs[role]))[name]
