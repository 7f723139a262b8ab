"""Architectures of published models: configurations, names of tensors, sizes."""

import json
import math

import jax
import numpy as np
import pytest
from decoder_cases import GEMMA3, LLAMA, QWEN2, QWEN3, sine_parameters

from algos.language import families
from algos.language.adapters import LoraSettings, count_parameters, init_adapters
from algos.language.attention import RopeScaling
from algos.language.model import parameter_shapes, product_shapes
from algos.language.presets import PRESETS

CASES = {"qwen2": QWEN2, "qwen3": QWEN3, "llama": LLAMA, "gemma3_text": GEMMA3}
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
GEMMA_270M = {
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "use_cache": True,
    "vocab_size": 262144,
}


def test_published_configurations():
    assert families.read_architecture(SMOLLM2) == PRESETS["SmolLM2-135M"]
    gemma = families.read_architecture(GEMMA_270M | {"_sliding_window_pattern": 6})
    assert gemma == families.read_architecture(GEMMA_270M)
    assert (gemma.window, gemma.score_scale, gemma.tied) == (512, 1 / 16, True)
    assert [i for i, local in enumerate(gemma.local) if not local] == [5, 11, 17]
    assert (gemma.theta, gemma.local_theta) == (1e6, 1e4)
    own = {"full_attention": {"rope_type": "default", "rope_theta": 2e6}}
    own |= {"sliding_attention": {"rope_type": "default", "rope_theta": 3e4}}
    gemma = families.read_architecture(GEMMA_270M | {"rope_parameters": own})
    assert (gemma.theta, gemma.local_theta) == (2e6, 3e4)


def test_base_of_the_rotation_at_the_top_or_with_its_scaling():
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    older = families.read_architecture(SMOLLM2 | {"rope_theta": 5e5, "rope_scaling": scaling})
    newer = families.read_architecture(SMOLLM2 | {"rope_parameters": scaling | {"rope_theta": 5e5}})
    assert older == newer
    assert older.theta == 5e5 and older.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192.0)
    assert families.read_architecture(families.write_architecture(older)) == older


@pytest.mark.parametrize("family", CASES)
def test_configuration_round_trip(family):
    settings = CASES[family]
    config = json.loads(json.dumps(families.write_architecture(settings)))
    assert config["model_type"] == family
    assert families.read_architecture(config) == settings


@pytest.mark.parametrize("family", CASES)
def test_tensors_round_trip(family):
    settings = CASES[family]
    parameters = jax.tree.map(np.asarray, sine_parameters(settings))
    tensors = dict(families.unstack_parameters(settings, parameters))
    assert tensors["model.layers.1.mlp.down_proj.weight"].shape == (8, 12)
    assert ("lm_head.weight" in tensors) == (family == "llama")
    assert ("model.layers.0.self_attn.q_proj.bias" in tensors) == (family == "qwen2")
    assert ("model.layers.0.pre_feedforward_layernorm.weight" in tensors) == (family == "gemma3_text")
    back = families.stack_tensors(settings, tensors)
    assert jax.tree.structure(back) == jax.tree.structure(parameters)
    jax.tree.map(np.testing.assert_array_equal, back, parameters)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"lm_head.bias": np.zeros(11)}, "lm_head.bias: unexpected tensor (1 in all)"),
        (
            {"lm_head.weight": np.zeros((11, 8))},
            "lm_head.weight: differs from the embedding, to which tie_word_embeddings ties it",
        ),
        ({"model.norm.weight": None}, "model.norm.weight: missing tensor (1 in all)"),
        ({"model.norm.weight": np.zeros(4)}, "model.norm.weight: shape [4], must be [8]"),
    ],
)
def test_wrong_tensors(change, line):
    tensors = dict(families.unstack_parameters(QWEN3, sine_parameters(QWEN3))) | change
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(ValueError) as error:
        families.stack_tensors(QWEN3, tensors)
    assert str(error.value) == line


def test_a_tied_head_that_is_stored_too():
    tensors = dict(families.unstack_parameters(QWEN3, sine_parameters(QWEN3)))
    stored = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    found, expected = (families.stack_tensors(QWEN3, given) for given in (stored, tensors))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    ("base", "change", "line"),
    [
        (SMOLLM2, {"model_type": "mamba"}, "model_type=mamba: unknown; allowed: qwen2, qwen3, llama, "),
        (SMOLLM2, {"hidden_size": None}, "hidden_size: missing in config.json"),
        (SMOLLM2, {"logit_scale": 0.5}, "logit_scale=0.5: unknown, and may change the arithmetic of llama"),
        (SMOLLM2, {"mlp_bias": True}, "mlp_bias=True: must be False in llama"),
        (SMOLLM2, {"hidden_act": "relu"}, "hidden_act=relu: must be silu in llama"),
        (
            SMOLLM2,
            {"rope_scaling": {"rope_type": "yarn"}},
            "rope_type=yarn: unknown; allowed: default, llama3",
        ),
        (SMOLLM2, {"num_key_value_heads": 2}, "num_key_value_heads=2: must divide 9 heads"),
        (SMOLLM2, {"head_dim": 63}, "head_dim=63: must be even"),
        (SMOLLM2, {"vocab_size": "many"}, "vocab_size=many: must be a whole number of at least 1"),
        (SMOLLM2, {"sliding_window": 8}, "sliding_window=8: must be None in llama"),
        (SMOLLM2, {"layer_types": ["linear"]}, "layer_types=linear: must be full_attention in llama"),
        (GEMMA_270M, {"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0: must be None in "),
        (GEMMA_270M, {"layer_types": ["full_attention"]}, "layer_types: 1 entries, must be 18"),
        (GEMMA_270M, {"rope_scaling": {"rope_type": "linear"}}, "rope_type=linear: unknown; allowed: "),
    ],
)
def test_settings_that_are_not_known(base, change, line):
    with pytest.raises(ValueError) as error:
        families.read_architecture(base | change)
    assert str(error.value).startswith(line) and "\n" not in str(error.value)


def test_an_architecture_of_no_family():
    with pytest.raises(ValueError, match="must be one of qwen2, qwen3, llama, gemma3_text"):
        families.family_name(QWEN3.__class__(**(vars(QWEN3) | {"out_norms": True})))


# Parameters of the layers and of the embedding, numbers in adapters of rank 32, KiB of cache per token in
# two bytes per number.
@pytest.mark.parametrize(
    ("name", "layers", "embedding", "adapters", "cache"),
    [
        ("SmolLM2-135M", 106_203_456, 28_311_552, 9_768_960, 22.5),
        ("Qwen3-0.6B", 440_467_456, 155_582_464, 20_185_088, 112),
        ("Qwen3-1.7B", 1_409_410_048, 311_164_928, 34_865_152, 112),
        ("Qwen3-4B", 3_633_511_936, 388_956_160, 66_060_288, 144),
        ("Llama-3.2-1B", 973_146_112, 262_668_288, 22_544_384, 32),
    ],
)
def test_sizes_of_published_models(name, layers, embedding, adapters, cache):
    settings = PRESETS[name]
    shapes = jax.tree.map(math.prod, parameter_shapes(settings), is_leaf=lambda x: isinstance(x, tuple))
    assert shapes["embed"] == embedding
    assert sum(jax.tree.leaves(shapes["layers"])) + shapes["norm"] == layers
    found = jax.eval_shape(
        lambda key: init_adapters(key, LoraSettings(32, 32.0), product_shapes(settings)), jax.random.key(0)
    )
    assert count_parameters(found) == adapters
    assert 4 * settings.layers * settings.kv_heads * settings.head_dim / 1024 == cache


def test_size_of_the_small_adapters():
    tiny = families.make_decoder_settings(
        "qwen3",
        vocab=128,
        width=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        mlp_width=192,
        max_positions=512,
        theta=1e4,
        eps=1e-6,
        tied=True,
    )
    for settings, numbers in ((tiny, 19_456), (PRESETS["SmolLM2-135M"], 2_442_240)):
        sizes = product_shapes(settings).values()
        assert sum(layers * 8 * (rows + columns) for layers, rows, columns in sizes) == numbers
