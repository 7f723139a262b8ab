"""Parts of prompts: values side by side, spelled words and numbers, boards, lists of options."""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp

from jaxmarl_echelon.language.prompts import BLANK, Piece, PromptPlace

FILL = "."


def join_values(*parts: jax.Array) -> jax.Array:
    """Joins integers and flags of any shapes to `[R]` int32."""
    return jnp.concatenate([jnp.ravel(part).astype(jnp.int32) for part in parts])


def number_values(*sizes: int) -> tuple[range, ...]:
    """Returns the indices of consecutive parts of these sizes, as `join_values` arranges them."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))


def spell(name: str, value: int, texts: Sequence[str]) -> tuple[Piece, ...]:
    """Spells one of several texts, a place per character; shorter texts are filled up with `FILL`.

    Single characters have the same number of tokens in almost every tokenizer, words do not.
    """
    width = max(map(len, texts))
    rows = [text.ljust(width, FILL) for text in texts]
    return tuple(PromptPlace(name, value, tuple(row[at] for row in rows)) for at in range(width))


def spell_number(name: str, value: int, most: int) -> tuple[Piece, ...]:
    """Spells a number from 0 to `most` with leading zeros, as wide as `most`."""
    return spell(name, value, [f"{number:0{len(str(most))}d}" for number in range(most + 1)])


def mark_cells(value: range, marks: str, columns: int | None = None) -> tuple[Piece, ...]:
    """Shows the cells of a board by their marks, in lines of `columns` cells, or without line breaks."""
    pieces: list[Piece] = []
    for number, cell in enumerate(value):
        pieces.append(PromptPlace(f"cell {number}", cell, tuple(marks)))
        if columns is not None and number % columns == columns - 1:
            pieces.append("\n")
    return tuple(pieces)


def join_pieces(groups: Iterable[Sequence[Piece]], between: str) -> tuple[Piece, ...]:
    """Joins groups of pieces with a text between any two."""
    pieces = [piece for group in groups for piece in (between, *group)]
    return tuple(pieces[1:])


def list_options(texts: Sequence[str], value: range) -> tuple[Piece, ...]:
    """Lists options, each one its text or, where its value is 0, blank."""
    pairs = zip(texts, value, strict=True)
    return join_pieces(([PromptPlace(f"option {text}", flag, (BLANK, text))] for text, flag in pairs), " ")


def offer_options(texts: Sequence[str], value: range, shown: bool) -> tuple[Piece, ...]:
    """Returns the line of legal answers of a `full` prompt; nothing if it is not shown."""
    return ("Legal answers: ", *list_options(texts, value), "\n") if shown else ()
