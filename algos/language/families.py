"""Architectures of published models: settings from and to `config.json`, and the names of tensors in files.

Four families of Hugging Face's transformers are known: `qwen2`, `qwen3`, `llama` (Llama 3, SmolLM2) and
`gemma3_text`. A key that could change the arithmetic and is not known is an error.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from algos import checks
from algos.language.adapters import PRODUCTS
from algos.language.attention import RopeScaling
from algos.language.model import DecoderSettings, parameter_shapes
from algos.types import PyTree

GEMMA = "gemma3_text"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# What tells the families apart.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "llama": {},
    GEMMA: {
        "qk_norm": True,
        "offset_norms": True,
        "out_norms": True,
        "scaled_embedding": True,
        "activation": "gelu_tanh",
    },
}
ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    GEMMA: "Gemma3ForCausalLM",
}
ACTIVATION_NAMES = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
# Every sixth of Gemma's layers sees all keys.
GEMMA_PATTERN = 6
# Keys of `config.json` without an effect on the arithmetic of a forward pass.
HARMLESS = """
_name_or_path _attn_implementation_autoset architectures attention_dropout bos_token_id
cache_implementation dtype eos_token_id initializer_range is_llama_config max_window_layers
model_type pad_token_id torch_dtype transformers.js_config transformers_version use_cache
"""
# Keys that change the arithmetic, and the only value that is supported.
FIXED = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 1,
    "quantization_config": None,
    "rope_interleaved": False,
    "use_bidirectional_attention": False,
    "use_sliding_window": False,
}
# Sizes, and those with defaults that differ between families.
SIZES = {
    "vocab": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp_width": "intermediate_size",
    "max_positions": "max_position_embeddings",
}
HEAD_SIZES = {"kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
# Keys that are read.
READ = """
attention_bias head_dim hidden_act hidden_activation hidden_size intermediate_size layer_types
max_position_embeddings num_attention_heads num_hidden_layers num_key_value_heads
query_pre_attn_scalar rms_norm_eps rope_local_base_freq rope_parameters rope_scaling rope_theta
sliding_window sliding_window_pattern _sliding_window_pattern tie_word_embeddings vocab_size
"""


class PublishedTensor(NamedTuple):
    """A tensor in files of Hugging Face's format.

    Attributes:
      name: in files.
      path: keys of the parameters' tree.
      layer: index on the first axis there; None for tensors that are not stacked.
      transposed: whether files hold `[out, in]` where the tree holds `[in, out]`.
      shape: in files.
    """

    name: str
    path: tuple[str, ...]
    layer: int | None
    transposed: bool
    shape: tuple[int, ...]


def make_decoder_settings(family: str, **sizes: Any) -> DecoderSettings:
    """Settings of a family's architecture.

    Args:
      family: of `FAMILIES`.
      **sizes: fields of `DecoderSettings` without the family's switches; `score_scale` defaults to
        1 / sqrt(head_dim). Gemma's `window` defaults to 512 keys and every sixth layer sees all.
    """
    checks.require_choice("family", family, tuple(FAMILIES))
    sizes.setdefault("score_scale", 1.0 / math.sqrt(sizes["head_dim"]))
    if family == GEMMA:
        sizes.setdefault("window", 512)
        sizes.setdefault("local", _local_layers(sizes["layers"], GEMMA_PATTERN))
    return DecoderSettings(**FAMILIES[family], **sizes)


def family_name(settings: DecoderSettings) -> str:
    """Returns the family of an architecture; raises ValueError if it has none."""
    defaults = {field.name: field.default for field in dataclasses.fields(DecoderSettings)}
    switches = {name for family in FAMILIES.values() for name in family}
    own = {name: getattr(settings, name) for name in switches}
    for family, given in FAMILIES.items():
        if own == {name: given.get(name, defaults[name]) for name in switches}:
            return family
    raise ValueError(f"architecture={own}: must be one of {', '.join(FAMILIES)}")


def read_architecture(config: Mapping[str, Any]) -> DecoderSettings:
    """Reads the contents of a `config.json`.

    Raises:
      ValueError: one line with the key, for other families, missing keys, and keys or values that change
        the arithmetic and are not known.
    """
    family = config.get("model_type")
    checks.require_choice("model_type", family, tuple(FAMILIES))
    _refuse_unknown(config, str(family))
    sizes = {field: _required(config, key) for field, key in SIZES.items()}
    # Other families have defaults of their own, which would be guesses here.
    if family == "llama":
        config = {"num_key_value_heads": sizes["heads"], **_given(config)}
    if family in ("llama", "qwen2"):
        config = {"head_dim": sizes["width"] // sizes["heads"], **_given(config)}
    sizes |= {field: _required(config, key) for field, key in HEAD_SIZES.items()}
    for field, value in sizes.items():
        checks.require_count((SIZES | HEAD_SIZES)[field], value)
    if sizes["heads"] % sizes["kv_heads"]:
        raise ValueError(f"num_key_value_heads={sizes['kv_heads']}: must divide {sizes['heads']} heads")
    if sizes["head_dim"] % 2:
        raise ValueError(f"head_dim={sizes['head_dim']}: must be even")
    tied = config.get("tie_word_embeddings")
    read = _read_gemma if family == GEMMA else _read_full_attention
    return make_decoder_settings(
        str(family),
        **sizes,
        eps=float(config.get("rms_norm_eps") or 1e-6),
        tied=family == GEMMA if tied is None else bool(tied),
        **read(config, sizes),
    )


def write_architecture(settings: DecoderSettings, dtype: str = "float32") -> dict[str, Any]:
    """Returns the contents of a `config.json` from which `read_architecture` reads these settings."""
    family = family_name(settings)
    config = {key: getattr(settings, field) for field, key in (SIZES | HEAD_SIZES).items()}
    config |= {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "torch_dtype": dtype,
        "rms_norm_eps": settings.eps,
        "tie_word_embeddings": settings.tied,
        "rope_theta": settings.theta,
    }
    activation = ACTIVATION_NAMES[settings.activation]
    if family == GEMMA:
        kinds = ["sliding_attention" if local else "full_attention" for local in settings.local]
        return config | {
            "hidden_activation": activation,
            "query_pre_attn_scalar": _whole(settings.score_scale**-2.0),
            "rope_local_base_freq": settings.local_theta,
            "sliding_window": settings.window,
            "layer_types": kinds,
        }
    config["hidden_act"] = activation
    if scaling := settings.rope_scaling:
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": _whole(scaling.original),
        }
    return config


def published_tensors(settings: DecoderSettings) -> Iterator[PublishedTensor]:
    """Yields the tensors of an architecture, layer by layer."""
    shapes = parameter_shapes(settings)
    yield PublishedTensor(EMBEDDING, ("embed",), None, False, shapes["embed"])
    before_mlp = "pre_feedforward_layernorm" if settings.out_norms else "post_attention_layernorm"
    names = {
        "attention_norm": "input_layernorm.weight",
        "attention_out_norm": "post_attention_layernorm.weight",
        "mlp_norm": f"{before_mlp}.weight",
        "mlp_out_norm": "post_feedforward_layernorm.weight",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
    }
    names |= {name: f"{published}.weight" for name, published in PRODUCTS.items()}
    names |= {f"{name}_bias": f"{PRODUCTS[name]}.bias" for name in ("q", "k", "v")}
    for layer in range(settings.layers):
        for name, (_, *shape) in shapes["layers"].items():
            published = f"model.layers.{layer}.{names[name]}"
            turned = tuple(reversed(shape))
            yield PublishedTensor(published, ("layers", name), layer, name in PRODUCTS, turned)
    yield PublishedTensor("model.norm.weight", ("norm",), None, False, shapes["norm"])
    if not settings.tied:
        yield PublishedTensor(HEAD, ("head",), None, False, shapes["head"])


def stack_tensors(
    settings: DecoderSettings, tensors: Mapping[str, np.ndarray], dtype: np.dtype | None = None
) -> PyTree:
    """Stacks published tensors to parameters on the host, one tensor at a time.

    Args:
      tensors: published name to array.
      dtype: of the parameters; None for that of the embedding.

    Raises:
      ValueError: one line with the name of a missing, surplus or misshapen tensor.
    """
    expected = {tensor.name: tensor for tensor in published_tensors(settings)}
    # Some files of tied models, such as Qwen3's, hold the embedding a second time.
    if settings.tied and HEAD in tensors and EMBEDDING in tensors:
        if not np.array_equal(tensors[HEAD], tensors[EMBEDDING]):
            raise ValueError(f"{HEAD}: differs from the embedding, to which tie_word_embeddings ties it")
        tensors = {name: tensors[name] for name in tensors if name != HEAD}
    for found, against, problem in ((expected, tensors, "missing"), (tensors, expected, "unexpected")):
        if lacking := sorted(name for name in found if name not in against):
            raise ValueError(f"{lacking[0]}: {problem} tensor ({len(lacking)} in all)")
    dtype = np.dtype(dtype or tensors[EMBEDDING].dtype)
    shapes = parameter_shapes(settings)
    parameters: dict[str, Any] = {"layers": {}}
    for name, tensor in expected.items():
        array = tensors[name]
        if array.shape != tensor.shape:
            raise ValueError(f"{name}: shape {list(array.shape)}, must be {list(tensor.shape)}")
        if tensor.layer is None:
            parameters[tensor.path[0]] = np.array(array, dtype)
            continue
        key = tensor.path[1]
        stack = parameters["layers"].setdefault(key, np.empty(shapes["layers"][key], dtype))
        stack[tensor.layer] = array.T
    return parameters


def unstack_parameters(settings: DecoderSettings, parameters: PyTree) -> Iterator[tuple[str, np.ndarray]]:
    """Yields published names and arrays of parameters."""
    for tensor in published_tensors(settings):
        found = parameters
        for key in tensor.path:
            found = found[key]
        array = np.asarray(found if tensor.layer is None else found[tensor.layer])
        yield tensor.name, array.T if tensor.transposed else array


def _required(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"{key}: missing in config.json")
    return config[key]


def _whole(value: float) -> int | float:
    """A number without rounding errors, as int where it is whole: transformers checks these types."""
    value = round(value, 6)
    return int(value) if value == int(value) else value


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """Entries that are not null."""
    return {key: value for key, value in config.items() if value is not None}


def _refuse_unknown(config: Mapping[str, Any], family: str) -> None:
    """Raises ValueError for the first key or value that may change the arithmetic and is not known."""
    known = {*READ.split(), *HARMLESS.split(), *FIXED}
    activation = ACTIVATION_NAMES["gelu_tanh" if family == GEMMA else "silu"]
    fixed = FIXED | {"hidden_act": activation, "hidden_activation": activation}
    # Qwen2's code has these biases whatever the configuration says.
    fixed |= {} if family == "qwen2" else {"attention_bias": False}
    for key, value in _given(config).items():
        if key not in known:
            raise ValueError(f"{key}={value}: unknown, and may change the arithmetic of {family}")
        if key in fixed and value != fixed[key]:
            raise ValueError(f"{key}={value}: must be {fixed[key]} in {family}")


def _local_layers(layers: int, pattern: int) -> tuple[bool, ...]:
    """Flags of layers of which every `pattern`-th sees all keys."""
    return tuple((layer + 1) % pattern != 0 for layer in range(layers))


def _read_full_attention(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Rotation of families in which every layer sees all keys."""
    kinds = config.get("layer_types") or []
    if other := [kind for kind in kinds if kind != "full_attention"]:
        raise ValueError(f"layer_types={other[0]}: must be full_attention in {config['model_type']}")
    if config["model_type"] == "llama" and config.get("sliding_window") is not None:
        raise ValueError(f"sliding_window={config['sliding_window']}: must be None in llama")
    for key in ("query_pre_attn_scalar", "rope_local_base_freq"):
        if config.get(key) is not None:
            raise ValueError(f"{key}={config[key]}: must be None in {config['model_type']}")
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 1e4
    return {"theta": float(theta), "rope_scaling": _read_scaling(rope, sizes["max_positions"])}


def _read_scaling(rope: Mapping[str, Any], positions: int) -> RopeScaling | None:
    """Change of the frequencies, of `rope_scaling` or `rope_parameters` without its base."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    checks.require_choice("rope_type", kind, ("default", "llama3"))
    names = {
        "factor": "factor",
        "low": "low_freq_factor",
        "high": "high_freq_factor",
        "original": "original_max_position_embeddings",
    }
    known = {"rope_type", "type"} | (set(names.values()) if kind == "llama3" else set())
    for key, value in rope.items():
        if key not in known and not (key == "partial_rotary_factor" and value == 1.0):
            raise ValueError(f"rope_parameters.{key}={value}: unknown in rotation of type {kind}")
    if kind == "default":
        return None
    rope = {"original_max_position_embeddings": positions, **rope}
    return RopeScaling(**{field: float(_required(rope, key)) for field, key in names.items()})


def _read_gemma(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Window, kinds of layers and the two rotations of Gemma 3."""
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or GEMMA_PATTERN
    kinds = config.get("layer_types")
    local = _local_layers(sizes["layers"], pattern)
    if kinds is not None:
        for kind in kinds:
            checks.require_choice("layer_types", kind, ("sliding_attention", "full_attention"))
        local = tuple(kind == "sliding_attention" for kind in kinds)
    if len(local) != sizes["layers"]:
        raise ValueError(f"layer_types: {len(local)} entries, must be {sizes['layers']}")
    rope = dict(config.get("rope_parameters") or {})
    wide, near = dict(rope.pop("full_attention", {})), dict(rope.pop("sliding_attention", {}))
    theta = wide.pop("rope_theta", None) or config.get("rope_theta") or 1e6
    local_theta = near.pop("rope_theta", None) or config.get("rope_local_base_freq") or 1e4
    for found in (wide, near, rope, config.get("rope_scaling") or {}):
        if _read_scaling(found, sizes["max_positions"]) is not None:
            raise ValueError(f"rope_type=llama3: must be default in {GEMMA}")
    return {
        "theta": float(theta),
        "local_theta": float(local_theta),
        "local": local,
        "window": _required(config, "sliding_window"),
        "score_scale": float(_required(config, "query_pre_attn_scalar")) ** -0.5,
    }
