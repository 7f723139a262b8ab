"""Answers constrained to a trie: acting, and the same probabilities again for learning.

Only the children of the present node are options, and only of them logits are computed. A node with one live
child leaves no choice: its token is written, has log-probability 0 and is not learnt from.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from algos.language.answer_trie import AnswerTrie, live_children
from algos.language.generated import Generated, Scored
from algos.language.model import Cache
from algos.language.reading import Reader
from algos.language.sampling import (
    SamplingSettings,
    TokenChoice,
    draw_option,
    option_entropy,
    option_log_probs,
)


def generate_answers(
    reader: Reader,
    trie: AnswerTrie,
    prompt: jax.Array,
    allowed: jax.Array,
    key: jax.Array | None,
    how: SamplingSettings,
) -> Generated:
    """Generates one allowed answer per row.

    Args:
      prompt: int32 `[R, P]`.
      allowed: bool `[R, M]`; rows without any may say any answer.
      key: random key; None for the most probable tokens.
      how: as for `sampling.option_log_probs`.

    Returns:
      tokens after the prompt and the answers' shared beginning, w = `trie.width`.
    """
    prompt = append_prefix(trie, prompt)
    hidden, cache = reader.prefill(prompt, prompt.shape[1] + max(trie.choices - 1, 0))
    return say_answer(reader, trie, allowed, hidden, cache, prompt.shape[1], None, key, how)


def say_answer(
    reader: Reader,
    trie: AnswerTrie,
    allowed: jax.Array,
    hidden: jax.Array,
    cache: Cache,
    place: int,
    seen: jax.Array | None,
    key: jax.Array | None,
    how: SamplingSettings,
) -> Generated:
    """Generates one allowed answer per row after the tokens in the cache.

    Args:
      hidden: `[R, d]` at the end of the answers' shared beginning.
      cache: with room for `trie.choices - 1` more tokens.
      place: of the first token in the cache.
      seen: bool `[R, S]` as for `model.decode_step`.
    """
    rows, reads = hidden.shape[0], trie.choices
    allowed = allowed | ~allowed.any(-1, keepdims=True)
    keys = [None] * reads if key is None else jax.random.split(key, max(reads, 1))
    node, said, start = jnp.zeros(rows, jnp.int32), [], hidden
    token = node
    if reads:
        node, first = _say_token(reader, trie, allowed, (keys[0], how), hidden, node)
        said.append(jax.tree.map(lambda x: x[None], first))
        token = first[0]
    if reads > 1:

        def say(state, given):
            """Reads the last token and draws the next one; one iteration of the scan."""
            node, token, cache = state
            place, key = given
            hidden, cache = reader.step(token, cache, place, seen)
            node, one = _say_token(reader, trie, allowed, (key, how), hidden, node)
            return (node, one[0], cache), one

        later = None if key is None else keys[1:]
        given = place + jnp.arange(reads - 1), later
        (node, _, _), rest = lax.scan(say, (node, token, cache), given)
        said.append(rest)
    for _ in range(trie.width - reads):
        node, one = _write_token(trie, node)
        said.append(jax.tree.map(lambda x: x[None], one))
    tokens, log_prob, chosen = (jnp.concatenate(x).T for x in zip(*said, strict=True))
    answer = jnp.asarray(trie.lo)[node]
    formed, steps = jnp.ones(rows, bool), jnp.int32(max(reads, 1))
    return Generated(tokens, log_prob, chosen, answer, formed, start, steps)


def append_prefix(trie: AnswerTrie, prompt: jax.Array) -> jax.Array:
    """Appends the answers' shared beginning to prompts `[R, P]`."""
    shared = jnp.asarray(trie.prefix, jnp.int32)
    return jnp.concatenate([prompt, jnp.broadcast_to(shared, (prompt.shape[0], shared.size))], axis=1)


def _say_token(reader: Reader, trie: AnswerTrie, allowed, draw, hidden, node):
    """Draws the next token of every row; returns the next node, and token, log-probability and choice."""
    key, how = draw
    live, options = live_children(trie, allowed, node), jnp.asarray(trie.token)[node]
    choice: TokenChoice = draw_option(key, reader.children(hidden, options), live, how)
    return _follow(trie, node, choice)


def _write_token(trie: AnswerTrie, node):
    """Writes the only token that can follow; at the end of an answer 0."""
    nothing = jnp.zeros(node.shape)
    return _follow(trie, node, TokenChoice(jnp.zeros_like(node), nothing, nothing > 0))


def _follow(trie: AnswerTrie, node: jax.Array, choice: TokenChoice):
    """Moves to the chosen child."""
    token, child = (jnp.asarray(x)[node, choice.place] for x in (trie.token, trie.next))
    return child, (token, choice.log_prob, choice.chosen)


def score_answers(
    reader: Reader,
    trie: AnswerTrie,
    prompt: jax.Array,
    allowed: jax.Array,
    tokens: jax.Array,
    how: SamplingSettings,
) -> tuple[Scored, jax.Array]:
    """Computes the probabilities of answers of `generate_answers`, in one pass over whole rows.

    With top-p their tokens count as kept, so that their log-probabilities are finite after a gradient step.

    Args:
      tokens: int32 `[R, w]` as generated; other arguments are as for `generate_answers`.

    Returns:
      the probabilities, and the hidden state `[R, d]` at the end of the prompt.
    """
    hidden = _answer_states(reader, trie, prompt, tokens)
    return score_path(reader, trie, hidden, allowed, tokens, how), hidden[:, 0]


def _answer_states(reader: Reader, trie: AnswerTrie, prompt: jax.Array, tokens: jax.Array) -> jax.Array:
    """Hidden states `[R, max(trie.choices, 1), d]` before each token of answers."""
    prompt = append_prefix(trie, prompt)
    whole = jnp.concatenate([prompt, tokens[:, : max(trie.choices, 1) - 1]], axis=1)
    return reader.hidden(whole)[:, prompt.shape[1] - 1 :]


def score_path(
    reader: Reader,
    trie: AnswerTrie,
    hidden: jax.Array,
    allowed: jax.Array,
    tokens: jax.Array,
    how: SamplingSettings,
) -> Scored:
    """Computes the probabilities of the tokens of answers from the states before each of them.

    With top-p the tokens count as kept, see `score_answers`.

    Args:
      hidden: `[R, max(trie.choices, 1), d]`.
      tokens: int32 `[R, w]`.
    """
    options, live, said = _path_options(trie, allowed, tokens, hidden.shape[1])
    log_probs = option_log_probs(reader.children(hidden, options), live, how, said)
    log_prob = jnp.sum(jnp.where(said, log_probs, 0.0), axis=-1)
    chosen = live.sum(-1) > 1
    pad = partial(jnp.pad, pad_width=((0, 0), (0, tokens.shape[1] - said.shape[1])))
    return Scored(*(pad(jnp.where(chosen, x, 0.0)) for x in (log_prob, option_entropy(log_probs))))


def _path_options(trie: AnswerTrie, allowed: jax.Array, tokens: jax.Array, places: int):
    """Options `[R, w, C]` at the first places of answers: tokens, which are live, and which is said."""
    allowed = allowed | ~allowed.any(-1, keepdims=True)
    node = node_path(trie, tokens)[:, :places]
    options, live = jnp.asarray(trie.token)[node], live_children(trie, allowed[:, None], node)
    return options, live, (options == tokens[:, :places, None]) & live


def node_path(trie: AnswerTrie, tokens: jax.Array) -> jax.Array:
    """Nodes `[R, w]` of the trie at which tokens `[R, w]` were chosen."""
    node, path = jnp.zeros(tokens.shape[0], jnp.int32), []
    for place in range(tokens.shape[1]):
        path.append(node)
        below = jnp.asarray(trie.next)[node]
        said = (jnp.asarray(trie.token)[node] == tokens[:, place, None]) & (below < trie.lo.size - 1)
        node = jnp.take_along_axis(below, jnp.argmax(said, axis=-1)[:, None], axis=-1)[:, 0]
    return jnp.stack(path, axis=1)


def answer_probabilities(
    reader: Reader, trie: AnswerTrie, prompt: jax.Array, allowed: jax.Array, how: SamplingSettings
) -> jax.Array:
    """Computes the exact probability of every answer, `[R, M]`; 0 for answers that are not allowed.

    One pass over the prompt and every answer, so that it is for few rows or few answers.
    """
    number, every = len(trie.tokens), jnp.asarray(trie.tokens)

    def one(prompt, allowed):
        prompts, legal = (jnp.broadcast_to(x, (number, *x.shape)) for x in (prompt, allowed))
        hidden = _answer_states(reader, trie, prompts, every)
        options, live, said = _path_options(trie, legal, every, hidden.shape[1])
        # Unlike in learning, an answer outside of top-p has no probability.
        log_probs = option_log_probs(reader.children(hidden, options), live, how)
        log_prob = jnp.where(said, log_probs, 0.0).sum((-2, -1))
        return jnp.where(allowed | ~allowed.any(), jnp.exp(log_prob), 0.0)

    return lax.map(lambda given: one(*given), (prompt, allowed))
