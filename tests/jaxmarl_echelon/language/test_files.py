"""Files of tensors: round trips, shards, damage, and agreement with the package of the format."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.language.files import DTYPES, INDEX, read_safetensors, read_tensors, write_safetensors


def every_dtype():
    """A tensor of every dtype, one without axes, one without elements and one that is not contiguous."""
    numbers = np.arange(6).reshape(2, 3)
    tensors = {
        code: (numbers % 2 if code == "BOOL" else numbers).astype(dtype) for code, dtype in DTYPES.items()
    }
    turned = np.asarray(numbers.T, np.float32, order="F")
    return tensors | {
        "scalar": np.array(3.5, np.float32),
        "none": np.zeros((0, 4), "i4"),
        "turned": turned,
    }


def test_round_trip_of_every_dtype(tmp_path):
    tensors = every_dtype()
    write_safetensors(tmp_path / "x.safetensors", tensors.items(), {"format": "pt"})
    found = read_safetensors(tmp_path / "x.safetensors")
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        np.testing.assert_array_equal(found[name], tensor)
    assert found["BF16"].dtype == jnp.bfloat16 and not found["F32"].flags.writeable
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_bytes_of_a_file(tmp_path):
    write_safetensors(tmp_path / "x", [("a", np.array([1, 258], "<u2")), ("b", np.array([7], "u1"))])
    content = (tmp_path / "x").read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    assert json.loads(content[8 : 8 + size]) == {
        "a": {"dtype": "U16", "shape": [2], "data_offsets": [0, 4]},
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [4, 5]},
    }
    assert content[8 + size :] == bytes([1, 0, 2, 1, 7])


def test_a_tensor_at_an_odd_place(tmp_path):
    header = {"__metadata__": {"a": "b"}, "x": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]}}
    text = json.dumps(header).encode()
    data = b"abc" + np.array([1.5, -2.0], "<f4").tobytes()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + data)
    np.testing.assert_array_equal(read_safetensors(tmp_path / "x")["x"], [1.5, -2.0])


@pytest.mark.needs("safetensors")
def test_agreement_with_the_package(tmp_path):
    from safetensors.numpy import load_file, save_file

    # The package's NumPy side writes bfloat16 and cannot read it.
    tensors = {name: tensor for name, tensor in every_dtype().items() if name != "turned"}
    save_file(tensors, tmp_path / "theirs")
    theirs = read_safetensors(tmp_path / "theirs")
    del tensors["BF16"]
    write_safetensors(tmp_path / "ours", tensors.items())
    ours = load_file(tmp_path / "ours")
    assert ours.keys() == tensors.keys() and theirs.keys() == tensors.keys() | {"BF16"}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(ours[name], tensor)
        np.testing.assert_array_equal(theirs[name], tensor)
    np.testing.assert_array_equal(theirs["BF16"].astype(int), np.arange(6).reshape(2, 3))


def test_shards(tmp_path):
    tensors = every_dtype()
    places = {name: f"{'ab'[number % 2]}.safetensors" for number, name in enumerate(tensors)}
    for shard in set(places.values()):
        own = [(name, tensor) for name, tensor in tensors.items() if places[name] == shard]
        write_safetensors(tmp_path / shard, own)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    found = read_tensors(tmp_path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places | {"F32": "a.safetensors"}}))
    with pytest.raises(ValueError, match=r"a\.safetensors: F32: missing tensor$"):
        read_tensors(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(ValueError, match=r"index\.json: weight_map: missing$"):
        read_tensors(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json: b\.safetensors: no such file$"):
        read_tensors(tmp_path)


def written(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"abc", "no safetensors file: 3 bytes"),
        (b"\xff" * 9, "no safetensors file: its header ends after the file"),
        (written(b"{"), "no safetensors file: its header is damaged"),
        (written([1]), "no safetensors file: its header is damaged"),
        (written({"x": {"dtype": "F32"}}), "no safetensors file: its header is damaged"),
        (
            written({"x": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}, b"a"),
            "x: dtype F4 is unknown; allowed: F64, ",
        ),
        (
            written({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"abc"),
            "x: bytes 0 to 4 do not hold F32 [1]",
        ),
        (
            written({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"abcd"),
            "x: bytes 0 to 4 do not hold F32 [2]",
        ),
    ],
)
def test_damaged_files(tmp_path, content, line):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_safetensors(tmp_path / "x")
    assert str(error.value).startswith(f"{tmp_path / 'x'}: {line}") and "\n" not in str(error.value)


def test_a_dtype_that_the_format_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="x: dtype complex64 is unknown"):
        write_safetensors(tmp_path / "x", [("x", np.zeros(2, np.complex64))])
    assert not list(tmp_path.iterdir())


def test_a_folder_without_tensors(tmp_path):
    with pytest.raises(ValueError, match=r"no model\.safetensors and no model\.safetensors\.index\.json$"):
        read_tensors(tmp_path)
