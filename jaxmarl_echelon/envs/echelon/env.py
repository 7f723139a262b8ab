"""Environment: two teams of mechs fight for a zone in voxel terrain."""

import dataclasses
from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs import settings as readers
from jaxmarl_echelon.envs.base import Environment, EnvSpec, PyTree, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.echelon import assistance, settings
from jaxmarl_echelon.envs.echelon import commands as commands_lib
from jaxmarl_echelon.envs.echelon import zone as zone_lib
from jaxmarl_echelon.envs.echelon.battle import sensors
from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import (
    BLUE,
    MESSAGE,
    NO_MECH,
    TEAMS,
    EchelonParams,
    EchelonState,
)
from jaxmarl_echelon.envs.echelon.battle.surroundings import Scene, pack_gap
from jaxmarl_echelon.envs.echelon.observing.contacts import MechSides
from jaxmarl_echelon.envs.echelon.observing.layout import CONTACTS, ObservationLayout, make_layout
from jaxmarl_echelon.envs.echelon.observing.observe import Senses, observe_mechs, place_of
from jaxmarl_echelon.envs.echelon.results import ENDINGS, OUTCOMES, RUNNING, WINS, decide_outcome
from jaxmarl_echelon.envs.echelon.rewards import BattleRewardInputs
from jaxmarl_echelon.envs.echelon.rosters import read_roster
from jaxmarl_echelon.envs.echelon.scripts import baselines
from jaxmarl_echelon.envs.echelon.settings import PERIOD, SUBSTEPS, SettingLimits, change_battle_params
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank, add_path_codes, terrain_bank
from jaxmarl_echelon.envs.echelon.view.viewer import BattleViewer
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.spaces import Box

RED_SCORE = "success/red"


class Echelon(Environment):
    """Blue against red on terrains of one size; see `make` for the settings.

    Roles `blue` and `red` have one agent per mech, with the actions of `commands` and the
    observations of `layout`, each from its own perspective. A mech that dies is terminated and
    receives no further reward; the episode continues until the zone is won, a team is eliminated or
    time is up. Each of these terminates the living mechs: the time limit decides the battle, may be
    rewarded and is observed, so there is no value to bootstrap beyond it. `info["ending"]` is an
    index into `endings`; rewards in `info` are means over blue's mechs.
    Reference: docs/reference/echelon.md 1.2 and 13.

    Attributes:
      spec: roles, spaces, outcomes.
      simulation: the battle.
      teams: mechs of blue and of red.
      layout: layout of an observation.
      blocks: its blocks per role, for encoders.
      endings: names of the ways in which an episode can end.
      baselines: scripts to compare a learner with.
      controllers: default controller of each role.
      viewer: draws evaluations.
    """

    endings = ENDINGS

    def __init__(
        self,
        simulation: BattleSimulation,
        reward: Reward,
        layout: ObservationLayout,
        limits: SettingLimits,
        params: EchelonParams,
    ):
        self.simulation, self.reward, self.layout = simulation, reward, layout
        self.teams = tuple(simulation.teams)
        self._params, self._limits = params, limits
        self._team, self._assists = simulation.team, simulation.bank.ways is not None
        self.spec = _spec(self.teams, layout, reward, int(params.max_decisions))
        self.blocks = dict.fromkeys(TEAMS, layout.blocks)
        self.baselines = baselines.BASELINES
        self.controllers = {"blue": "learner", "red": "heuristic"}
        self.viewer = BattleViewer(self.bank, self.teams, OUTCOMES, PERIOD)
        self.scripts = self._make_scripts()

    @property
    def bank(self) -> TerrainBank:
        """The terrains."""
        return self.simulation.bank

    def _make_scripts(self) -> dict[str, ScriptedPolicy]:
        """Returns the scripted policies, `NAME_blue` and `NAME_red`, which read this object's terrains."""
        return baselines.make_battle_scripts(self)

    @property
    def world(self) -> PyTree:
        """The terrains."""
        return self.bank

    def _place_world(self, world: PyTree) -> None:
        self.simulation = dataclasses.replace(self.simulation, bank=world)
        self.scripts = self._make_scripts()

    def default_params(self) -> EchelonParams:
        """Returns the configured parameters."""
        return self._params

    def task_params(self, settings: Mapping) -> PyTree:
        """Returns the default parameters with some settings changed; see `change_battle_params`."""
        return change_battle_params(self._params, settings, self._limits, self.reward)

    def evaluation_params(self, params: PyTree, index: jax.Array) -> PyTree:
        """Returns the parameters of evaluation episode `index`, which cycle through the terrains in use."""
        used = params.map_weights > 0
        chosen = used & (jnp.cumsum(used) == index % jnp.sum(used) + 1)
        return params.replace(map_weights=chosen.astype(params.map_weights.dtype))

    def sides(self, params: EchelonParams) -> MechSides:
        """Returns teams, packs and classes of the mechs."""
        return MechSides(jnp.asarray(self._team), params.pack, params.classes)

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode on a drawn terrain."""
        key_map, key_start = jax.random.split(key)
        index = jax.random.categorical(key_map, jnp.log(params.map_weights)).astype(jnp.int32)
        size = sum(self.teams)
        state = EchelonState(
            battle=self.simulation.start(key_start, index, params),
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
        unpaid = {name: jnp.zeros(size, jnp.float32) for name in self.reward.names}
        return self._show(state, params, jnp.ones(size, bool), unpaid)

    def step(
        self, key: jax.Array, state: PyTree, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[PyTree, TimeStep]:
        """Advances one decision of 0.25 s; both teams act at once."""
        before = state.battle.mechs
        given = jnp.concatenate([actions[team] for team in TEAMS])
        orders = commands_lib.parse_actions(given, state.contacts, before.alive, jnp.asarray(self._team))
        battle = state.battle.replace(mechs=before.replace(focus=orders.focus))
        commands, waypoint = self._assisted(state, orders.commands, params)
        battle = self.simulation.decide(key, battle, commands, params)
        scene = self.simulation.scene(battle, params)
        hold = self._hold(battle, battle.mechs.alive, scene)
        score, decision = state.score + PERIOD * hold.tick, state.decision + 1
        outcome, ending, lead = decide_outcome(
            score, *self._strength(battle.mechs), decision, params.zone_seconds, params.max_decisions
        )
        situation = self._situation(before, battle, scene, hold, lead)
        paid, _ = self.reward(params.reward, situation, self.reward.init())
        paid = {name: jnp.where(before.alive, value, 0.0) for name, value in paid.items()}
        moved = state.replace(
            battle=battle,
            decision=decision,
            score=score,
            messages=orders.messages,
            sort=orders.sort,
            hostile_only=orders.hostile_only,
            waypoint=waypoint,
            outcome=outcome,
            ending=ending,
        )
        return self._show(moved, params, before.alive, paid)

    def _assisted(self, state: EchelonState, commands, params: EchelonParams) -> tuple[jax.Array, jax.Array]:
        """Returns commands blended with navigation assistance, and its waypoints."""
        if not self._assists:
            return commands, state.waypoint
        battle = state.battle
        mechs, chassis = battle.mechs, self.simulation.scene(battle, params).chassis
        waypoint = assistance.refresh_waypoints(self.bank, battle.map_index, mechs, chassis, state.waypoint)
        waypoint = jnp.where(state.decision % assistance.REFRESH == 0, waypoint, state.waypoint)
        share = params.assist[self._team]
        return assistance.blend_throttles(commands, mechs, chassis, waypoint, share), waypoint

    def _hold(self, battle, counts, scene: Scene) -> zone_lib.ZoneHold:
        zone = self.bank.zone[battle.map_index]
        return zone_lib.compute_zone_hold(
            battle.mechs.position, counts, scene.chassis.tonnage, self._team, zone
        )

    def _strength(self, mechs) -> tuple[jax.Array, jax.Array]:
        """Returns the number of living mechs and the sum of their hit points, `[2]` each."""
        living = jnp.stack([mechs.alive & (self._team == side) for side in range(len(TEAMS))])
        return jnp.sum(living, axis=1), jnp.sum(jnp.where(living, mechs.hp, 0.0), axis=1)

    def _situation(self, before, battle, scene: Scene, hold: zone_lib.ZoneHold, lead) -> BattleRewardInputs:
        """Returns the inputs of the reward for a decision."""
        zone, after, tally = self.bank.zone[battle.map_index], battle.mechs, battle.tally
        gained = zone_lib.distance_to_zone(before.position, zone) - zone_lib.distance_to_zone(
            after.position, zone
        )
        inside = jnp.stack([jnp.sum(hold.inside & (self._team == side)) for side in range(len(TEAMS))])
        stood = before.alive & zone_lib.inside_zone(after.position, zone)
        return BattleRewardInputs(
            approach=gained / float(max(self.bank.size[:2])),
            inside=hold.inside,
            friends_inside=inside[self._team] - hold.inside,
            tick=hold.tick[self._team],
            fighting=stood & (inside[1 - self._team] > 0),
            pack_gap=pack_gap(after, scene.packmates),
            dealt=tally.dealt,
            kills=tally.kills,
            assists=tally.assists,
            died=before.alive & ~after.alive,
            alive=after.alive,
            result=jnp.where(self._team == BLUE, lead, -lead),
        )

    def senses(self, battle, params: EchelonParams) -> Senses:
        """Returns the sensor readings of all mechs."""
        scene, mechs = self.simulation.scene(battle, params), battle.mechs
        terrain, smoke = sensors.find_clear_lines(scene.terrain, battle)
        quality, jam, _ = sensors.compute_sensor_quality(mechs, self._team, scene.chassis)
        visible = sensors.find_visible_mechs(
            battle, self._team, scene.packmates, scene.chassis, terrain, smoke, params.full_observation
        )
        sight = terrain & smoke
        return Senses(sight, visible, quality, jam, sensors.hear_noise(mechs, sight))

    def _show(self, state: EchelonState, params, acted, paid) -> tuple[EchelonState, TimeStep]:
        """Returns the state with its contacts and the time step; `acted` `[M]` were alive before."""
        chassis = self.simulation.scene(state.battle, params).chassis
        senses = self.senses(state.battle, params)
        place = place_of(self.bank, state.battle.map_index)
        observations, contacts = observe_mechs(
            self.layout, state, params, self.sides(params), chassis, senses, place
        )
        state = state.replace(contacts=contacts)
        over, alive = state.outcome != RUNNING, state.battle.mechs.alive
        total = sum(paid.values(), jnp.zeros_like(acted, jnp.float32))
        info = {
            "outcome": state.outcome,
            "ending": state.ending,
            "map": state.battle.map_index,
            "decision": state.decision,
        }
        paid_blue = {f"reward/{name}": jnp.mean(value[: self.teams[BLUE]]) for name, value in paid.items()}
        return state, TimeStep(
            obs=self._by_role(observations),
            reward=self._by_role(total),
            terminated=self._by_role(acted & (~alive | over)),
            truncated=self._by_role(jnp.zeros_like(acted)),
            alive=self._by_role(alive & ~over),
            action_mask={},
            over=over,
            info=info | paid_blue,
        )

    def _by_role(self, values: jax.Array) -> dict[str, jax.Array]:
        blue = self.teams[BLUE]
        return {"blue": values[:blue], "red": values[blue:]}


def make(reward: Reward, *, bank: TerrainBank | None = None, **given) -> Echelon:
    """Builds the environment; `given` are keys of `conf/env/echelon.yaml`, which explains each.

    Args:
      reward: the reward function.
      bank: terrains to use instead of generated ones; `size`, `maps`, `map_seed`, `biomes` and
        `cache` are then ignored.
      given: settings that differ from the defaults.

    Raises:
      ValueError: one line, for a setting with a value that is not allowed.
    """
    chosen = readers.unflatten_settings(settings.EchelonSettings, given)
    forces, ground, rules = chosen.forces, chosen.ground, chosen.rules
    rosters = read_roster("blue", forces.blue), read_roster("red", forces.red)
    teams = tuple(len(roster.classes) for roster in rosters)
    if bank is None:
        bank = _terrain(ground, max(teams))
    pack = max(roster.largest_pack for roster in rosters)
    if settings.read_share_per_team("assist", forces.assist).max() > 0 and bank.ways is None:
        bank = add_path_codes(bank)
    limits = SettingLimits(bank.zone.shape[0], teams, pack, ways=bank.ways is not None)
    if rules.zone_seconds is None:
        half = readers.read_number("time_limit", rules.time_limit, PERIOD) / 2
        chosen = replace(chosen, rules=replace(rules, zone_seconds=half))
    params = EchelonParams(
        reward=reward.params(),
        **readers.read_all(settings.READERS, chosen, limits),
        **settings.roster_fields(rosters),
    )
    simulation = BattleSimulation(
        bank=bank,
        teams=teams,
        substeps=SUBSTEPS,
        original=rules.original,
        pages=ground.pages,
        damaged=ground.damaged,
    )
    return Echelon(simulation, reward, make_layout(pack, chosen.observing.telemetry), limits, params)


def _terrain(ground: settings.TerrainSettings, team_size: int) -> TerrainBank:
    seeds = range(ground.map_seed, ground.map_seed + ground.maps)
    try:
        return terrain_bank(seeds, ground.size, biomes=ground.biomes, team_size=team_size, cache=ground.cache)
    except ValueError as error:
        raise ValueError(f"env.{str(error).removeprefix('env.')}") from None


def _spec(teams, layout: ObservationLayout, reward: Reward, limit: int) -> EnvSpec:
    observation = Box((layout.size,), -np.inf, np.inf)
    action = Box((commands_lib.ACTION_SIZE,), -1.0, 1.0)
    sides = zip(TEAMS, teams, ("success", RED_SCORE), strict=True)
    reported = results.standard_results(OUTCOMES, WINS[:1], components=reward.names)
    won = results.Result(RED_SCORE, kind="rate", source="outcome", among=WINS[1:])
    ending = results.Result("ending", kind="code", labels=ENDINGS)
    return EnvSpec(
        name="echelon",
        version=4,
        roles=tuple(Role(team, count, observation, action, score) for team, count, score in sides),
        decision_period=PERIOD,
        episode_limit=limit,
        results=(*reported, won, ending),
        score="success",
    )
