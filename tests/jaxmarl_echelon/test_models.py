"""The command line of models."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import pytest
from decoder_cases import QWEN3, sine_parameters

from algos.language.model import apply_decoder, project_logits
from jaxmarl_echelon import models
from jaxmarl_echelon.language.folders import save_model
from jaxmarl_echelon.language.tokenizers import AsciiTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model with ASCII's vocabulary."""
    folder = tmp_path_factory.mktemp("model")
    settings = dataclasses.replace(QWEN3, vocab=128)
    save_model(folder, settings, sine_parameters(settings), AsciiTokenizer())
    return folder


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["models", *map(str, arguments)])
    models.main()


def test_show(folder, monkeypatch, capsys):
    run(monkeypatch, "show", folder, "--prompt", "ab>", "--tokens", "3")
    architecture, parameters, vocabulary, digest, prompt, *following, greedy, text = (
        capsys.readouterr().out.splitlines()
    )
    assert architecture == "qwen3: 2 layers of width 8, 4 heads and 2 key heads of 4, mlp 12"
    assert parameters == "1,400 parameters in layers, 1,024 in embedding and head, float32"
    assert vocabulary == "vocabulary 128, 99 of them tokens; 64 positions"
    assert digest.split()[0] == "digest" and prompt == "prompt 69 70 34"
    # Without a cache, and with ids above the tokenizer's left out.
    settings = dataclasses.replace(QWEN3, vocab=128)
    weights, ids = sine_parameters(settings), [69, 70, 34]
    for place in range(3):
        hidden = apply_decoder(settings, weights, jnp.asarray([ids]))
        log_probs = jax.nn.log_softmax(project_logits(weights, hidden)[0, -1, :99])
        ids.append(int(log_probs.argmax()))
        if place == 0:
            first = following[0].split()
            assert first[:2] == ["next", str(ids[-1])] and abs(float(first[-1]) - log_probs.max()) < 1e-5
    assert greedy == f"greedy {' '.join(map(str, ids[3:]))}"
    assert text.startswith('"') and len(following) == 5


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["show", "FOLDER", "--tokens", "0"], "--tokens=0: must be at least 1"),
        (["show", "FOLDER", "--prompt", "a" * 60], "--prompt: 60 + 10 tokens, must be at most 64"),
        (["show", "nowhere"], "nowhere/config.json: no such file"),
        (["convert", "x.gguf", "FOLDER"], ": exists already"),
        (["convert"], "the following arguments are required: file, folder"),
    ],
)
def test_errors_are_one_line(folder, monkeypatch, arguments, line):
    with pytest.raises(ValueError) as error:
        run(monkeypatch, *(folder if word == "FOLDER" else word for word in arguments))
    assert line in str(error.value) and "\n" not in str(error.value)


def test_conversion_needs_a_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match=r"^x\.gguf: needs the package gguf; install it with pip install "):
        run(monkeypatch, "convert", "x.gguf", tmp_path / "new")
    assert not list(tmp_path.iterdir())
