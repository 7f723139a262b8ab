"""Low-rank adapters of a decoder's products: y = x W + (alpha / r) (x A) B (Hu et al. 2021, equation 3)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from algos import checks
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


@dataclass(frozen=True)
class LoraSettings:
    """Sizes of adapters.

    Attributes:
      rank: r, the columns of A.
      alpha: the change is multiplied by alpha / r.
      targets: products of every layer that have an adapter, of `PRODUCTS`.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = tuple(PRODUCTS)

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


def init_adapters(
    key: jax.Array, lora: LoraSettings, shapes: Mapping[str, tuple[int, int, int]]
) -> Adapters:
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


def target_modules(targets: Iterable[str]) -> list[str]:
    """Names of products as in PEFT's `target_modules`, such as `q_proj`."""
    return [PRODUCTS[name].rpartition(".")[2] for name in targets]
