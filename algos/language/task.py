"""The game and the base model of a language learner."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from algos.language.adapters import Adapters
from algos.language.answer_trie import AnswerTrie
from algos.language.byte_answers import AnswerAutomaton
from algos.language.free_text import Vocabulary
from algos.language.model import DecoderSettings
from algos.types import PyTree


class AnswerTask(NamedTuple):
    """Answers of a game as tokens.

    Attributes:
      trie: of the M answers.
      automaton: finds answers in free text.
      vocabulary: tokens of free text, which ends with the end of the sequence.
      thoughts: tokens of thoughts, which end with a line as well.
      actions: int32 `[M, D]`, the move of each answer; -1 for choices that it leaves open.
      legal_answers: `(mask [..., n]) -> bool [..., M]`.
      complete_action: `(answer [...], mask [..., n]) -> int32 [..., D]`; -1 for a negative answer.
    """

    trie: AnswerTrie
    automaton: AnswerAutomaton
    vocabulary: Vocabulary
    thoughts: Vocabulary
    actions: np.ndarray
    legal_answers: Callable[[jax.Array], jax.Array]
    complete_action: Callable[[jax.Array, jax.Array], jax.Array]


class Base(NamedTuple):
    """A base model, which is not trained.

    Attributes:
      settings: its architecture.
      parameters: its host arrays, see `algos.language.model`.
      digest: SHA-256 of its files, which adapters are checked against.
      folder: of its files.
      adapters: to start from; None for new ones.
    """

    settings: DecoderSettings
    parameters: PyTree
    digest: str
    folder: str = ""
    adapters: Adapters | None = None

    @property
    def bytes(self) -> int:
        """Bytes of its parameters."""
        return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(self.parameters))
