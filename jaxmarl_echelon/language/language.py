"""Language of a text game: prompts of one length, and a table of all answers with their actions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.language.tokenizers import Tokenizer

OPEN = -1
UNKNOWN, UNFORMED = -1, -2
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
# Letters of ASCII only: `str.lower` maps other characters to them as well, which a table of bytes cannot.
_NORMAL = {ord(" "): None} | {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


class Answer(NamedTuple):
    """Answer of a game.

    Attributes:
      text: its text, brackets included.
      action: option of each choice; `OPEN` for a choice that the answer leaves open.
      synonyms: other texts that are read as this answer.
    """

    text: str
    action: tuple[int, ...]
    synonyms: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Language:
    """Interface between a game and policies that read prompts and write answers.

    Answers are sorted by their token sequences, so that the answers with a common beginning are consecutive.

    Attributes:
      game, template, chat: names of the game, of the prompts' template, and of the text around them.
      tokenizer: encodes prompts and answers.
      prompt_length: number P of tokens of every prompt.
      sizes: number of options of each of the D choices of an action, n in sum.
      texts: the M answers.
      sequences: token ids of each answer.
      actions: `[M, D]` int32 options; `OPEN` for choices that the answer leaves open.
      spellings: index of an answer by its normalised text, synonyms included (see `normalize_answer`).
    """

    game: str
    template: str
    chat: str
    tokenizer: Tokenizer
    prompt_length: int
    sizes: tuple[int, ...]
    texts: tuple[str, ...]
    sequences: tuple[tuple[int, ...], ...]
    actions: np.ndarray
    spellings: Mapping[str, int]

    @property
    def vocabulary(self) -> int:
        """Number V of rows of the vocabulary; ids from `tokenizer.num_ids` on are no tokens."""
        return self.tokenizer.vocab

    @cached_property
    def named(self) -> np.ndarray:
        """Options that each answer names, `[n, M]` float32 of 0 and 1."""
        first = np.cumsum((0, *self.sizes[:-1]))
        options = np.arange(sum(self.sizes))[:, None, None]
        here = (options == first + self.actions) & (self.actions != OPEN)
        return here.any(-1).astype(np.float32)

    def legal_answers(self, mask: jax.Array) -> jax.Array:
        """Tells which answers `[..., M]` are legal, bool, from action masks `[..., n]`."""
        # A product with 0 and 1 is exact, and faster than a batched gather of options.
        refused = jnp.matmul(jnp.where(mask, 0.0, 1.0), self.named)
        return refused == 0

    def complete_action(self, answer: jax.Array, mask: jax.Array) -> jax.Array:
        """Returns the actions `[..., D]` int32 of answers `[...]`; -1 for negative answers.

        Choices that an answer leaves open take their first option in the mask `[..., n]`.
        """
        ends = np.cumsum(self.sizes)[:-1]
        first = jnp.stack([jnp.argmax(part, -1) for part in jnp.split(mask, ends, axis=-1)], -1)
        action = jnp.take(jnp.asarray(self.actions), jnp.maximum(answer, 0), axis=0)
        action = jnp.where(action == OPEN, first.astype(jnp.int32), action)
        return jnp.where(answer[..., None] < 0, -1, action)

    def parse_answer(self, text: str) -> int:
        """Returns the index of the answer in the last brackets of a text.

        `UNFORMED` if the text has no brackets, `UNKNOWN` if they hold no answer of the game.
        """
        found = _BRACKETS.findall(text)
        return self.spellings.get(normalize_answer(found[-1]), UNKNOWN) if found else UNFORMED


def normalize_answer(text: str) -> str:
    """Returns a text without spaces and with the capitals of ASCII as small letters."""
    return text.translate(_NORMAL)


def make_language(
    names: tuple[str, str, str],
    tokenizer: Tokenizer,
    prompt_length: int,
    sizes: tuple[int, ...],
    answers: Sequence[Answer],
) -> Language:
    """Builds a language: encodes and sorts the answers.

    Args:
      names: of game, template and chat.
      tokenizer: encodes the answers, each by itself.
      prompt_length: number of tokens of every prompt.
      sizes: number of options of each choice of an action.
      answers: all answers of the game.

    Raises:
      ValueError: one line, for a text that is no answer in brackets or means two answers.
    """
    pairs = sorted(((tuple(tokenizer.encode(one.text)), one) for one in answers), key=lambda pair: pair[0])
    spellings: dict[str, int] = {}
    for index, (_, one) in enumerate(pairs):
        for text in (one.text, *one.synonyms):
            key = normalize_answer(text)
            if not _BRACKETS.fullmatch(key) or spellings.setdefault(key, index) != index:
                raise ValueError(f"{names[0]}: answer {text!r}: must be in brackets, and mean one answer")
    return Language(
        *names,
        tokenizer,
        prompt_length,
        sizes,
        texts=tuple(one.text for _, one in pairs),
        sequences=tuple(sequence for sequence, _ in pairs),
        actions=np.array([one.action for _, one in pairs], np.int32),
        spellings=spellings,
    )
