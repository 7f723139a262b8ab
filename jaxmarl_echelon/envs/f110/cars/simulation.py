"""Simulation of cars on a map: dynamics, contact and sensing, shared by the F110 environments.

See docs/reference/f110.md 6 and 7.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from physics import boxes, lidar, single_track
from physics.lidar import Lidar
from physics.mapbank import MapBank, distance_at

X, Y, STEER, SPEED, YAW, YAW_RATE, SLIP = range(7)
WALL_CONTACTS = ("field", "scan")
_CONTACT_DISTANCE = 0.005
_CONTACT_TIME = 0.005


class Cars(struct.PyTreeNode):
    """State of N cars between two decisions.

    Attributes:
      state: `[N, 7]`, see `physics.single_track`.
      pending: `[N, D, 2]` commands in the queue of the steering delay.
      scan: `[N, B]` ranges in metres, shared by all readers: walls with noise, then other cars.
      active: `[N]` bool; the car still drives.
    """

    state: jax.Array
    pending: jax.Array
    scan: jax.Array
    active: jax.Array


class Trace(struct.PyTreeNode):
    """Record of the R physics steps of one decision.

    Attributes:
      state: `[R, N, 7]` after each physics step.
      wall: `[R, N]` bool; touched a wall in this step.
      car: `[R, N]` bool; touched another car in this step.
      ran: `[R]` bool; at least one car was still driving when the step began.
      reverted: int32, integrations undone because their result was not finite.
    """

    state: jax.Array
    wall: jax.Array
    car: jax.Array
    ran: jax.Array
    reverted: jax.Array

    @property
    def crashed(self) -> jax.Array:
        """Cars that touched anything in any step, bool `[N]`."""
        return jnp.any(self.wall | self.car, axis=0)

    @property
    def steps(self) -> jax.Array:
        """Number of physics steps that were run, int32."""
        return jnp.sum(self.ran, dtype=jnp.int32)

    @property
    def last(self) -> jax.Array:
        """Mask `[R]` of the last step that was run."""
        return self.ran & (jnp.arange(self.ran.shape[0]) == self.steps - 1)


class SpeedLock(struct.PyTreeNode):
    """Lock of the speed of some cars: `cars` [N] bool, for `steps` more physics steps, at `speed` m/s."""

    cars: jax.Array
    steps: jax.Array
    speed: jax.Array


@dataclass(frozen=True, eq=False)
class CarSimulation:
    """Static choices of the simulation; parameters are arguments of each call.

    `params` below is any pytree with `car` (CarParams), `gains` (ControlGains) and
    `lidar_noise` (standard deviation of a range, m).

    Attributes:
      bank: maps.
      lidar: sensor.
      cars: number of cars N.
      dt: physics step in seconds.
      repeat: physics steps per decision.
      integrator: "rk4" or "euler".
      delay: physics steps between a steering command and its effect.
      wall_contact: "field" tests the car's box against the distance field; "scan" tests the
        noisy ranges against the car's outline, and takes a scan in every physics step.
      shared_fate: whether one crash stops all cars.
      outline: pieces into which a car's long and wide sides are sampled, see `boxes.boundary_intervals`.
    """

    bank: MapBank
    lidar: Lidar
    cars: int
    dt: float
    repeat: int
    integrator: str = "rk4"
    delay: int = 1
    wall_contact: str = "field"
    shared_fate: bool = True
    outline: tuple[int, int] = (7, 5)

    def place(self, key, poses, speeds, map_index, params) -> Cars:
        """Places cars at `poses [N, 3]` with `speeds [N]` and takes their first scan."""
        still = jnp.zeros(self.cars)
        state = jnp.stack([poses[:, 0], poses[:, 1], still, speeds, poses[:, 2], still, still], axis=-1)
        active = jnp.ones(self.cars, bool)
        scan = self._see_cars(self._see_walls(key, state, map_index, params), state, active, params)
        return Cars(state, jnp.zeros((self.cars, self.delay, 2)), scan, active)

    def clear(self, poses, map_index, params, margin: float):
        """Tells whether cars at `poses [N, 3]` are a cell and `margin` m off walls, and do not overlap."""
        off = self._room(poses, map_index, params) > self.bank.resolution[map_index] + margin
        return jnp.all(off & ~self._touch_cars(poses, jnp.ones(self.cars, bool), params))

    def drive(self, key, cars: Cars, commands, map_index, params, parked, lock=None):
        """Runs one decision: `repeat` physics steps under `commands [N, 2]`, then a scan.

        Args:
          key: random key of the range noise.
          cars: the cars before the decision.
          commands: `[N, 2]` steering angle (rad) and speed (m/s), within the car's limits.
          map_index: int32, the map.
          params: parameters.
          parked: `[N]` bool; the car remains as an obstacle, visible to scans, once it no longer drives.
          lock: SpeedLock or None.

        Returns:
          The Cars afterwards and the Trace. A car that touches a wall is put back to its pose of one
          physics step earlier, at rest; a car that crashed no longer drives. Without `shared_fate` a
          car that touches another one also comes to rest.
        """
        keys = jax.random.split(key, self.repeat)

        def tick(cars, inputs):
            index, tick_key = inputs
            cars, record = self._tick(tick_key, cars, commands, map_index, params, parked)
            if lock is not None:
                held = lock.cars & (index < lock.steps) & cars.active
                locked = single_track.set_speed(cars.state, lock.speed, params.car)
                cars = cars.replace(state=jnp.where(held[:, None], locked, cars.state))
            return cars, (cars.state, *record)

        steps = jnp.arange(self.repeat), keys
        cars, (state, wall, car, ran, reverted) = jax.lax.scan(tick, cars, steps)
        ranges = cars.scan
        if self.wall_contact == "field":
            ranges = self._see_walls(keys[-1], cars.state, map_index, params)
        scan = self._see_cars(ranges, cars.state, cars.active | parked, params)
        return cars.replace(scan=scan), Trace(state, wall, car, ran, jnp.sum(reverted, dtype=jnp.int32))

    def _tick(self, key, cars, commands, map_index, params, parked):
        """Runs one physics step; returns the cars and the step's entries of a Trace."""
        pending, applied = single_track.push_command(cars.pending, commands)
        moved, reverted = single_track.advance_car(
            cars.state, applied, params.car, params.gains, self.dt, self.integrator
        )
        state = jnp.where(cars.active[:, None], moved, cars.state)
        scan, wall = self._touch_walls(key, state, cars.scan, map_index, params)
        wall &= cars.active
        state = jnp.where(wall[:, None], _standing(cars.state), state)
        touched = self._touch_cars(poses_of(state), cars.active | parked, params) & cars.active
        if not self.shared_fate:
            # Other cars drive on and see the wreck, which is at rest.
            state = jnp.where(touched[:, None], _standing(state), state)

        active = cars.active & ~(wall | touched)
        if self.shared_fate:
            active &= jnp.all(active == cars.active)
        ran = jnp.any(cars.active)
        return Cars(state, pending, scan, active), (wall, touched, ran, jnp.sum(reverted & cars.active))

    def _touch_walls(self, key, state, scan, map_index, params):
        """Returns ranges (new ones if contact is tested by scans, else the given ones) and contact `[N]`."""
        if self.wall_contact == "scan":
            scan = self._see_walls(key, state, map_index, params)
            return scan, self._near_outline(scan, state, params.car)
        return scan, self._room(poses_of(state), map_index, params) <= 0

    def _room(self, poses, map_index, params):
        """Returns the distances `[N]` from the cars' outlines to the nearest wall, m."""
        size = jnp.stack([params.car.length, params.car.width])

        def gap(pose):
            return boxes.box_clearance(
                pose, size, lambda xy: distance_at(self.bank, map_index, xy), self.outline
            )

        return jax.vmap(gap)(poses)

    def _near_outline(self, scan, state, car):
        """Tells whether a range ends within 5 mm, or 5 ms at the current speed, of a car's outline."""
        angles = jnp.asarray(self.lidar.angles, scan.dtype)
        gap = scan - boxes.side_distances(angles, (car.lf + car.lr) / 2, car.width / 2)
        closing = state[:, SPEED, None] * jnp.cos(angles)
        return jnp.any((gap < _CONTACT_DISTANCE) | (gap < _CONTACT_TIME * closing), axis=-1)

    def _touch_cars(self, poses, present, params):
        """Marks the cars at `poses [N, 3]` that overlap another one."""
        first, second = np.triu_indices(self.cars, k=1)
        if first.size == 0:
            return jnp.zeros(self.cars, bool)
        size = jnp.stack([params.car.length, params.car.width])
        hit = jax.vmap(boxes.boxes_overlap, in_axes=(0, None, 0, None))(
            poses[first], size, poses[second], size
        )
        hit &= present[first] & present[second]
        belongs = (first[:, None] == np.arange(self.cars)) | (second[:, None] == np.arange(self.cars))
        return jnp.any(hit[:, None] & belongs, axis=0)

    def _see_walls(self, key, state, map_index, params):
        """Returns noisy ranges `[N, B]` to the walls."""
        ranges = lidar.scan_walls(self.bank, map_index, poses_of(state), self.lidar)
        return lidar.add_range_noise(key, ranges, self.lidar, params.lidar_noise)

    def _see_cars(self, ranges, state, present, params):
        """Returns ranges `[N, B]` shortened by the boxes of the other cars."""
        if self.cars == 1:
            return ranges
        others = np.array([[j for j in range(self.cars) if j != i] for i in range(self.cars)])
        poses = poses_of(state)
        size = jnp.stack([params.car.length, params.car.width])
        sizes = jnp.broadcast_to(size, (self.cars - 1, 2))

        def one(row, pose, index):
            return lidar.add_opponent_boxes(row, pose, poses[index], sizes, present[index], self.lidar)

        return jax.vmap(one)(ranges, poses, others)


def _standing(state: jax.Array) -> jax.Array:
    """Returns car states `[N, 7]` with zero speed and yaw rate."""
    return state.at[:, SPEED].set(0.0).at[:, YAW_RATE].set(0.0)


def clip_commands(commands: jax.Array, car) -> jax.Array:
    """Clips commands `[N, 2]`, steering angle (rad) and speed (m/s), to the limits of the CarParams `car`."""
    return jnp.stack(
        [jnp.clip(commands[:, 0], car.s_min, car.s_max), jnp.clip(commands[:, 1], car.v_min, car.v_max)],
        axis=-1,
    )


def poses_of(state: jax.Array) -> jax.Array:
    """Returns the poses `[..., 3]` of car states `[..., 7]`."""
    return jnp.stack([state[..., X], state[..., Y], state[..., YAW]], axis=-1)


def velocities_of(state: jax.Array) -> jax.Array:
    """Returns forward and sideways speed (m/s) and yaw rate (rad/s), `[..., 3]`, in the body frame."""
    return jnp.stack(
        [state[..., SPEED], state[..., SPEED] * jnp.sin(state[..., SLIP]), state[..., YAW_RATE]], axis=-1
    )
