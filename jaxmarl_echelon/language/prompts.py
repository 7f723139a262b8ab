"""Prompts as templates: encoded once on the host, assembled on the device by one gather.

A template is a sequence of pieces. A piece is fixed text, or a place whose symbol is selected by one of the
integers that describe a state. Every piece is encoded by itself, so that a prompt's length is fixed. See
docs/reference/selfplay.md 6.7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.language.tokenizers import Tokenizer

BLANK = ""
FILLER = "-"
# Text before and after a prompt, in the formats of published instruction-tuned models.
CHATS = {
    "none": ("", ""),
    "chatml": ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    "qwen3": ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    "llama3": (
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma": ("<bos><start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n"),
}


@dataclass(frozen=True)
class PromptPlace:
    """Variable piece of a template.

    Attributes:
      name: its name in error messages.
      value: index of the value that selects the symbol.
      symbols: text by value. `BLANK` stands for `FILLER` as often as the other symbols have tokens.
    """

    name: str
    value: int
    symbols: tuple[str, ...]


Piece = str | PromptPlace


@dataclass(frozen=True, eq=False)
class PromptTable:
    """Encoded template: token p of a prompt is `table[base[p] + stride[p] * values[place[p]]]`.

    Attributes:
      table: `[K]` int32 ids of all pieces.
      base: `[P]` int32 index of the first candidate of each token.
      stride: `[P]` int32 distance between candidates; 0 for fixed text.
      place: `[P]` int32 index of the value; 0 for fixed text.
    """

    table: np.ndarray
    base: np.ndarray
    stride: np.ndarray
    place: np.ndarray

    @property
    def length(self) -> int:
        """Number P of tokens of every prompt."""
        return len(self.base)


def wrap_in_chat(pieces: Sequence[Piece], chat: str) -> list[Piece]:
    """Returns the pieces between the text of one of `CHATS`."""
    before, after = CHATS[chat]
    return [*filter(None, (before,)), *pieces, *filter(None, (after,))]


def encode_template(pieces: Sequence[Piece], tokenizer: Tokenizer) -> PromptTable:
    """Encodes a template, piece by piece.

    Raises:
      ValueError: one line, for a place whose symbols differ in their number of tokens.
    """
    table: list[int] = []
    columns: list[tuple[int, int, int]] = []
    for piece in pieces:
        if isinstance(piece, PromptPlace):
            rows, place = _encode_symbols(piece, tokenizer), piece.value
        else:
            rows, place = [tokenizer.encode(piece)], 0
        width = len(rows[0])
        stride = width if isinstance(piece, PromptPlace) else 0
        columns += [(len(table) + token, stride, place) for token in range(width)]
        table += [token for row in rows for token in row]
    base, stride, place = np.array(columns, np.int32).T
    return PromptTable(np.array(table, np.int32), base, stride, place)


def _encode_symbols(place: PromptPlace, tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the ids of each symbol, equally many."""
    rows = [None if symbol == BLANK else tokenizer.encode(symbol) for symbol in place.symbols]
    first = next(index for index, row in enumerate(rows) if row is not None)
    width = len(rows[first] or ())
    for symbol, row in zip(place.symbols, rows, strict=True):
        if row is not None and len(row) != width:
            raise ValueError(
                f"env.template: place {place.name!r}: the tokenizer encodes {symbol!r} as {len(row)} tokens, "
                f"{place.symbols[first]!r} as {width}; all symbols of a place need the same number"
            )
    filler = tokenizer.encode(FILLER)
    if None in rows and len(filler) != 1:
        raise ValueError(
            f"env.template: place {place.name!r}: the tokenizer encodes {FILLER!r} as {len(filler)} tokens, "
            "must be 1"
        )
    return [filler * width if row is None else row for row in rows]


def assemble_prompt(prompt: PromptTable, values: jax.Array) -> jax.Array:
    """Assembles prompts `[..., P]`, int32 ids, from the values `[..., R]` of states."""
    chosen = jnp.take(values, prompt.place, axis=-1, mode="clip")
    return jnp.take(jnp.asarray(prompt.table), prompt.base + prompt.stride * chosen, mode="clip")
