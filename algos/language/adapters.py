"""Low-rank adapters of a decoder's products: y = x W + (alpha / r) (x A) B (Hu et al. 2021, equation 3)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos import checks
from algos.defaults import FROM_FILE, take_defaults_from
from algos.types import PyTree

# The adaptable products of a layer and their names in Hugging Face's files, `model.layers.{i}.` in front.
PRODUCTS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
# Settings of PEFT that change the arithmetic, and the only value that is supported.
PEFT_FIXED = {
    "peft_type": "LORA",
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "layer_replication": None,
    "alora_invocation_tokens": None,
}
# Ways to draw new adapters after which PEFT's base is still the model itself. Others, such as `pissa` and
# `olora`, take the first adapters out of the base's weights whenever it loads them.
PEFT_STARTS = (True, False, "gaussian", "orthogonal", "eva")


@take_defaults_from("algo/reinforce_lm:lora")
@dataclass(frozen=True)
class LoraSettings:
    """Sizes of adapters.

    Attributes:
      rank: r, the columns of A.
      alpha: the change is multiplied by alpha / r.
      targets: products of every layer that have an adapter, of `PRODUCTS`.
    """

    rank: int = FROM_FILE
    alpha: float = FROM_FILE
    targets: tuple[str, ...] = FROM_FILE

    def __post_init__(self):
        checks.require_count("lora.rank", self.rank)
        checks.require_range("lora.alpha", self.alpha, 0.0, math.inf)
        for target in checks.require_list("lora.targets", self.targets):
            checks.require_choice("lora.targets", target, tuple(PRODUCTS))


class Adapters(struct.PyTreeNode):
    """Adapters of all layers.

    Attributes:
      pairs: product to `{"a": [L, in, r], "b": [L, r, out]}`.
      scale: alpha / r. Static, and so part of the tree's structure: it belongs to the adapters, and
        optimisers do not see it.
    """

    pairs: Mapping[str, Mapping[str, jax.Array]]
    scale: float = struct.field(pytree_node=False)


def init_adapters(key: jax.Array, lora: LoraSettings, shapes: Mapping[str, tuple[int, int, int]]) -> Adapters:
    """Draws adapters that change nothing: A uniform within +-1 / sqrt(in), B zero, float32.

    Args:
      lora: sizes.
      shapes: product to `(L, in, out)`, as `model.product_shapes` returns them.
    """
    targets = [name for name in PRODUCTS if name in lora.targets]
    pairs = {}
    for name, own in zip(targets, jax.random.split(key, len(targets)), strict=True):
        layers, rows, columns = shapes[name]
        bound = 1.0 / math.sqrt(rows)
        a = jax.random.uniform(own, (layers, rows, lora.rank), minval=-bound, maxval=bound)
        pairs[name] = {"a": a, "b": jnp.zeros((layers, lora.rank, columns))}
    return Adapters(pairs, lora.alpha / lora.rank)


def adapted_product(
    x: jax.Array, weight: jax.Array, pair: Mapping[str, jax.Array] | None, scale: float
) -> jax.Array:
    """Multiplies by a weight and adds its adapter's change, which is never merged into the weight.

    Where the adapter is mapped over and the weight is not, the product with the weight stays one product
    for all rows.

    Args:
      x: `[..., in]`.
      weight: `[in, out]`.
      pair: `{"a": [in, r], "b": [r, out]}`; None for no adapter. Computed in the precision of `x`.
      scale: alpha / r.
    """
    y = x @ weight
    if pair is None:
        return y
    return y + scale * ((x @ pair["a"].astype(x.dtype)) @ pair["b"].astype(x.dtype))


def count_parameters(tree: PyTree) -> int:
    """Counts the numbers in a tree of arrays or of their shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def write_peft(adapters: Adapters, base: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Converts adapters to the format of the library PEFT.

    Args:
      base: name or path of the base model, for the configuration.

    Returns:
      the contents of `adapter_config.json`, and tensors by name: A `[r, in]` and B `[out, r]` per layer.
    """
    tensors = {}
    for name, pair in adapters.pairs.items():
        for side, letter in (("a", "A"), ("b", "B")):
            for layer, matrix in enumerate(np.asarray(pair[side], np.float32)):
                tensors[_peft_name(layer, name, letter)] = matrix.T
    rank = next(iter(adapters.pairs.values()))["a"].shape[-1]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": adapters.scale * rank,
        "lora_dropout": 0.0,
        "target_modules": [PRODUCTS[name].rpartition(".")[2] for name in adapters.pairs],
        "bias": "none",
    }
    return config, tensors


def read_peft(
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, int, int]],
) -> Adapters:
    """Reads adapters in PEFT's format; rank, alpha and targets are the file's.

    Args:
      config: contents of `adapter_config.json`.
      tensors: by name.
      shapes: product to `(L, in, out)`, as `model.product_shapes` returns them.

    Raises:
      ValueError: one line with the key or the tensor, for settings that change the arithmetic and are not
        known, and for missing, surplus or misshapen tensors.
    """
    for key, value in PEFT_FIXED.items():
        if config.get(key, value) not in (value, None):
            raise ValueError(f"{key}={config[key]}: must be {value}; other values are not supported")
    start = config.get("init_lora_weights", True)
    if start not in (*PEFT_STARTS, None):
        allowed = ", ".join(map(str, PEFT_STARTS))
        raise ValueError(f"init_lora_weights={start}: changes the base's weights; allowed: {allowed}")
    rank, alpha = config.get("r", 0), config.get("lora_alpha", math.nan)
    checks.require_count("r", rank)
    checks.require_range("lora_alpha", alpha, 0.0, math.inf)
    # The tensors say which products have an adapter: `target_modules` may be a pattern.
    names = [name for name in PRODUCTS if _peft_name(0, name, "A") in tensors]
    left, pairs = dict(tensors), {}
    for name in names:
        layers, rows, columns = shapes[name]
        pairs[name] = {
            "a": _stack_peft(left, name, "A", layers, (rank, rows)),
            "b": _stack_peft(left, name, "B", layers, (columns, rank)),
        }
    if not names:
        raise ValueError(f"{_peft_name(0, 'q', 'A')}: missing tensor, as all others")
    if left:
        raise ValueError(f"{min(left)}: unexpected tensor ({len(left)} in all)")
    return Adapters(pairs, float(alpha) / rank)


def _stack_peft(
    tensors: dict[str, np.ndarray], product: str, letter: str, layers: int, shape: tuple[int, int]
) -> np.ndarray:
    """Takes one factor of all layers out of the tensors, transposed and stacked."""
    found = []
    for layer in range(layers):
        name = _peft_name(layer, product, letter)
        if name not in tensors:
            raise ValueError(f"{name}: missing tensor")
        tensor = tensors.pop(name)
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {list(tensor.shape)}, must be {list(shape)}")
        found.append(np.asarray(tensor, np.float32).T)
    return np.stack(found)


def _peft_name(layer: int, product: str, letter: str) -> str:
    return f"base_model.model.model.layers.{layer}.{PRODUCTS[product]}.lora_{letter}.weight"
