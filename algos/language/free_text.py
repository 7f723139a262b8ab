"""Free text, any token of the vocabulary: with an answer in brackets, or before a constrained answer."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from algos.collectives import any_over_vmaps
from algos.language import byte_answers
from algos.language.byte_answers import AnswerAutomaton
from algos.language.generated import Generated, Scored
from algos.language.model import Cache
from algos.language.reading import Reader
from algos.language.sampling import SamplingSettings, draw_option, option_entropy, option_log_probs


class Vocabulary(NamedTuple):
    """Tokens that free text may consist of; host arrays.

    Attributes:
      allowed: bool `[V]`.
      stops: bool `[V]`; tokens that end a text: the end of a sequence, and after thoughts also a line's end.
    """

    allowed: np.ndarray
    stops: np.ndarray


class _Text(NamedTuple):
    """Text that is being generated; fields as in `Generated`, with the state of the generation."""

    step: jax.Array
    running: jax.Array
    hidden: jax.Array
    cache: Cache
    tokens: jax.Array
    log_prob: jax.Array
    chosen: jax.Array
    progress: byte_answers.Progress


def generate_text(
    reader: Reader,
    vocabulary: Vocabulary,
    hidden: jax.Array,
    cache: Cache,
    place: int,
    width: int,
    key: jax.Array | None,
    how: SamplingSettings,
    automaton: AnswerAutomaton | None = None,
) -> tuple[Generated, jax.Array, Cache]:
    """Generates up to `width` tokens per row, until all rows have stopped.

    Args:
      hidden: `[R, d]` at the end of the prompt.
      cache: of the prompt, with room for `width` more.
      place: of the first token in the cache.
      key, how: as for `sampling.draw_option`.
      automaton: ends a text at its answer; None for texts without one.

    Returns:
      the text, the hidden states after every row's last token, and the cache. Its places after that token
      have no meaning and must be masked.
    """
    rows, allowed = hidden.shape[0], jnp.asarray(vocabulary.allowed)[None]
    keys = None if key is None else jax.random.split(key, width)
    nothing = jnp.zeros((rows, width))

    def again(text):
        return any_over_vmaps(jnp.any(text.running)) & (text.step < width)

    def say(text):
        choice = draw_option(
            None if keys is None else keys[text.step],
            reader.logits(text.hidden),
            jnp.broadcast_to(allowed, (rows, allowed.size)),
            how,
        )
        token = jnp.where(text.running, choice.place, 0)
        progress = text.progress
        stopped = jnp.asarray(vocabulary.stops)[token]
        if automaton is not None:
            read = byte_answers.read_token(automaton, progress, token)
            progress = jax.tree.map(lambda x, y: jnp.where(text.running, x, y), read, progress)
            stopped = stopped | (progress.state == byte_answers.DONE)
        hidden, cache = reader.step(token, text.cache, place + text.step)
        kept = (token, jnp.where(text.running, choice.log_prob, 0.0), text.running)
        before = (text.tokens, text.log_prob, text.chosen)
        tokens, log_prob, chosen = (x.at[:, text.step].set(y) for x, y in zip(before, kept, strict=True))
        # Rows that have stopped keep the state after their own last token.
        hidden = jnp.where(text.running[:, None], hidden, text.hidden)
        running = text.running & ~stopped
        return _Text(text.step + 1, running, hidden, cache, tokens, log_prob, chosen, progress)

    start = _Text(
        step=jnp.int32(0),
        running=jnp.ones(rows, bool),
        hidden=hidden,
        cache=cache,
        tokens=nothing.astype(jnp.int32),
        log_prob=nothing,
        chosen=nothing > 0,
        progress=byte_answers.begin_text(rows),
    )
    text = lax.while_loop(again, say, start)
    formed = text.progress.state == byte_answers.DONE
    said = Generated(text.tokens, text.log_prob, text.chosen, text.progress.answer, formed, hidden, text.step)
    return said, text.hidden, text.cache


def score_text(
    reader: Reader,
    vocabulary: Vocabulary,
    hidden: jax.Array,
    tokens: jax.Array,
    chosen: jax.Array,
    how: SamplingSettings,
) -> Scored:
    """Computes the probabilities of generated tokens, one place at a time, without keeping any logits.

    With top-p these tokens count as kept, so that their log-probabilities are finite after a gradient step.

    Args:
      hidden: `[R, w, d]`, the states from which the tokens were drawn.
      tokens, chosen: `[R, w]` as generated.
      how: as generated with.
    """
    allowed = jnp.asarray(vocabulary.allowed)[None]

    @jax.checkpoint
    def score(given):
        hidden, token = given
        said = jnp.arange(allowed.size) == token[:, None]
        log_probs = option_log_probs(reader.logits(hidden), allowed, how, said)
        return jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0], option_entropy(log_probs)

    found = lax.map(score, (jnp.moveaxis(hidden, 1, 0), tokens.T))
    return Scored(*(jnp.where(chosen, x.T, 0.0) for x in found))
