"""Builds the mission environment from settings."""

from collections.abc import Mapping

from algos.defaults import read_defaults
from jaxmarl_echelon.envs import settings as readers
from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle_interface import BattleInterface
from jaxmarl_echelon.envs.echelon.missions import embedding, navigation, own_progress
from jaxmarl_echelon.envs.echelon.missions.env import EchelonMissions
from jaxmarl_echelon.envs.echelon.missions.measures.credit import CreditRule
from jaxmarl_echelon.envs.echelon.missions.parameters import MissionLimits, build_mission_params
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import draw_biomes, make_scenario_ground
from jaxmarl_echelon.envs.echelon.missions.scenarios.presets import with_preset
from jaxmarl_echelon.envs.echelon.missions.settings import FIXED, MissionGround, MissionSettings
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import read_verbs
from jaxmarl_echelon.envs.echelon.observing.layout import BODY, make_layout
from jaxmarl_echelon.envs.echelon.rosters import read_roster
from jaxmarl_echelon.envs.echelon.settings import SUBSTEPS
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank, generate_terrain
from jaxmarl_echelon.envs.rewards import Reward


def make(reward: Reward, *, bank: TerrainBank | None = None, **given) -> EchelonMissions:
    """Builds the environment; `given` are keys of `conf/env/echelon_missions.yaml`, which explains each.

    Args:
      reward: factors on the reward components.
      bank: terrains to use instead of generated ones.
      given: settings that differ from the defaults.

    Raises:
      ValueError: one line, for a setting with a value that is not allowed.
    """
    defaults = read_defaults(MissionSettings.FILE)
    settings = with_preset(given.get("scenario"), given, defaults)
    chosen = readers.unflatten_settings(MissionSettings, settings)
    rosters = read_roster("blue", chosen.teams.blue), read_roster("red", chosen.teams.red)
    teams = tuple(len(roster.classes) for roster in rosters)
    registry = read_verbs(chosen.order.verbs)
    if bank is None:
        bank = _terrain(chosen.ground, max(teams))
    frame = MissionLimits(registry, rosters, bank, reward)
    params = build_mission_params(chosen, frame)
    limited = frame._replace(limit=int(params.echelon.max_decisions))

    def task(changed: Mapping):
        readers.refuse_fixed(changed, [key for key in defaults if key not in FIXED])
        return build_mission_params(
            readers.unflatten_settings(MissionSettings, {**settings, **changed}), limited
        )

    pack = max(roster.largest_pack for roster in rosters)
    fields = embedding.embedding_fields(registry.names)
    further, marks = {"mission": ((len(fields),), "vector", fields)}, ()
    if chosen.rules.frame == BODY:
        further, marks = further | own_progress.progress_blocks(), own_progress.MARK_FIELDS
    if chosen.rules.navigation:
        if chosen.rules.frame != BODY:
            raise ValueError(f"env.navigation=true: needs env.frame={BODY}, not {chosen.rules.frame}")
        further |= navigation.navigation_blocks()
    layout = make_layout(pack, chosen.rules.telemetry, further, chosen.rules.frame, marks)
    simulation = BattleSimulation(
        bank=bank,
        teams=teams,
        substeps=SUBSTEPS,
        pages=chosen.ground.pages,
        damaged=chosen.ground.damaged,
        logged=True,
    )
    ground = make_scenario_ground(bank, chosen.ground.coverage_cell)
    interface = BattleInterface(simulation, layout, chosen.rules.critic)
    credit = CreditRule(chosen.measures.credit_kind, chosen.measures.credit_samples)
    return EchelonMissions(interface, ground, frame, params, task, credit)


def _terrain(ground: MissionGround, team_size: int) -> TerrainBank:
    types = [name for name, weight in ground.terrain.items() if weight > 0]
    biomes = ground.biomes or draw_biomes(ground.maps, ground.map_seed, types, ground.los_complexity)
    return generate_terrain(ground, biomes, team_size)
