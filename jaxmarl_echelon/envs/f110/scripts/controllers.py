"""Scripted drivers for the cars of the F110 environments.

Each function builds a ScriptedPolicy for some of the cars, given by their indices; its actions are
`[len(cars), 2]`, steering angle (rad) and speed (m/s). Scripts read the same scans as learners. See
docs/reference/f110.md 15.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.f110.cars.simulation import SPEED, poses_of, velocities_of
from jaxmarl_echelon.envs.f110.gap_parameters import FTGOptions
from jaxmarl_echelon.envs.f110.scripts import blocking, follow_the_gap
from jaxmarl_echelon.envs.f110.state import ATTACKER, DEFENDER
from physics.frenet import cartesian

GAUSSIAN_STD = 0.6


class DriverView(NamedTuple):
    """Inputs of scripts for N cars: `scan` [N, B] m, `pose` [N, 3], `velocity` [N, 3], see `simulation`."""

    scan: jax.Array
    pose: jax.Array
    velocity: jax.Array


def view_of_drivers(state, cars: Sequence[int]) -> DriverView:
    """Returns the scans, poses and velocities of `cars` in an environment's state."""
    index = np.asarray(cars)
    physical = state.cars.state[index]
    return DriverView(state.cars.scan[index], poses_of(physical), velocities_of(physical))


def make_gaplock_scripts(env, options: FTGOptions) -> dict[str, ScriptedPolicy]:
    """Returns the scripted policies of the adversarial task by name.

    `ftg` and `ftg_attacker` follow the gap in the defender's and in the attacker's car, and
    `blocking_attacker` makes such a defender crash. The others fit both roles: `standing`, `straight` at the
    spawn speed, uniformly `random` commands, and `gaussian` commands around driving straight at 0.44 m/s. The
    last two draw from the attacker's action space, and as `random_defender` and `gaussian_defender` from the
    defender's.
    """
    attacks, defends = (env.spec.role(name).action for name in ("attacker", "defender"))
    return {
        "ftg": make_gap_driver((DEFENDER,), options),
        "ftg_attacker": make_gap_driver((ATTACKER,), options),
        "blocking_attacker": blocking.make_blocking_attacker(env),
        "standing": make_constant_driver((ATTACKER,), 0.0, 0.0),
        "straight": make_straight_driver(),
        "random": make_random_driver(1, attacks),
        "random_defender": make_random_driver(1, defends),
        "gaussian": make_gaussian_driver(attacks),
        "gaussian_defender": make_gaussian_driver(defends),
    }


def make_race_scripts(env, options: FTGOptions) -> dict[str, ScriptedPolicy]:
    """Returns the scripted policies of the racing task by name, each for all cars."""
    cars = tuple(range(env.simulation.cars))
    return {
        "ftg": make_gap_driver(cars, options),
        "pure_pursuit": make_pursuit_driver(env, cars),
        "standing": make_constant_driver(cars, 0.0, 0.0),
        "random": make_random_driver(len(cars), env.spec.role("car").action),
    }


def make_gap_driver(cars: Sequence[int], options: FTGOptions) -> ScriptedPolicy:
    """Returns the policy that follows the gap with the gains in the parameters of the episode."""

    def init():
        return jax.tree.map(
            lambda x: jnp.broadcast_to(x, (len(cars), *x.shape)), follow_the_gap.initial_ftg_state()
        )

    def act(key, memory, state, params):
        del key
        view = view_of_drivers(state, cars)
        low = jnp.stack([params.car.s_min, params.car.v_min])
        high = jnp.stack([params.car.s_max, params.car.v_max])

        def one(memory, scan, velocity):
            return follow_the_gap.follow_gap(memory, scan, velocity, params.ftg, options, low, high)

        return jax.vmap(one)(memory, view.scan, view.velocity)

    return ScriptedPolicy(init, act)


def make_constant_driver(cars: Sequence[int], steer: float, speed: float) -> ScriptedPolicy:
    """Returns the policy that always commands the same steering angle and speed; 0 and 0 stands still."""
    action = np.tile(np.array([steer, speed], np.float32), (len(cars), 1))
    return ScriptedPolicy(tuple, lambda _key, memory, _state, _params: (memory, jnp.asarray(action)))


def make_straight_driver() -> ScriptedPolicy:
    """Returns the policy that drives one car straight ahead at the episode's spawn speed."""

    def act(_key, memory, state, _params):
        return memory, jnp.stack([jnp.float32(0.0), state.spawn_speed])[None]

    return ScriptedPolicy(tuple, act)


def make_random_driver(cars: int, space) -> ScriptedPolicy:
    """Returns the policy that draws every command uniformly from an action space."""

    def act(key, memory, _state, _params):
        return memory, jax.vmap(space.sample)(jax.random.split(key, cars))

    return ScriptedPolicy(tuple, act)


def make_gaussian_driver(space, speed: float = 0.44, std: float = GAUSSIAN_STD) -> ScriptedPolicy:
    """Returns one car's Gaussian policy around driving straight at `speed`; `std` in half ranges."""
    low, high = (np.asarray(bound, np.float32) for bound in space.bounds())
    mean = np.clip(np.array([0.0, speed], np.float32), low, high)

    def act(key, memory, _state, _params):
        action = mean + 0.5 * (high - low) * std * jax.random.normal(key, (1, 2))
        return memory, jnp.clip(action, low, high)

    return ScriptedPolicy(tuple, act)


def make_pursuit_driver(
    env, cars: Sequence[int], speed: float = 2.0, reach: float = 0.6, per_speed: float = 0.25
) -> ScriptedPolicy:
    """Returns the policy that steers for a centreline point ahead (R. C. Coulter, "Pure pursuit", 1992).

    Args:
      env: an environment whose state tracks the cars along the centreline.
      cars: indices of the cars.
      speed: commanded speed, m/s, at most the car's limit; less in bends.
      reach: distance to the point along the track at standstill, m.
      per_speed: added distance per m/s, s.
    """
    bank = env.simulation.bank
    index = np.asarray(cars)

    def act(key, memory, state, params):
        del key
        view = view_of_drivers(state, cars)
        ahead = reach + per_speed * jnp.abs(state.cars.state[index, SPEED])
        where = jnp.broadcast_to(state.map_index, ahead.shape)
        point = cartesian(bank, where, state.track.arc[index] + ahead, jnp.zeros_like(ahead))
        offset = point[:, :2] - view.pose[:, :2]
        bearing = jnp.arctan2(offset[:, 1], offset[:, 0]) - view.pose[:, 2]
        gap = jnp.maximum(jnp.hypot(offset[:, 0], offset[:, 1]), 1e-3)
        wheelbase = params.car.lf + params.car.lr
        steer = jnp.arctan(2.0 * wheelbase * jnp.sin(bearing) / gap)
        steer = jnp.clip(steer, params.car.s_min, params.car.s_max)
        bend = jnp.abs(steer) / params.car.s_max
        wanted = jnp.minimum(speed, params.car.v_max) * (1.0 - 0.6 * bend)
        return memory, jnp.stack([steer, wanted], axis=-1)

    return ScriptedPolicy(tuple, act)
