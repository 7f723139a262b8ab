"""Tokenizers: printable ASCII for models made here, and `tokenizer.json` of published models."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxmarl_echelon.language.files import read_json
from jaxmarl_echelon.optional_packages import import_package

# Bytes per token in tables.
TABLE_WIDTH = 16
# Key of `tokenizer_config.json` that names the class of a folder's tokenizer.
CLASS = "tokenizer_class"
# SentencePiece's character for a space.
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Tokenizer(Protocol):
    """Text to token ids and back.

    Attributes:
      vocab: V, rows of the embedding of a model made for this tokenizer.
      num_ids: ids from here on are no tokens; at most `vocab`.
      pad_id: the id that fills places without a token.
      eos_ids: ids that end a text; the first is the one to write.
      byte_table: uint8 `[V, 16]`, the bytes of each token's text, zero where it has none. Special tokens have
        no text. Of longer tokens only a part is kept, see `fit_bytes`.
      byte_lengths: int32 `[V]`, used bytes of `byte_table`.
    """

    vocab: int
    num_ids: int
    pad_id: int
    eos_ids: tuple[int, ...]
    byte_table: np.ndarray
    byte_lengths: np.ndarray

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without special tokens that the text does not contain."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, special tokens included."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the files from which `load_tokenizer` reads this tokenizer."""
        ...


class AsciiTokenizer:
    """One token per character: 0 PAD, 1 BOS, 2 EOS, 3 newline, and 4 to 98 for the codes 32 to 126."""

    vocab = 128
    num_ids = 127 - 28
    pad_id = 0
    eos_ids: tuple[int, ...] = (2,)

    def __init__(self):
        texts = [b"", b"", b"", b"\n", *(bytes([code]) for code in range(32, 127))]
        self.byte_table, self.byte_lengths = make_byte_table(texts, self.vocab)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text; raises ValueError for a character that has none."""
        for character in text:
            if character != "\n" and not " " <= character <= "~":
                raise ValueError(f"text={text!r}: {character!r} is not printable ASCII")
        return [3 if character == "\n" else ord(character) - 28 for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids; ids without a character are left out."""
        rows = np.asarray(ids, np.int64)
        return b"".join(bytes(self.byte_table[i, : self.byte_lengths[i]]) for i in rows).decode()

    def save(self, folder: Path) -> None:
        """Writes `tokenizer_config.json`, which names this class."""
        (folder / "tokenizer_config.json").write_text(json.dumps({CLASS: "AsciiTokenizer"}) + "\n")


class JsonTokenizer:
    """The tokenizer that a `tokenizer.json` describes, by the package `tokenizers`.

    Args:
      content: text of the file.
      eos_ids: ids that end a text.
      pad_id: id of places without a token; None for the first of `eos_ids`.
      rows: of the model's embedding. Special tokens beyond are left out: text models of Gemma share the
        tokenizer of models that see pictures. None where the model has a row for every token.

    Raises:
      ValueError: one line, if the package is missing, the file is damaged, or text needs more rows.
    """

    def __init__(
        self, content: str, eos_ids: Sequence[int], pad_id: int | None = None, rows: int | None = None
    ):
        package = import_package("tokenizers", "tokenizer.json", "lm")
        try:
            self._tokenizer = package.Tokenizer.from_str(content)
        except Exception as error:  # the package raises no narrower class
            raise ValueError(f"tokenizer.json: {error}") from error
        self._content = content
        self.eos_ids = tuple(eos_ids)
        self.pad_id = self.eos_ids[0] if pad_id is None else pad_id
        texts = token_bytes(json.loads(content))
        if any(texts[rows:]) and rows is not None:
            raise ValueError(f"tokenizer.json: {len(texts)} tokens, the embedding has {rows} rows")
        texts = texts[:rows]
        # Many embeddings have more rows than there are tokens.
        self.num_ids = len(texts)
        self.vocab = len(texts) if rows is None else rows
        self.byte_table, self.byte_lengths = make_byte_table(texts, self.vocab)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without special tokens that the text does not contain."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, special tokens included."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` and, with the ids, `tokenizer_config.json`."""
        (folder / "tokenizer.json").write_text(self._content)
        own = {
            CLASS: "PreTrainedTokenizerFast",
            "eos_token_id": list(self.eos_ids),
            "pad_token_id": self.pad_id,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(own) + "\n")


def load_tokenizer(folder: Path, config: dict[str, Any]) -> Tokenizer:
    """Reads the tokenizer of a model's folder.

    Args:
      config: contents of the model's `config.json`, which name the rows of the embedding and the ids that
        end a text.

    Raises:
      ValueError: one line, if there is none, if no id is known to end a text, or if it needs more rows.
    """
    own = _read_settings(folder / "tokenizer_config.json")
    rows = config.get("vocab_size")
    if own.get(CLASS) == "AsciiTokenizer":
        if rows is not None and rows < AsciiTokenizer.num_ids:
            raise ValueError(f"{folder}: {AsciiTokenizer.num_ids} tokens, the embedding has {rows} rows")
        return AsciiTokenizer()
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{folder}: no tokenizer.json")
    generation = _read_settings(folder / "generation_config.json")
    for given in (own, generation, config):
        eos = given.get("eos_token_id")
        if eos is not None:
            eos = eos if isinstance(eos, list) else [eos]
            pads = [given.get("pad_token_id") for given in (own, generation, config)]
            pad = next((pad for pad in pads if pad is not None), None)
            return JsonTokenizer(path.read_text(), eos, pad, rows)
    raise ValueError(f"{folder}: no eos_token_id in config.json or generation_config.json")


def token_bytes(content: dict[str, Any]) -> list[bytes]:
    """Returns the bytes of every token of a `tokenizer.json`, by id; special and missing ones have none.

    Two ways to write bytes are known: GPT-2's, a character per byte, and SentencePiece's, with a block
    character for a space and `<0x0A>` for bytes that are no text.

    Args:
      content: of the file, parsed.
    """
    levels = json.dumps(content.get("decoder"))
    read = _gpt2_bytes if '"ByteLevel"' in levels else _sentencepiece_bytes
    vocab, added = content["model"]["vocab"], content.get("added_tokens") or []
    ids = [*vocab.values(), *(token["id"] for token in added)]
    found = [b""] * (1 + max(ids))
    for text, number in vocab.items():
        found[number] = read(text)
    for token in added:
        found[token["id"]] = b"" if token["special"] else read(token["content"])
    return found


def fit_bytes(text: bytes, width: int = TABLE_WIDTH) -> bytes:
    """Shortens the bytes of a token to a width so that a reader of bracketed answers sees the same.

    Such tokens are runs of one character or long words, which are part of no answer. The beginning is kept;
    where the rest has a bracket, the end is kept instead.
    """
    if len(text) <= width:
        return text
    return text[-width:] if set(text[width:]) & set(b"[]") else text[:width]


def make_byte_table(texts: Sequence[bytes], vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of tokens as a table, uint8 `[vocab, 16]`, and how many are used, int32 `[vocab]`."""
    table = np.zeros((vocab, TABLE_WIDTH), np.uint8)
    lengths = np.zeros(vocab, np.int32)
    for number, text in enumerate(map(fit_bytes, texts)):
        table[number, : len(text)] = list(text)
        lengths[number] = len(text)
    return table, lengths


def _byte_characters() -> dict[str, int]:
    """GPT-2's character of each byte: printable ones stand for themselves, others for 256, 257, ..."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(256 + place): byte for place, byte in enumerate(others)}


GPT2_CHARACTERS = _byte_characters()


def _gpt2_bytes(text: str) -> bytes:
    # Added tokens are text, which may have characters that stand for no byte.
    known = all(character in GPT2_CHARACTERS for character in text)
    return bytes(GPT2_CHARACTERS[character] for character in text) if known else text.encode()


def _sentencepiece_bytes(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes.fromhex(text[3:5])
    return text.replace(SPACE, " ").encode()


def _read_settings(path: Path) -> dict[str, Any]:
    """Contents of a JSON file; {} where there is none."""
    return read_json(path.read_text(), path) if path.is_file() else {}
