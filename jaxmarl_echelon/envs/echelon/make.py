"""Builds the battle environment from settings."""

from dataclasses import replace

import numpy as np

from jaxmarl_echelon.envs import settings as readers
from jaxmarl_echelon.envs.echelon import settings
from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams
from jaxmarl_echelon.envs.echelon.battle_interface import BattleInterface
from jaxmarl_echelon.envs.echelon.env import Echelon
from jaxmarl_echelon.envs.echelon.observing.layout import make_layout
from jaxmarl_echelon.envs.echelon.rosters import read_roster
from jaxmarl_echelon.envs.echelon.settings import SUBSTEPS, SettingLimits
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank, add_path_codes, generate_terrain
from jaxmarl_echelon.envs.rewards import Reward


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
        bank = generate_terrain(ground, ground.biomes, max(teams))
    pack = max(roster.largest_pack for roster in rosters)
    if np.asarray(settings.read_share_per_team("assist", forces.assist)).any() and bank.ways is None:
        bank = add_path_codes(bank)
    timed = rules.zone_seconds is None
    limits = SettingLimits(bank.zone.shape[0], teams, pack, ways=bank.ways is not None, zone_by_time=timed)
    if timed:
        half = settings.halve_time_limit(rules.time_limit)
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
    layout = make_layout(pack, chosen.observing.telemetry, frame=chosen.observing.frame)
    interface = BattleInterface(simulation, layout, chosen.observing.critic)
    return Echelon(interface, reward, limits, params)
