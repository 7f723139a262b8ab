"""Goal-directed driving: many learners in scenes of roads and traffic. Reference: docs/reference/drive.md."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.drive import conditioning, rules
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.measures import ride as ride_lib
from jaxmarl_echelon.envs.drive.measures.record import (
    StepOutcome,
    start_learner_record,
    update_learner_record,
)
from jaxmarl_echelon.envs.drive.measures.rollouts import DriveComparison
from jaxmarl_echelon.envs.drive.observing.layout import ObservationConfig
from jaxmarl_echelon.envs.drive.observing.observe import observe_learners
from jaxmarl_echelon.envs.drive.results import (
    ATTEMPT_SPEED,
    SCORE,
    declare_drive_results,
    report_drive_results,
)
from jaxmarl_echelon.envs.drive.rewards import DriveRewardInputs
from jaxmarl_echelon.envs.drive.scripts import baselines
from jaxmarl_echelon.envs.drive.state import (
    DT,
    NEW_GOAL,
    VEHICLE_ROLE,
    DriveParams,
    DriveState,
    RoadCondition,
)
from jaxmarl_echelon.envs.drive.traffic import scripted_bodies, signals
from jaxmarl_echelon.envs.drive.traffic.simulation import TrafficSimulation
from jaxmarl_echelon.envs.drive.view.viewer import DriveViewer
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.spaces import Box
from physics.bicycle import Motion


class Drive(Environment):
    """Multi-agent driving to individual goals among other traffic; `make.make` lists the settings.

    The only role is `vehicle` with A slots per scene, of which a scene may fill fewer. By default a learner
    that reaches its goal returns to its start as a ghost, which does not interact with other bodies, and its
    trajectory continues.

    Attributes:
      spec: roles, spaces and results; tasks are the kinds of scenes.
      simulation: moves bodies and holds the scene bank.
      view: layout of the observations.
      reward: reward function.
      blocks: structure of the observations, per role.
      baselines: names of the scripted policies to compare a learner with.
      controllers: default controller of each role.
      viewer: draws evaluations.
      comparison: compares rollouts with recordings, as in the Waymo sim agents challenge.
    """

    def __init__(
        self,
        simulation: TrafficSimulation,
        view: ObservationConfig,
        reward: Reward,
        params: DriveParams,
        *,
        steps: int,
        held_out: tuple[int, int],
        kinds: tuple[str, ...],
        ends_early: bool = True,
        change=None,
        lines: tuple[str, ...] = (),
    ):
        """Assembles the environment from its parts.

        Args:
          simulation: moves bodies and holds the scene bank.
          view: layout of the observations.
          reward: reward function.
          params: default parameters.
          steps: decisions of an episode.
          held_out: index of the first evaluation scene in the bank, and the number of evaluation scenes.
          kinds: names of the kinds of scenes.
          ends_early: whether episodes may end before the last decision.
          change: `(params, settings) -> params`, for curricula.
          lines: description of the scenes: a summary, then lines about skipped files and bodies and
            unreachable goals.
        """
        self.simulation, self.view, self.reward, self.steps = simulation, view, reward, steps
        self._params, self._held_out, self._change, self._lines = params, held_out, change, lines
        self._ends_early = ends_early
        self._new_goals = int(params.goal_behavior) == NEW_GOAL
        role = Role(
            VEHICLE_ROLE,
            simulation.agents,
            Box((view.size,), -np.inf, np.inf),
            simulation.actions.space,
        )
        self.spec = EnvSpec(
            name="drive",
            version=1,
            roles=(role,),
            decision_period=DT,
            episode_limit=steps,
            results=declare_drive_results(kinds, reward.names, self._new_goals),
            score=SCORE,
        )
        self.blocks = {VEHICLE_ROLE: view.blocks}
        self.scripts = baselines.make_drive_scripts(simulation.actions, role)
        self.baselines = baselines.BASELINES
        self.controllers = {VEHICLE_ROLE: "learner"}
        self.viewer = DriveViewer(simulation.bank, view, steps, kinds)
        self.comparison = DriveComparison(simulation.bank, held_out)

    @property
    def bank(self) -> SceneBank:
        """The scene bank."""
        return self.simulation.bank

    @property
    def world(self) -> SceneBank:
        """The scene bank, as the constant argument of compiled programs."""
        return self.bank

    def _place_world(self, world: SceneBank) -> None:
        self.simulation = dataclasses.replace(self.simulation, bank=world)

    def default_params(self) -> DriveParams:
        """Returns the parameters given by the configuration."""
        return self._params

    def task_params(self, settings: Mapping) -> DriveParams:
        """Returns the default parameters with some settings changed; see `settings.change_drive_params`."""
        return super().task_params(settings) if self._change is None else self._change(self._params, settings)

    def evaluation_params(self, params: DriveParams, index: jax.Array) -> DriveParams:
        """Returns the parameters of evaluation episode `index`, which cycles through the held-out scenes."""
        first, count = self._held_out
        scene = jnp.asarray(first + index % count, jnp.int32)
        return params.replace(first_scene=scene, scenes=jnp.ones_like(scene))

    def describe(self) -> tuple[str, ...]:
        """Returns a one-line summary of the scenes."""
        return self._lines[:1]

    def left_out(self) -> tuple[str, ...]:
        """Returns lines about skipped files and bodies, and about goals out of reach."""
        return self._lines[1:]

    def reset(self, key: jax.Array, params: DriveParams) -> tuple[DriveState, TimeStep]:
        """Starts an episode in a randomly drawn scene."""
        key_scene, key_weights = jax.random.split(key)
        scene = params.first_scene + jax.random.randint(key_scene, (), 0, params.scenes)
        agents, bank = self.simulation.agents, self.bank
        motion, present, traffic, start = self.simulation.start(scene)
        alive = bank.learner[scene]
        own, goal = self.simulation.learners(motion), bank.goal[scene, :agents]
        none = jnp.zeros(agents, jnp.int32)
        state = DriveState(
            scene=scene,
            step=jnp.int32(0),
            motion=motion,
            present=present,
            memory=self.simulation.dynamics.start(own),
            alive=alive,
            ghost=jnp.zeros(agents, bool),
            age=none,
            goal=goal,
            goal_step=none,
            goal_distance=rules.distance_to_points(own, goal),
            condition=_masked(start.condition, alive),
            start=start,
            traffic=traffic,
            ride=ride_lib.start_ride(own),
            paid=self.reward.init(),
            earned={name: jnp.zeros(agents, jnp.float32) for name in self.reward.names},
            drawn=conditioning.draw_conditioned_weights(key_weights, self.view.condition, agents),
            record=start_learner_record(alive),
        )
        none = jnp.zeros(agents, bool)
        return state, self._show(state, none, none, jnp.bool_(False))

    def step(
        self, key: jax.Array, state: DriveState, actions: dict[str, jax.Array], params: DriveParams
    ) -> tuple[DriveState, TimeStep]:
        """Advances one decision of 0.1 s; the order within a step is in docs/reference/drive.md 8.1."""
        acted, before = state.alive, self.simulation.learners(state.motion)
        motion, present, memory, traffic = self.simulation.move(state, actions[VEHICLE_ROLE])
        own = self.simulation.learners(motion)
        solid = self.simulation.solid(present, state.ghost)
        condition = _masked(self.simulation.condition(state.scene, motion, solid, acted), acted)
        radius = rules.select_goal_radius(state, params)
        reached = acted & (rules.distance_to_points(own, state.goal) < radius)
        reached &= jnp.abs(own.speed) <= params.goal_speed
        jolt, ride = ride_lib.differentiate_ride(state.ride, own)
        moved = state.replace(
            step=state.step + 1,
            motion=motion,
            present=present,
            memory=memory,
            age=state.age + state.alive,
            condition=condition,
            traffic=traffic,
            ride=ride,
        )
        happening = self._happening(state, moved, reached, before, jolt)
        moved = moved.replace(record=update_learner_record(state.record, happening))
        gained = rules.distance_to_points(before, state.goal) - rules.distance_to_points(own, state.goal)
        paid, memory = self._pay(moved, reached, jolt, gained, self._ran(state, own), params)
        moved = moved.replace(paid=memory, earned=paid)
        moved, terminated = rules.end_trajectories(moved, reached, params)
        moved = rules.respawn_or_new_goal(
            key, self.simulation, moved, reached, terminated, params, self._new_goals
        )
        return self._closed(moved, terminated, params)

    def _happening(self, state: DriveState, moved: DriveState, reached, before: Motion, jolt) -> StepOutcome:
        """Collects the inputs of the learners' record for one step."""
        own = self.simulation.learners(moved.motion)
        sample = self.simulation.init_step + moved.step
        there, recorded = scripted_bodies.recorded_motion(self.bank, state.scene, sample)
        there = self.simulation.learners(there)
        return StepOutcome(
            acted=state.alive,
            reached=reached,
            before=_masked(state.condition, state.age > 0),
            condition=moved.condition,
            motion=own,
            moved=jnp.hypot(own.x - before.x, own.y - before.y),
            comfortable=ride_lib.is_comfortable(jolt),
            error=jnp.hypot(own.x - there.x, own.y - there.y),
            recorded=self.simulation.learners(recorded),
            step=moved.step,
        )

    def _ran(self, state: DriveState, own: Motion) -> jax.Array:
        """Learners that ran a red light in this step, bool `[A]`; all False unless lights are enforced."""
        if not self.simulation.enforces_lights:
            return jnp.zeros(state.alive.shape, bool)
        before, length = self.simulation.learners((state.motion, self.bank.size[state.scene][:, 0]))
        sample = self.simulation.init_step + state.step
        return state.alive & signals.ran_red_light(self.bank, state.scene, sample, before, own, length)

    def _pay(self, state: DriveState, reached, jolt, gained, ran, params: DriveParams):
        """Computes the reward components `[A]` of a step and the new memory of the reward."""
        record = state.record
        situation = DriveRewardInputs(
            reached=reached,
            again=state.ghost,
            condition=state.condition,
            motion=self.simulation.learners(state.motion),
            jolt=jolt,
            limit=self._limit(state),
            displacement=record.displacement / jnp.maximum(record.recorded, 1),
            gained=gained,
            ran=ran,
        )
        weights = conditioning.replace_conditioned_weights(params.reward, state.drawn)
        paid, memory = self.reward(weights, situation, state.paid)
        return {name: jnp.where(state.alive, value, 0.0) for name, value in paid.items()}, memory

    def _limit(self, state: DriveState) -> jax.Array:
        """Speed limits `[A]` of the learners' lanes, m/s; 0 without a lane and where the limit is unknown."""
        lane = state.condition.lane
        number = self.bank.segment_lane[state.scene, lane.index].astype(jnp.int32)
        limit = self.bank.lane_limit[state.scene, jnp.maximum(number, 0)]
        return jnp.where(lane.found & (number >= 0), limit, 0.0)

    def _closed(self, state: DriveState, terminated, params: DriveParams):
        """Sets flags and observations at the end of a step.

        Truncates at the last decision or, with `early_end`, once every learner has finished its first
        attempt. Without `ends_early`, episodes without living learners go on to the last decision.
        """
        over = last = state.step >= self.steps
        if self._ends_early:
            waiting = jnp.any(state.alive & state.record.first)
            last |= params.early_end & ~waiting
            over = last | ~jnp.any(state.alive)
        truncated = state.alive & last
        time = self._show(state, terminated, truncated, over)
        return state.replace(alive=state.alive & ~last), time

    def _show(self, state: DriveState, terminated, truncated, over) -> TimeStep:
        bank, scene, paid = self.bank, state.scene, state.earned
        controlled = bank.learner[scene]
        count = jnp.sum(controlled, dtype=jnp.float32)
        # Without respawns, age counts the decisions up to the learner's own end.
        attempted = (state.age - state.goal_step) * DT >= state.goal_distance / ATTEMPT_SPEED
        info = report_drive_results(state.record, attempted & controlled if self._new_goals else None)
        info |= {
            "task": bank.kind[scene].astype(jnp.int32),
            "controlled": count,
            "bodies": jnp.sum(state.present, dtype=jnp.float32),
        }
        info |= {f"reward/{name}": jnp.sum(value) / jnp.maximum(count, 1.0) for name, value in paid.items()}
        total = sum(paid.values(), jnp.zeros(self.simulation.agents, jnp.float32))
        return TimeStep(
            obs={VEHICLE_ROLE: observe_learners(self.view, bank, state, self.steps)},
            reward={VEHICLE_ROLE: total},
            terminated={VEHICLE_ROLE: terminated},
            truncated={VEHICLE_ROLE: truncated},
            alive={VEHICLE_ROLE: state.alive & ~truncated},
            action_mask={},
            over=over,
            info=info,
            present={VEHICLE_ROLE: controlled},
        )


def _masked(condition: RoadCondition, alive: jax.Array) -> RoadCondition:
    """Clears the collision and off-road flags of learners that are not alive."""
    return condition.replace(colliding=condition.colliding & alive, offroad=condition.offroad & alive)
