"""Free text and thoughts: acting against learning, and the automaton against a parser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_cases import QWEN3, sine_parameters
from marked import mark_others

from algos.language.answer_trie import build_answer_trie
from algos.language.answering import make_free_mode, make_thinking_mode
from algos.language.byte_answers import begin_text, build_answer_automaton, read_token
from algos.language.free_text import Vocabulary
from algos.language.reading import bind_reader
from algos.language.sampling import SamplingSettings

# Eleven tokens: PAD, the end, a line's end, brackets, letters, and one of several bytes.
SPELLED = [b"", b"", b"\n", b"[", b"]", b"a", b"b", b" ", b"A", b"[b]", b"x"]
BYTES = np.array([list(one.ljust(4, b"\0")) for one in SPELLED], np.uint8)
LENGTHS = np.array([len(one) for one in SPELLED])
ANSWERS = {"[a]": 0, "[ab]": 1, "[b]": 2, "[bb]": 2}
HOW = SamplingSettings(0.8, 0.95)


def automaton():
    return build_answer_automaton(ANSWERS, BYTES, LENGTHS)


def parse(text):
    """What the automaton must find, written apart: whether an answer is formed, and which."""
    inside = None
    for letter in text:
        if letter == "[":
            inside = ""
        elif letter == "]" and inside is not None:
            return True, ANSWERS.get(f"[{inside}]", -1)
        elif inside is not None and letter != " ":
            inside += letter.lower()
    return False, -1


def test_the_automaton_finds_what_a_parser_finds():
    machine, rng = automaton(), np.random.default_rng(0)
    tokens = rng.choice(len(SPELLED), (4000, 8), p=np.array([1, 1, 1, 4, 4, 4, 4, 2, 2, 1, 1]) / 25)
    progress = begin_text(len(tokens))
    for column in tokens.T:
        progress = jax.jit(lambda p, t: read_token(machine, p, t))(progress, jnp.asarray(column))
    for row, state, answer in zip(tokens, progress.state, progress.answer, strict=True):
        formed, expected = parse(b"".join(SPELLED[token] for token in row).decode())
        assert (state == 2, answer) == (formed, expected)


def cases(kind):
    stops = np.zeros(QWEN3.vocab, bool)
    stops[1] = True
    allowed = np.ones(QWEN3.vocab, bool)
    allowed[0] = False
    if kind == "free":
        return make_free_mode(Vocabulary(allowed, stops), automaton(), 6, HOW)
    stops = stops.copy()
    stops[2] = True
    sequences = [(3, 5, 4), (3, 5, 6, 4), (3, 6, 4)] if kind == "think" else [(3, 5, 4), (9,)]
    trie = build_answer_trie(sorted(sequences))
    assert bool(trie.prefix) == (kind == "think")
    return make_thinking_mode(Vocabulary(allowed, stops), trie, 4, HOW, legal=True)


@pytest.mark.parametrize("kind", mark_others(["free", "think", "think without a shared beginning"], "think"))
def test_learning_sees_the_probabilities_with_which_text_was_drawn(kind):
    mode, rows = cases(kind), 48
    reader = bind_reader(QWEN3, sine_parameters(QWEN3), None)
    prompt = jax.random.randint(jax.random.key(1), (rows, 3), 0, QWEN3.vocab)
    allowed = jnp.ones((rows, 3 if kind == "think" else 2), bool)
    said = jax.jit(lambda: mode.generate(reader, prompt, allowed, jax.random.key(0)))()
    scored, _ = jax.jit(lambda: mode.score(reader, prompt, allowed, said.tokens, said.chosen))()
    np.testing.assert_allclose(scored.log_prob, said.log_prob, atol=1e-5)
    lengths = said.chosen.sum(1)
    assert said.tokens.shape == (rows, mode.width) and lengths.min() < lengths.max()
    assert np.all(np.asarray(said.tokens)[:, :1] != 0)
    if kind == "free":
        texts = [b"".join(SPELLED[token] for token in row).decode() for row in np.asarray(said.tokens)]
        for text, formed, answer in zip(texts, said.formed, said.answer, strict=True):
            assert parse(text) == (formed, answer)
    else:
        assert np.all(np.asarray(said.answer) >= 0)


def test_groups_generate_what_they_would_generate_alone():
    mode = cases("free")
    parameters = sine_parameters(QWEN3)
    prompt = jax.random.randint(jax.random.key(1), (3, 8, 3), 0, QWEN3.vocab)
    keys = jax.random.split(jax.random.key(0), 3)

    def one(prompt, key):
        return mode.generate(bind_reader(QWEN3, parameters, None), prompt, None, key)

    together = jax.jit(jax.vmap(one))(prompt, keys)
    alone = [jax.jit(one)(*given) for given in zip(prompt, keys, strict=True)]
    for group, expected in enumerate(alone):
        np.testing.assert_array_equal(together.tokens[group], expected.tokens)
        np.testing.assert_allclose(together.log_prob[group], expected.log_prob, atol=1e-5)
