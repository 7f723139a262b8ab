"""A battle with the actions and observations of its mechs, for environments that play one."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon import assistance, commands
from jaxmarl_echelon.envs.echelon.battle import sensors
from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import (
    BLUE,
    MESSAGE,
    NO_MECH,
    TEAMS,
    Battle,
    EchelonParams,
    EchelonState,
)
from jaxmarl_echelon.envs.echelon.battle.surroundings import chassis_of
from jaxmarl_echelon.envs.echelon.observing.contacts import MechSides
from jaxmarl_echelon.envs.echelon.observing.layout import CONTACTS, ObservationLayout
from jaxmarl_echelon.envs.echelon.observing.observe import ObjectiveStatus, Senses, observe_mechs, place_of
from jaxmarl_echelon.envs.echelon.observing.true_state import OWN, observe_true_state, true_state_size
from jaxmarl_echelon.envs.echelon.results import RUNNING
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank
from jaxmarl_echelon.envs.spaces import Box


@dataclass(frozen=True, eq=False)
class BattleInterface:
    """Static configuration of a battle between two roles, `blue` and `red`, with its functions.

    Attributes:
      simulation: the battle.
      layout: layout of an observation.
      critic: what critics observe, one of `true_state.CRITICS`.
    """

    simulation: BattleSimulation
    layout: ObservationLayout
    critic: str = OWN

    @property
    def bank(self) -> TerrainBank:
        """The terrains."""
        return self.simulation.bank

    @property
    def teams(self) -> tuple[int, int]:
        """Mechs of blue and of red."""
        return self.simulation.teams

    def with_bank(self, bank: TerrainBank) -> "BattleInterface":
        """Returns a copy with other terrains."""
        return dataclasses.replace(self, simulation=dataclasses.replace(self.simulation, bank=bank))

    def sides(self, params: EchelonParams) -> MechSides:
        """Returns teams, packs and classes of the mechs."""
        return MechSides(jnp.asarray(self.simulation.team), params.pack, params.classes)

    def begin(self, battle: Battle) -> EchelonState:
        """Returns the state of an episode before the first decision of a battle."""
        size = sum(self.teams)
        return EchelonState(
            battle=battle,
            decision=jnp.int32(0),
            score=jnp.zeros(len(TEAMS), jnp.float32),
            messages=jnp.zeros((size, MESSAGE), jnp.float32),
            contacts=jnp.full((size, CONTACTS), NO_MECH, jnp.int32),
            sort=jnp.zeros(size, jnp.int32),
            hostile_only=jnp.zeros(size, bool),
            waypoint=jnp.full((size, 2), assistance.NOWHERE),
            outcome=jnp.int32(RUNNING),
            ending=jnp.int32(RUNNING),
        )

    def parse_actions(self, state: EchelonState, actions: Mapping[str, jax.Array]) -> commands.ParsedActions:
        """Parses the actions by role."""
        given = jnp.concatenate([actions[team] for team in TEAMS])
        alive, team = state.battle.mechs.alive, jnp.asarray(self.simulation.team)
        return commands.parse_actions(given, state.contacts, alive, team)

    def decide(
        self, key: jax.Array, state: EchelonState, parsed: commands.ParsedActions, params: EchelonParams
    ) -> EchelonState:
        """Advances the battle by one decision of 0.25 s; scores and outcome remain those of `state`."""
        battle = state.battle.replace(mechs=state.battle.mechs.replace(focus=parsed.focus))
        return state.replace(
            battle=self.simulation.decide(key, battle, parsed.commands, params),
            decision=state.decision + 1,
            messages=parsed.messages,
            sort=parsed.sort,
            hostile_only=parsed.hostile_only,
        )

    def sense(self, battle: Battle, params: EchelonParams) -> Senses:
        """Returns the sensor readings of all mechs."""
        scene, mechs, team = self.simulation.scene(battle, params), battle.mechs, self.simulation.team
        terrain, smoke = sensors.find_clear_lines(scene.terrain, battle)
        quality, jam, _ = sensors.compute_sensor_quality(mechs, team, scene.chassis)
        visible = sensors.find_visible_mechs(
            battle, team, scene.packmates, scene.chassis, terrain, smoke, params.full_observation
        )
        sight = terrain & smoke
        return Senses(sight, visible, quality, jam, sensors.hear_noise(mechs, sight))

    def observe(
        self,
        state: EchelonState,
        params: EchelonParams,
        senses: Senses,
        standing: ObjectiveStatus | None = None,
        further: Mapping[str, jax.Array] = MappingProxyType({}),
        dead_see: tuple[str, ...] = (),
        marks: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns observations `[M, layout.size]` and contacts `[M, K]`; see `observe_mechs`."""
        place = place_of(self.bank, state.battle.map_index)
        sides, chassis = self.sides(params), chassis_of(params)
        return observe_mechs(
            self.layout, state, params, sides, chassis, senses, place, standing, further, dead_see, marks
        )

    def critic_space(self, further: int = 0) -> Box | None:
        """Returns the space of the critics' observations, with N further numbers; None for the actors'."""
        if self.critic == OWN:
            return None
        return Box((self.layout.size + true_state_size(sum(self.teams), further),), -np.inf, np.inf)

    def observe_for_critics(
        self,
        observations: jax.Array,
        state: EchelonState,
        params: EchelonParams,
        further: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Returns the critics' observations by role: the actors' `[M, F]`, then the true state.

        Empty where critics observe what actors do.
        """
        if self.critic == OWN:
            return {}
        span = float(max(self.bank.size))
        mechs, sides = state.battle.mechs, self.sides(params)
        known = observe_true_state(mechs, chassis_of(params), sides, span, further)
        return self.split_by_role(jnp.concatenate([observations, known], axis=-1))

    def split_by_role(self, values: jax.Array) -> dict[str, jax.Array]:
        """Splits values of all mechs by role."""
        blue = self.teams[BLUE]
        return {"blue": values[:blue], "red": values[blue:]}
