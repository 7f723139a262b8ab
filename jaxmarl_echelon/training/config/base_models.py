"""Base models of language learners: made by the run itself, or read from a folder in Hugging Face's format.

A base that the run makes is a function of the game, the template and the architecture, not of the run's seed.
It is written to the run's folder, and read from there ever after.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algos.language.families import make_decoder_settings
from algos.language.model import DecoderSettings, init_decoder
from algos.language.settings import MADE, WARM, FreshSettings, LanguageSettings
from algos.language.task import Base
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.language.folders import digest_model, load_adapters, load_model, save_model
from jaxmarl_echelon.language.language import Language
from jaxmarl_echelon.training.config import input_files
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.config.warm_start import train_on_legal_play

FOLDER = "base"
# A base of a folder that is larger stays where it is, named by path and digest.
COPIED = 50_000_000


def load_base(config: RunConfig, name: str) -> Base:
    """Returns the base of a role's language learner; the same object for the same settings.

    Raises:
      ValueError: one line, for a folder that is no model, or whose tokenizer is not the prompts'.
    """
    algo, base = config.algos[name], _find_base(config, name)
    return (
        base if algo.adapter is None else base._replace(adapters=load_adapters(algo.adapter, base.settings))
    )


def _find_base(config: RunConfig, name: str) -> Base:
    """As `load_base`, without adapters."""
    algo, language = config.algos[name], config.env.language[name]
    assert isinstance(algo, LanguageSettings)
    if algo.base in MADE:
        return _made_base(algo, config.env, name)
    base, tokenizer = _read_base(os.path.abspath(algo.base), algo.compute_dtype)
    probe = "".join(language.texts[:8])
    if tokenizer.encode(probe) != language.tokenizer.encode(probe):
        raise ValueError(
            f"algo.base={algo.base}: has another tokenizer than env.tokenizer, which encodes prompts"
        )
    return base


@cache
def _read_base(folder: str, dtype: str) -> tuple[Base, Any]:
    """Reads a folder once."""
    model = load_model(folder, jnp.bfloat16 if dtype == "bf16" else np.float32)
    return Base(model.settings, model.parameters, model.digest, folder), model.tokenizer


_MADE: dict[tuple, Base] = {}


def _made_base(algo: LanguageSettings, env: Environment, name: str) -> Base:
    """Makes a base, once per process."""
    language = env.language[name]
    key = algo.base, algo.fresh, algo.warm if algo.base == WARM else None, algo.compute_dtype, language
    if key not in _MADE:
        settings = fresh_architecture(algo.fresh, language)
        parameters = init_decoder(jax.random.key(0), settings)
        if algo.base == WARM:
            parameters = train_on_legal_play(env, name, settings, parameters, algo.warm)
        parameters = jax.tree.map(np.asarray, parameters)
        digest = digest_model(settings, parameters, language.tokenizer)
        if algo.compute_dtype == "bf16":
            parameters = jax.tree.map(lambda x: x.astype(jnp.bfloat16), parameters)
        _MADE[key] = Base(settings, parameters, digest)
    return _MADE[key]


def fresh_architecture(fresh: FreshSettings, language: Language) -> DecoderSettings:
    """Returns the architecture of a new base, with room for the game's prompts and answers."""
    longest = max(map(len, language.sequences))
    return make_decoder_settings(
        "qwen3",
        vocab=language.vocabulary,
        width=fresh.width,
        layers=fresh.layers,
        heads=fresh.heads,
        kv_heads=fresh.kv_heads,
        head_dim=fresh.head_dim,
        mlp_width=fresh.mlp_width,
        theta=fresh.theta,
        eps=1e-6,
        tied=True,
        max_positions=language.prompt_length + longest + 64,
    )


def store_bases(config: RunConfig, resolved: dict[str, Any], folder: Path) -> None:
    """Writes bases into a run's folder, and their paths there into its configuration.

    Bases that the run has made are written, and those of folders of less than `COPIED` bytes are copied.

    Args:
      config: the run.
      resolved: its configuration as plain data, changed in place.
      folder: the run's folder.
    """
    for name, algo in config.algos.items():
        if not isinstance(algo, LanguageSettings):
            continue
        base, place = load_base(config, name), (folder / FOLDER).resolve()
        if algo.base not in MADE:
            if base.bytes < COPIED:
                input_files.copy_folder(resolved, base.folder, place)
            continue
        if not (place / "config.json").exists():
            parameters = jax.tree.map(lambda x: np.asarray(x, np.float32), base.parameters)
            save_model(place, base.settings, parameters, config.env.language[name].tokenizer)
        resolved[input_files.KEY] |= input_files.digest_folder(place)
        for node in _nodes_with_base(resolved, algo.base):
            node["base"] = str(place)


def _nodes_with_base(resolved: Mapping[str, Any], base: str) -> list[dict]:
    """The learners' settings that name a base."""
    nodes = [resolved.get("algo"), *(resolved.get("algos") or {}).values()]
    return [node for node in nodes if isinstance(node, dict) and node.get("base") == base]
