"""Folders of models and of adapters."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_cases import GEMMA3, QWEN3, sine_adapters, sine_parameters

from jaxmarl_echelon.language.files import INDEX, SINGLE, read_tensors, write_safetensors
from jaxmarl_echelon.language.folders import load_adapters, load_model, save_adapters, save_model
from jaxmarl_echelon.language.tokenizers import AsciiTokenizer

WIDE = {"vocab": 128}


def saved(folder, settings, change=lambda x: x):
    """A model with ASCII's vocabulary in a folder: its settings, parameters and digest."""
    settings = settings.__class__(**(vars(settings) | WIDE))
    parameters = jax.tree.map(change, sine_parameters(settings))
    return settings, parameters, save_model(folder, settings, parameters, AsciiTokenizer())


@pytest.mark.parametrize("given", [QWEN3, GEMMA3], ids=["qwen3", "gemma3"])
def test_round_trip(tmp_path, given):
    settings, parameters, digest = saved(tmp_path, given)
    model = load_model(tmp_path)
    assert model.settings == settings and model.digest == digest and len(digest) == 64
    assert model.tokenizer.encode("a") == [69]
    assert jax.tree.structure(model.parameters) == jax.tree.structure(parameters)
    jax.tree.map(np.testing.assert_array_equal, model.parameters, parameters)
    files = {"config.json", "model.safetensors", "tokenizer_config.json"}
    assert {path.name for path in tmp_path.iterdir()} == files


def test_half_precision(tmp_path):
    _, parameters, _ = saved(tmp_path, QWEN3, lambda x: x.astype(jnp.bfloat16))
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert load_model(tmp_path).parameters["layers"]["up"].dtype == jnp.bfloat16
    wide = load_model(tmp_path, np.dtype(np.float32)).parameters
    assert wide["layers"]["up"].dtype == np.float32
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y.astype(jnp.float32)), wide, parameters)


def test_digest_tells_models_apart_and_not_their_files(tmp_path):
    _, _, digest = saved(tmp_path, QWEN3)
    tensors = read_tensors(tmp_path)
    places = {name: f"{number % 3}.safetensors" for number, name in enumerate(reversed(tensors))}
    for shard in set(places.values()):
        write_safetensors(
            tmp_path / shard, [(name, tensors[name]) for name in places if places[name] == shard]
        )
    (tmp_path / SINGLE).unlink()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    assert load_model(tmp_path).digest == digest
    digests = {digest, saved(tmp_path / "other", QWEN3, lambda x: x.at[..., -1].add(1e-6))[2]}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 1e5}))
    digests.add(load_model(tmp_path).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"config.json": None}, "/config.json: no such file"),
        ({"config.json": "{"}, "/config.json: not JSON: Expecting property name"),
        ({"config.json": "[]"}, "/config.json: not a JSON object"),
        ({"tokenizer_config.json": "[]"}, "/tokenizer_config.json: not a JSON object"),
        ({"config.json": {"vocab_size": 90}}, ": 99 tokens, the embedding has 90 rows"),
        ({"config.json": {"rms_norm_eps": 1e-6, "hidden_size": 9}}, ": model.embed_tokens.weight: shape ["),
        ({"model.safetensors": None}, ": no model.safetensors and no "),
        ({"tokenizer_config.json": None}, ": no tokenizer.json"),
    ],
)
def test_errors_are_one_line_with_the_folder(tmp_path, change, line):
    saved(tmp_path, QWEN3)
    for name, content in change.items():
        if content is None:
            (tmp_path / name).unlink()
        elif isinstance(content, str):
            (tmp_path / name).write_text(content)
        else:
            given = json.loads((tmp_path / name).read_text())
            (tmp_path / name).write_text(json.dumps(given | content))
    with pytest.raises(ValueError) as error:
        load_model(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}{line}") and "\n" not in str(error.value)


def test_adapters(tmp_path):
    adapters = sine_adapters(QWEN3)
    save_adapters(tmp_path, adapters, "somewhere")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "somewhere"
    found = load_adapters(tmp_path, QWEN3)
    assert found.scale == adapters.scale
    jax.tree.map(np.testing.assert_array_equal, found, adapters)
    wider = QWEN3.__class__(**(vars(QWEN3) | {"width": 16}))
    with pytest.raises(ValueError) as error:
        load_adapters(tmp_path, wider)
    assert str(error.value).startswith(f"{tmp_path}: base_model.model.model.layers.0.self_attn.q_proj.lora_A")
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match="adapter_model.safetensors: no such file"):
        load_adapters(tmp_path, QWEN3)
