"""Tables of answers: order, legality from masks, completed actions, parsing."""

import jax
import numpy as np
import pytest
from word_tokenizer import WordTokenizer

from jaxmarl_echelon.language.language import OPEN, UNFORMED, UNKNOWN, Answer, make_language
from jaxmarl_echelon.language.tokenizers import AsciiTokenizer

ANSWERS = (
    Answer("[give: a]", (0, 0)),
    Answer("[give: b]", (0, 1), ("[b]",)),
    Answer("[Stop]", (1, OPEN)),
)


def language(tokenizer=None, answers=ANSWERS):
    return make_language(("barter", "full", "none"), tokenizer or AsciiTokenizer(), 5, (2, 3), answers)


def test_answers_are_sorted_by_their_tokens():
    for tokenizer in (AsciiTokenizer(), WordTokenizer()):
        found = language(tokenizer)
        assert list(found.sequences) == sorted(found.sequences)
        for text, sequence, action in zip(found.texts, found.sequences, found.actions, strict=True):
            assert tokenizer.decode(sequence) == text
            assert tuple(action) == next(one.action for one in ANSWERS if one.text == text)
    assert found.vocabulary == tokenizer.vocab


def test_legality_and_open_choices_follow_the_mask():
    found = language()
    give_a, give_b, stop = (found.texts.index(text) for text in ("[give: a]", "[give: b]", "[Stop]"))
    masks = np.array([[True, True, False, True, True], [False, True, True, False, False]])
    ok = jax.jit(found.legal_answers)(masks)
    np.testing.assert_array_equal(ok[:, [give_a, give_b, stop]], [[False, True, True], [False, False, True]])
    complete = jax.jit(found.complete_action)
    np.testing.assert_array_equal(complete(np.array([stop, give_b]), masks), [[1, 1], [0, 1]])
    np.testing.assert_array_equal(complete(np.array([UNKNOWN, stop]), masks), [[-1, -1], [1, 0]])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("I say [ GIVE:a ]", "[give: a]"),
        ("[give: a] no, [b]!", "[give: b]"),
        ("[[stop]]", "[Stop]"),
        ("[stop] [", "[Stop]"),
        ("[stop", UNFORMED),
        ("", UNFORMED),
        ("[stop] []", UNKNOWN),
        ("[stop\n]", UNKNOWN),
        ("[give:\N{KELVIN SIGN}]", UNKNOWN),
    ],
)
def test_last_brackets_count(text, wanted):
    found = language()
    index = found.parse_answer(text)
    assert (found.texts[index] if index >= 0 else index) == wanted


def test_parsing_never_fails():
    found, rng = language(), np.random.default_rng(0)
    for _ in range(300):
        noise = bytes(rng.integers(0, 256, 40, dtype=np.uint8)).decode("latin-1")
        brackets = "".join(rng.choice(list("[]ab: giveSTOP")) for _ in range(40))
        assert all(UNFORMED <= found.parse_answer(text) < len(ANSWERS) for text in (noise, brackets))


@pytest.mark.parametrize("answers", [(Answer("stop", (0, 0)),), (*ANSWERS, Answer("[ B]", (1, 1)))])
def test_ambiguous_answers_are_refused(answers):
    with pytest.raises(ValueError, match="must be in brackets, and mean one answer"):
        language(answers=answers)
