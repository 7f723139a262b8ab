"""Common functions of the command lines: composed configurations and one-line errors."""

import argparse
import atexit
import copy
import gc
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jax
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from algos.checks import suggest_names
from algos.compiler import provide_collective_threads
from algos.defaults import config_directory
from jaxmarl_echelon.config_keys import (
    flatten_leaves,
    following_settings,
    restore_following,
    unknown_key_message,
)
from jaxmarl_echelon.config_sources import Sources
from jaxmarl_echelon.output_folders import is_taken
from jaxmarl_echelon.terminal import lossy_output
from jaxmarl_echelon.unknown_options import unknown_option_message

# Traces create millions of long-lived objects. At the default thresholds Python would scan them for cycles
# again and again.
GC_THRESHOLDS = (200_000, 50, 1_000)
# Keys with comma-separated lists as values, which are not sweeps.
LISTS = ("ablate", "seeds")
# A number without a fraction that may have an exponent, as `1e6`.
WHOLE = re.compile(r"\d+(\.\d+)?[eE]\+?\d{1,2}|\d+")
# A range of a search space without quotes; see `training.config.search_space`.
RANGE = re.compile(r"(?<!['\"\w])(?:1-)?[a-z]+\([^()'\"]*\)(?!['\"])")
# Keys that can be written without their group.
SHORT = {"mission": "env.mission"}
SEARCHED = "hydra.searchpath"
SWEEPER = "hydra/sweeper="
PACKAGED = Sources()
# `resume=auto`.
AUTO = "auto"


class UsageError(ValueError):
    """Invalid user input; the message is one line."""


def run_guarded(main: Callable[[], Any]) -> Any:
    """Runs a command line and returns its result; user errors become one line on stderr with exit status 2.

    JAXMARL_TRACEBACK=1 shows the traceback instead. The command continues if its standard output fails. From
    this call on garbage is collected rarely, also in processes of a sweep's launcher.
    """
    raise_gc_thresholds()
    provide_collective_threads()
    try:
        with lossy_output():
            return main()
    except (ValueError, FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        _refuse(str(error))
    except (RuntimeError, AssertionError):
        if _has_devices():
            raise
        asked = os.environ.get("JAX_PLATFORMS")
        _refuse(f"JAX_PLATFORMS={asked}: device not found on this machine; allowed: cpu, or leave it unset")


@cache
def raise_gc_thresholds() -> None:
    """Raises the thresholds for the rest of the process, and skips the final collection at its end."""
    gc.set_threshold(*GC_THRESHOLDS)
    atexit.register(gc.freeze)


def _has_devices() -> bool:
    """Whether JAX finds a device of the requested platform; a missing one raises various errors."""
    try:
        return bool(jax.devices())
    except (RuntimeError, AssertionError):
        return False


def _refuse(message: str) -> NoReturn:
    """Ends the command with one line and exit status 2, or re-raises the error being handled."""
    if os.environ.get("JAXMARL_TRACEBACK"):
        raise  # callers are handling an error
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2) from None


# How argparse begins its message.
UNRECOGNIZED = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError instead of ending the process, with the closest options for an unknown one."""
        first = message.removeprefix(UNRECOGNIZED).split(maxsplit=1)[0] if message else ""
        if not message.startswith(UNRECOGNIZED) or not first.startswith("-"):
            raise UsageError(message)
        option = first.partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        raise UsageError(f"{option}: unknown option; {suggest_names(option, known)}")


def invoked_command(module: str, script: str) -> str:
    """Returns the invoked command: the console script, or `python -m module`."""
    return script if Path(sys.argv[0]).stem == script else f"python -m {module}"


def use_compilation_cache() -> None:
    """Enables the persistent compilation cache, in JAX_COMPILATION_CACHE_DIR or the user's cache folder.

    It stores programs that took at least a second (JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS) to compile.
    """
    if not (os.environ.get("JAX_COMPILATION_CACHE_DIR") or jax.config.jax_compilation_cache_dir):
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "jaxmarl_echelon" / "jax"))
    if not os.environ.get("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def config_groups() -> list[str]:
    """Lists the configuration groups of a run, without those of Hydra itself."""
    folders = (path.name for path in config_directory().iterdir() if path.is_dir())
    return sorted(name for name in folders if name != "hydra")


def normalize_overrides(arguments: Sequence[str], sources: Sources = PACKAGED) -> list[str]:
    """Normalises arguments for Hydra.

    The plus sign of `+algo=ppo` is dropped, because all groups have defaults. Keys of `SHORT` get their
    group. Keys of mappings that accept new keys (`Sources.open_keys`) get `++`. Whole numbers can have an
    exponent, and paths any characters, see `quote_for_hydra`.
    """
    chosen = tuple(f"+{group}=" for group in config_groups())
    arguments = [argument[1:] if argument.startswith(chosen) else argument for argument in arguments]
    arguments = [quote_for_hydra(bracket_list(expand_alias(quote_ranges(one)))) for one in arguments]
    keys = sources.open_keys()
    return [f"++{argument}" if accepts_new_keys(argument, keys) else argument for argument in arguments]


def quote_ranges(argument: str) -> str:
    """Quotes ranges such as `log(1e-4,1e-2)` in `sweep=`, which Hydra would read as functions of its own."""
    if not argument.lstrip("+").startswith(("sweep=", "sweep.")):
        return argument
    return RANGE.sub(lambda found: f"'{found[0]}'", argument)


def expand_alias(argument: str) -> str:
    """Expands a key of `SHORT` in `KEY=VALUE`."""
    key, equals, value = argument.partition("=")
    return f"{SHORT.get(key, key)}{equals}{value}"


def quote_for_hydra(argument: str) -> str:
    """Rewrites `KEY=VALUE` for Hydra's grammar: whole numbers written out, and paths in quotes.

    `total_env_steps=1e6` becomes `total_env_steps=1000000`. A value that the grammar rejects or does not read
    as text is quoted if it is an existing path; a rejected value also if it has a slash or non-ASCII letters.
    """
    key, equals, value = argument.partition("=")
    if not equals:
        return argument
    if all(WHOLE.fullmatch(one) for one in value.split(",")):
        return f"{key}={','.join(_written_out(one) for one in value.split(','))}"
    if value.startswith(("'", '"')) or _reads_as_text(argument, value):
        return argument
    if _exists(value) or (not _is_legal(argument) and ("/" in value or not value.isascii())):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"{key}='{escaped}'"
    return argument


def _written_out(number: str) -> str:
    """Writes a whole number with an exponent as digits; returns other numbers unchanged."""
    exact = Decimal(number)
    return str(int(exact)) if "e" in number.lower() and exact == exact.to_integral_value() else number


def _is_legal(override: str) -> bool:
    try:
        _read_override(override)
    except UsageError:
        return False
    return True


def _reads_as_text(override: str, value: str) -> bool:
    try:
        return parse_override_value(override) == value
    except UsageError:
        return False


def _exists(value: str) -> bool:
    try:
        return bool(value) and Path(value).exists()
    except (OSError, ValueError):  # too long for a path, or with a null character
        return False


def accepts_new_keys(argument: str, keys: Sequence[str]) -> bool:
    """Whether the key of `KEY=VALUE` is a mapping that accepts new keys, or is inside one."""
    key = argument.partition("=")[0]
    return any(key == name or key.startswith(f"{name}.") for name in keys)


def bracket_list(argument: str) -> str:
    """Adds brackets around comma-separated values of `LISTS` keys, which Hydra would read as a sweep."""
    key, _, value = argument.partition("=")
    bare = key in LISTS and "," in value and value[0] not in "[\"'"
    return f"{key}=[{value}]" if bare else argument


def compose_config(
    overrides: Sequence[str], sources: Sources = PACKAGED
) -> tuple[DictConfig, dict[str, str]]:
    """Composes the configuration; also returns the chosen option of each group.

    Args:
      overrides: items `KEY=VALUE`, as returned by `normalize_overrides`.
      sources: locations of configurations.

    Raises:
      UsageError: one line, for invalid overrides.
    """
    for override in overrides:
        _check_override(override, sources)
    try:
        with _composing(sources):
            typed = [*overrides, *sources.searched()]
            config = compose(sources.name, overrides=typed, return_hydra_config=True)
            chosen = {k: v for k, v in config.hydra.runtime.choices.items() if "hydra" not in k}
            with open_dict(config):
                del config["hydra"]
            following = following_settings(config)
            OmegaConf.resolve(config)
            # These change with the learner's, in variants of the run and when it is resumed.
            restore_following(config, following)
            _refuse_replaced_mappings(config, overrides, sources)
            return config, chosen
    except (HydraException, OmegaConfBaseException, TypeError) as error:
        raise UsageError(_explain(error, overrides, sources)) from error


def _refuse_replaced_mappings(config: DictConfig, overrides: Sequence[str], sources: Sources) -> None:
    """Raises UsageError for a text in place of a mapping of settings, such as `algo.core=lstm`."""
    nested = [o for o in overrides if "." in _dotted_key(o)]
    texts = [o for o in nested if isinstance(OmegaConf.select(config, _dotted_key(o)), str)]
    usual = _compose_options(overrides, sources) if texts else config
    for override in texts:
        before = OmegaConf.select(usual, _dotted_key(override), throw_on_missing=False)
        if OmegaConf.is_dict(before) and len(before):
            keys = ", ".join(str(key) for key in before)
            raise UsageError(f"{override.lstrip('+')}: must be a mapping, with the keys {keys}")


def _dotted_key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _compose_options(overrides: Sequence[str], sources: Sources) -> DictConfig:
    """Composes the configuration of the chosen options alone, while Hydra is initialised for composing."""
    chosen = [o for o in overrides if o.partition("=")[0] in config_groups()]
    return compose(sources.name, overrides=[*chosen, *sources.searched()])


@contextmanager
def _composing(sources: Sources):
    """Initialises Hydra's global state for composing and restores the previous one, e.g. of a user's app."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(sources.main_folder()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def expand_sweep(overrides: Sequence[str], sources: Sources = PACKAGED) -> list[list[str]]:
    """Expands a sweep to the overrides of each run: the Cartesian product of its values.

    An interval, which only searching sweepers accept (`hydra/sweeper=optuna`), contributes its two ends.

    Raises:
      UsageError: one line, for overrides that cannot be parsed, and for intervals without such a sweeper.
    """
    searches = any(one.startswith(SWEEPER) and one != f"{SWEEPER}basic" for one in overrides)
    values = (_values(one, sources, searches) for one in overrides)
    return [list(chosen) for chosen in itertools.product(*values)]


def _values(override: str, sources: Sources, searches: bool) -> list[str]:
    read = _read_override(override)
    if not read.is_sweep_override():
        return [override]
    key = read.get_key_element()
    if isinstance(read.value(), Glob):
        return [f"{key}={option}" for option in read.value().filter(sources.options(key.lstrip("+")))]
    if isinstance(read.value(), IntervalSweep) and searches:
        return [f"{key}={end}" for end in (read.value().start, read.value().end)]
    if not read.is_discrete_sweep():
        raise UsageError(
            f"{override}: intervals need {SWEEPER}optuna; other sweeps take lists, choices, ranges or globs"
        )
    return [f"{key}={value}" for value in read.sweep_string_iterator()]


def tuning_lines(config: DictConfig, choices: Mapping[str, str], sources: Sources = PACKAGED) -> list[str]:
    """Formats the settings of `conf/tuning` in effect as lines of text; empty without a tuning file.

    Args:
      config, choices, sources: as composed.
    """
    path = sources.find(f"tuning/{choices.get('tuning')}")
    values = flatten_leaves(OmegaConf.load(path)) if path is not None else {}
    if not values:
        return []
    present = {key: OmegaConf.select(config, key) for key in values}
    kept = [f"{key}={value}" for key, value in values.items() if present[key] == value]
    changed = [
        f"{key}={present[key]} (tuning file: {value})"
        for key, value in values.items()
        if present[key] != value
    ]
    lines = [f"tuning file {choices['tuning']} (disable with tuning=none): {' '.join(kept)}"]
    return [*lines, f"overridden: {' '.join(changed)}"] if changed else lines


def _check_override(override: str, sources: Sources) -> None:
    key, equals, value = override.lstrip("+~").partition("=")
    if not equals:
        raise UsageError(f"{override}: expected KEY=VALUE")
    parse_override_value(override)
    if key == SEARCHED:
        raise UsageError(f"{override}: use --config-dir for the folder")
    if key in config_groups() and value not in (allowed := sources.options(key)):
        raise UsageError(unknown_option_message(key, value, allowed))


def split_resume(arguments: Sequence[str]) -> tuple[str | None, str | None, list[str]]:
    """Splits off the values of `resume=` and `as=` (None without) from the arguments; raises UsageError."""
    where, arguments = split_key("resume", arguments)
    name, arguments = split_key("as", arguments)
    if name is not None and where in (None, AUTO):
        raise UsageError(f"as={name}: needs resume=RUN_FOLDER or resume=CHECKPOINT")
    return where, name, arguments


def split_key(key: str, arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Splits off the value of the last `KEY=` (None without one) from the arguments."""
    mine = [argument for argument in arguments if argument.lstrip("+").startswith(f"{key}=")]
    value = parse_override_value(mine[-1].lstrip("+")) if mine else None
    return None if value is None else str(value), [a for a in arguments if a not in mine]


def parse_override_value(override: str) -> Any:
    """Parses the value of `KEY=VALUE`; raises UsageError if it is invalid or a sweep."""
    read = _read_override(override)
    if read.is_sweep_override():
        raise UsageError(f"{override}: a run takes one value; -m starts a run for each of several")
    return read.value()


def _read_override(override: str) -> Override:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise UsageError(f"{override}: {str(error).splitlines()[0]}") from error


def apply_overrides(
    config: DictConfig,
    choices: Mapping[str, str],
    overrides: Sequence[str],
    sources: Sources = PACKAGED,
) -> tuple[DictConfig, dict[str, str]]:
    """Applies overrides to a saved configuration and its choices.

    Only the group `tracking` can change its option; other groups can be given with the saved option.

    Args:
      config: the saved configuration; not modified.
      choices: its chosen options.
      overrides: items `KEY=VALUE`, as returned by `normalize_overrides`.
      sources: locations of `tracking` options.

    Raises:
      UsageError: one line, for an unknown key or another option.
    """
    config, choices = copy.deepcopy(config), dict(choices)
    options, settings = {}, []
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if not equals or key.startswith("~"):
            raise UsageError(f"{override}: expected KEY=VALUE")
        if key in config_groups() or "@" in key:
            options[key] = value
        else:
            settings.append((key, value))
    # As in a new run: options first, of which the last of a group counts, then single settings.
    for key, value in options.items():
        if value == str(choices.get(key)):
            continue
        if key != "tracking":
            raise UsageError(f"{key}={value}: a resumed run keeps its {key}={choices.get(key)}")
        config.tracking = compose_config([f"{key}={value}"], sources)[0].tracking
        choices[key] = value
    for key, value in settings:
        set_value(config, key, value)
    return config, choices


def _explain(error: Exception, overrides: Sequence[str], sources: Sources) -> str:
    message = str(error)
    for override in overrides:
        key = _dotted_key(override)
        if f"'{key}'" in message or f"override '{override}'" in message:
            # The key can be inside the value: pool.shares={magic: 1}.
            within = re.search(rf"full_key: ({re.escape(key)}\.\S+)", str(error.__cause__))
            key = within[1] if within else key
            with _composing(sources):
                return unknown_key_message(override, key, _compose_options(overrides, sources))
    merging = message.partition("Error merging override ")[2]
    if merging in overrides and error.__cause__ is not None:  # such as an index beyond a list's end
        return f"{merging.lstrip('+~')}: {str(error.__cause__).splitlines()[0]}"
    return message.splitlines()[0]


def set_value(config: DictConfig, key: str, value: str) -> None:
    """Overrides one value of a saved configuration by its text; see `set_override`."""
    set_override(
        config,
        key,
        parse_override_value(quote_for_hydra(bracket_list(f"{key}={value}"))),
        typed=f"{key}={value}",
    )


def set_override(config: DictConfig, key: str, value: Any, typed: str | None = None) -> None:
    """Overrides one value of a configuration.

    Args:
      config: modified in place.
      key: dotted key.
      value: plain data; mappings are merged.
      typed: the override as written by the user, for messages; None for `KEY=VALUE`.

    Raises:
      UsageError: one line, for an unknown key or an invalid value.
    """
    typed = f"{key}={value}" if typed is None else typed
    try:
        before = OmegaConf.select(config, key, default=config)
        if before is config and not accepts_new_keys(key, PACKAGED.open_keys()):
            raise UsageError(unknown_key_message(typed, key, config))
        if OmegaConf.is_dict(before) and before is not config and not isinstance(value, Mapping):
            raise UsageError(f"{typed}: must be a mapping, with the keys {', '.join(map(str, before))}")
        OmegaConf.update(config, key, value, force_add=True)
    except OmegaConfBaseException as error:
        raise UsageError(f"{typed}: {str(error).splitlines()[0]}") from error


def new_run_folder(config: DictConfig, choices: Mapping[str, str], stamp: str) -> Path:
    """Returns the folder of a new run; raises UsageError if it exists."""
    name = f"{stamp}_s{config.seed}" if config.run_name is None else config.run_name
    folder = run_folder(config, choices, name)
    if is_taken(folder, "output_dir"):
        raise UsageError(f"run_name={name}: {folder} already exists; choose another name or resume={folder}")
    return folder


def run_folder(config: DictConfig, choices: Mapping[str, str], name: Any) -> Path:
    """Returns the folder of the run with this name, `outputs/ENV/ALGO/NAME`.

    Raises:
      UsageError: one line, for an invalid `run_name` or `output_dir`.
    """
    if not re.fullmatch(r"[\w.-]+", str(name)) or str(name) in (".", "..") or isinstance(name, bool | float):
        raise UsageError(f"run_name={name}: must be a folder name of letters, digits, _, - and .")
    if not isinstance(config.output_dir, str) or not config.output_dir:
        raise UsageError(f"output_dir={config.output_dir}: must be the path of a folder")
    return Path(config.output_dir).joinpath(*around_run(choices), str(name))


def around_run(choices: Mapping[str, str]) -> tuple[str, str]:
    """The names of the two folders around a run, of its environment and its algorithm."""
    return choices["env"].replace("/", "_"), choices["algo"]
