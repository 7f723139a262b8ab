"""Folders of language models and of adapters, in the layout of Hugging Face and of PEFT.

A model's folder holds `config.json`, `model.safetensors` (or shards with an index), and `tokenizer.json` or,
for printable ASCII, a `tokenizer_config.json` that says so.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from algos.language import families
from algos.language.adapters import Adapters, read_peft, write_peft
from algos.language.model import DecoderSettings, product_shapes
from algos.types import PyTree
from jaxmarl_echelon.language.files import (
    CODES,
    SINGLE,
    read_json,
    read_safetensors,
    read_tensors,
    write_safetensors,
)
from jaxmarl_echelon.language.tokenizers import Tokenizer, load_tokenizer

CONFIG = "config.json"
ADAPTER_CONFIG, ADAPTER_TENSORS = "adapter_config.json", "adapter_model.safetensors"


class LanguageModel(NamedTuple):
    """A model of a folder.

    Attributes:
      settings: architecture.
      parameters: arrays on the host, as `algos.language.model` reads them.
      tokenizer: text to ids and back.
      digest: SHA-256 of configuration and tensors, see `model_digest`.
    """

    settings: DecoderSettings
    parameters: PyTree
    tokenizer: Tokenizer
    digest: str


def load_model(folder: str | Path, dtype: np.dtype | None = None) -> LanguageModel:
    """Reads a model's folder.

    Args:
      folder: with `config.json`, tensors and tokenizer.
      dtype: of the parameters; None for that of the file.

    Raises:
      ValueError: one line with the folder and what is missing, damaged, or not known.
    """
    folder = Path(folder)
    content = _read_bytes(folder / CONFIG)
    config = read_json(content, folder / CONFIG)
    try:
        settings = families.read_architecture(config)
        tensors = read_tensors(folder)
        tokenizer = load_tokenizer(folder, config)
        parameters = families.stack_tensors(settings, tensors, dtype)
    except ValueError as error:
        # Errors of files begin with the path of their folder already.
        text = str(error)
        raise ValueError(text if text.startswith(str(folder)) else f"{folder}: {text}") from error
    return LanguageModel(settings, parameters, tokenizer, model_digest(content, tensors))


def save_model(
    folder: str | Path,
    settings: DecoderSettings,
    parameters: PyTree,
    tokenizer: Tokenizer,
) -> str:
    """Writes a model's folder, `config.json` last; returns the model's digest."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    content, tensors = _file_contents(settings, parameters, tokenizer)
    write_safetensors(folder / SINGLE, tensors.items(), {"format": "pt"})
    tokenizer.save(folder)
    partial = folder / f".partial_{CONFIG}"
    partial.write_bytes(content)
    os.replace(partial, folder / CONFIG)
    return model_digest(content, tensors)


def digest_model(settings: DecoderSettings, parameters: PyTree, tokenizer: Tokenizer) -> str:
    """Returns the digest that `save_model` would return, without writing anything."""
    return model_digest(*_file_contents(settings, parameters, tokenizer))


def _file_contents(
    settings: DecoderSettings, parameters: PyTree, tokenizer: Tokenizer
) -> tuple[bytes, dict[str, np.ndarray]]:
    """Contents of `config.json`, and the tensors by their names in files."""
    tensors = dict(families.unstack_parameters(settings, parameters))
    config = families.write_architecture(settings, str(tensors["model.embed_tokens.weight"].dtype))
    config |= {"eos_token_id": list(tokenizer.eos_ids), "pad_token_id": tokenizer.pad_id}
    return (json.dumps(config, indent=2) + "\n").encode(), tensors


def model_digest(config: bytes, tensors: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of a `config.json` and of names, dtypes, shapes and bytes of all tensors.

    Tensors are taken in the order of their names, so that the digest does not depend on how they are divided
    into files.
    """
    digest = hashlib.sha256(config)
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        head = [name, CODES[tensor.dtype], list(tensors[name].shape)]
        digest.update(json.dumps(head).encode())
        digest.update(tensor.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def load_adapters(folder: str | Path, settings: DecoderSettings) -> Adapters:
    """Reads adapters that PEFT or `save_adapters` wrote; rank, alpha and targets are the file's.

    Raises:
      ValueError: one line with the folder and what is missing, damaged, or of another architecture.
    """
    folder = Path(folder)
    content = _read_bytes(folder / ADAPTER_CONFIG)
    if not (folder / ADAPTER_TENSORS).is_file():
        raise ValueError(f"{folder / ADAPTER_TENSORS}: no such file")
    config = read_json(content, folder / ADAPTER_CONFIG)
    try:
        tensors = read_safetensors(folder / ADAPTER_TENSORS)
        return read_peft(config, tensors, product_shapes(settings))
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(str(folder)) else f"{folder}: {text}") from error


def save_adapters(folder: str | Path, adapters: Adapters, base: str) -> None:
    """Writes adapters so that PEFT reads them.

    Args:
      base: name or path of the base model.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = write_peft(adapters, base)
    write_safetensors(folder / ADAPTER_TENSORS, tensors.items(), {"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    return path.read_bytes()
