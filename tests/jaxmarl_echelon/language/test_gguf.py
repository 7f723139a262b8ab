"""GGUF files: names, order of rows, Gemma's norms, and a whole file."""

import re

import jax
import numpy as np
import pytest
from decoder_cases import GEMMA3, LLAMA, sine_parameters
from small_tokenizer import FIELDS, TOKENS

from algos.language.attention import make_rotation, rotary_frequencies, rotate
from algos.language.families import published_tensors, unstack_parameters
from algos.language.model import DecoderSettings
from jaxmarl_echelon.language import gguf
from jaxmarl_echelon.language.folders import load_model


def sized(settings, **changes) -> DecoderSettings:
    """An architecture with the small tokenizer's vocabulary."""
    return DecoderSettings(**(vars(settings) | {"vocab": len(TOKENS)} | changes))


def fields_of(settings, architecture):
    """Fields of a GGUF file of an architecture; numbers are float32, as in files."""
    own = {
        "block_count": settings.layers,
        "context_length": settings.max_positions,
        "embedding_length": settings.width,
        "feed_forward_length": settings.mlp_width,
        "attention.head_count": settings.heads,
        "attention.head_count_kv": settings.kv_heads,
        "attention.key_length": settings.head_dim,
        "attention.layer_norm_rms_epsilon": float(np.float32(settings.eps)),
        "rope.freq_base": settings.theta,
    }
    own |= {"attention.sliding_window": settings.window} if settings.window else {}
    fields = {f"{architecture}.{name}": value for name, value in own.items()}
    return FIELDS | {"general.architecture": architecture, "tokenizer.ggml.eos_token_id": 0} | fields


def tensors_of(settings, parameters, architecture):
    """Tensors of a GGUF file by its names: q and k in its order of rows, 1 added to Gemma's norms."""
    names = {published: name for name, published in gguf.GLOBAL_NAMES.items()}
    layer_names = gguf.LAYER_NAMES | (gguf.GEMMA_NAMES if architecture == "gemma3" else {})
    inner = {published: name for name, published in layer_names.items()}
    for name, tensor in unstack_parameters(settings, parameters):
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        given = names[name] if found is None else f"blk.{found[1]}.{inner[found[2]]}.{found[3]}"
        if architecture == "llama" and given.split(".")[2:3] in (["attn_q"], ["attn_k"]):
            half = settings.head_dim // 2
            tensor = tensor.reshape(-1, 2, half, settings.width).swapaxes(1, 2).reshape(tensor.shape)
        yield given, tensor + 1.0 if architecture == "gemma3" and "norm" in given else tensor


# Gemma's second layer is local in files, whose pattern is six.
CASES = {"llama": (sized(LLAMA), "llama"), "gemma3": (sized(GEMMA3, local=(True, True)), "gemma3")}


@pytest.mark.parametrize(("settings", "architecture"), CASES.values(), ids=CASES)
def test_settings_and_tensors(settings, architecture):
    assert gguf.read_settings(fields_of(settings, architecture), settings.tied) == settings
    parameters = sine_parameters(settings)
    back = gguf.read_parameters(settings, architecture, tensors_of(settings, parameters, architecture))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), back, parameters)


def test_order_of_rows_is_that_of_the_rotation():
    # Files of llama.cpp turn the pairs (2j, 2j + 1); in the restored order the pairs are (j, j + h / 2).
    x = np.arange(8.0).reshape(8, 1)
    assert gguf.restore_rotation_order(x, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    heads = np.random.default_rng(0).normal(size=(1, 3, 2, 4)).astype(np.float32)
    frequencies = rotary_frequencies(4, 100.0)
    angles = np.arange(3)[:, None] * frequencies
    pairs = (heads[..., 0::2] + 1j * heads[..., 1::2]) * np.exp(1j * angles)[None, :, None]
    adjacent = np.stack([pairs.real, pairs.imag], axis=-1).reshape(heads.shape)
    order = gguf.restore_rotation_order(np.arange(4), 1)
    turned = rotate(heads[..., order], make_rotation(np.arange(3)[None], frequencies))
    np.testing.assert_allclose(turned, adjacent[..., order], atol=1e-5)


def test_every_tensor_of_a_family_has_a_name():
    for settings, architecture in CASES.values():
        given = [name for name, _ in tensors_of(settings, sine_parameters(settings), architecture)]
        names = {gguf.published_name(name, architecture) for name in given}
        assert names == {tensor.name for tensor in published_tensors(settings)}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"general.architecture": "mamba"}, "general.architecture=mamba: unknown; allowed: llama, "),
        ({"general.architecture": None}, "general.architecture: missing"),
        ({"llama.block_count": None}, "llama.block_count: missing"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type=yarn: must be none"),
    ],
)
def test_fields_that_are_not_known(change, line):
    fields = {k: v for k, v in (fields_of(sized(LLAMA), "llama") | change).items() if v is not None}
    with pytest.raises(ValueError) as error:
        gguf.read_settings(fields, False)
    assert str(error.value).startswith(line) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate"])
def test_tensors_that_are_not_known(name):
    with pytest.raises(ValueError, match=f"{re.escape(name)}: unexpected tensor"):
        gguf.published_name(name, "llama")


@pytest.mark.needs("gguf")
@pytest.mark.needs("tokenizers")
def test_a_whole_file(tmp_path):
    import gguf as package

    settings, architecture = CASES["llama"]
    parameters = sine_parameters(settings)
    writer = package.GGUFWriter(tmp_path / "x.gguf", architecture)
    for name, value in fields_of(settings, architecture).items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif name != "general.architecture":
            kinds = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
            kinds[type(value)](name, value)
    for name, tensor in tensors_of(settings, parameters, architecture):
        kind = np.float32 if tensor.ndim == 1 else np.float16
        writer.add_tensor(name, np.ascontiguousarray(tensor, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    digest = gguf.convert_gguf(tmp_path / "x.gguf", tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert (model.settings, model.digest) == (settings, digest)
    assert model.tokenizer.encode("abc1") == [TOKENS.index("abc"), TOKENS.index("1")]
    assert model.parameters["embed"].dtype == np.float32
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-3), model.parameters, parameters)
    (tmp_path / "y.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="no GGUF file"):
        gguf.convert_gguf(tmp_path / "y.gguf", tmp_path / "other")
    with pytest.raises(ValueError, match="no such file"):
        gguf.convert_gguf(tmp_path / "z.gguf", tmp_path / "other")
