"""Answers of a text game in the form in which language learners take them."""

from functools import cache

import numpy as np

from algos.language.answer_trie import build_answer_trie
from algos.language.byte_answers import build_answer_automaton
from algos.language.free_text import Vocabulary
from algos.language.task import AnswerTask
from jaxmarl_echelon.language.language import Language

NEWLINE = ord("\n")
# Text that ends thoughts, in addition to a line's end.
END_OF_THOUGHT = "</think>"


@cache
def make_answer_task(language: Language) -> AnswerTask:
    """Builds the answers of a game as tokens; the same object for the same language."""
    tokenizer = language.tokenizer
    ids = np.arange(language.vocabulary)
    ends = np.isin(ids, tokenizer.eos_ids)
    # Many models fill places with a token that ends a text, too.
    allowed = (ids < tokenizer.num_ids) & ((ids != tokenizer.pad_id) | ends)
    return AnswerTask(
        trie=build_answer_trie(language.sequences),
        automaton=build_answer_automaton(language.spellings, tokenizer.byte_table, tokenizer.byte_lengths),
        vocabulary=Vocabulary(allowed, ends),
        thoughts=Vocabulary(allowed, ends | _ends_thoughts(language)),
        actions=language.actions,
        legal_answers=language.legal_answers,
        complete_action=language.complete_action,
    )


def _ends_thoughts(language: Language) -> np.ndarray:
    """Tokens `[V]` with a line's end, and that of `</think>` if it is one."""
    tokenizer = language.tokenizer
    places = np.arange(tokenizer.byte_table.shape[1])
    here = (tokenizer.byte_table == NEWLINE) & (places < np.asarray(tokenizer.byte_lengths)[:, None])
    stops = here.any(1)
    try:
        single = tokenizer.encode(END_OF_THOUGHT)
    except ValueError:
        return stops
    if len(single) == 1:
        stops[single] = True
    return stops
