"""Adversarial task: an attacker makes a defender crash without crashing itself."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import EnvSpec, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.f110 import episode_settings
from jaxmarl_echelon.envs.f110.car_environment import CarEnvironment
from jaxmarl_echelon.envs.f110.cars.simulation import (
    SPEED,
    CarSimulation,
    SpeedLock,
    clip_commands,
    poses_of,
    velocities_of,
)
from jaxmarl_echelon.envs.f110.episode_settings import ROLES
from jaxmarl_echelon.envs.f110.observing import track_position
from jaxmarl_echelon.envs.f110.observing.observe import (
    ACTION_UNITS,
    ObservationScales,
    gaplock_observation,
    gaplock_parts,
    task_features,
)
from jaxmarl_echelon.envs.f110.results import DEFENDED, OUTCOMES, RUNNING, SUCCESS, TIMEOUT, classify_outcome
from jaxmarl_echelon.envs.f110.rewards import CarRewardInputs
from jaxmarl_echelon.envs.f110.scripts import controllers
from jaxmarl_echelon.envs.f110.starts.spawns import (
    SPAWN_MARGIN,
    Spawn,
    SpawnTable,
    draw_spawn,
    nth_positive,
)
from jaxmarl_echelon.envs.f110.state import ATTACKER, DEFENDER, F110Params, F110State
from jaxmarl_echelon.envs.f110.view.viewer import F110Viewer
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.spaces import Box
from physics.mapbank import MapBank, distance_at

DEFENCE = "success/defender"
_SHARES = np.array([1.0, 0.5, 0.25, 0.125, 0.0], np.float32)
ON_TRACK = {"progress", "track_speed", "lateral_rate", "offset", "target_offset"}


class F110(CarEnvironment):
    """Adversarial environment of an attacker and a defender on a map; see `make` for the settings.

    Roles `attacker` and `defender` have one agent each, with actions `[steering angle in rad,
    speed in m/s]` and the 119 features of `observe.gaplock_observation` (for 108 beams),
    each in its own frame. The attacker receives the configured reward, the defender the negative
    of the attacker's `terminal` component. Any contact ends the episode for both. The attacker
    succeeds with a `target_crash`; the defender with the outcomes `self_crash` (of the attacker),
    `timeout`, `idle_stop` and `target_finish`. See docs/reference/f110.md 7 to 12.

    Attributes:
      spec: roles, spaces, outcomes; tasks are the spawn points.
      simulation: the cars' physics and sensing.
      maps: the maps, as loaded.
      baselines: scripts to compare a trained attacker with.
      references: scripts whose success is always reported with that of a trained attacker. On maps other
        than `line2` the defender may crash by itself; a standing attacker measures how often.
      controllers: default controllers by role.
      viewer: draws evaluations.
    """

    def __init__(
        self,
        simulation: CarSimulation,
        maps: Sequence,
        reward: Reward,
        spawns: SpawnTable,
        limits: episode_settings.F110Limits,
        params: F110Params,
        *,
        scales: ObservationScales,
        observe_time: bool,
        observe_task: bool,
        observe_target: bool,
        finish_lines: np.ndarray,
        ftg_options,
        speed_limits: Sequence[tuple[float, float]],
    ):
        super().__init__(simulation, maps, reward, limits, params, ftg_options)
        self.spawns, self.scales = spawns, scales
        self.observe_time, self.observe_target = observe_time, observe_target
        self.spawn_points_shown = len(limits.points) if observe_task else 0
        self.finish_lines = finish_lines
        self._pays_track = bool(ON_TRACK & set(reward.names))
        reach = simulation.dt * int(params.max_steps) * float(params.car.v_max)
        length = np.asarray(simulation.bank.centerline_length)
        self._laps = np.asarray(simulation.bank.closed) & (length <= reach)
        names = tuple(point.name for point in limits.points)
        self.parts = dict.fromkeys(
            ROLES, gaplock_parts(simulation.lidar.beams, scales, observe_time, self.spawn_points_shown)
        )
        self.spec = _gaplock_spec(simulation, reward, names, params, self.parts[ROLES[0]], speed_limits)
        self.baselines = ("random", "gaussian", "standing", "blocking")
        by_itself = any(grid.name != "line2" for grid in maps)
        self.references = {"attacker": ("standing",)} if by_itself else {}
        self.controllers = {"attacker": "learner", "defender": "ftg"}
        self.action_units = dict.fromkeys(ROLES, ACTION_UNITS)
        self.viewer = F110Viewer(maps, OUTCOMES, simulation, ROLES)
        self.scripts = self._make_scripts()

    readers = episode_settings.GAPLOCK
    ladder = "phased26"

    def _make_scripts(self) -> dict[str, ScriptedPolicy]:
        """Returns the scripted policies by name, for the current world."""
        return controllers.make_gaplock_scripts(self, self._ftg_options)

    @property
    def world(self) -> tuple[MapBank, SpawnTable]:
        """Map bank and table of start poses."""
        return super().world, self.spawns

    def _place_world(self, world: tuple[MapBank, SpawnTable]) -> None:
        bank, self.spawns = world
        super()._place_world(bank)

    def evaluation_params(self, params: F110Params, index: jax.Array) -> F110Params:
        """Returns the parameters of evaluation episode `index`.

        Episodes cycle through the spawn points in use and through the maps in use; every pair occurs
        once before any occurs again. Speeds are spread evenly from the lowest, at the first spawn
        point, to the highest, at the last. Starts are jittered by `params.evaluation_jitter`, so that
        no two episodes are equal; the jitter of training is not applied. See docs/reference/f110.md 8.4.
        """
        spawns, maps = (jnp.sum(weights > 0) for weights in (params.spawn_weights, params.map_weights))
        # If their numbers share a factor, pairs would repeat after the least common multiple.
        shift = jnp.where(jnp.gcd(spawns, maps) > 1, index // jnp.lcm(spawns, maps), 0)
        place = (index + shift) % spawns
        share = place / jnp.maximum(spawns - 1, 1)
        low, high = params.speed_range[0], params.speed_range[1]
        speed = low + (high - low) * share
        position, heading, faster = params.evaluation_jitter
        speeds = speed * jnp.stack([1.0 - faster, 1.0 + faster])
        return params.replace(
            spawn_weights=nth_positive(params.spawn_weights, place),
            map_weights=nth_positive(params.map_weights, index % maps),
            speed_range=jnp.clip(speeds, params.car.v_min, params.car.v_max),
            spawn_jitter=jnp.zeros_like(params.spawn_jitter),
            pose_jitter=jnp.stack([position, position, heading]),
        )

    def reset(self, key: jax.Array, params: F110Params) -> tuple[F110State, TimeStep]:
        """Starts an episode on a random map, at a random spawn point and speed."""
        spawn_key, scan_key = jax.random.split(key)
        spawn = draw_spawn(spawn_key, self.spawns, params)
        speeds = jnp.broadcast_to(spawn.speed, (2,))
        poses = self._shifted(spawn, params)
        cars = self.simulation.place(scan_key, poses, speeds, spawn.map_index, params)
        track = track_position.untracked_positions(2)
        if self._follows_track:
            track = track_position.locate_on_track(self.simulation.bank, spawn.map_index, poses[:, :2])
        state = F110State(
            cars=cars,
            map_index=spawn.map_index,
            spawn=spawn.point,
            spawn_speed=spawn.speed,
            step=jnp.int32(0),
            idle=jnp.int32(0),
            track=track,
            reward=self.reward.init(),
            outcome=jnp.int32(RUNNING),
        )
        paid = {name: jnp.float32(0.0) for name in self.reward.names}
        return state, self._time_step(state, params, paid, jnp.bool_(False), jnp.int32(0))

    def step(
        self, key: jax.Array, state: F110State, actions: dict[str, jax.Array], params: F110Params
    ) -> tuple[F110State, TimeStep]:
        """Advances one decision; actions outside the car's limits are clipped."""
        commands = clip_commands(jnp.concatenate([actions[role] for role in ROLES]), params.car)
        lock = SpeedLock(params.locked, params.lock_steps - state.step, state.spawn_speed)
        cars, trace = self.simulation.drive(
            key, state.cars, commands, state.map_index, params, jnp.ones(2, bool), lock
        )
        track, record = state.track, None
        if self._follows_track:
            record = track_position.follow_track(
                self.simulation.bank, state.map_index, state.track, trace.state[..., :2], self._window
            )
            track = jax.tree.map(lambda x: x[-1], record)
        slow = jnp.abs(cars.state[ATTACKER, SPEED]) < params.idle_speed
        idle = jnp.where(slow, state.idle + 1, 0)
        moved = state.replace(cars=cars, step=state.step + trace.steps, track=track, idle=idle)
        outcome = classify_outcome(
            trace.crashed[ATTACKER],
            trace.crashed[DEFENDER],
            self._finished(state, moved),
            (params.idle_decisions > 0) & (idle >= params.idle_decisions),
            moved.step >= params.max_steps,
        )
        cut = (outcome == TIMEOUT) & ~params.timeout_terminal
        paid_outcome = jnp.where(cut, RUNNING, outcome)
        memory, paid = self._pay(state, moved, trace, record, commands, paid_outcome, params)
        moved = moved.replace(reward=memory, outcome=outcome)
        return moved, self._time_step(moved, params, paid, cut, trace.reverted)

    def _shifted(self, spawn: Spawn, params: F110Params) -> jax.Array:
        """Returns poses `[2, 3]` with the largest share of the drawn shift that leaves both cars clear."""
        tries = spawn.poses + _SHARES[:, None, None] * spawn.shift
        clear = jax.vmap(lambda poses: self.simulation.clear(poses, spawn.map_index, params, SPAWN_MARGIN))(
            tries
        )
        return tries[jnp.argmax(clear.at[-1].set(True))]

    @property
    def _follows_track(self) -> bool:
        return self._pays_track or bool(self._laps.any())

    def _finished(self, before: F110State, after: F110State) -> jax.Array:
        """Tells whether the defender crossed its map's finish line or completed a lap of a closed track."""
        finished = jnp.bool_(False)
        if np.isfinite(self.finish_lines).any():
            start, end = jnp.asarray(self.finish_lines, jnp.float32)[after.map_index]
            old, new = before.cars.state[DEFENDER, :2], after.cars.state[DEFENDER, :2]
            across = _side(start, end, old) * _side(start, end, new) <= 0
            within = _side(old, new, start) * _side(old, new, end) <= 0
            finished |= across & within & jnp.any(old != new)
        if self._laps.any():
            length = self.simulation.bank.centerline_length[after.map_index]
            around = after.track.progress[DEFENDER] >= length
            finished |= jnp.asarray(self._laps)[after.map_index] & around
        return finished

    def _pay(self, before, after, trace, record, commands, outcome, params):
        """Computes the attacker's reward per physics step; returns the memory and the components' sums."""
        clearance = jnp.min(after.cars.scan[DEFENDER])

        def pay(memory, inputs):
            state, ran, last, crashed, place = inputs
            situation = self._situation(state, commands, after.map_index, place).replace(
                target_scan_min=clearance,
                collided=crashed,
                outcome=jnp.where(last, outcome, RUNNING),
                scan_fresh=last,
            )
            return self._pay_car(params.reward, situation, memory, ran)

        crashed = (trace.wall | trace.car)[:, ATTACKER]
        places = self._places(before, record)
        inputs = (trace.state, trace.ran, trace.last, crashed, places)
        return self._pay_steps(pay, before.reward, inputs)

    def _places(self, before, record):
        """Returns per step the cars' offsets `[R, 2]`, the attacker's progress and sideways speed `[R]`."""
        if not self._pays_track:
            still = jnp.zeros(self.simulation.repeat)
            return jnp.zeros((self.simulation.repeat, 2)), still, still
        ahead = jnp.diff(record.progress, axis=0, prepend=before.track.progress[None])[:, ATTACKER]
        sideways = jnp.diff(record.offset, axis=0, prepend=before.track.offset[None])[:, ATTACKER]
        return record.offset, ahead, sideways / self.simulation.dt

    def _situation(self, state, commands, map_index, place) -> CarRewardInputs:
        """Returns inputs of the attacker's reward for car states `[2, 7]`, without contacts and outcome."""
        offset, ahead, sideways = place
        poses, velocities = poses_of(state), velocities_of(state)
        wall = jnp.float32(0.0)
        if "target_wall" in self.reward.names:
            wall = distance_at(self.simulation.bank, map_index, poses[DEFENDER, :2])
        return CarRewardInputs(
            ego_pose=poses[ATTACKER],
            ego_velocity=velocities[ATTACKER],
            # Physics reverts steps under commands that are not numbers.
            ego_steer=jnp.nan_to_num(commands[ATTACKER, 0]),
            target_pose=poses[DEFENDER],
            target_velocity=velocities[DEFENDER],
            target_scan_min=jnp.float32(0.0),
            target_offset=offset[DEFENDER],
            target_wall_distance=wall,
            ego_progress=ahead,
            ego_offset=offset[ATTACKER],
            ego_offset_rate=sideways,
            collided=jnp.bool_(False),
            outcome=jnp.int32(RUNNING),
            dt=jnp.float32(self.simulation.dt),
            scan_fresh=jnp.bool_(False),
        )

    def _observe(self, state: F110State, params: F110Params) -> dict[str, jax.Array]:
        poses, velocities = poses_of(state.cars.state), velocities_of(state.cars.state)
        left = 1.0 - state.step / params.max_steps if self.observe_time else None
        points = self.spawn_points_shown
        task = task_features(state.spawn, points, params.ftg, self.scales) if points else None

        def see(ego, target):
            return gaplock_observation(
                state.cars.scan[ego], poses[ego], velocities[ego],
                poses[target], velocities[target], self.observe_target, self.scales, left, task,
            )  # fmt: skip

        return {"attacker": see(ATTACKER, DEFENDER)[None], "defender": see(DEFENDER, ATTACKER)[None]}

    def _time_step(self, state, params, paid, cut, reverted) -> TimeStep:
        over = state.outcome != RUNNING
        flags = {"terminated": over & ~cut, "truncated": over & cut, "alive": ~over}
        reward = {
            "attacker": sum(paid.values(), jnp.float32(0.0))[None],
            "defender": -paid.get("terminal", jnp.float32(0.0))[None],
        }
        info = {"outcome": state.outcome, "task": state.spawn, "map": state.map_index, "reverted": reverted}
        return TimeStep(
            obs=self._observe(state, params),
            reward=reward,
            **{name: {role: flag[None] for role in ROLES} for name, flag in flags.items()},
            action_mask={},
            over=over,
            info=info | {f"reward/{name}": value for name, value in paid.items()},
        )


def _gaplock_spec(simulation, reward, names, params, parts, speed_limits) -> EnvSpec:
    signed = range(parts["ego_velocity"].where.start, parts["relative_pose"].where.stop - 1)
    low = tuple(-1.0 if n in signed else 0.0 for n in range(max(one.where.stop for one in parts.values())))
    steer = float(params.car.s_min), float(params.car.s_max)
    roles = [
        Role(
            name=name,
            size=1,
            observation=Box((len(low),), low, 1.0),
            action=Box((2,), (steer[0], slowest), (steer[1], fastest)),
            score=score,
        )
        for name, score, (slowest, fastest) in zip(ROLES, (None, DEFENCE), speed_limits, strict=True)
    ]
    reported = results.standard_results(OUTCOMES, (SUCCESS,), names, reward.names)
    defended = results.Result(DEFENCE, kind="rate", source="outcome", among=DEFENDED)
    return EnvSpec(
        name="f110",
        version=3,
        roles=tuple(roles),
        decision_period=simulation.dt * simulation.repeat,
        episode_limit=math.ceil(int(params.max_steps) / simulation.repeat),
        results=(*reported, defended),
        score="success",
    )


def _side(start: jax.Array, end: jax.Array, point: jax.Array) -> jax.Array:
    """Returns a number that is positive where `point` lies left of the line from `start` to `end`."""
    along, offset = end - start, point - start
    return along[0] * offset[1] - along[1] * offset[0]
