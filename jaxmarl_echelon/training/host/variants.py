"""Expands `seeds`, `ablate`, `variants` and `sweep` of a configuration into the members of a group."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr
from omegaconf import DictConfig, OmegaConf

from jaxmarl_echelon.config_keys import flatten_leaves, plain_config
from jaxmarl_echelon.curricula.base import trace_curriculum, trace_episodes
from jaxmarl_echelon.envs import check_env
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.envs.episodes import EpisodeEvents
from jaxmarl_echelon.selfplay.matchmaking import MIRROR
from jaxmarl_echelon.training.config import build, input_files, search_space
from jaxmarl_echelon.training.config.build import TASK, change_settings
from jaxmarl_echelon.training.config.population_settings import (
    adapted_numbers,
    read_population,
    split_learner_key,
)
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import selection_score
from jaxmarl_echelon.training.host.group_members import BASELINE, Member, PopulationPlan
from jaxmarl_echelon.training.program.agents import make_agents
from jaxmarl_echelon.training.program.program import make_program, plays_in_league
from jaxmarl_echelon.training.program.read_numbers import find_read_numbers

# Keys that make variants.
VARYING = ("ablate", "variants", "sweep")
# Keys that make a group of runs.
GROUPING = (*VARYING, "seeds", "samples", "pbt")
# Ends of messages: changes of the program, and changes of nothing in it.
NOT_ONLY_NUMBERS = "changes more than numbers; use -m for runs of different programs"
NOTHING_CHANGES = "is the same, or no number that may vary within one program"
# Folders in a run's folder, which members cannot be named after.
FOLDERS = ("checkpoints", "profile", "tensorboard", "videos")
# Groups of a learner's settings.
LEARNER = ("algo", "algos")


def is_group(config: DictConfig) -> bool:
    """Whether a configuration asks for several runs in one program."""
    return config.get("seeds") is not None or any(config.get(key) for key in GROUPING)


def count_members(config: DictConfig) -> int:
    """Number of runs that a configuration defines for one program; raises ValueError as `expand_members`."""
    return len(read_variants(config)) * len(read_seeds(config))


def leave_group(config: DictConfig) -> dict[str, Any]:
    """Returns the changes that make a run of its own of a member of a group."""
    # Every member would record an episode, for one page of all.
    return dict.fromkeys(GROUPING) | {"replay": config.get("replay") or False}


def scored_run(config: DictConfig, members: Sequence[Member]) -> RunConfig:
    """Builds the run on whose task all members are scored: the baseline, which may be no member."""
    if members[0].variant == BASELINE:
        return members[0].config
    return build.build_run_config(change_settings(config, leave_group(config)))


def expand_members(
    config: DictConfig, choices: Mapping[str, str], samples: Mapping[str, dict[str, Any]] | None = None
) -> list[Member]:
    """Builds the runs of a group: the product of variants and seeds.

    Args:
      config: the composed configuration. `seeds` is a count, starting at `seed`, or a list; each
        `reward.NAME` in `ablate` makes one variant with that weight at 0; `variants` maps names to
        `{key: value}`; `sweep` and `samples` draw variants, see `search_space`. The baseline is included,
        except where all variants are drawn.
      choices: the chosen options of Hydra's config groups, stored with each member's configuration.
      samples: settings by name, in place of those that `sweep` draws; their keys are not checked by
        `require_varying_keys` and `require_read_numbers`.

    Raises:
      ValueError: one line, for invalid values.
    """
    base = build.build_run_config(change_settings(config, leave_group(config)))
    seeds, drawn = read_seeds(config), name_samples(config) if samples is None else samples
    several = bool(drawn) or any(config.get(key) for key in VARYING)
    if samples is None:
        require_varying_keys(config, base, drawn)
    result, played, rules = [], None, None
    found = read_variants(config, drawn)
    for variant, chosen in found.items():
        changes = chosen | following_changes(config, chosen)
        require_numbers_only(config, base, variant, changes, drawn=variant in drawn)
        # Environments take long to build, and numbers of learners do not change them.
        env = None if changes_task(changes) else base.env
        for seed in seeds:
            own = change_settings(config, leave_group(config) | {"seed": seed} | changes)
            name = variant if len(seeds) == 1 else f"{variant}_seed_{seed}"
            name = name if several else f"seed_{seed}"
            run = build.build_run_config(own, env)
            touched = set() if env is not None else parts_of_program(changes)
            if touched & {"env", "reward"}:
                played = played or check_env.trace_decision(base.env, base.env.default_params())
                require_same_program(f"variants.{variant}: {dict(changes)}", base.env, run.env, played)
            if "curriculum" in touched:
                rules = rules or trace_rules(base)
                require_same_rules(f"variants.{variant}: {dict(changes)}", rules, run)
            env = run.env
            plain = plain_config(own, choices)
            resolved = input_files.with_absolute_paths(plain, input_files.hash_input_files(run))
            result.append(Member(name, variant, run, resolved, changes))
    if samples is None:
        first = {key: f"variants.{name}" for name, keys in reversed(found.items()) for key in keys}
        require_read_numbers(base, first)
    return result


def following_changes(config: DictConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of the task that follow changed ones of learners, such as the discount of potentials.

    Those that are among the `changes` themselves are left out.
    """
    learnt = {key: value for key, value in changes.items() if key.partition(".")[0] in LEARNER}
    if not learnt:
        return {}
    before, after = (
        flatten_leaves({key: OmegaConf.to_container(one, resolve=True).get(key) or {} for key in TASK})
        for one in (config, change_settings(config, learnt))
    )
    return {key: value for key, value in after.items() if before[key] != value and key not in changes}


def plan_population(config: DictConfig, members: Sequence[Member]) -> PopulationPlan | None:
    """Returns the plan of `pbt` for the members of a group; None without it.

    The runs of every seed are a population, or all runs in a group without variants.

    Raises:
      ValueError: one line, for invalid settings, and for members that cannot be compared.
    """
    settings = read_population(config)
    if settings is None:
        return None
    varying = any(config.get(key) for key in VARYING)
    seeds = read_seeds(config) if varying else [config.seed]
    if len(members) // len(seeds) < 2:
        raise ValueError(
            f"pbt={config.pbt}: needs at least two runs in a population, from seeds, variants or sweep"
        )
    first, updates = max(1, -(-settings.begins // settings.every)) * settings.every, members[0].config.updates
    if first > updates:
        raise ValueError(
            f"pbt={config.pbt}: no exchange would take place, the first one would follow update {first} of "
            f"{updates}"
        )
    for member in members:
        for key in member.changes or ():
            if key.partition(".")[0] in TASK:
                raise ValueError(
                    f"pbt: {key} must be the same in all runs, as they are compared by their scores"
                )
    require_comparable_scores(config, members[0].config)
    numbers = tuple(adapted_numbers(config, members[0].config))
    require_read_numbers(members[0].config, dict.fromkeys(settings.keys, "pbt"))
    for key in settings.keys:
        # Half of a number is another one.
        for other in following_changes(config, {key: 0.5 * (OmegaConf.select(config, key) or 1.0)}):
            raise ValueError(f"pbt.keys={key}: {other} follows it and must not change; set {other}")
    return PopulationPlan(settings, numbers, tuple(seeds))


def require_comparable_scores(config: DictConfig, run: RunConfig) -> None:
    """Raises ValueError unless the rolling scores of runs like `run` rank their learners; see `pbt`."""
    where = f"pbt={config.pbt}: must be null with"
    if plays_in_league(run):
        raise ValueError(f"{where} pool.league, whose learners copy each other")
    curriculum, allowed = run.curriculum(run.env), "allowed: curriculum=none, or a ramp over updates"
    if curriculum.stages:
        raise ValueError(
            f"{where} a curriculum of stages, because the scores of members in different stages cannot be "
            f"compared; {allowed}"
        )
    if curriculum.by_episodes:
        raise ValueError(
            f"{where} a ramp over episodes, because every member is at a task of its own; {allowed}"
        )
    own = [name for name in run.pool.mixture if name not in ("fixed", MIRROR)]
    if run.pooled is not None and own:
        raise ValueError(
            f"{where} pool.mode={run.pool.mode} ({', '.join(own)}), because every member meets opponents of "
            "its own; allowed: pool.mode=fixed, or a mix of fixed and mirror"
        )
    if not selection_score.training_is_informative(run):
        raise ValueError(
            f"{where} a learner that plays {run.env.spec.name} only against itself, because its mean score "
            "is always the same; allowed: a pool with pool.mode=fixed"
        )


def changes_task(changes: Iterable[str]) -> bool:
    """Whether one of the keys belongs to the task."""
    return any(key.partition(".")[0] in TASK for key in changes)


def parts_of_program(changes: Mapping[str, Any]) -> set[str]:
    """Returns the groups of the task whose changes may be more than numbers of the program's state.

    A single weight of a reward cannot. Values may be whole mappings, up to that of a group itself.
    """
    groups = {
        key.partition(".")[0]
        for key, value in changes.items()
        if not (key.startswith("reward.") and isinstance(value, int | float))
    }
    return groups & set(TASK)


def require_numbers_only(
    config: DictConfig, base: RunConfig, variant: str, changes: Mapping[str, Any], *, drawn: bool = False
) -> None:
    """Raises ValueError unless each change affects only numbers of the task or of a learner's state.

    All variants share one program, so that other changes would be ignored silently.

    Args:
      config: of the group.
      base: the run without changes.
      variant: its name.
      changes: values by key.
      drawn: whether the values were drawn, so that they may be those of the base; numbers may also be
        rounded to them.
    """
    for key, value in changes.items():
        where, group = f"variants.{variant}: {key}={value}", key.partition(".")[0]
        own = change_settings(config, leave_group(config) | {key: value})
        if group in LEARNER:
            require_learner_number(where, key, base, build.build_run_config(own, base.env), drawn=drawn)
            continue
        if group not in TASK:
            allowed = ", ".join((*TASK, *LEARNER))
            raise ValueError(f"{where}: only {allowed} may differ between runs of one program")
        other = build.build_run_config(own)
        ours, theirs = (run.curriculum(run.env).init() for run in (base, other))
        worlds = base.env.world, other.env.world
        same_world = build.same_shapes(*worlds) and build.same_arrays(*worlds)
        if base.env.spec != other.env.spec or not build.same_shapes(ours, theirs) or not same_world:
            raise ValueError(f"{where}: {NOT_ONLY_NUMBERS}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        usual = drawn and (number or value == OmegaConf.select(config, key))
        if build.same_arrays(ours, theirs) and not usual:
            raise ValueError(f"{where}: {NOTHING_CHANGES}")


def require_same_program(where: str, base: Environment, other: Environment, played: Any) -> None:
    """Raises ValueError if a changed environment has another program than the base, whatever its numbers are.

    A setting may be a number and a part of the program, such as a car's length, from which the points of its
    outline follow.

    Args:
      where: beginning of the message.
      base, other: the environments without and with the changes.
      played: `check_env.trace_decision` of `base`.
    """
    if not check_env.same_traces(played, check_env.trace_decision(other, base.default_params())):
        raise ValueError(f"{where}: {NOT_ONLY_NUMBERS}")


class TracedRules(NamedTuple):
    """A curriculum's rules, which belong to the program that all runs share.

    Attributes:
      stages: their names.
      flow: `trace_episodes` of the curriculum, or of one whose states are the same.
      trace: `trace_curriculum`.
    """

    stages: tuple[str, ...]
    flow: EpisodeEvents
    trace: ClosedJaxpr


def trace_rules(run: RunConfig, flow: EpisodeEvents | None = None) -> TracedRules:
    """Traces the rules of a run's curriculum; see `TracedRules` for `flow`."""
    curriculum = run.curriculum(run.env)
    flow = trace_episodes(curriculum, run.env, run.eval_episodes) if flow is None else flow
    return TracedRules(curriculum.stages, flow, trace_curriculum(curriculum, flow))


def require_same_rules(where: str, ours: TracedRules, other: RunConfig) -> None:
    """Raises ValueError if a changed curriculum has other rules than the base, whatever its numbers are.

    A table of stages may change both the tasks, which are numbers of the state, and the criteria by which a
    stage is passed, which are not.

    Args:
      where: beginning of the message.
      ours: rules of the run without the changes.
      other: the run with the changes.
    """
    theirs = trace_rules(other, ours.flow)
    if ours.stages != theirs.stages or not check_env.same_traces(ours.trace, theirs.trace):
        raise ValueError(f"{where}: {NOT_ONLY_NUMBERS}")


def require_varying_keys(
    config: DictConfig, base: RunConfig, samples: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raises ValueError for a drawn key of the task that changes no number of it with any of its values.

    A single number may be rounded to that of the base by chance.
    """
    for key in dict.fromkeys(key for changes in samples.values() for key in changes):
        if key.partition(".")[0] not in TASK:
            continue
        values = {name: changes[key] for name, changes in samples.items() if key in changes}
        others = {n: value for n, value in values.items() if value != OmegaConf.select(config, key)}
        if others and all(_leaves_numbers(config, base, key, value) for value in others.values()):
            name, value = next(iter(others.items()))
            raise ValueError(f"variants.{name}: {key}={value}: {NOTHING_CHANGES}")


def _leaves_numbers(config: DictConfig, base: RunConfig, key: str, value: Any) -> bool:
    """Whether a changed setting leaves all numbers of the task as they are."""
    other = build.build_run_config(change_settings(config, leave_group(config) | {key: value}))
    ours, theirs = (run.curriculum(run.env).init() for run in (base, other))
    return build.same_shapes(ours, theirs) and build.same_arrays(ours, theirs)


def require_learner_number(
    where: str, key: str, base: RunConfig, other: RunConfig, *, drawn: bool = False
) -> None:
    """Raises ValueError unless a changed key is a number in the state of every learner that it sets.

    Args:
      where: beginning of the message.
      key: `algo.NAME` or `algos.ROLE.NAME`.
      base, other: the run without and with the change.
      drawn: whether the value may be the same.
    """
    learners, name = split_learner_key(key, base)
    numbers = [base.algos[one].adjustable() for one in learners]
    if not learners or any(name not in known for known in numbers):
        known = dict.fromkeys(name for algo in base.algos.values() for name in algo.adjustable())
        allowed = ", ".join(f"algo.{one}" for one in known) or "none"
        raise ValueError(f"{where}: must be a number of the learner's state: {allowed}")
    before, after = (make_agents(run) for run in (base, other))
    for one in learners:
        shapes = [jax.eval_shape(agents[one].init, jax.random.key(0)) for agents in (before, after)]
        if not build.same_shapes(*shapes):
            raise ValueError(
                f"{where}: needs another program; {key} must be set (and not be 0) in the run itself"
            )
    values = ([agents[one].hyper() for one in learners] for agents in (before, after))
    if not drawn and build.same_arrays(*values):
        raise ValueError(f"{where}: is the same as without")


def require_read_numbers(run: RunConfig, keys: Mapping[str, str]) -> None:
    """Raises ValueError for a number of learners that no update of a run reads: its values are all the same.

    Traces an update if any of the keys belongs to a learner.

    Args:
      run: one of the runs.
      keys: names of settings, each with the beginning of the message.
    """
    keys = {key: where for key, where in keys.items() if key.partition(".")[0] in LEARNER}
    read = find_read_numbers(make_program(run)) if keys else set()
    for key, where in keys.items():
        learners, name = split_learner_key(key, run)
        if not any((one, name) in read for one in learners):
            raise ValueError(f"{where}: {key} has no effect: with the other settings no update reads it")


def name_samples(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Returns the settings that `sweep` draws, by names in their order; empty without it."""
    drawn = search_space.draw_sweep(config)
    width = len(str(len(drawn) - 1))
    return {f"sample_{index:0{width}d}": changes for index, changes in enumerate(drawn)}


def read_seeds(config: DictConfig) -> list[int]:
    """Returns the seeds of a group; the run's own seed without `seeds`."""
    seeds = config.get("seeds")
    if seeds is None:
        return [config.seed]
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1:
        return [config.seed + index for index in range(seeds)]
    listed = OmegaConf.is_list(seeds) and seeds
    whole = listed and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds)
    if whole and len(set(seeds)) == len(seeds):
        return list(seeds)
    raise ValueError(f"seeds={seeds}: must be a whole number of at least 1, or a list of different seeds")


def read_variants(
    config: DictConfig, drawn: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Returns the changed values of every variant by name, first the baseline, unless all are `drawn`."""
    drawn = name_samples(config) if drawn is None else drawn
    chosen = config.get("variants") or config.get("ablate")
    result: dict[str, dict[str, Any]] = {} if drawn and not chosen else {BASELINE: {}}
    given = config.get("variants") or {}
    if not OmegaConf.is_dict(given) and given != {}:
        raise ValueError(f"variants={given}: must map names to mappings of keys to values")
    taken = {*FOLDERS, *drawn, *(f"without_{name}" for name in read_ablations(config.get("ablate")))}
    for name, changes in given.items():
        if str(name) in taken:
            raise ValueError(f"variants.{name}: must have another name; this one is taken")
        named = re.fullmatch(r"[\w.-]+", str(name)) and str(name) not in (".", "..", BASELINE)
        if not named or not OmegaConf.is_dict(changes):
            raise ValueError(f"variants.{name}={changes}: must be a name and a mapping of keys to values")
        for key in changes:
            search_space.require_known_key(config, f"variants.{name}", str(key))
        result[str(name)] = dict(changes)
    for name in read_ablations(config.get("ablate")):
        result[f"without_{name}"] = {
            f"reward.components.{part}.weight": 0.0 for part in rewarded_parts(config, name)
        }
    return result | dict(drawn)


def read_ablations(value) -> list[str]:
    """Parses component names from `reward.a,reward.b`, a string or a list."""
    if value is None:
        return []
    if not isinstance(value, str) and not OmegaConf.is_list(value):
        raise ValueError(f"ablate={value}: must be reward.COMPONENT, or several separated by commas")
    names = [str(name).strip() for name in (value.split(",") if isinstance(value, str) else value)]
    for name in names:
        if not name.startswith("reward.") or name.count(".") != 1:
            raise ValueError(f"ablate={name}: must be reward.COMPONENT, or several separated by commas")
    return [name.removeprefix("reward.") for name in names]


def rewarded_parts(config: DictConfig, name: str) -> tuple[str, ...]:
    """Returns the reward components that `name` denotes: itself, or the members of the set of that name."""
    reward = config.get("reward") or {}
    components, sets = reward.get("components") or {}, reward.get("sets") or {}
    parts = [name] if name in components else [p for p in sets.get(name, ()) if p in components]
    if not parts:
        known = ", ".join(f"reward.{part}" for part in [*components, *sets])
        raise ValueError(f"ablate=reward.{name}: no such part of this reward; allowed: {known or 'none'}")
    return tuple(parts)
