"""Modes of answering: constrained to legal or to all answers, free text, and free tokens before an answer."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.language.answer_trie import AnswerTrie
from algos.language.byte_answers import AnswerAutomaton
from algos.language.constrained import append_prefix, generate_answers, say_answer, score_answers, score_path
from algos.language.free_text import Vocabulary, generate_text, score_text
from algos.language.generated import Generated, Scored
from algos.language.sampling import SamplingSettings


class AnswerMode(NamedTuple):
    """Generation of answers, and their probabilities for learning.

    Attributes:
      generate: `(reader, prompt [R, P], allowed [R, M], key) -> Generated`; `key` None for the most probable
        tokens.
      score: `(reader, prompt, allowed, tokens [R, w], chosen [R, w]) -> (Scored, hidden [R, d])`, with the
        hidden state at the end of the prompt.
      spell: `(Generated) -> int32 [R, s]`, all that was said in order, forced tokens included; -1 for none.
      begin: `(prompt [R, P]) -> [R, P']`, the prompt up to the first token that can be chosen.
      width: w, tokens of an answer.
      spelled: s, tokens that `spell` returns.
      choices: the most tokens of an answer that are chosen among several.
    """

    generate: Callable[..., Generated]
    score: Callable[..., tuple[Scored, jax.Array]]
    spell: Callable[[Generated], jax.Array]
    begin: Callable[[jax.Array], jax.Array]
    width: int
    spelled: int
    choices: int


def make_constrained_mode(trie: AnswerTrie, how: SamplingSettings, *, legal: bool) -> AnswerMode:
    """Builds the mode of answers of the trie: the legal ones, or all with `legal=False`."""

    def generate(reader, prompt, allowed, key):
        return generate_answers(reader, trie, prompt, allowed | (not legal), key, how)

    def score(reader, prompt, allowed, tokens, chosen):
        del chosen
        return score_answers(reader, trie, prompt, allowed | (not legal), tokens, how)

    spelled = len(trie.prefix) + trie.width
    most, begin = max(trie.most_choices, 1), partial(append_prefix, trie)
    return AnswerMode(generate, score, partial(spell_answer, trie), begin, trie.width, spelled, most)


def spell_answer(trie: AnswerTrie, said: Generated) -> jax.Array:
    """Returns the tokens of answers of the trie, `[R, s]`: the shared beginning and the rest; -1 for none."""
    tokens = said.tokens[:, -trie.width :]
    there = jnp.arange(trie.width) < jnp.asarray(trie.lengths)[jnp.maximum(said.answer, 0)][:, None]
    shared = append_prefix(trie, jnp.zeros((tokens.shape[0], 0), jnp.int32))
    return jnp.concatenate([shared, jnp.where(there, tokens, -1)], axis=1)


def spell_text(said: Generated) -> jax.Array:
    """Returns the tokens of free text, `[R, w]`; -1 after its end."""
    return jnp.where(said.chosen, said.tokens, -1)


def make_free_mode(
    vocabulary: Vocabulary, automaton: AnswerAutomaton, width: int, how: SamplingSettings
) -> AnswerMode:
    """Builds the mode of free text of up to `width` tokens that ends with an answer in brackets."""

    def generate(reader, prompt, allowed, key):
        del allowed
        place = prompt.shape[1]
        hidden, cache = reader.prefill(prompt, place + width)
        return generate_text(reader, vocabulary, hidden, cache, place, width, key, how, automaton)[0]

    def score(reader, prompt, allowed, tokens, chosen):
        del allowed
        whole = jnp.concatenate([prompt, tokens[:, :-1]], axis=1)
        hidden = reader.hidden(whole)[:, prompt.shape[1] - 1 :]
        return score_text(reader, vocabulary, hidden, tokens, chosen, how), hidden[:, 0]

    return AnswerMode(generate, score, spell_text, lambda prompt: prompt, width, width, width)


def make_thinking_mode(
    vocabulary: Vocabulary, trie: AnswerTrie, think: int, how: SamplingSettings, *, legal: bool
) -> AnswerMode:
    """Builds the mode of up to `think` free tokens and then an answer of the trie.

    Answers begin at the same place in all rows. The places that a row's thoughts leave empty are masked, and
    its answer's positions follow its own last thought.
    """

    def seen_places(prompt, chosen, size):
        before = jnp.ones(prompt.shape, bool)
        after = jnp.ones((prompt.shape[0], size - prompt.shape[1] - think), bool)
        return jnp.concatenate([before, chosen[:, :think], after], axis=1)

    def generate(reader, prompt, allowed, key):
        allowed, place = allowed | (not legal), prompt.shape[1]
        size = place + think + len(trie.prefix) + max(trie.choices - 1, 0)
        key_think, key_say = (None, None) if key is None else jax.random.split(key)
        hidden, cache = reader.prefill(prompt, size)
        thought, hidden, cache = generate_text(
            reader, vocabulary, hidden, cache, place, think, key_think, how
        )
        seen = seen_places(prompt, thought.chosen, size)
        for number, token in enumerate(trie.prefix):
            tokens = jnp.full(prompt.shape[0], token, jnp.int32)
            hidden, cache = reader.step(tokens, cache, place + think + number, seen)
        place += think + len(trie.prefix)
        said = say_answer(reader, trie, allowed, hidden, cache, place, seen, key_say, how)
        tokens, log_prob, chosen = (
            jnp.concatenate(x, axis=1) for x in zip(thought[:3], said[:3], strict=True)
        )
        return Generated(
            tokens, log_prob, chosen, said.answer, said.formed, thought.hidden, thought.steps + said.steps
        )

    def score(reader, prompt, allowed, tokens, chosen):
        place, allowed = prompt.shape[1], allowed | (not legal)
        thoughts, answer = tokens[:, :think], tokens[:, think:]
        whole = append_prefix(trie, jnp.concatenate([prompt, thoughts], axis=1))
        whole = jnp.concatenate([whole, answer[:, : max(trie.choices, 1) - 1]], axis=1)
        hidden = reader.hidden(whole, seen_places(prompt, chosen, whole.shape[1]))
        thought = score_text(
            reader,
            vocabulary,
            hidden[:, place - 1 : place - 1 + think],
            thoughts,
            chosen[:, :think],
            how,
        )
        answers = hidden[:, place + think + len(trie.prefix) - 1 :]
        if not trie.prefix:  # the first token follows each row's own last thought
            last = place - 1 + chosen[:, :think].sum(1)
            first = jnp.take_along_axis(hidden, last[:, None, None], axis=1)
            answers = jnp.concatenate([first, answers[:, 1:]], axis=1)
        said = score_path(reader, trie, answers, allowed, answer, how)
        log_prob, entropy = (jnp.concatenate(x, axis=1) for x in zip(thought, said, strict=True))
        return Scored(log_prob, entropy), hidden[:, place - 1]

    def spell(said):
        return jnp.concatenate([spell_text(said)[:, :think], spell_answer(trie, said)], axis=1)

    width = think + trie.width
    spelled = width + len(trie.prefix)
    most = think + max(trie.most_choices, 1)
    return AnswerMode(generate, score, spell, lambda prompt: prompt, width, spelled, most)
