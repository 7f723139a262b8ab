"""Files of tensors in the format safetensors, read memory-mapped.

A file is the header's length (8 bytes, little-endian), the header (JSON: name to `dtype`, `shape` and
`data_offsets` from the end of the header; `__metadata__` holds strings), and the tensors' bytes without gaps.
See https://huggingface.co/docs/safetensors.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

METADATA = "__metadata__"
# Names of dtypes in files. NumPy has no bfloat16, JAX brings one.
DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(jnp.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# The data begin at a multiple of this many bytes; spaces fill the header.
ALIGNMENT = 8


def read_safetensors(path: str | Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by name, as read-only views of the file: bytes are read when used.

    Raises:
      ValueError: one line with the path, if the file is damaged or has a dtype that is not known.
    """
    path = Path(path)
    if path.stat().st_size < 8:
        raise ValueError(f"{path}: no safetensors file: {path.stat().st_size} bytes")
    content = np.memmap(path, np.uint8, "r")
    begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if begin > len(content):
        raise ValueError(f"{path}: no safetensors file: its header ends after the file")
    try:
        header = json.loads(content[8:begin].tobytes())
        entries = [
            (name, entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
            for name, entry in header.items()
            if name != METADATA
        ]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no safetensors file: its header is damaged") from error
    return {entry[0]: _view(path, content[begin:], *entry) for entry in entries}


def _view(
    path: Path, data: np.ndarray, name: str, code: str, shape: tuple[int, ...], first: int, last: int
) -> np.ndarray:
    """A tensor of a file as a view of its bytes, `first` to `last` of the data."""
    if code not in DTYPES:
        raise ValueError(f"{path}: {name}: dtype {code} is unknown; allowed: {', '.join(DTYPES)}")
    if not 0 <= first <= last <= len(data) or last - first != math.prod(shape) * DTYPES[code].itemsize:
        raise ValueError(f"{path}: {name}: bytes {first} to {last} do not hold {code} {list(shape)}")
    return data[first:last].view(DTYPES[code]).reshape(shape)


def write_safetensors(
    path: str | Path,
    tensors: Iterable[tuple[str, np.ndarray]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes tensors to a file, which is replaced when it is complete.

    Args:
      tensors: names and arrays.
      metadata: strings of the header.

    Raises:
      ValueError: one line with the name, for a dtype that the format does not have.
    """
    path = Path(path)
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    tensors, offset = list(tensors), 0
    for name, tensor in tensors:
        if tensor.dtype not in CODES:
            raise ValueError(
                f"{name}: dtype {tensor.dtype} is unknown; allowed: {', '.join(map(str, CODES))}"
            )
        offsets = [offset, offset + tensor.nbytes]
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    partial = path.with_name(f".partial_{path.name}")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in tensors:
            file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    os.replace(partial, path)


def read_json(content: bytes | str, path: Path) -> dict[str, Any]:
    """Parses the text of a file that holds a JSON object.

    Raises:
      ValueError: one line with the path, for other contents.
    """
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a JSON object")
    return found


def read_tensors(folder: str | Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a model's folder by name: of its one file, or of the files that its index names.

    Raises:
      ValueError: one line with the file, if files are missing, damaged, or differ from the index.
    """
    folder = Path(folder)
    if (folder / SINGLE).is_file():
        return read_safetensors(folder / SINGLE)
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder}: no {SINGLE} and no {INDEX}")
    places = read_json((folder / INDEX).read_text(), folder / INDEX).get("weight_map")
    if not isinstance(places, dict):
        raise ValueError(f"{folder / INDEX}: weight_map: missing")
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise ValueError(f"{folder / INDEX}: {shard}: no such file")
    shards = {shard: read_safetensors(folder / shard) for shard in set(places.values())}
    for name, shard in places.items():
        if name not in shards[shard]:
            raise ValueError(f"{folder / shard}: {name}: missing tensor")
    return {name: shards[shard][name] for name, shard in places.items()}
