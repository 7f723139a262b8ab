"""The decoder compared with Hugging Face's transformers and PEFT, in both directions, on random weights.

    python benchmarks/vs_transformers.py [--peer-python PATH] [--only qwen3,llama]

For every family, a small model and adapters with random weights are written by us and read by the libraries,
which compute logits in float32 and write both again, the model in several files; we read these copies. Logits
must agree within 1e-4, and copies must hold the same numbers. `--peer-python` is a Python that has torch,
transformers and peft. Exits with status 1 where something differs.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from peers import PeerError, ask
from rich.console import Console
from rich.table import Table

from algos.language.adapters import LoraSettings, init_adapters
from algos.language.attention import RopeScaling
from algos.language.families import FAMILIES, GEMMA, make_decoder_settings, read_architecture, stack_tensors
from algos.language.model import (
    DecoderSettings,
    apply_decoder,
    decode_step,
    init_decoder,
    prefill,
    product_shapes,
    project_logits,
)
from jaxmarl_echelon import command_line
from jaxmarl_echelon.language.files import read_tensors
from jaxmarl_echelon.language.folders import load_adapters, save_adapters, save_model
from jaxmarl_echelon.language.tokenizers import AsciiTokenizer

TOLERANCE = 1e-4
ROWS, PLACES = 2, 40


def small_settings(family: str) -> DecoderSettings:
    """Settings of a small model in which every part of a family has an effect within 40 places."""
    sizes = {
        "vocab": 128,
        "width": 48,
        "layers": 3,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 16,
        "mlp_width": 80,
    }
    own = {
        "qwen2": {"theta": 1e6, "eps": 1e-6, "tied": True},
        "qwen3": {"theta": 1e6, "eps": 1e-6, "tied": True},
        "llama": {"theta": 5e5, "eps": 1e-5, "tied": False, "rope_scaling": RopeScaling(8.0, 1.0, 4.0, 16.0)},
        GEMMA: {"theta": 1e6, "eps": 1e-6, "tied": True, "layers": 7, "window": 7, "score_scale": 24.0**-0.5},
    }
    return make_decoder_settings(family, **(sizes | {"max_positions": 256} | own[family]))


def random_weights(settings: DecoderSettings, key: jax.Array):
    """Parameters and adapters without zeros and ones: norms, biases and B are drawn too."""
    parameters = init_decoder(key, settings)
    adapters = init_adapters(key, LoraSettings(4, 8.0), product_shapes(settings))
    leaves, structure = jax.tree.flatten((parameters, adapters))
    keys = jax.random.split(key, len(leaves))
    moved = [x + 0.1 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, moved)


def all_logits(settings, parameters, tokens, adapters=None):
    """Logits `[R, S, V]` of the full pass, and of the second half of the places by single steps."""
    half = tokens.shape[1] // 2
    full = project_logits(parameters, apply_decoder(settings, parameters, tokens, adapters))
    _, cache = prefill(settings, parameters, tokens[:, :half], tokens.shape[1], adapters)

    def step(cache, given):
        hidden, cache = decode_step(settings, parameters, given[0], cache, given[1], adapters)
        return cache, project_logits(parameters, hidden)

    _, steps = jax.lax.scan(step, cache, (tokens[:, half:].T, jnp.arange(half, tokens.shape[1])))
    return full, jnp.swapaxes(steps, 0, 1)


def compare(python: str, family: str, folder: Path) -> dict:
    """Largest differences of one family, by what was compared, and the libraries' versions."""
    settings = small_settings(family)
    parameters, adapters = random_weights(settings, jax.random.key(0))
    save_model(folder / "model", settings, parameters, AsciiTokenizer())
    save_adapters(folder / "adapters", adapters, str(folder / "model"))
    tokens = jax.random.randint(jax.random.key(1), (ROWS, PLACES), 0, settings.vocab)
    names = ("model", "adapters", "model_copy", "adapters_copy")
    job = {name: str(folder / name) for name in names} | {"tokens": tokens.tolist(), "shard_size": "60KB"}
    theirs = ask(python, "logits", job)
    run = jax.jit(all_logits, static_argnums=0)
    found = {}
    for name, own in (("plain", None), ("adapted", adapters)):
        expected = np.asarray(theirs[name])
        full, steps = run(settings, parameters, tokens, own)
        found[name] = np.abs(full - expected).max()
        found[f"{name}, by steps"] = np.abs(steps - expected[:, PLACES // 2 :]).max()
    found["spread of logits"] = np.std(theirs["plain"])
    copied = read_architecture(json.loads((folder / "model_copy" / "config.json").read_text()))
    if copied != settings:
        raise SystemExit(f"{family}: the copy's architecture is {copied}, not {settings}")
    tensors = read_tensors(folder / "model_copy")
    back = stack_tensors(copied, tensors), load_adapters(folder / "adapters_copy", copied)
    pairs = zip(jax.tree.leaves(back), jax.tree.leaves((parameters, adapters)), strict=True)
    found["copies"] = max(np.abs(x - y).max() for x, y in pairs)
    shards = len(list((folder / "model_copy").glob("*.safetensors")))
    return {**found, "shards": shards, "versions": theirs["versions"]}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--only", default=None, help="families, separated by commas")
    arguments = parser.parse_args()
    command_line.use_compilation_cache()
    table = Table(title="largest difference from transformers, float32")
    columns = (
        "plain",
        "plain, by steps",
        "adapted",
        "adapted, by steps",
        "copies",
        "spread of logits",
        "shards",
    )
    for column in ("family", *columns):
        table.add_column(column, justify="right")
    worst, versions = 0.0, {}
    for family in FAMILIES:
        if arguments.only and family not in arguments.only.split(","):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = compare(arguments.peer_python, family, Path(folder))
            except PeerError as error:
                raise SystemExit(str(error)) from error
        versions = found["versions"]
        worst = max(worst, *(found[column] for column in columns[:5]))
        table.add_row(family, *(f"{found[column]:.3g}" for column in columns))
    Console(width=140).print(table, versions)
    if worst > TOLERANCE:
        raise SystemExit(f"largest difference {worst:.3g}, must be at most {TOLERANCE}")


if __name__ == "__main__":
    main()
