"""Conversion of GGUF files (llama.cpp) to folders in Hugging Face's layout, with weights in float32."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from algos.language import families
from algos.language.model import DecoderSettings
from algos.types import PyTree
from jaxmarl_echelon.language.folders import save_model
from jaxmarl_echelon.language.tokenizers import JsonTokenizer
from jaxmarl_echelon.optional_packages import import_package

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": families.GEMMA}
GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Gemma normalises the results of attention and MLP too.
GEMMA_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Tokenizers by the name of their first step: whether digits are single tokens.
DIGITS_APART = {"smollm": True, "gpt-2": False}
# Kinds of tokens: control tokens are special; those of a user are text.
CONTROL, USER_DEFINED = 3, 4


def convert_gguf(path: str | Path, folder: str | Path, tokenizer: str | Path | None = None) -> str:
    """Converts a GGUF file to a model's folder; returns the model's digest.

    Weights are dequantised to float32.

    Args:
      path: of the file: architectures llama, qwen2, qwen3, gemma3.
      folder: to be written.
      tokenizer: a `tokenizer.json` instead of the file's own tokenizer, of which only the kinds of SmolLM
        and GPT-2 are known.

    Raises:
      ValueError: one line, if the package gguf is missing, or for contents that are not known.
    """
    package = import_package("gguf", str(path), "lm")
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    try:
        reader = package.GGUFReader(str(path))
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: no GGUF file: {error}") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    try:
        settings = read_settings(fields, "output.weight" not in {tensor.name for tensor in reader.tensors})
        content = Path(tokenizer).read_text() if tokenizer else json.dumps(make_tokenizer(fields))
        pad = fields.get("tokenizer.ggml.padding_token_id")
        own = JsonTokenizer(content, [read_field(fields, "tokenizer.ggml.eos_token_id")], pad, settings.vocab)
        values = ((x.name, package.quants.dequantize(x.data, x.tensor_type)) for x in reader.tensors)
        parameters = read_parameters(settings, fields["general.architecture"], values)
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"{path}: {error}") from error
    return save_model(folder, settings, parameters, own)


def read_field(fields: Mapping[str, Any], name: str) -> Any:
    """Returns the contents of a field; raises ValueError with its name where it is missing."""
    if name not in fields:
        raise ValueError(f"{name}: missing")
    return fields[name]


def read_settings(fields: Mapping[str, Any], tied: bool) -> DecoderSettings:
    """Returns the architecture that the fields of a GGUF file describe.

    Args:
      fields: contents by name.
      tied: whether the embedding is the head too.

    Raises:
      ValueError: one line with the field.
    """
    name = read_field(fields, "general.architecture")
    if name not in ARCHITECTURES:
        raise ValueError(f"general.architecture={name}: unknown; allowed: {', '.join(ARCHITECTURES)}")

    def read(key: str) -> Any:
        return read_field(fields, f"{name}.{key}")

    scaling = fields.get(f"{name}.rope.scaling.type", "none")
    if scaling != "none":
        raise ValueError(f"{name}.rope.scaling.type={scaling}: must be none")
    heads, width = read("attention.head_count"), read("embedding_length")
    head_dim = fields.get(f"{name}.attention.key_length", width // heads)
    config = {
        "model_type": ARCHITECTURES[name],
        "vocab_size": len(read_field(fields, "tokenizer.ggml.tokens")),
        "hidden_size": width,
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read("attention.head_count_kv"),
        "head_dim": head_dim,
        "intermediate_size": read("feed_forward_length"),
        "max_position_embeddings": read("context_length"),
        "rms_norm_eps": _shortest(read("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(read("rope.freq_base")),
        "tie_word_embeddings": tied,
    }
    if name == "gemma3":
        config |= {"sliding_window": read("attention.sliding_window"), "query_pre_attn_scalar": head_dim}
    return families.read_architecture(config)


def read_parameters(
    settings: DecoderSettings, architecture: str, tensors: Iterator[tuple[str, np.ndarray]]
) -> PyTree:
    """Returns the parameters of a GGUF file's tensors, which are given as float32 arrays by their names.

    Two things are undone: `llama` holds the rows of q and k in the order of another rotation, and Gemma's
    norms have 1 added.
    """
    found = {}
    for name, tensor in tensors:
        published = published_name(name, architecture)
        if architecture == "llama" and ("q_proj" in published or "k_proj" in published):
            heads = settings.heads if "q_proj" in published else settings.kv_heads
            tensor = restore_rotation_order(tensor, heads)
        if architecture == "gemma3" and published.endswith("norm.weight"):
            tensor = tensor - 1.0
        found[published] = tensor
    return families.stack_tensors(settings, found)


def published_name(name: str, architecture: str) -> str:
    """Returns a tensor's name in Hugging Face's files; raises ValueError for names that are not known."""
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    names = LAYER_NAMES | (GEMMA_NAMES if architecture == "gemma3" else {})
    found = LAYER.fullmatch(name)
    if found is None or found[2] not in names:
        raise ValueError(f"{name}: unexpected tensor")
    return f"model.layers.{found[1]}.{names[found[2]]}.{found[3]}"


def restore_rotation_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorders rows `[heads * h, ...]` from pairs (2j, 2j + 1) to the pairs (j, j + h / 2)."""
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def make_tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of a `tokenizer.json` for the tokenizer in a GGUF file.

    Raises:
      ValueError: one line, for kinds that are not known.
    """
    model, kind = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if model != "gpt2" or kind not in DIGITS_APART:
        known = ", ".join(DIGITS_APART)
        raise ValueError(
            f"tokenizer={model} {kind}: unknown, give a tokenizer.json; known: gpt2 with {known}"
        )
    names = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))
    tokens, kinds, merges = (read_field(fields, name) for name in names)
    added = [
        {"id": number, "content": tokens[number], "special": kind == CONTROL, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for number, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED)
    ]
    digits = [{"type": "Digits", "individual_digits": True}] if DIGITS_APART[kind] else []
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*digits, level]},
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def _shortest(value: float) -> float:
    """The shortest decimal that a float32 is written as: 1e-5 instead of 9.99999975e-6."""
    return float(str(np.float32(value)))
