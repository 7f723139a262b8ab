"""Racing task: any number of cars drive a closed track as far as they can."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import EnvSpec, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.f110 import episode_settings
from jaxmarl_echelon.envs.f110.car_environment import CarEnvironment
from jaxmarl_echelon.envs.f110.cars.simulation import CarSimulation, clip_commands, poses_of, velocities_of
from jaxmarl_echelon.envs.f110.observing import track_position
from jaxmarl_echelon.envs.f110.observing.observe import (
    ACTION_UNITS,
    RacingScales,
    racing_layout,
    racing_observation,
    racing_parts,
)
from jaxmarl_echelon.envs.f110.results import RUNNING, SELF_CRASH
from jaxmarl_echelon.envs.f110.rewards import CarRewardInputs
from jaxmarl_echelon.envs.f110.scripts import controllers
from jaxmarl_echelon.envs.f110.starts.spawns import nth_positive
from jaxmarl_echelon.envs.f110.state import RaceParams, RaceState
from jaxmarl_echelon.envs.f110.view.viewer import F110Viewer
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.spaces import Box
from physics.frenet import cartesian

RACE_OUTCOMES = ("finished", "crashed", "timeout")
FINISHED, CRASHED, TIMEOUT = range(len(RACE_OUTCOMES))
_GRID_MARGIN = 0.15


class F110Race(CarEnvironment):
    """Racing environment of N cars on a closed track; see `make` for the settings.

    The role `car` has N agents with actions `[steering angle in rad, speed in m/s]` and the
    features of `observe.racing_observation`. A car that touches a wall or another car is
    out; a car that has driven the target laps has finished and leaves the track. The episode is
    over when no car drives any more or the time limit is reached. Its outcome is `timeout` if a
    car was still driving, else `finished` if a car finished, else `crashed`.

    Episodes also report `progress` (metres since the start) per car, `laps` (completed by the leading
    car, at least 0) and `collisions` (cars that crashed). See docs/reference/f110.md 14.

    Attributes:
      spec: roles, spaces, outcomes; tasks are the maps.
      simulation: the cars' physics and sensing.
      maps: the maps, as loaded.
      baselines: scripts to compare trained drivers with.
      controllers: default controllers by role.
      viewer: draws evaluations.
    """

    def __init__(
        self,
        simulation: CarSimulation,
        maps: Sequence,
        reward: Reward,
        limits: episode_settings.F110Limits,
        params: RaceParams,
        *,
        scales: RacingScales,
        lookahead: Sequence[float],
        neighbours: int,
        ftg_options,
        speed_limits: tuple[float, float],
    ):
        super().__init__(simulation, maps, reward, limits, params, ftg_options)
        self.scales, self.lookahead, self.neighbours = scales, tuple(lookahead), neighbours
        self.spec = _race_spec(simulation, reward, params, self.lookahead, neighbours, speed_limits)
        self.scripts = self._make_scripts()
        self.baselines = tuple(self.scripts)
        self.controllers = {"car": "learner"}
        self.action_units = {"car": ACTION_UNITS}
        self.parts = {"car": racing_parts(simulation.lidar.beams, scales, len(self.lookahead), neighbours)}
        self.viewer = F110Viewer(maps, RACE_OUTCOMES, simulation)

    readers = episode_settings.RACE

    def _make_scripts(self) -> dict[str, ScriptedPolicy]:
        """Returns the scripted policies by name, for the current world."""
        return controllers.make_race_scripts(self, self._ftg_options)

    def evaluation_params(self, params: RaceParams, index: jax.Array) -> RaceParams:
        """Returns the parameters of evaluation episode `index`, which cycles through the maps in use."""
        place = index % jnp.sum(params.map_weights > 0)
        return params.replace(map_weights=nth_positive(params.map_weights, place))

    def reset(self, key: jax.Array, params: RaceParams) -> tuple[RaceState, TimeStep]:
        """Places the starting grid at a random position of a random track, in random order."""
        map_key, grid_key, speed_key, scan_key = jax.random.split(key, 4)
        map_index = jax.random.categorical(map_key, jnp.log(params.map_weights)).astype(jnp.int32)
        poses = self._grid(grid_key, map_index, params)
        low, high = params.speed_range[0], params.speed_range[1]
        speed = low + (high - low) * jax.random.uniform(speed_key)
        cars = self.simulation.cars
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (cars, *x.shape)), self.reward.init())
        state = RaceState(
            cars=self.simulation.place(scan_key, poses, jnp.full(cars, speed), map_index, params),
            map_index=map_index,
            step=jnp.int32(0),
            track=self._locate(map_index, poses),
            reward=memory,
            outcome=jnp.full(cars, RUNNING, jnp.int32),
        )
        paid = {name: jnp.zeros(cars) for name in self.reward.names}
        return state, self._time_step(state, params, paid, jnp.zeros(cars, bool), jnp.int32(0))

    def step(
        self, key: jax.Array, state: RaceState, actions: dict[str, jax.Array], params: RaceParams
    ) -> tuple[RaceState, TimeStep]:
        """Advances one decision; actions outside the car's limits are clipped."""
        commands = clip_commands(actions["car"], params.car)
        driving = state.cars.active
        parked = params.obstacles & (state.outcome != FINISHED)
        cars, trace = self.simulation.drive(key, state.cars, commands, state.map_index, params, parked)
        record = track_position.follow_track(
            self.simulation.bank, state.map_index, state.track, trace.state[..., :2], self._window
        )
        track = jax.tree.map(lambda x: x[-1], record)
        length = self.simulation.bank.centerline_length[state.map_index]
        home = (params.target_laps > 0) & (track.progress >= params.target_laps * length)
        finished = driving & home & ~trace.crashed
        outcome = jnp.where(driving & trace.crashed, CRASHED, jnp.where(finished, FINISHED, state.outcome))
        memory, paid = self._pay(state, trace, record, commands, params)
        moved = state.replace(
            cars=cars.replace(active=cars.active & ~finished),
            step=state.step + self.simulation.repeat,
            track=track,
            reward=memory,
            outcome=outcome.astype(jnp.int32),
        )
        return moved, self._time_step(moved, params, paid, driving, trace.reverted)

    def _grid(self, key, map_index, params) -> jax.Array:
        """Returns poses `[N, 3]` of a starting grid, alternately left and right of the centreline."""
        bank, cars = self.simulation.bank, self.simulation.cars
        place_key, order_key = jax.random.split(key)
        slot = jax.random.permutation(order_key, cars)
        first = bank.centerline_length[map_index] * jax.random.uniform(place_key)
        where = jnp.broadcast_to(map_index, (cars,))
        arc = first - params.grid_gap * slot
        middle = cartesian(bank, where, arc, jnp.zeros(cars))
        index = self._locate(map_index, middle).index
        room = bank.half_width[where, index] - params.car.width / 2 - _GRID_MARGIN
        side = params.grid_offset * jnp.where(slot % 2 == 0, 1.0, -1.0) * (cars > 1)
        side = jnp.clip(side, -jnp.maximum(room[:, 1], 0.0), jnp.maximum(room[:, 0], 0.0))
        return cartesian(bank, where, arc, side)

    def _locate(self, map_index, poses) -> track_position.TrackPosition:
        where = jnp.broadcast_to(map_index, poses.shape[:1])
        return track_position.locate_on_track(self.simulation.bank, where, poses[:, :2])

    def _pay(self, before, trace, record, commands, params):
        """Computes the cars' rewards of the steps that they drove; returns memories and components `[N]`."""
        crashed = trace.wall | trace.car
        out = jnp.cumsum(crashed, axis=0) - crashed > 0
        drove = before.cars.active & ~out
        ahead = jnp.diff(record.progress, axis=0, prepend=before.track.progress[None])
        sideways = jnp.diff(record.offset, axis=0, prepend=before.track.offset[None]) / self.simulation.dt

        def pay_one(weights, memory, state, steer, ahead, offset, sideways, crashed, drove):
            situation = self._situation(state, steer, ahead, offset, sideways, crashed)
            return self._pay_car(weights, situation, memory, drove)

        def pay(memory, inputs):
            state, *rest = inputs
            return jax.vmap(pay_one, (None, 0, 0, 0, 0, 0, 0, 0, 0))(
                params.reward, memory, state, commands[:, 0], *rest
            )

        inputs = (trace.state, ahead, record.offset, sideways, crashed, drove)
        return self._pay_steps(pay, before.reward, inputs)

    def _situation(self, state, steer, ahead, offset, sideways, crashed) -> CarRewardInputs:
        """Returns the inputs of a car's reward, without a target; the only outcome is the car's own crash."""
        zero, nothing = jnp.float32(0.0), jnp.zeros(3)
        return CarRewardInputs(
            ego_pose=poses_of(state),
            ego_velocity=velocities_of(state),
            # Physics reverts steps under commands that are not numbers.
            ego_steer=jnp.nan_to_num(steer),
            target_pose=nothing,
            target_velocity=nothing,
            target_scan_min=zero,
            target_offset=zero,
            target_wall_distance=zero,
            ego_progress=ahead,
            ego_offset=offset,
            ego_offset_rate=sideways,
            collided=crashed,
            outcome=jnp.where(crashed, SELF_CRASH, RUNNING),
            dt=jnp.float32(self.simulation.dt),
            scan_fresh=jnp.bool_(False),
        )

    def _observe(self, state: RaceState, params: RaceParams) -> jax.Array:
        """Returns the cars' observations `[N, F]`."""
        cars, bank = self.simulation.cars, self.simulation.bank
        poses, velocities = poses_of(state.cars.state), velocities_of(state.cars.state)
        arcs = state.track.arc[:, None] + jnp.asarray(self.lookahead, jnp.float32)
        points = cartesian(bank, jnp.full(arcs.shape, state.map_index), arcs, jnp.zeros_like(arcs))[..., :2]
        others = np.array([[j for j in range(cars) if j != i] for i in range(cars)], int).reshape(cars, -1)
        present = state.cars.active | (params.obstacles & (state.outcome == CRASHED))

        def see(scan, pose, velocity, steer, offset, error, points, others):
            return racing_observation(
                scan, pose, velocity, steer, offset, error, points,
                poses[others], velocities[others], present[others], self.scales, self.neighbours,
            )  # fmt: skip

        steer = state.cars.state[:, 2]
        error = poses[:, 2] - state.track.heading
        return jax.vmap(see)(
            state.cars.scan, poses, velocities, steer, state.track.offset, error, points, others
        )

    def _time_step(self, state, params, paid, drove, reverted) -> TimeStep:
        driving = state.cars.active
        late = state.step >= params.max_steps
        over = late | ~jnp.any(driving)
        finished = jnp.where(jnp.any(state.outcome == FINISHED), FINISHED, CRASHED)
        outcome = jnp.where(jnp.any(driving), TIMEOUT, finished)
        length = self.simulation.bank.centerline_length[state.map_index]
        info = {
            "outcome": jnp.where(over, outcome, RUNNING).astype(jnp.int32),
            "task": state.map_index,
            "reverted": reverted,
            "progress": state.track.progress,
            "laps": jnp.floor(jnp.maximum(jnp.max(state.track.progress), 0.0) / length),
            "collisions": jnp.sum(state.outcome == CRASHED, dtype=jnp.int32),
        }
        info |= {f"reward/{name}": jnp.mean(value) for name, value in paid.items()}
        return TimeStep(
            obs={"car": self._observe(state, params)},
            reward={"car": sum(paid.values(), jnp.zeros(self.simulation.cars))},
            terminated={"car": drove & ~driving},
            truncated={"car": driving & late},
            alive={"car": driving & ~late},
            action_mask={},
            over=over,
            info=info,
        )


def _race_spec(simulation, reward, params, lookahead, neighbours, speed_limits) -> EnvSpec:
    parts = racing_layout(simulation.lidar.beams, len(lookahead), neighbours)
    size = max(part.stop for part in parts.values())
    beams = simulation.lidar.beams
    role = Role(
        name="car",
        size=simulation.cars,
        observation=Box((size,), (0.0,) * beams + (-1.0,) * (size - beams), 1.0),
        action=Box(
            (2,),
            (float(params.car.s_min), speed_limits[0]),
            (float(params.car.s_max), speed_limits[1]),
        ),
    )
    finishing = RACE_OUTCOMES[FINISHED : FINISHED + 1] if int(params.target_laps) > 0 else ()
    reported = results.standard_results(RACE_OUTCOMES, finishing, simulation.bank.names, reward.names)
    return EnvSpec(
        name="f110_race",
        version=2,
        roles=(role,),
        decision_period=simulation.dt * simulation.repeat,
        episode_limit=math.ceil(int(params.max_steps) / simulation.repeat),
        results=(*reported, Result("progress", role="car"), Result("laps"), Result("collisions")),
        score="success" if finishing else None,
    )
