"""Adapters: sizes, initial values, and PEFT's format."""

import jax
import numpy as np
import pytest
from decoder_cases import QWEN3, sine_adapters

from algos.language.adapters import (
    LoraSettings,
    adapted_product,
    count_parameters,
    init_adapters,
    read_peft,
    write_peft,
)
from algos.language.model import product_shapes

SHAPES = product_shapes(QWEN3)
LAST = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"


def test_new_adapters_change_nothing():
    lora = LoraSettings(rank=3, alpha=6.0, targets=("down", "q"))
    adapters = init_adapters(jax.random.key(0), lora, SHAPES)
    assert list(adapters.pairs) == ["q", "down"] and adapters.scale == 2.0
    a, b = adapters.pairs["down"]["a"], adapters.pairs["down"]["b"]
    assert a.shape == (2, 12, 3) and b.shape == (2, 3, 8)
    assert not b.any() and 0.2 < abs(a).max() < 12**-0.5 and a.min() < -0.2
    assert count_parameters(adapters) == 2 * 3 * (8 + 16 + 12 + 8)
    x, weight = np.ones((2, 12), np.float32), np.ones((12, 8), np.float32)
    pair = {"a": a[0], "b": b[0]}
    np.testing.assert_array_equal(adapted_product(x, weight, pair, adapters.scale), x @ weight)


def test_peft_round_trip():
    adapters = sine_adapters(QWEN3)
    config, tensors = write_peft(adapters, "base")
    assert (config["r"], config["lora_alpha"]) == (2, 4.0)
    assert config["target_modules"][:4] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert len(tensors) == 28 and tensors[LAST].shape == (8, 2)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    np.testing.assert_allclose(tensors[name], 0.2 * np.sin(np.arange(16.0)).reshape(2, 8), atol=1e-6)
    back = read_peft(config, tensors, SHAPES)
    assert back.scale == adapters.scale
    jax.tree.map(np.testing.assert_array_equal, back, adapters)


def test_alpha_and_targets_are_the_files():
    config, tensors = write_peft(sine_adapters(QWEN3), "base")
    config |= {"lora_alpha": 1, "target_modules": ".*q_proj"}
    only = {name: tensor for name, tensor in tensors.items() if "q_proj" in name}
    adapters = read_peft(config, only, SHAPES)
    assert adapters.scale == 0.5 and list(adapters.pairs) == ["q"]


@pytest.mark.parametrize(
    ("config", "tensors", "line"),
    [
        ({"use_dora": True}, {}, "use_dora=True: must be False; other values are not supported"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            {},
            "init_lora_weights=pissa_niter_4: changes the base's weights; "
            "allowed: True, False, gaussian, orthogonal, eva",
        ),
        (
            {"alora_invocation_tokens": [5]},
            {},
            "alora_invocation_tokens=[5]: must be None; other values are not supported",
        ),
        ({"r": 0}, {}, "r=0: must be a whole number of at least 1"),
        ({"r": 4}, {}, ".q_proj.lora_A.weight: shape [2, 8], must be [4, 8]"),
        ({}, {LAST: None}, "layers.1.mlp.down_proj.lora_B.weight: missing tensor"),
        ({}, {"other": np.zeros(1)}, "other: unexpected tensor (1 in all)"),
    ],
)
def test_errors_are_one_line(config, tensors, line):
    found, given = write_peft(sine_adapters(QWEN3), "base")
    given = {name: tensor for name, tensor in (given | tensors).items() if tensor is not None}
    with pytest.raises(ValueError) as error:
        read_peft(found | config, given, SHAPES)
    assert str(error.value).endswith(line) and "\n" not in str(error.value)


def test_settings_are_checked():
    for wrong, line in (
        ({"rank": 0}, "lora.rank=0: must be a whole number of at least 1"),
        ({"targets": ("w",)}, "lora.targets=w: unknown; allowed: q, k, v, o, gate, up, down"),
    ):
        with pytest.raises(ValueError, match=line):
            LoraSettings(**wrong)
