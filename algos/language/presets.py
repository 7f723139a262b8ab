"""Architectures of published models by name, for measurements without their weights."""

from typing import Any

from algos.language.attention import RopeScaling
from algos.language.families import make_decoder_settings
from algos.language.model import DecoderSettings


def _preset(family: str, **sizes: Any) -> DecoderSettings:
    common = {"kv_heads": 8, "eps": 1e-6, "theta": 1e6, "head_dim": 128, "tied": True}
    return make_decoder_settings(family, **(common | sizes))


_LLAMA3 = RopeScaling(factor=32.0, low=1.0, high=4.0, original=8192.0)
_QWEN = {"vocab": 151_936, "max_positions": 40_960}
# Architectures by the name of the model.
PRESETS = {
    "SmolLM2-135M": _preset(
        "llama", vocab=49_152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, mlp_width=1536,
        max_positions=8192, theta=1e5, eps=1e-5,
    ),
    "Qwen3-0.6B": _preset("qwen3", **_QWEN, width=1024, layers=28, heads=16, mlp_width=3072),
    "Qwen3-1.7B": _preset("qwen3", **_QWEN, width=2048, layers=28, heads=16, mlp_width=6144),
    "Qwen3-4B": _preset("qwen3", **_QWEN, width=2560, layers=36, heads=32, mlp_width=9728),
    "Llama-3.2-1B": _preset(
        "llama", vocab=128_256, width=2048, layers=16, heads=32, head_dim=64, mlp_width=8192,
        max_positions=131_072, theta=5e5, eps=1e-5, rope_scaling=_LLAMA3,
    ),
}  # fmt: skip
