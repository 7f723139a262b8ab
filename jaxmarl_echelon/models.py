"""`python -m jaxmarl_echelon.models`: converts and shows language models."""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from algos.language.adapters import count_parameters
from algos.language.families import family_name
from algos.language.model import DecoderSettings, decode_step, prefill, project_logits
from algos.types import PyTree
from jaxmarl_echelon import command_line, run_loading
from jaxmarl_echelon.language.folders import LanguageModel, load_model, save_adapters
from jaxmarl_echelon.language.gguf import convert_gguf
from jaxmarl_echelon.training.config.base_models import load_base

# Likeliest next tokens that are listed.
LISTED = 5


def parse_models_arguments() -> argparse.Namespace:
    """Reads the command line."""
    program = command_line.invoked_command("jaxmarl_echelon.models", "jaxmarl-models")
    parser = command_line.Parser(prog=program, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    convert = commands.add_parser("convert", help="convert a GGUF file to a folder in Hugging Face's layout")
    convert.add_argument("file", type=Path, help="GGUF file: llama, qwen2, qwen3 or gemma3")
    convert.add_argument("folder", type=Path, help="folder to write")
    convert.add_argument("--tokenizer", type=Path, help="a tokenizer.json instead of the file's tokenizer")
    show = commands.add_parser("show", help="print architecture, size, digest, and how a prompt goes on")
    show.add_argument("folder", type=Path, help="folder of a model")
    show.add_argument("--prompt", default="", help="text to continue")
    show.add_argument("--tokens", type=int, default=10, help="tokens of the continuation (default: 10)")
    export = commands.add_parser("export", help="write a run's adapters in PEFT's layout")
    export.add_argument("run", help="run folder or checkpoint")
    export.add_argument("folder", type=Path, help="folder to write")
    export.add_argument("--checkpoint", default="best_eval", help="name of a checkpoint (default: best_eval)")
    export.add_argument("--role", help="learner of the run (default: the first)")
    export.add_argument("--snapshot", type=int, help="the snapshot #N of the run's pool instead")
    return parser.parse_args()


def main() -> None:
    """Runs a command on models."""
    command_line.use_compilation_cache()
    arguments = parse_models_arguments()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if arguments.command == "convert":
        if arguments.folder.exists():
            raise command_line.UsageError(f"{arguments.folder}: exists already")
        digest = convert_gguf(arguments.file, arguments.folder, arguments.tokenizer)
        console.print(f"{arguments.folder}: digest {digest}")
        return
    if arguments.command == "export":
        console.print(export_adapters(arguments))
        return
    if arguments.tokens < 1:
        raise command_line.UsageError(f"--tokens={arguments.tokens}: must be at least 1")
    model = load_model(arguments.folder)
    for line in describe_model(model):
        console.print(line)
    if arguments.prompt:
        for line in describe_continuation(model, arguments.prompt, arguments.tokens):
            console.print(line)


def export_adapters(arguments: argparse.Namespace) -> str:
    """Writes the adapters of a run's policy, or of a snapshot of its pool; returns a line about them.

    Raises:
      ValueError: one line, for a run without language policies, an unknown role or snapshot, or a folder that
        exists.
    """
    if arguments.folder.exists():
        raise command_line.UsageError(f"{arguments.folder}: exists already")
    name = "latest" if arguments.snapshot is not None else arguments.checkpoint
    folder, _, config, program, state = run_loading.load_run(arguments.run, name)
    role = program.role if arguments.role is None else arguments.role
    if role not in program.agents or not program.agents[role].digest:
        raise ValueError(f"{arguments.run}: {role} is no language policy of this run")
    params = state.policies[role].params
    if arguments.snapshot is not None:
        number = arguments.snapshot
        if config.pooled is None:
            raise ValueError(f"--snapshot={number}: the run has no pool")
        policy = program.agents[role].policy_state(state.policies[role])
        known = run_loading.load_snapshots(folder, config, program, policy)
        if number not in known:
            allowed = ", ".join(map(str, known))
            raise ValueError(f"--snapshot={number}: not in the pool; allowed: {allowed}")
        params = known[number].params
    base = load_base(config, role)
    save_adapters(arguments.folder, params.adapters, base.folder)
    return f"{arguments.folder}: {count_parameters(params.adapters):,} numbers, for the base {base.folder}"


def describe_model(model: LanguageModel) -> list[str]:
    """Returns lines with the family, the sizes, the numbers of parameters and the digest of a model."""
    settings, parameters = model.settings, model.parameters
    head = {name: array for name, array in parameters.items() if name in ("embed", "head")}
    embedding = count_parameters(head)
    layers = count_parameters(parameters) - embedding
    return [
        f"{family_name(settings)}: {settings.layers} layers of width {settings.width}, {settings.heads} heads"
        f" and {settings.kv_heads} key heads of {settings.head_dim}, mlp {settings.mlp_width}",
        f"{layers:,} parameters in layers, {embedding:,} in embedding and head, {parameters['embed'].dtype}",
        f"vocabulary {settings.vocab:,}, {model.tokenizer.num_ids:,} of them tokens; "
        f"{settings.max_positions:,} positions",
        f"digest {model.digest}",
    ]


def describe_continuation(model: LanguageModel, prompt: str, tokens: int) -> list[str]:
    """Returns lines with a prompt's tokens, the likeliest next ones, and the greedy continuation.

    Raises:
      ValueError: one line, if prompt and continuation exceed the model's positions.
    """
    ids = model.tokenizer.encode(prompt)
    if len(ids) + tokens > model.settings.max_positions:
        total = f"{len(ids)} + {tokens} tokens"
        raise ValueError(f"--prompt: {total}, must be at most {model.settings.max_positions}")
    if not ids:
        raise ValueError("--prompt: has no tokens")
    found, log_probs = continue_greedily(
        model.settings, model.parameters, jnp.asarray(ids), tokens, model.tokenizer.num_ids
    )
    chosen = [int(token) for token in found]
    listed = np.argsort(-np.asarray(log_probs))[:LISTED]
    lines = [f"prompt {' '.join(map(str, ids))}"]
    for token in listed:
        text = json.dumps(model.tokenizer.decode([token]), ensure_ascii=False)
        lines.append(f"next {token} {text} {log_probs[token]:.6f}")
    lines.append(f"greedy {' '.join(map(str, chosen))}")
    return [*lines, json.dumps(model.tokenizer.decode(chosen), ensure_ascii=False)]


def continue_greedily(
    settings: DecoderSettings, parameters: PyTree, prompt: jax.Array, count: int, num_ids: int
) -> tuple[jax.Array, jax.Array]:
    """Continues a prompt by the likeliest token, one program for prompt and continuation.

    Args:
      prompt: int32 `[P]`.
      count: n, tokens to write.
      num_ids: ids from here on are no tokens and are never written.

    Returns:
      tokens `[n]`, and the log-probabilities `[V]` of the token after the prompt.
    """

    @jax.jit
    def run(parameters, prompt):
        def log_probs(hidden):
            logits = project_logits(parameters, hidden)
            return jax.nn.log_softmax(jnp.where(jnp.arange(settings.vocab) < num_ids, logits, -jnp.inf))

        hidden, cache = prefill(settings, parameters, prompt[None], prompt.size + count)

        def step(carry, place):
            hidden, cache = carry
            token = jnp.argmax(log_probs(hidden), axis=-1)
            return decode_step(settings, parameters, token, cache, place), token[0]

        places = prompt.size + jnp.arange(count)
        _, tokens = jax.lax.scan(step, (hidden, cache), places)
        return tokens, log_probs(hidden)[0]

    return run(parameters, prompt)


def script() -> None:
    """Runs the console script."""
    command_line.run_guarded(main)


if __name__ == "__main__":
    script()
