"""Speed of language policies: tokens per second of acting and of learning, past policies, decoding.

    python benchmarks/language.py [--rows 512] [--peer-python PATH]

Rates are printed with those of plain matrix products of the same shapes and type, measured in the same run.
With `--peer-python`, a Python with torch and transformers, greedy generation of the same weights is timed in
turns with `transformers`' own `generate`. Compilation is not part of any time.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from machine import matmul_rate, seconds_per_call
from peers import PeerError, ask
from rich.console import Console
from rich.table import Table

from algos.language.adapters import LoraSettings, count_parameters, init_adapters
from algos.language.families import make_decoder_settings
from algos.language.model import (
    DecoderSettings,
    apply_decoder,
    decode_step,
    init_decoder,
    prefill,
    product_shapes,
    project_logits,
)
from jaxmarl_echelon.language.folders import save_model
from jaxmarl_echelon.language.tokenizers import AsciiTokenizer

GROUPS = (1, 4, 16)
CACHES = (32, 128, 512)


def small_decoder(width: int = 64, layers: int = 2) -> DecoderSettings:
    """The architecture of a fresh base, or a larger one."""
    return make_decoder_settings(
        "qwen3",
        vocab=128,
        width=width,
        layers=layers,
        heads=4,
        kv_heads=2,
        head_dim=width // 4,
        mlp_width=3 * width,
        theta=1e4,
        eps=1e-6,
        tied=True,
        max_positions=1024,
    )


def measure_passes(settings: DecoderSettings, rows: int, prompt: int) -> dict[str, float]:
    """Tokens per second of reading prompts and of a gradient of the adapters, and the product's rate."""
    parameters = init_decoder(jax.random.key(0), settings)
    adapters = init_adapters(jax.random.key(1), LoraSettings(), product_shapes(settings))
    tokens = jnp.ones((rows, prompt), jnp.int32)

    @jax.jit
    def act(adapters):
        return prefill(settings, parameters, tokens, prompt, adapters)[0]

    @jax.jit
    def learn(adapters):
        def loss(adapters):
            return jnp.square(apply_decoder(settings, parameters, tokens, adapters, remat=True)).mean()

        return jax.grad(loss)(adapters)

    weights = count_parameters(parameters["layers"])
    rate = matmul_rate(rows * prompt, settings.width, 3 * settings.width)
    acting, learning = (rows * prompt / seconds_per_call(fn, adapters) for fn in (act, learn))
    return {
        "acting tokens/s": acting,
        "learning tokens/s": learning,
        "acting share of a product": acting * 2 * weights / rate,
        "learning share of a product": learning * 6 * weights / rate,
    }


def measure_groups(settings: DecoderSettings, rows: int, prompt: int) -> dict[int, float]:
    """Seconds of reading the same rows with several adapters, each for its share of the rows."""
    parameters = init_decoder(jax.random.key(0), settings)
    make = partial(init_adapters, lora=LoraSettings(), shapes=product_shapes(settings))
    found = {}
    for groups in GROUPS:
        adapters = jax.vmap(make)(jax.random.split(jax.random.key(1), groups))
        tokens = jnp.ones((groups, rows // groups, prompt), jnp.int32)

        @jax.jit
        @jax.vmap
        def act(adapters, tokens):
            return prefill(settings, parameters, tokens, prompt, adapters)[0]

        found[groups] = seconds_per_call(act, adapters, tokens)
    return found


def measure_decoding(settings: DecoderSettings, rows: int) -> dict[int, tuple[float, float]]:
    """Tokens per second and bytes accessed per token of one decoding step, by the cache's length."""
    parameters, found = init_decoder(jax.random.key(0), settings), {}
    for size in CACHES:
        _, cache = prefill(settings, parameters, jnp.ones((rows, 8), jnp.int32), size)

        @partial(jax.jit, donate_argnums=0)
        def step(cache, place):
            return decode_step(settings, parameters, jnp.ones(rows, jnp.int32), cache, place)[::-1]

        compiled = step.lower(cache, jnp.int32(9)).compile()
        state = {"cache": cache}

        def turn(compiled=compiled, state=state):
            state["cache"], hidden = compiled(state["cache"], jnp.int32(9))
            return hidden

        seconds = seconds_per_call(turn)
        found[size] = rows / seconds, compiled.cost_analysis()["bytes accessed"] / rows
    return found


def generate(settings: DecoderSettings, parameters, prompts: jax.Array, count: int) -> jax.Array:
    """Greedy tokens `[R, count]` after prompts `[R, P]`."""
    place = prompts.shape[1]
    hidden, cache = prefill(settings, parameters, prompts, place + count)

    def step(carry, at):
        hidden, cache = carry
        token = jnp.argmax(project_logits(parameters, hidden), -1).astype(jnp.int32)
        return decode_step(settings, parameters, token, cache, at), token

    return jax.lax.scan(step, (hidden, cache), place + jnp.arange(count))[1].T


def compare_generation(python: str, rows: int, count: int) -> dict[str, float]:
    """Tokens per second of generation here and by transformers, in turns on the same cores.

    Raises:
      PeerError: if the peer cannot be measured.
    """
    settings = small_decoder(256, 4)
    parameters = init_decoder(jax.random.key(0), settings)
    prompts = jax.random.randint(jax.random.key(1), (rows, 16), 4, 99)
    ours = jax.jit(partial(generate, settings, parameters, count=count))
    job = {"prompts": np.asarray(prompts).tolist(), "count": count}
    times = {"here": [], "transformers": []}
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), settings, jax.tree.map(np.asarray, parameters), AsciiTokenizer())
        for _ in range(3):
            times["here"].append(seconds_per_call(ours, prompts))
            times["transformers"].append(ask(python, "generate", job | {"model": folder})["seconds"])
    return {name: rows * count / float(np.median(values)) for name, values in times.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--peer-python", help="a Python with torch and transformers")
    given, console = parser.parse_args(), Console(width=100)
    for name, settings, prompt in (
        ("fresh", small_decoder(), 8),
        ("256 wide, 4 layers", small_decoder(256, 4), 64),
    ):
        rows = given.rows if prompt < 64 else given.rows // 8
        found = measure_passes(settings, rows, prompt)
        table = Table("measure", "value", title=f"{name}, {rows} rows of {prompt} tokens")
        for label, value in found.items():
            table.add_row(label, f"{value:,.0f}" if value > 10 else f"{value:.2f}")
        seconds = measure_groups(settings, rows, prompt)
        for groups, value in seconds.items():
            table.add_row(f"acting with {groups} adapters, times one", f"{value / seconds[1]:.2f}")
        for size, (rate, read) in measure_decoding(settings, rows).items():
            table.add_row(
                f"decoding tokens/s, cache of {size}", f"{rate:,.0f} ({read / 1e3:,.0f} kB per token)"
            )
        console.print(table)
    if given.peer_python:
        try:
            found = compare_generation(given.peer_python, 32, 48)
        except PeerError as error:
            console.print(f"transformers: {error}")
            return
        told = ", ".join(f"{name} {value:,.0f} tokens/s" for name, value in found.items())
        console.print(f"greedy generation, 32 rows of 48 tokens, 256 wide, 4 layers: {told}")


if __name__ == "__main__":
    main()
