"""Answers constrained to a trie: published probabilities, and acting against learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_cases import QWEN3, sine_parameters

from algos.language.answer_trie import build_answer_trie
from algos.language.constrained import answer_probabilities, generate_answers, score_answers
from algos.language.reading import Reader, bind_reader
from algos.language.sampling import SamplingSettings

# The letters a, b, c of a tree whose logits are the same everywhere.
A, B, C, LEFT, RIGHT, DOT = 1, 2, 3, 4, 5, 6


def constant_reader():
    logits = jnp.zeros(8).at[jnp.array([A, B, C])].set(jnp.array([0.4, -0.2, 1.1]))
    return Reader(
        hidden=lambda tokens, seen=None: jnp.zeros((*tokens.shape, 1)),
        prefill=lambda tokens, size, seen=None: (jnp.zeros((tokens.shape[0], 1)), ()),
        step=lambda tokens, cache, place, seen=None: (jnp.zeros((tokens.shape[0], 1)), cache),
        logits=lambda hidden: jnp.broadcast_to(logits, (*hidden.shape[:-1], 8)),
        children=lambda hidden, tokens: logits[tokens],
    )


def probabilities(reader, trie, prompt, allowed, temperature=1.0):
    """Those of the answers `[R, M]`, by one program."""
    found = jax.jit(lambda *rows: answer_probabilities(reader, trie, *rows, SamplingSettings(temperature)))
    return np.asarray(found(prompt, np.asarray(allowed)))


def test_a_tree_with_equal_logits_has_the_published_probabilities():
    trie = build_answer_trie([(LEFT, A, B, RIGHT), (LEFT, A, C, RIGHT), (LEFT, B, DOT, RIGHT)])
    assert trie.prefix == (LEFT,) and trie.choices == 2
    allowed = [[True, True, True], [True, False, True]]
    found = probabilities(constant_reader(), trie, np.zeros((2, 1), np.int32), allowed)
    np.testing.assert_allclose(found[0], [0.138276994, 0.507379312, 0.354343694], atol=1e-6)
    np.testing.assert_allclose(found[1], [0.645656306, 0.0, 0.354343694], atol=1e-6)


def test_the_expected_sum_of_entropies():
    trie = build_answer_trie([(LEFT, A, B, RIGHT), (LEFT, A, C, RIGHT), (LEFT, B, DOT, RIGHT)])
    tokens = np.array([[A, B, RIGHT], [A, C, RIGHT], [B, DOT, RIGHT]])
    every, prompt = np.ones((3, 3), bool), np.zeros((3, 1), np.int32)
    reader = constant_reader()
    score = jax.jit(lambda *rows: score_answers(reader, trie, *rows, SamplingSettings()))
    scored, _ = jax.device_get(score(prompt, every, tokens))
    chance = np.exp(scored.log_prob.sum(1))
    np.testing.assert_allclose(np.sum(chance * scored.entropy.sum(1)), 0.985462887, atol=1e-6)


@pytest.mark.parametrize(
    ("legal", "temperature", "expected"),
    [
        ([True, False, True], 1.0, [0.453577445, 0.0, 0.546422555]),
        ([True, True, True], 1.0, [0.220084454, 0.514780868, 0.265134678]),
        ([True, True, True], 0.5, [0.126226, 0.690583, 0.183191]),
    ],
)
def test_probabilities_are_not_those_of_whole_answers_renormalised(legal, temperature, expected):
    trie = build_answer_trie([(7, a, 8) for a in (2, 3, 4)])
    reader = bind_reader(QWEN3, sine_parameters(QWEN3), None)
    found = probabilities(reader, trie, np.int32([[1, 5]]), [legal], temperature)
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


# Answers of different lengths, with choices after forced tokens.
SEQUENCES = [(7, 1, 2, 9), (7, 1, 3, 4, 9), (7, 1, 3, 5, 9), (7, 4, 9), (7, 5, 6, 1, 9), (7, 5, 6, 2, 9)]


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_learning_sees_the_probabilities_with_which_answers_were_drawn(top_p):
    trie = build_answer_trie(SEQUENCES)
    reader = bind_reader(QWEN3, sine_parameters(QWEN3), None)
    key, rows = jax.random.key(0), 64
    prompt = jax.random.randint(jax.random.key(1), (rows, 3), 0, QWEN3.vocab)
    allowed = jax.random.bernoulli(jax.random.key(2), 0.6, (rows, len(SEQUENCES)))
    said = jax.jit(
        lambda: generate_answers(reader, trie, prompt, allowed, key, SamplingSettings(0.7, top_p))
    )()
    assert np.all(
        np.take_along_axis(np.asarray(allowed), np.asarray(said.answer)[:, None], 1)
        | ~allowed.any(1)[:, None]
    )
    for tokens, answer in zip(said.tokens, said.answer, strict=True):
        expected = SEQUENCES[int(answer)][1:]
        assert tuple(map(int, tokens)) == expected + (0,) * (trie.width - len(expected))
    scored, _ = jax.jit(
        lambda: score_answers(reader, trie, prompt, allowed, said.tokens, SamplingSettings(0.7, top_p))
    )()
    np.testing.assert_allclose(scored.log_prob, said.log_prob, atol=1e-5)
    assert np.all((np.asarray(scored.entropy) > 0) <= np.asarray(said.chosen))


def test_the_frequencies_of_draws_are_the_exact_probabilities():
    trie = build_answer_trie(SEQUENCES)
    reader, number = constant_reader(), 50_000
    prompt, allowed = np.zeros((number, 1), np.int32), np.ones((number, len(SEQUENCES)), bool)
    said = jax.jit(
        lambda: generate_answers(reader, trie, prompt, allowed, jax.random.key(3), SamplingSettings())
    )()
    exact = probabilities(reader, trie, prompt[:1], allowed[:1])[0]
    np.testing.assert_allclose(exact.sum(), 1.0, atol=1e-5)
    counts = np.bincount(np.asarray(said.answer), minlength=len(SEQUENCES))
    chi_square = np.sum((counts - number * exact) ** 2 / (number * exact))
    assert chi_square < 20.5  # the 99.9 % point with 5 degrees of freedom


def test_the_draw_of_a_row_does_not_depend_on_the_number_of_rows():
    trie = build_answer_trie(SEQUENCES)
    reader, key = constant_reader(), jax.random.key(4)

    def answers(rows):
        prompt, allowed = np.zeros((rows, 1), np.int32), np.ones((rows, len(SEQUENCES)), bool)
        draw = jax.jit(lambda *given: generate_answers(reader, trie, *given, SamplingSettings()))
        return np.asarray(draw(prompt, allowed, key).answer)

    np.testing.assert_array_equal(answers(16), answers(64)[:16])
