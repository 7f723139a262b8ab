"""Shared by the command lines: composing configurations, one-line errors."""

import argparse
import copy
import difflib
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
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

from jaxmarl_echelon.collection import collect_rarely
from jaxmarl_echelon.config_sources import Sources, config_directory
from jaxmarl_echelon.terminal import lossy_output

# Keys whose values are comma-separated lists, not sweeps.
LISTS = ("ablate", "seeds")
# A number without a fraction that may have an exponent, as `1e6`.
WHOLE = re.compile(r"\d+(\.\d+)?[eE]\+?\d{1,2}|\d+")
# Keys that may be typed without the group that they belong to.
SHORT = {"mission": "env.mission"}
SEARCHED = "hydra.searchpath"
SWEEPER = "hydra/sweeper="
PACKAGED = Sources()
# `resume=auto`.
AUTO = "auto"


class UsageError(ValueError):
    """Invalid user input; the message is one line."""


def guarded(main: Callable[[], Any]) -> Any:
    """Runs a command line and returns what it does; user errors become one line on stderr and exit status 2.

    JAXMARL_TRACEBACK=1 shows the traceback instead. A command goes on where its standard output fails.
    Garbage is collected rarely from here on, in processes of a sweep's launcher too.
    """
    collect_rarely()
    try:
        with lossy_output():
            return main()
    except (ValueError, FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        _refuse(str(error))
    except (RuntimeError, AssertionError):
        if _has_devices():
            raise
        asked = os.environ.get("JAX_PLATFORMS")
        _refuse(f"JAX_PLATFORMS={asked}: no such device here; allowed: cpu, or leave it unset")


def _has_devices() -> bool:
    """Whether JAX finds a device of the asked platform; a missing one fails in several ways."""
    try:
        return bool(jax.devices())
    except (RuntimeError, AssertionError):
        return False


def _refuse(message: str) -> NoReturn:
    """Ends the command in one line with exit status 2, or by the error that is being handled."""
    if os.environ.get("JAXMARL_TRACEBACK"):
        raise  # called where an error is being handled
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2) from None


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def program(module: str, script: str) -> str:
    """The invoked command: the console script, or `python -m module`."""
    return script if Path(sys.argv[0]).stem == script else f"python -m {module}"


def use_compilation_cache() -> None:
    """Enables the persistent compilation cache, in JAX_COMPILATION_CACHE_DIR or the user's cache folder.

    It keeps what took a second to compile, or as long as JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS says.
    """
    if not (os.environ.get("JAX_COMPILATION_CACHE_DIR") or jax.config.jax_compilation_cache_dir):
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "jaxmarl_echelon" / "jax"))
    if not os.environ.get("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def groups() -> list[str]:
    """Names of the configuration groups of a run; those of Hydra itself are none."""
    folders = (path.name for path in config_directory().iterdir() if path.is_dir())
    return sorted(name for name in folders if name != "hydra")


def plain(arguments: Sequence[str], sources: Sources = PACKAGED) -> list[str]:
    """Normalises arguments for Hydra.

    The plus sign of `+algo=ppo` is dropped, as all groups have defaults. Keys of `SHORT` get their group.
    Keys of mappings that accept new keys (`Sources.open_keys`) get `++`. Whole numbers may have an exponent,
    and paths any letters, see `readable`.
    """
    chosen = tuple(f"+{group}=" for group in groups())
    arguments = [argument[1:] if argument.startswith(chosen) else argument for argument in arguments]
    arguments = [readable(as_list(in_full(argument))) for argument in arguments]
    keys = sources.open_keys()
    return [f"++{argument}" if is_open(argument, keys) else argument for argument in arguments]


def in_full(argument: str) -> str:
    """`KEY=VALUE` with the whole of a key of `SHORT`."""
    key, equals, value = argument.partition("=")
    return f"{SHORT.get(key, key)}{equals}{value}"


def readable(argument: str) -> str:
    """`KEY=VALUE` as Hydra's grammar reads it: whole numbers written out, and paths in quotes.

    `total_env_steps=1e6` becomes `total_env_steps=1000000`. A value that the grammar refuses, or takes for
    something else, is quoted where it is an existing path, or has a slash or letters beyond ASCII.
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
    """A whole number with an exponent as digits; others as they are."""
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
        return parsed(override) == value
    except UsageError:
        return False


def _exists(value: str) -> bool:
    try:
        return bool(value) and Path(value).exists()
    except (OSError, ValueError):  # too long for a path, or with a null character
        return False


def is_open(argument: str, keys: Sequence[str]) -> bool:
    """Whether the key of `KEY=VALUE` is, or lies within, a mapping that accepts new keys."""
    key = argument.partition("=")[0]
    return any(key == name or key.startswith(f"{name}.") for name in keys)


def as_list(argument: str) -> str:
    """Adds brackets around comma-separated values of `LISTS` keys, which Hydra would take for a sweep."""
    key, _, value = argument.partition("=")
    bare = key in LISTS and "," in value and value[0] not in "[\"'"
    return f"{key}=[{value}]" if bare else argument


def compose_config(
    overrides: Sequence[str], sources: Sources = PACKAGED
) -> tuple[DictConfig, dict[str, str]]:
    """Composes the configuration; also returns the chosen option of each group.

    Args:
      overrides: `KEY=VALUE` each, as returned by `plain`.
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
            OmegaConf.resolve(config)
            return config, chosen
    except (HydraException, OmegaConfBaseException, TypeError) as error:
        raise UsageError(_explain(error, overrides, sources)) from error


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


def combinations(overrides: Sequence[str], sources: Sources = PACKAGED) -> list[list[str]]:
    """The overrides of each run of a sweep: the Cartesian product of its values.

    Of an interval, which only a sweeper that searches takes (`hydra/sweeper=optuna`), they are the ends.

    Raises:
      UsageError: one line, for overrides that cannot be parsed, and intervals without such a sweeper.
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
            f"{override}: an interval; without {SWEEPER}optuna a sweep takes lists, choices, ranges or globs"
        )
    return [f"{key}={value}" for value in read.sweep_string_iterator()]


def tuning_lines(config: DictConfig, choices: Mapping[str, str], sources: Sources = PACKAGED) -> list[str]:
    """Lines of text with the settings of `conf/tuning` in effect; empty without a tuning file.

    Args:
      config, choices, sources: as composed.
    """
    path = sources.find(f"tuning/{choices.get('tuning')}")
    values = leaves(OmegaConf.load(path)) if path is not None else {}
    if not values:
        return []
    present = {key: OmegaConf.select(config, key) for key in values}
    kept = [f"{key}={value}" for key, value in values.items() if present[key] == value]
    changed = [
        f"{key}={present[key]} (not {value})" for key, value in values.items() if present[key] != value
    ]
    lines = [f"tuning {choices['tuning']} (tuning=none leaves it out): {' '.join(kept)}"]
    return [*lines, f"told otherwise: {' '.join(changed)}"] if changed else lines


def leaves(node: DictConfig, prefix: str = "") -> dict[str, Any]:
    """Dotted key to value of nested mappings."""
    found = {}
    for key, value in node.items():
        found |= (
            leaves(value, f"{prefix}{key}.") if isinstance(value, DictConfig) else {f"{prefix}{key}": value}
        )
    return found


def _check_override(override: str, sources: Sources) -> None:
    key, equals, value = override.lstrip("+~").partition("=")
    if not equals:
        raise UsageError(f"{override}: expected KEY=VALUE")
    parsed(override)
    if key == SEARCHED:
        raise UsageError(f"{override}: name the folder with --config-dir")
    if key in groups() and value not in (allowed := sources.options(key)):
        raise UsageError(f"{key}={value}: unknown {key}; allowed: {', '.join(allowed)}")


def split_resume(arguments: Sequence[str]) -> tuple[str | None, str | None, list[str]]:
    """The values of `resume=` and `as=`, None without, and the other arguments; raises UsageError."""
    where, arguments = split_key("resume", arguments)
    name, arguments = split_key("as", arguments)
    if name is not None and where in (None, AUTO):
        raise UsageError(f"as={name}: goes with resume=RUN_FOLDER or resume=CHECKPOINT")
    return where, name, arguments


def split_key(key: str, arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of the last `KEY=`, None without one, and the other arguments."""
    mine = [argument for argument in arguments if argument.lstrip("+").startswith(f"{key}=")]
    value = parsed(mine[-1].lstrip("+")) if mine else None
    return None if value is None else str(value), [a for a in arguments if a not in mine]


def parsed(override: str) -> Any:
    """The value of `KEY=VALUE`; raises UsageError if it cannot be parsed or is a sweep."""
    read = _read_override(override)
    if read.is_sweep_override():
        raise UsageError(f"{override}: several values; a run takes one, -m starts a run for each")
    return read.value()


def _read_override(override: str) -> Override:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise UsageError(f"{override}: {str(error).splitlines()[0]}") from error


def overridden(
    config: DictConfig,
    choices: Mapping[str, str],
    overrides: Sequence[str],
    sources: Sources = PACKAGED,
) -> tuple[DictConfig, dict[str, str]]:
    """A saved configuration and its choices, with overrides applied.

    Of the groups only `tracking` may change its option; others may be given with the saved one.

    Args:
      config: the saved configuration; not modified.
      choices: its chosen options.
      overrides: `KEY=VALUE` each, as returned by `plain`.
      sources: locations of `tracking` options.

    Raises:
      UsageError: one line, for an unknown key or another option.
    """
    config, choices = copy.deepcopy(config), dict(choices)
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if not equals or key.startswith("~"):
            raise UsageError(f"{override}: expected KEY=VALUE")
        if key == "tracking" and value != choices.get(key):
            config.tracking = compose_config([f"{key}={value}"], sources)[0].tracking
            choices[key] = value
        elif key in groups() or "@" in key:
            if value != str(choices.get(key)):
                kept = f"a resumed run keeps its {key}={choices.get(key)}"
                raise UsageError(f"{override.lstrip('+')}: {kept}")
        else:
            set_value(config, key, value)
    return config, choices


def _explain(error: Exception, overrides: Sequence[str], sources: Sources) -> str:
    message = str(error)
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if f"'{key}'" in message or f"override '{override}'" in message:
            chosen = [o for o in overrides if o.partition("=")[0] in groups()]
            # The key may stand within the value: pool.shares={magic: 1}.
            within = re.search(rf"full_key: ({re.escape(key)}\.\S+)", str(error.__cause__))
            key = within[1] if within else key
            with _composing(sources):
                return unknown(override, key, compose(sources.name, overrides=[*chosen, *sources.searched()]))
    return message.splitlines()[0]


def set_value(config: DictConfig, key: str, value: str) -> None:
    """Overrides one value of a saved configuration by its text; see `put`."""
    put(config, key, parsed(readable(as_list(f"{key}={value}"))), typed=f"{key}={value}")


def put(config: DictConfig, key: str, value: Any, typed: str | None = None) -> None:
    """Overrides one value of a configuration.

    Args:
      config: modified in place.
      key: dotted key.
      value: plain data; mappings are merged.
      typed: the override as shown in messages; None for `KEY=VALUE`.

    Raises:
      UsageError: one line, for an unknown key or an invalid value.
    """
    typed = f"{key}={value}" if typed is None else typed
    try:
        before = OmegaConf.select(config, key, default=config)
        if before is config and not is_open(key, PACKAGED.open_keys()):
            raise UsageError(unknown(typed, key, config))
        if OmegaConf.is_dict(before) and before is not config and not isinstance(value, Mapping):
            raise UsageError(f"{typed}: must be a mapping, with the keys {', '.join(map(str, before))}")
        OmegaConf.update(config, key, value, force_add=True)
    except OmegaConfBaseException as error:
        raise UsageError(f"{typed}: {str(error).splitlines()[0]}") from error


def unknown(override: str, key: str, node: DictConfig) -> str:
    """The message for an unknown key: the closest match, and the allowed keys.

    Args:
      override: as typed.
      key: its dotted key.
      node: the configuration.
    """
    *parents, last = key.split(".")
    while parents and not isinstance(OmegaConf.select(node, ".".join(parents)), DictConfig):
        last = parents.pop()
    node = OmegaConf.select(node, ".".join(parents)) if parents else node
    names = [str(name) for name in node if not str(name).startswith("_")]
    close = difflib.get_close_matches(last, names, 1)
    meant = f"; did you mean {'.'.join([*parents, close[0]])}?" if close else "."
    return f"{override}: unknown key{meant} Allowed here: {', '.join(names)}"


def new_run_folder(config: DictConfig, choices: Mapping[str, str], stamp: str) -> Path:
    """The folder of a new run; raises UsageError if it exists."""
    name = f"{stamp}_s{config.seed}" if config.run_name is None else config.run_name
    folder = run_folder(config, choices, name)
    if folder.exists():
        raise UsageError(f"run_name={name}: {folder} exists already; choose another name or resume={folder}")
    return folder


def run_folder(config: DictConfig, choices: Mapping[str, str], name: Any) -> Path:
    """The folder of the run with this name, `outputs/ENV/ALGO/NAME`.

    Raises:
      UsageError: one line, for an invalid `run_name` or `output_dir`.
    """
    if not re.fullmatch(r"[\w.-]+", str(name)) or str(name) in (".", "..") or isinstance(name, bool | float):
        raise UsageError(f"run_name={name}: must be the name of a folder, of letters, digits, _, - and .")
    if not isinstance(config.output_dir, str) or not config.output_dir:
        raise UsageError(f"output_dir={config.output_dir}: must be the path of a folder")
    return Path(config.output_dir) / choices["env"].replace("/", "_") / choices["algo"] / str(name)
