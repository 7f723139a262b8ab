"""Consequences of goals and infractions: ends, respawns and new goals.

Reference: docs/reference/drive.md 8.3 to 8.6.
"""

import jax
import jax.numpy as jnp

from algos.masks import select_rows
from jaxmarl_echelon.envs.drive import conditioning, goals
from jaxmarl_echelon.envs.drive.measures import ride
from jaxmarl_echelon.envs.drive.state import REMOVE, RESPAWN, STOP, DriveParams, DriveState
from jaxmarl_echelon.envs.drive.traffic.simulation import TrafficSimulation
from physics.bicycle import Motion


def distance_to_points(motion: Motion, point: jax.Array) -> jax.Array:
    """Distances from bodies, leaves `[A]`, to points `[A, 2]`, m."""
    return jnp.hypot(point[:, 0] - motion.x, point[:, 1] - motion.y)


def select_goal_radius(state: DriveState, params: DriveParams) -> jax.Array:
    """Goal radii, `[A]` if they are conditioned, else a scalar, m."""
    return state.drawn.get(conditioning.GOAL_RADIUS, params.goal_radius)


def end_trajectories(
    state: DriveState, reached: jax.Array, params: DriveParams
) -> tuple[DriveState, jax.Array]:
    """Ends the trajectories of learners whose goal or infraction stops or removes them.

    Args:
      state: with the conditions of the new poses.
      reached: `[A]` bool; a goal in this step.
      params: of the episode.

    Returns:
      the state, and `[A]` bool, learners whose trajectory ended.
    """
    causes = (
        (reached, params.goal_behavior),
        (state.condition.colliding, params.collision_behavior),
        (state.condition.offroad, params.offroad_behavior),
    )
    stopped, removed = (
        state.alive & jnp.any(jnp.stack([cause & (what == code) for cause, what in causes]), axis=0)
        for code in (STOP, REMOVE)
    )
    over = stopped | removed
    agents, speed = over.shape[0], state.motion.speed
    speed = speed.at[:agents].set(jnp.where(over, 0.0, speed[:agents]))
    present = state.present.at[:agents].set(state.present[:agents] & ~removed)
    motion = state.motion._replace(speed=speed)
    return state.replace(motion=motion, present=present, alive=state.alive & ~over), over


def respawn_or_new_goal(
    key: jax.Array,
    simulation: TrafficSimulation,
    state: DriveState,
    reached: jax.Array,
    ended: jax.Array,
    params: DriveParams,
    new_goals: bool,
) -> DriveState:
    """Returns learners that reached a goal to their start, or gives them a new goal.

    Learners whose trajectory ends at a goal, by a contact, get a new goal as well: the old one has been
    counted, and must not count as a second attempt.

    Args:
      key: typed key.
      simulation: moves bodies and holds the scene bank.
      state: after the step.
      reached: `[A]` bool; reached a goal in this step.
      ended: `[A]` bool; the trajectory ended in this step.
      params: of the episode.
      new_goals: whether learners may get new goals; static.
    """
    back = reached & ~ended & (params.goal_behavior == RESPAWN)
    agents, start = simulation.agents, state.start

    def put_back(new, old):
        return select_rows(back, new, old)

    own = put_back(start.motion, simulation.learners(state.motion))
    motion = jax.tree.map(lambda all_of, new: all_of.at[:agents].set(new), state.motion, own)
    arc = put_back(start.arc, state.traffic.arc[:agents])
    fresh = start.condition.replace(colliding=jnp.zeros_like(back))
    state = state.replace(
        motion=motion,
        memory=put_back(simulation.dynamics.start(start.motion), state.memory),
        ghost=state.ghost | back,
        age=jnp.where(back, 0, state.age),
        condition=put_back(fresh, state.condition),
        traffic=state.traffic.replace(
            arc=state.traffic.arc.at[:agents].set(arc),
            served=state.traffic.served.at[:agents].set(state.traffic.served[:agents] & ~back),
        ),
        ride=put_back(ride.start_ride(start.motion), state.ride),
    )
    return _with_new_goals(key, simulation, state, reached, params) if new_goals else state


def _with_new_goals(key, simulation: TrafficSimulation, state: DriveState, reached, params) -> DriveState:
    key_distance, key_way = jax.random.split(key)
    own, (low, high) = simulation.learners(state.motion), params.goal_distance
    ahead = jax.random.uniform(key_distance, reached.shape, minval=low, maxval=high)
    radius, lane = select_goal_radius(state, params), state.condition.lane
    goal = goals.draw_new_goals(key_way, simulation.bank, state.scene, own, lane, radius, ahead)
    return state.replace(
        goal=jnp.where(reached[:, None], goal, state.goal),
        goal_step=jnp.where(reached, state.step, state.goal_step),
        goal_distance=jnp.where(reached, distance_to_points(own, goal), state.goal_distance),
    )
