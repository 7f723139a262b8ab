"""Goal-directed driving: many learners in scenes of roads and traffic. Source: spec drive 0."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.drive import conditioning, rules
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.measures import record as record_lib
from jaxmarl_echelon.envs.drive.measures import ride as ride_lib
from jaxmarl_echelon.envs.drive.measures.record import Happening
from jaxmarl_echelon.envs.drive.measures.rollouts import Comparison
from jaxmarl_echelon.envs.drive.observing.layout import View
from jaxmarl_echelon.envs.drive.observing.observe import observe
from jaxmarl_echelon.envs.drive.rewards import Situation
from jaxmarl_echelon.envs.drive.scripts import baselines
from jaxmarl_echelon.envs.drive.state import DT, NEW_GOAL, VEHICLE_ROLE, Condition, DriveParams, DriveState
from jaxmarl_echelon.envs.drive.traffic import scripted_bodies, signals
from jaxmarl_echelon.envs.drive.traffic.simulation import Simulation
from jaxmarl_echelon.envs.drive.view.viewer import Viewer
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.spaces import Box
from physics.bicycle import Motion


class Drive(Environment):
    """Learners drive to their goals in scenes with other traffic; see `make.make` for the settings.

    The only role is `vehicle`, with A slots per scene, of which a scene may fill fewer. A learner that
    reaches its goal is put back to its start by default, as a ghost that nobody meets; its story goes on.

    Attributes:
      spec: roles, spaces, results; tasks are the kinds of scenes.
      simulation: the bodies.
      view: what learners are shown.
      reward: what is paid.
      blocks: the observation's structure.
      baselines: scripts to compare a learner with.
      controllers: who drives unless the run says otherwise.
      viewer: draws evaluations.
      comparison: with recordings, as in the sim agents challenge.
    """

    def __init__(
        self,
        simulation: Simulation,
        view: View,
        reward: Reward,
        params: DriveParams,
        *,
        steps: int,
        held_out: tuple[int, int],
        kinds: tuple[str, ...],
        change=None,
        lines: tuple[str, ...] = (),
    ):
        """Puts the parts together.

        Args:
          simulation: the bodies and the scenes.
          view: what learners are shown.
          reward: what is paid.
          params: default parameters.
          steps: decisions of an episode.
          held_out: first scene of evaluations in the bank, and their number.
          kinds: names of the kinds of scenes.
          change: `(params, settings) -> params`, for curricula.
          lines: description of the scenes: what there is, then what was left out or is out of reach.
        """
        self.simulation, self.view, self.reward, self.steps = simulation, view, reward, steps
        self._params, self._held_out, self._change, self._lines = params, held_out, change, lines
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
            results=record_lib.declared(kinds, reward.names, self._new_goals),
            score=record_lib.SCORE,
        )
        self.blocks = {VEHICLE_ROLE: view.blocks}
        self.baselines = baselines.BASELINES
        self.controllers = {VEHICLE_ROLE: "learner"}
        self.viewer = Viewer(simulation.bank, view, steps, kinds)
        self.comparison = Comparison(simulation.bank, held_out)

    @property
    def bank(self) -> SceneBank:
        """The scenes."""
        return self.simulation.bank

    @property
    def world(self) -> SceneBank:
        """The scenes."""
        return self.bank

    def _place_world(self, world: SceneBank) -> None:
        self.simulation = dataclasses.replace(self.simulation, bank=world)

    @property
    def scripts(self) -> dict[str, ScriptedPolicy]:
        """Scripted policies by name."""
        return baselines.scripts(self.simulation.actions, self.spec.roles[0])

    def default_params(self) -> DriveParams:
        """Returns the parameters that the configuration asks for."""
        return self._params

    def task_params(self, settings: Mapping) -> DriveParams:
        """Returns the default parameters with some settings changed; see `settings.change`."""
        return super().task_params(settings) if self._change is None else self._change(self._params, settings)

    def evaluation_params(self, params: DriveParams, index: jax.Array) -> DriveParams:
        """Returns the parameters of evaluation episode `index`: held-out scenes follow each other."""
        first, count = self._held_out
        scene = jnp.asarray(first + index % count, jnp.int32)
        return params.replace(first_scene=scene, scenes=jnp.ones_like(scene))

    def describe(self) -> tuple[str, ...]:
        """Returns a line about the scenes."""
        return self._lines[:1]

    def left_out(self) -> tuple[str, ...]:
        """Returns lines about files and bodies that were left out, and about goals out of reach."""
        return self._lines[1:]

    def reset(self, key: jax.Array, params: DriveParams) -> tuple[DriveState, TimeStep]:
        """Starts an episode in a drawn scene."""
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
            goal_distance=rules.distance(own, goal),
            condition=_masked(start.condition, alive),
            start=start,
            traffic=traffic,
            ride=ride_lib.begin(own),
            paid=self.reward.init(),
            earned={name: jnp.zeros(agents, jnp.float32) for name in self.reward.names},
            drawn=conditioning.draw(key_weights, self.view.condition, agents),
            record=record_lib.begin(alive),
        )
        none = jnp.zeros(agents, bool)
        return state, self._show(state, none, none, jnp.bool_(False))

    def step(
        self, key: jax.Array, state: DriveState, actions: dict[str, jax.Array], params: DriveParams
    ) -> tuple[DriveState, TimeStep]:
        """Advances one decision of 0.1 s."""
        acted, before = state.alive, self.simulation.learners(state.motion)
        motion, present, memory, traffic = self.simulation.move(state, actions[VEHICLE_ROLE])
        own = self.simulation.learners(motion)
        solid = self.simulation.solid(present, state.ghost)
        condition = _masked(self.simulation.condition(state.scene, motion, solid, acted), acted)
        radius = rules.goal_radius(state, params)
        reached = acted & (rules.distance(own, state.goal) < radius)
        reached &= jnp.abs(own.speed) <= params.goal_speed
        jolt, ride = ride_lib.feel(state.ride, own)
        moved = state.replace(
            step=state.step + 1,
            motion=motion,
            present=present,
            memory=memory,
            age=state.age + 1,
            condition=condition,
            traffic=traffic,
            ride=ride,
        )
        happening = self._happening(state, moved, reached, before, jolt)
        moved = moved.replace(record=record_lib.advance(state.record, happening))
        gained = rules.distance(before, state.goal) - rules.distance(own, state.goal)
        paid, memory = self._pay(moved, reached, jolt, gained, self._ran(state, own), params)
        moved = moved.replace(paid=memory, earned=paid)
        moved, terminated = rules.ended(moved, reached, params)
        moved = rules.sent_on(key, self.simulation, moved, reached & ~terminated, params, self._new_goals)
        return self._closed(moved, terminated, params)

    def _happening(self, state: DriveState, moved: DriveState, reached, before: Motion, jolt) -> Happening:
        """What the record sees of a step."""
        own = self.simulation.learners(moved.motion)
        sample = self.simulation.init_step + moved.step
        there, recorded = scripted_bodies.recorded(self.bank, state.scene, sample)
        there = self.simulation.learners(there)
        return Happening(
            acted=state.alive,
            reached=reached,
            before=state.condition,
            condition=moved.condition,
            motion=own,
            moved=jnp.hypot(own.x - before.x, own.y - before.y),
            comfortable=ride_lib.comfortable(jolt),
            error=jnp.hypot(own.x - there.x, own.y - there.y),
            recorded=self.simulation.learners(recorded),
            step=moved.step,
        )

    def _ran(self, state: DriveState, own: Motion) -> jax.Array:
        """Who crossed the line of a red light in a step, bool `[A]`; nobody where lights are not enforced."""
        if not self.simulation.enforces:
            return jnp.zeros(state.alive.shape, bool)
        before, length = self.simulation.learners((state.motion, self.bank.size[state.scene][:, 0]))
        sample = self.simulation.init_step + state.step
        return state.alive & signals.ran(self.bank, state.scene, sample, before, own, length)

    def _pay(self, state: DriveState, reached, jolt, gained, ran, params: DriveParams):
        """Reward components `[A]` of a step, and the reward's memory."""
        record = state.record
        situation = Situation(
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
        weights = conditioning.applied(params.reward, state.drawn)
        paid, memory = self.reward(weights, situation, state.paid)
        return {name: jnp.where(state.alive, value, 0.0) for name, value in paid.items()}, memory

    def _limit(self, state: DriveState) -> jax.Array:
        """Speed limits `[A]` of the learners' lanes; 0 without a lane, and where none is known."""
        lane = state.condition.lane
        number = self.bank.segment_lane[state.scene, lane.index].astype(jnp.int32)
        limit = self.bank.lane_limit[state.scene, jnp.maximum(number, 0)]
        return jnp.where(lane.found & (number >= 0), limit, 0.0)

    def _closed(self, state: DriveState, terminated, params: DriveParams):
        """Flags and observations: truncation at the last step or, if asked for, after all first attempts."""
        waiting = jnp.any(state.alive & state.record.first)
        last = (state.step >= self.steps) | (params.early_end & ~waiting)
        truncated = state.alive & last
        over = last | ~jnp.any(state.alive)
        time = self._show(state, terminated, truncated, over)
        return state.replace(alive=state.alive & ~last), time

    def _show(self, state: DriveState, terminated, truncated, over) -> TimeStep:
        bank, scene, paid = self.bank, state.scene, state.earned
        controlled = bank.learner[scene]
        count = jnp.sum(controlled, dtype=jnp.float32)
        attempted = (state.step - state.goal_step) * DT >= state.goal_distance / record_lib.ATTEMPT_SPEED
        info = record_lib.reported(state.record, attempted & controlled if self._new_goals else None)
        info |= {
            "task": bank.kind[scene].astype(jnp.int32),
            "controlled": count,
            "bodies": jnp.sum(state.present, dtype=jnp.float32),
        }
        info |= {f"reward/{name}": jnp.sum(value) / jnp.maximum(count, 1.0) for name, value in paid.items()}
        total = sum(paid.values(), jnp.zeros(self.simulation.agents, jnp.float32))
        return TimeStep(
            obs={VEHICLE_ROLE: observe(self.view, bank, state, self.steps)},
            reward={VEHICLE_ROLE: total},
            terminated={VEHICLE_ROLE: terminated},
            truncated={VEHICLE_ROLE: truncated},
            alive={VEHICLE_ROLE: state.alive & ~truncated},
            action_mask={},
            over=over,
            info=info,
            present={VEHICLE_ROLE: controlled},
        )


def _masked(condition: Condition, alive: jax.Array) -> Condition:
    """The condition of learners that take part; others neither collide nor leave the road."""
    return condition.replace(colliding=condition.colliding & alive, offroad=condition.offroad & alive)
