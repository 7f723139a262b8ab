"""How the bodies of a scene move in one step, and what they touch then. Source: spec drive 0.7, 0.8."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive import commands as commands_lib
from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.commands import Actions, Commands
from jaxmarl_echelon.envs.drive.state import Condition, DriveState, Start, Traffic
from jaxmarl_echelon.envs.drive.traffic import road_contacts, routes, scripted_bodies
from jaxmarl_echelon.envs.drive.traffic.motion import Dynamics
from jaxmarl_echelon.envs.drive.traffic.routes import Group
from physics.bicycle import Motion
from physics.sparse_batch import cond_any


@dataclass(frozen=True, eq=False)
class Simulation:
    """Static choices of the simulation, and the scenes.

    Attributes:
      bank: the scenes.
      dynamics: of learners.
      actions: of learners.
      others: what drives other bodies, one of `others.KINDS`.
      agents: A, slots of learners.
      init_step: sample of the recording at which episodes begin.
      wheelbase: in lengths of the body.
      signed: whether corners beyond the nearest edge are off the road as well.
      bikes: whether some lanes are for bicycles only.
      enforces: whether learners pay for running red lights.
      share: of a batch's learners, how many are looked up on the road at a time, so that empty slots cost
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
    enforces: bool = False
    share: float | None = None

    def learners(self, values: Any) -> Any:
        """The learners' part of leaves `[N, ...]`."""
        return Group(0, self.agents).of(values)

    def solid(self, present: jax.Array, ghost: jax.Array) -> jax.Array:
        """Which bodies others collide with and see, bool `[N]`: those present that are no ghosts."""
        return present & ~jnp.concatenate([ghost, jnp.zeros(present.shape[0] - self.agents, bool)])

    def start(self, scene: jax.Array) -> tuple[Motion, jax.Array, Traffic, Start]:
        """The beginning of a scene: motion `[N]`, presence `[N]`, traffic `[N]`, and the learners' start."""
        bank = self.bank
        motion, present = scripted_bodies.recorded(bank, scene, jnp.int32(self.init_step))
        arc = routes.nearest_arc(bank, scene, motion)
        traffic = Traffic(arc=jnp.where(present, arc, 0.0), served=jnp.zeros_like(present), seen=present)
        begun = Start(
            self.learners(motion),
            self.condition(scene, motion, present, bank.learner[scene]),
            self.learners(traffic.arc),
        )
        return motion, present, traffic, begun

    def condition(self, scene: jax.Array, motion: Motion, solid: jax.Array, alive: jax.Array) -> Condition:
        """Where learners are on the road, and whether they collide; with `share` only of those alive."""
        how = {"signed": self.signed, "bikes": self.bikes}
        if self.share is None:
            return road_contacts.condition(self.bank, scene, motion, solid, self.agents, **how)
        return road_contacts.condition_of_some(self.bank, scene, motion, solid, alive, self.share, **how)

    def move(self, state: DriveState, actions: jax.Array) -> tuple[Motion, jax.Array, Any, Traffic]:
        """One step of all bodies, each from the poses before it.

        Args:
          state: before the step.
          actions: of learners, `[A, ...]`.

        Returns:
          motion `[N]`, presence `[N]`, memory of the dynamics `[A, ...]` and traffic `[N]`.
        """
        commands = self.actions.read(actions)
        sample = self.init_step + state.step
        solid = self.solid(state.present, state.ghost)
        scripted = Group(self.agents, state.present.shape[0] - self.agents)
        motion, present, traffic = scripted_bodies.advance(
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
        if self.others == scripted_bodies.IDM:
            # Scripted drivers give way to learners by how far these are along their own routes.
            group = Group(0, self.agents)
            arc = routes.track(self.bank, state.scene, group, own, traffic.arc[: self.agents])
            traffic = traffic.replace(arc=traffic.arc.at[: self.agents].set(arc))
        still = self.learners(state.motion)
        own = jax.tree.map(lambda new, old: jnp.where(state.alive, new, old), own, still)
        return Group(0, self.agents).put(motion, own), present, memory, traffic

    def _drive(self, state: DriveState, commands: Commands) -> tuple[Motion, Any]:
        """Moves learners by their own commands."""
        own = self.learners(state.motion)
        length = self.learners(self.bank.size[state.scene])[:, 0]
        # Slots that no body fills have no length, and must not divide by it.
        wheelbase = self.wheelbase * jnp.where(state.alive, length, 1.0)
        return self.dynamics.step(own, state.memory, commands.first, commands.second, wheelbase)

    def _handed_over(self, state, commands: Commands, sample, solid, own: Motion, traffic: Traffic):
        """Moves learners whose script leaves that to the recording or to the driver model.

        Both count from the learner's last start, so that those put back drive their way again.
        """
        bank, group = self.bank, Group(0, self.agents)
        replayed, there = scripted_bodies.recorded_of(
            bank, state.scene, self.init_step + state.age + 1, self.agents
        )
        follows = (commands.mover == commands_lib.REPLAY) & there
        rests = (commands.mover == commands_lib.REPLAY) & ~there
        still = self.learners(state.motion)._replace(speed=jnp.zeros(self.agents))
        own = _choose(follows, replayed, _choose(rests, still, own))
        driven = state.alive & (commands.mover == commands_lib.IDM)

        def drive(own, traffic):
            moved, after = routes.follow(bank, state.scene, sample, group, state.motion, solid, state.traffic)
            progress = _choose(driven, after, group.of(traffic))
            return _choose(driven, moved, own), group.put(traffic, progress)

        # Only scripts need it: for policies the whole batch skips it.
        return cond_any(jnp.any(driven), drive, lambda own, traffic: (own, traffic), own, traffic)


def _choose(mask: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(mask, a, b), yes, no)
