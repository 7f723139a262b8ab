"""State and parameters of the F110 environments."""

import jax
from flax import struct

from jaxmarl_echelon.envs.f110.cars.simulation import Cars
from jaxmarl_echelon.envs.f110.gap_parameters import FTGParams
from jaxmarl_echelon.envs.f110.observing.track_position import TrackPosition
from jaxmarl_echelon.envs.f110.rewards import CarRewardMemory
from physics.single_track import CarParams, ControlGains

ATTACKER, DEFENDER = 0, 1


class F110Params(struct.PyTreeNode):
    """Parameters of the adversarial task, which may change between episodes without recompiling.

    Attributes:
      car: physical parameters, the same for both cars.
      gains: gains of the low-level control.
      ftg: gains of the follow-the-gap driver.
      reward: weights of the reward.
      spawn_weights: `[S]`, relative frequency of each spawn point; need not sum to 1.
      spawn_jitter: `[3]`, largest random shift of the attacker: m along x, m along y, rad.
      pose_jitter: `[3]`, largest random shift of each car, reduced where room is short: m along x, m
        along y, rad. Evaluation episodes use `evaluation_jitter` instead.
      evaluation_jitter: `[3]`, largest random shifts of evaluation episodes: m along x and along y, rad,
        and a share of the spawn speed.
      speed_range: `[2]`, both cars start at one speed drawn from this range, m/s.
      lock_steps: int32, physics steps during which `locked` cars keep their spawn speed.
      locked: `[2]` bool, attacker and defender.
      map_weights: `[M]`, relative frequency of each map.
      lidar_noise: standard deviation of a range, m.
      max_steps: int32, time limit in physics steps, at most the environment's.
      timeout_terminal: bool; the time limit is an outcome with a reward. Otherwise it truncates the
        episode: it has no reward and values are bootstrapped.
      idle_speed: attackers slower than this (m/s) are idle.
      idle_decisions: int32, consecutive idle decisions that end an episode; 0 for no limit.
    """

    car: CarParams
    gains: ControlGains
    ftg: FTGParams
    reward: dict[str, dict[str, jax.Array]]
    spawn_weights: jax.Array
    spawn_jitter: jax.Array
    pose_jitter: jax.Array
    evaluation_jitter: jax.Array
    speed_range: jax.Array
    lock_steps: jax.Array
    locked: jax.Array
    map_weights: jax.Array
    lidar_noise: jax.Array
    max_steps: jax.Array
    timeout_terminal: jax.Array
    idle_speed: jax.Array
    idle_decisions: jax.Array


class F110State(struct.PyTreeNode):
    """State of one adversarial episode.

    Attributes:
      cars: attacker (0) and defender (1).
      map_index: int32.
      spawn: int32, spawn point.
      spawn_speed: m/s.
      step: int32, physics steps since the start.
      idle: int32, consecutive decisions in which the attacker was idle.
      track: the cars' positions along the centreline; zeros if neither rewards nor laps need them.
      reward: the reward's memory.
      outcome: int32, `results.RUNNING` or the outcome's code.
    """

    cars: Cars
    map_index: jax.Array
    spawn: jax.Array
    spawn_speed: jax.Array
    step: jax.Array
    idle: jax.Array
    track: TrackPosition
    reward: CarRewardMemory
    outcome: jax.Array


class RaceParams(struct.PyTreeNode):
    """Parameters of races, which may change between episodes without recompiling.

    Attributes:
      car: physical parameters, the same for all cars.
      gains: gains of the low-level control.
      ftg: gains of the follow-the-gap driver.
      reward: weights of the reward.
      map_weights: `[M]`, relative frequency of each map.
      lidar_noise: standard deviation of a range, m.
      speed_range: `[2]`, all cars start at one speed drawn from this range, m/s.
      grid_gap: metres along the track between neighbours on the starting grid.
      grid_offset: metres to the side, alternately left and right.
      max_steps: int32, time limit in physics steps, at most the environment's.
      target_laps: laps after which a car has finished; 0 for none.
      obstacles: bool; a crashed car remains as an obstacle. Otherwise it is removed.
    """

    car: CarParams
    gains: ControlGains
    ftg: FTGParams
    reward: dict[str, dict[str, jax.Array]]
    map_weights: jax.Array
    lidar_noise: jax.Array
    speed_range: jax.Array
    grid_gap: jax.Array
    grid_offset: jax.Array
    max_steps: jax.Array
    target_laps: jax.Array
    obstacles: jax.Array


class RaceState(struct.PyTreeNode):
    """State of one race of N cars.

    Attributes:
      cars: the cars.
      map_index: int32.
      step: int32, physics steps since the start.
      track: the cars' positions along the centreline.
      reward: the rewards' memories, `[N]`.
      outcome: `[N]` int32, `results.RUNNING` or the code of each car's outcome.
    """

    cars: Cars
    map_index: jax.Array
    step: jax.Array
    track: TrackPosition
    reward: CarRewardMemory
    outcome: jax.Array
