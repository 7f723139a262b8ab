"""Motion of all bodies of a scene in one step, and the resulting contacts.

Reference: docs/reference/drive.md 8.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive import commands as commands_lib
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.commands import Actions, Commands
from jaxmarl_echelon.envs.drive.state import DriveState, RoadCondition, RouteProgress, Start
from jaxmarl_echelon.envs.drive.traffic import road_contacts, routes, scripted_bodies
from jaxmarl_echelon.envs.drive.traffic.motion import Dynamics
from jaxmarl_echelon.envs.drive.traffic.routes import BodyGroup
from physics.bicycle import Motion
from physics.sparse_batch import cond_any


@dataclass(frozen=True, eq=False)
class TrafficSimulation:
    """Static configuration of the simulation, and the scenes.

    Attributes:
      bank: the scenes.
      dynamics: of learners.
      actions: action space of learners.
      others: motion of scripted bodies, one of `scripted_bodies.KINDS`.
      agents: A, number of learners' slots.
      init_step: sample of the recording at which episodes begin.
      wheelbase: as a fraction of the body's length.
      signed: whether corners on the wrong side of their nearest edge also count as off-road.
      bikes: whether some lanes are for bicycles only.
      enforces_lights: whether learners are penalised for running red lights.
      share: fraction of a batch's learners processed at a time in road look-ups, so that empty slots cost
        nothing; None for all slots at once.
    """

    bank: SceneBank
    dynamics: Dynamics
    actions: Actions
    others: str
    agents: int
    init_step: int = 0
    wheelbase: float = 1.0
    signed: bool = False
    bikes: bool = False
    enforces_lights: bool = False
    share: float | None = None

    def learners(self, values: Any) -> Any:
        """Returns the learners' part of leaves `[N, ...]`."""
        return BodyGroup(0, self.agents).of(values)

    def solid(self, present: jax.Array, ghost: jax.Array) -> jax.Array:
        """Bodies that others collide with and see, bool `[N]`: present and not a ghost."""
        return present & ~jnp.concatenate([ghost, jnp.zeros(present.shape[0] - self.agents, bool)])

    def start(self, scene: jax.Array) -> tuple[Motion, jax.Array, RouteProgress, Start]:
        """Returns a scene's initial motion `[N]`, presence `[N]`, traffic `[N]`, and the learners' start."""
        bank = self.bank
        motion, present = scripted_bodies.recorded_motion(bank, scene, jnp.int32(self.init_step))
        scripted = bank.driven[scene] & (jnp.arange(present.shape[0]) >= self.agents)
        motion = scripted_bodies.stop_static_bodies(self.others, scripted, motion)
        arc = routes.project_onto_routes(bank, scene, motion)
        arc = jnp.where(present, arc, self._arcs_at_appearance(scene))
        traffic = RouteProgress(arc=arc, served=jnp.zeros_like(present), seen=present)
        begun = Start(
            self.learners(motion),
            self.condition(scene, motion, present, bank.learner[scene]),
            self.learners(traffic.arc),
        )
        return motion, present, traffic, begun

    def _arcs_at_appearance(self, scene: jax.Array) -> jax.Array:
        """Arcs `[N]` at which bodies appear that are absent at first; without meaning for the others, m."""
        if self.init_step == 0:  # routes begin where bodies are first recorded
            return jnp.float32(0.0)
        ahead = self.bank.recorded[scene, self.init_step :]
        sample = self.init_step + jnp.argmax(ahead, axis=0)
        motion, _ = scripted_bodies.recorded_motion_per_body(self.bank, scene, sample, ahead.shape[1])
        return routes.project_onto_routes(self.bank, scene, motion)

    def condition(
        self, scene: jax.Array, motion: Motion, solid: jax.Array, alive: jax.Array
    ) -> RoadCondition:
        """Returns the contacts and lanes of learners; with `share` only of those alive."""
        how = {"signed": self.signed, "bikes": self.bikes}
        if self.share is None:
            return road_contacts.compute_road_condition(self.bank, scene, motion, solid, self.agents, **how)
        return road_contacts.compute_active_road_condition(
            self.bank, scene, motion, solid, alive, self.share, **how
        )

    def move(self, state: DriveState, actions: jax.Array) -> tuple[Motion, jax.Array, Any, RouteProgress]:
        """Moves all bodies by one step, each from the poses before the step.

        Args:
          state: before the step.
          actions: of learners, `[A, ...]`.

        Returns:
          motion `[N]`, presence `[N]`, memory of the dynamics `[A, ...]` and traffic `[N]`.
        """
        commands = self.actions.read(actions)
        sample = self.init_step + state.step
        solid = self.solid(state.present, state.ghost)
        scripted = BodyGroup(self.agents, state.present.shape[0] - self.agents)
        motion, present, traffic = scripted_bodies.move_scripted_bodies(
            self.others,
            self.bank,
            state.scene,
            sample,
            scripted,
            state.motion,
            state.present,
            solid,
            state.traffic,
        )
        own, memory = self._drive(state, commands)
        own, traffic = self._handed_over(state, commands, sample, solid, own, traffic)
        own = _choose(state.alive, own, self.learners(state.motion))
        if self.others == scripted_bodies.IDM:
            # Scripted drivers yield to learners according to the learners' progress along their routes.
            group = BodyGroup(0, self.agents)
            arc = routes.track_route_arcs(self.bank, state.scene, group, own, traffic.arc[: self.agents])
            traffic = traffic.replace(arc=traffic.arc.at[: self.agents].set(arc))
        return BodyGroup(0, self.agents).put(motion, own), present, memory, traffic

    def _drive(self, state: DriveState, commands: Commands) -> tuple[Motion, Any]:
        """Moves learners by their own commands."""
        own = self.learners(state.motion)
        length = self.learners(self.bank.size[state.scene])[:, 0]
        # Empty slots have length 0, which must not become a divisor.
        wheelbase = self.wheelbase * jnp.where(state.alive, length, 1.0)
        return self.dynamics.step(own, state.memory, commands.first, commands.second, wheelbase)

    def _handed_over(self, state, commands: Commands, sample, solid, own: Motion, traffic: RouteProgress):
        """Moves learners whose script delegates to the recording or to the driver model.

        Both count from the learner's last start, so that a respawned learner repeats its trajectory.
        """
        bank, group = self.bank, BodyGroup(0, self.agents)
        replayed, there = scripted_bodies.recorded_motion_per_body(
            bank, state.scene, self.init_step + state.age + 1, self.agents
        )
        follows = (commands.mover == commands_lib.REPLAY) & there
        rests = (commands.mover == commands_lib.REPLAY) & ~there
        still = self.learners(state.motion)._replace(speed=jnp.zeros(self.agents))
        own = _choose(follows, replayed, _choose(rests, still, own))
        driven = state.alive & (commands.mover == commands_lib.IDM)

        def drive(own, traffic):
            known = state.traffic
            if self.others != scripted_bodies.IDM:
                # Nobody else has kept an arc, on which priority at junctions depends.
                arc = routes.project_onto_routes(bank, state.scene, state.motion)
                arc = jnp.where(jnp.pad(driven, (0, arc.shape[0] - self.agents)), known.arc, arc)
                known = known.replace(arc=arc)
            moved, after = routes.follow_routes(bank, state.scene, sample, group, state.motion, solid, known)
            progress = _choose(driven, after, group.of(traffic))
            return _choose(driven, moved, own), group.put(traffic, progress)

        # Only scripts need this; with policies the whole batch skips it.
        return cond_any(jnp.any(driven), drive, lambda own, traffic: (own, traffic), own, traffic)


def _choose(mask: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(mask, a, b), yes, no)
