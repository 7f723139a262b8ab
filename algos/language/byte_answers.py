"""An automaton over bytes that finds the answer in brackets while text is generated.

It agrees with the parser on the host: an opening bracket begins an answer again, spaces inside are dropped,
letters count as lower case, and the first closing bracket after an opening one ends.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

OUTSIDE, DEAD, DONE = 0, 1, 2
OPEN, CLOSE, SPACE = ord("["), ord("]"), ord(" ")


class AnswerAutomaton(NamedTuple):
    """Automaton with Q states; host arrays.

    Attributes:
      next: int32 `[Q, 256]`, the state after a byte.
      answers: int32 `[Q]`, the answer that a closing bracket completes in a state, or -1.
      token_bytes: uint8 `[V, B]`, the bytes of every token.
      token_lengths: int32 `[V]`.
    """

    next: np.ndarray
    answers: np.ndarray
    token_bytes: np.ndarray
    token_lengths: np.ndarray


class Progress(NamedTuple):
    """State of the automaton per row: `state` int32 `[R]`, and `answer` int32 `[R]`, -1 so far."""

    state: jax.Array
    answer: jax.Array


def build_answer_automaton(
    answers: Mapping[str, int], token_bytes: np.ndarray, token_lengths: np.ndarray
) -> AnswerAutomaton:
    """Builds the automaton of texts in brackets and the answers that they mean, several texts to some.

    Args:
      answers: text such as `[col 3]` to the number of its answer.
      token_bytes: uint8 `[V, B]`.
      token_lengths: `[V]`; tokens of more than B bytes are never an answer's.
    """
    first = np.full(256, OUTSIDE, np.int32)
    inside = np.full(256, DEAD, np.int32)
    inside[CLOSE] = DONE
    table, meaning = [first, inside.copy(), np.full(256, DONE, np.int32)], [-1, -1, -1]
    table.append(inside.copy())
    meaning.append(-1)
    root = len(table) - 1
    for text, number in answers.items():
        state = root
        for byte in text[1:-1].replace(" ", "").lower().encode():
            if table[state][byte] == DEAD:
                table.append(inside.copy())
                meaning.append(-1)
                table[state][byte] = len(table) - 1
            state = table[state][byte]
        meaning[state] = number
    states = np.stack(table)
    upper = np.arange(ord("A"), ord("Z") + 1)
    within = np.r_[DEAD, root : len(states)]
    states[np.ix_(within, upper)] = states[np.ix_(within, upper + 32)]
    states[within, SPACE] = within
    states[:, OPEN] = np.where(np.arange(len(states)) == DONE, DONE, root)
    return AnswerAutomaton(
        states, np.asarray(meaning, np.int32), token_bytes, np.asarray(token_lengths, np.int32)
    )


def begin_text(rows: int) -> Progress:
    """Returns the progress before any text."""
    return Progress(jnp.full(rows, OUTSIDE, jnp.int32), jnp.full(rows, -1, jnp.int32))


def read_token(automaton: AnswerAutomaton, progress: Progress, token: jax.Array) -> Progress:
    """Returns the progress after one more token per row, int32 `[R]`."""
    table, meaning = jnp.asarray(automaton.next), jnp.asarray(automaton.answers)
    spelled, length = jnp.asarray(automaton.token_bytes)[token], jnp.asarray(automaton.token_lengths)[token]

    def read_byte(place, progress):
        after = table[progress.state, spelled[:, place].astype(jnp.int32)]
        ends = (after == DONE) & (progress.state != DONE) & (place < length)
        state = jnp.where(place < length, after, progress.state)
        return Progress(state, jnp.where(ends, meaning[progress.state], progress.answer))

    width = automaton.token_bytes.shape[1]
    progress = jax.lax.fori_loop(0, width, read_byte, progress)
    # A token whose bytes are not all in the table spoils what is inside the brackets.
    state = jnp.where((length > width) & (progress.state > DONE), DEAD, progress.state)
    return progress._replace(state=state)
