"""Old import paths of everything that a configuration can name by `_target_`, and their current paths.

Checkpoints keep the resolved configuration of their run, and users keep YAML files of their own; both name
classes and functions by module paths. A module that moves, or an object that is renamed, gets a line here.
"""

from typing import Any

from omegaconf import DictConfig, OmegaConf

TARGET = "_target_"

# Objects that were renamed or left their module, by the old path of the object.
OBJECTS = {
    "jaxmarl_echelon.curricula.base.fixed": "jaxmarl_echelon.curricula.base.constant_curriculum",
    "jaxmarl_echelon.curricula.missions.missions": (
        "jaxmarl_echelon.curricula.missions.curriculum.mission_curriculum"
    ),
    "jaxmarl_echelon.curricula.phased.phased": "jaxmarl_echelon.curricula.phased.phased_curriculum",
    "jaxmarl_echelon.curricula.ramp.ramp": "jaxmarl_echelon.curricula.ramp.ramp_curriculum",
    "jaxmarl_echelon.curricula.spawn.spawn": "jaxmarl_echelon.curricula.spawn.spawn_curriculum",
    "jaxmarl_echelon.envs.echelon.env.make": "jaxmarl_echelon.envs.echelon.make.make",
    "jaxmarl_echelon.envs.echelon.missions.pay.reward.make_reward": (
        "jaxmarl_echelon.envs.echelon.missions.rewards.make_mission_reward"
    ),
    "jaxmarl_echelon.envs.echelon.rewards.make_reward": (
        "jaxmarl_echelon.envs.echelon.rewards.make_battle_reward"
    ),
    "jaxmarl_echelon.envs.f110.env.make": "jaxmarl_echelon.envs.f110.make.make",
    "jaxmarl_echelon.envs.f110.race.make": "jaxmarl_echelon.envs.f110.make.make_race",
}

# Modules that moved with all they contain, by their old path.
MODULES = {
    "algos.a2c": "algos.on_policy.a2c",
    "algos.axis": "algos.collectives",
    "algos.on_policy.plan": "algos.on_policy.update_sizes",
    "algos.on_policy.samples": "algos.on_policy.sample_epochs",
    "algos.on_policy.sampling": "algos.on_policy.segment_sampling",
    "algos.on_policy.segments": "algos.on_policy.segment_epochs",
    "algos.on_policy.teacher": "algos.on_policy.distillation",
    "algos.ppo": "algos.on_policy.ppo",
    "algos.sac": "algos.off_policy.sac",
    "algos.td3": "algos.off_policy.td3",
    "algos.tqc": "algos.off_policy.tqc",
    "algos.vectorized": "algos.stacked_agents",
    "jaxmarl_echelon.config_path": "jaxmarl_echelon.config_sources",
    "jaxmarl_echelon.curricula.campaign": "jaxmarl_echelon.curricula.missions.transitions",
    "jaxmarl_echelon.curricula.mission_plan": "jaxmarl_echelon.curricula.missions.settings",
    "jaxmarl_echelon.curricula.missions": "jaxmarl_echelon.curricula.missions.curriculum",
    "jaxmarl_echelon.curricula.significance": "jaxmarl_echelon.curricula.missions.significance",
    "jaxmarl_echelon.curricula.tickets": "jaxmarl_echelon.curricula.episode_queue",
    "jaxmarl_echelon.envs.adapters.gymnax": "jaxmarl_echelon.envs.adapters.inward.gymnax",
    "jaxmarl_echelon.envs.checks": "jaxmarl_echelon.envs.check_env",
    "jaxmarl_echelon.envs.checks_of_play": "jaxmarl_echelon.envs.check_rollout",
    "jaxmarl_echelon.envs.drive.motion": "jaxmarl_echelon.envs.drive.traffic.motion",
    "jaxmarl_echelon.envs.drive.others": "jaxmarl_echelon.envs.drive.traffic.scripted_bodies",
    "jaxmarl_echelon.envs.drive.roads": "jaxmarl_echelon.envs.drive.traffic.road_contacts",
    "jaxmarl_echelon.envs.drive.routes": "jaxmarl_echelon.envs.drive.traffic.routes",
    "jaxmarl_echelon.envs.drive.scenes.building": "jaxmarl_echelon.envs.drive.scenes.scene_jobs",
    "jaxmarl_echelon.envs.drive.scenes.host": "jaxmarl_echelon.envs.drive.scenes.raw_scene",
    "jaxmarl_echelon.envs.drive.scripts": "jaxmarl_echelon.envs.drive.scripts.baselines",
    "jaxmarl_echelon.envs.drive.signals": "jaxmarl_echelon.envs.drive.traffic.signals",
    "jaxmarl_echelon.envs.drive.simulation": "jaxmarl_echelon.envs.drive.traffic.simulation",
    "jaxmarl_echelon.envs.drive.types": "jaxmarl_echelon.envs.drive.state",
    "jaxmarl_echelon.envs.drive.view.scene": "jaxmarl_echelon.envs.drive.view.road_drawing",
    "jaxmarl_echelon.envs.echelon.aftermath": "jaxmarl_echelon.envs.echelon.battle.terrain_destruction",
    "jaxmarl_echelon.envs.echelon.animation": "jaxmarl_echelon.envs.echelon.view.animation",
    "jaxmarl_echelon.envs.echelon.condition": "jaxmarl_echelon.envs.echelon.battle.heat_and_stability",
    "jaxmarl_echelon.envs.echelon.contacts": "jaxmarl_echelon.envs.echelon.observing.contacts",
    "jaxmarl_echelon.envs.echelon.damage": "jaxmarl_echelon.envs.echelon.battle.damage",
    "jaxmarl_echelon.envs.echelon.episode": "jaxmarl_echelon.envs.echelon.view.recorded_battle",
    "jaxmarl_echelon.envs.echelon.frames": "jaxmarl_echelon.envs.echelon.view.snapshot",
    "jaxmarl_echelon.envs.echelon.heuristic": "jaxmarl_echelon.envs.echelon.scripts.heuristic",
    "jaxmarl_echelon.envs.echelon.layout": "jaxmarl_echelon.envs.echelon.observing.layout",
    "jaxmarl_echelon.envs.echelon.missions.measures.watch": (
        "jaxmarl_echelon.envs.echelon.missions.measures.overwatch_coverage"
    ),
    "jaxmarl_echelon.envs.echelon.missions.pay.reward": "jaxmarl_echelon.envs.echelon.missions.rewards",
    "jaxmarl_echelon.envs.echelon.missions.standing": (
        "jaxmarl_echelon.envs.echelon.missions.objective_status"
    ),
    "jaxmarl_echelon.envs.echelon.missions.types": "jaxmarl_echelon.envs.echelon.missions.state",
    "jaxmarl_echelon.envs.echelon.movement": "jaxmarl_echelon.envs.echelon.battle.movement",
    "jaxmarl_echelon.envs.echelon.observation": "jaxmarl_echelon.envs.echelon.observing.observe",
    "jaxmarl_echelon.envs.echelon.outcomes": "jaxmarl_echelon.envs.echelon.results",
    "jaxmarl_echelon.envs.echelon.palette": "jaxmarl_echelon.envs.echelon.view.palette",
    "jaxmarl_echelon.envs.echelon.projectiles": "jaxmarl_echelon.envs.echelon.battle.projectiles",
    "jaxmarl_echelon.envs.echelon.render": "jaxmarl_echelon.envs.echelon.view.viewer",
    "jaxmarl_echelon.envs.echelon.replay": "jaxmarl_echelon.envs.echelon.view.replay",
    "jaxmarl_echelon.envs.echelon.scene": "jaxmarl_echelon.envs.echelon.battle.surroundings",
    "jaxmarl_echelon.envs.echelon.scripts": "jaxmarl_echelon.envs.echelon.scripts.baselines",
    "jaxmarl_echelon.envs.echelon.sensors": "jaxmarl_echelon.envs.echelon.battle.sensors",
    "jaxmarl_echelon.envs.echelon.simulation": "jaxmarl_echelon.envs.echelon.battle.simulation",
    "jaxmarl_echelon.envs.echelon.smoke": "jaxmarl_echelon.envs.echelon.battle.smoke",
    "jaxmarl_echelon.envs.echelon.tables": "jaxmarl_echelon.envs.echelon.battle.unit_tables",
    "jaxmarl_echelon.envs.echelon.types": "jaxmarl_echelon.envs.echelon.battle.state",
    "jaxmarl_echelon.envs.echelon.vectors": "jaxmarl_echelon.envs.echelon.battle.vectors",
    "jaxmarl_echelon.envs.echelon.weapons": "jaxmarl_echelon.envs.echelon.battle.weapons",
    "jaxmarl_echelon.envs.f110.controllers": "jaxmarl_echelon.envs.f110.scripts.controllers",
    "jaxmarl_echelon.envs.f110.follow_the_gap": "jaxmarl_echelon.envs.f110.scripts.follow_the_gap",
    "jaxmarl_echelon.envs.f110.ftg_params": "jaxmarl_echelon.envs.f110.gap_parameters",
    "jaxmarl_echelon.envs.f110.goals": "jaxmarl_echelon.envs.f110.starts.goals",
    "jaxmarl_echelon.envs.f110.observation": "jaxmarl_echelon.envs.f110.observing.observe",
    "jaxmarl_echelon.envs.f110.outcomes": "jaxmarl_echelon.envs.f110.results",
    "jaxmarl_echelon.envs.f110.render": "jaxmarl_echelon.envs.f110.view.viewer",
    "jaxmarl_echelon.envs.f110.reward_components": "jaxmarl_echelon.envs.f110.rewards",
    "jaxmarl_echelon.envs.f110.simulation": "jaxmarl_echelon.envs.f110.cars.simulation",
    "jaxmarl_echelon.envs.f110.spawns": "jaxmarl_echelon.envs.f110.starts.spawns",
    "jaxmarl_echelon.envs.f110.track_position": "jaxmarl_echelon.envs.f110.observing.track_position",
    "jaxmarl_echelon.envs.f110.types": "jaxmarl_echelon.envs.f110.state",
    "jaxmarl_echelon.envs.rows": "jaxmarl_echelon.envs.packed_rows",
    "jaxmarl_echelon.extras": "jaxmarl_echelon.optional_packages",
    "jaxmarl_echelon.tracking.doc_names": "jaxmarl_echelon.tracking.unstable_baselines_names",
    "jaxmarl_echelon.training.agents": "jaxmarl_echelon.training.program.agents",
    "jaxmarl_echelon.training.collector": "jaxmarl_echelon.training.rollouts.spec",
    "jaxmarl_echelon.training.compiling": "jaxmarl_echelon.training.host.compile",
    "jaxmarl_echelon.training.config": "jaxmarl_echelon.training.config.build",
    "jaxmarl_echelon.training.controllers": "jaxmarl_echelon.training.acting.controllers",
    "jaxmarl_echelon.training.devices": "jaxmarl_echelon.training.host.devices",
    "jaxmarl_echelon.training.evaluation": "jaxmarl_echelon.training.program.evaluation",
    "jaxmarl_echelon.training.files": "jaxmarl_echelon.training.config.input_files",
    "jaxmarl_echelon.training.group": "jaxmarl_echelon.training.host.vectorized_runs",
    "jaxmarl_echelon.training.keys": "jaxmarl_echelon.training.acting.random_streams",
    "jaxmarl_echelon.training.loop": "jaxmarl_echelon.training.host.loop",
    "jaxmarl_echelon.training.memory": "jaxmarl_echelon.training.host.memory",
    "jaxmarl_echelon.training.play": "jaxmarl_echelon.training.acting.decisions",
    "jaxmarl_echelon.training.pools.leagues": "jaxmarl_echelon.training.program.league",
    "jaxmarl_echelon.training.pools.meetings": "jaxmarl_echelon.training.opponents.schedule",
    "jaxmarl_echelon.training.pools.opponents": "jaxmarl_echelon.training.opponents.pool_role",
    "jaxmarl_echelon.training.pools.rounds": "jaxmarl_echelon.training.opponents.seat_rounds",
    "jaxmarl_echelon.training.pools.tournament": "jaxmarl_echelon.training.program.round_robin",
    "jaxmarl_echelon.training.pools.turn_games": "jaxmarl_echelon.training.rollouts.turn_based_pool",
    "jaxmarl_echelon.training.program": "jaxmarl_echelon.training.program.program",
    "jaxmarl_echelon.training.record": "jaxmarl_echelon.training.host.run_record",
    "jaxmarl_echelon.training.references": "jaxmarl_echelon.training.host.reference_scores",
    "jaxmarl_echelon.training.resuming": "jaxmarl_echelon.training.host.resume",
    "jaxmarl_echelon.training.rollout": "jaxmarl_echelon.training.rollouts.collect",
    "jaxmarl_echelon.training.run_config": "jaxmarl_echelon.training.config.run_config",
    "jaxmarl_echelon.training.seating": "jaxmarl_echelon.training.config.role_assignment",
    "jaxmarl_echelon.training.selection": "jaxmarl_echelon.training.host.selection_score",
    "jaxmarl_echelon.training.shards": "jaxmarl_echelon.training.program.shards",
    "jaxmarl_echelon.training.statistics": "jaxmarl_echelon.training.acting.episode_statistics",
    "jaxmarl_echelon.training.transitions": "jaxmarl_echelon.training.rollouts.transitions",
    "jaxmarl_echelon.training.turns": "jaxmarl_echelon.training.rollouts.turn_based",
    "jaxmarl_echelon.training.types": "jaxmarl_echelon.training.acting.state",
    "jaxmarl_echelon.training.variants": "jaxmarl_echelon.training.host.variants",
}


def current_target(path: str) -> str:
    """Returns the current path of an object from an old or a current one; other paths are unchanged."""
    if path in OBJECTS:
        return OBJECTS[path]
    # A present package can have the name of an old module, so that only its own attributes have moved.
    module, _, name = path.rpartition(".")
    return f"{MODULES[module]}.{name}" if module in MODULES else path


def update_targets(node: DictConfig) -> DictConfig:
    """Returns a configuration node with current paths in every `_target_`; the node itself if all are."""
    before = OmegaConf.to_container(node, resolve=True)
    after = _updated(before)
    return node if after == before else OmegaConf.create(after)


def _updated(value: Any) -> Any:
    """Copies a tree of plain data with current paths."""
    if isinstance(value, list):
        return [_updated(item) for item in value]
    if not isinstance(value, dict):
        return value
    copied = {key: _updated(item) for key, item in value.items()}
    if isinstance(copied.get(TARGET), str):
        copied[TARGET] = current_target(copied[TARGET])
    return copied
