"""The buffer of answers: what goes in comes out once, in batches of one size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.language.buffer import (
    BufferSettings,
    add_answers,
    draw_rows,
    init_buffer,
    take_batch,
)
from algos.language.state import AnswerRows
from algos.nets.normalize import standardize

ADD, INIT = jax.jit(add_answers), jax.jit(init_buffer, static_argnums=1)


def answers(first, number, alive):
    """Rows whose prompts are consecutive numbers."""
    names, wide = np.arange(first, first + number, dtype=np.int32), np.zeros((number, 2), np.float32)
    rows = AnswerRows(
        prompt=names[:, None],
        allowed=wide > 0,
        tokens=wide.astype(np.int32),
        chosen=wide > 0,
        sampled=wide,
        old=wide,
        advantage=names.astype(np.float32),
        alive=np.broadcast_to(np.asarray(alive, bool), number),
    )
    return jax.tree.map(jnp.asarray, rows)


def test_every_answer_is_drawn_at_most_once_and_dead_ones_never():
    buffer, drawn, key = INIT(answers(0, 1, True), 32), [], jax.random.key(0)
    take = jax.jit(lambda b, k: take_batch(b, k, 8, 12))
    for update in range(20):
        key, one, two = jax.random.split(key, 3)
        alive = np.arange(10) % 3 > 0
        buffer = ADD(buffer, one, answers(10 * update, 10, alive))
        before = np.sum(buffer.rows.alive)
        buffer, rows, age = take(buffer, two)
        number = np.sum(rows.alive)
        assert number == (8 if before >= 12 else 0) and np.sum(buffer.rows.alive) == before - number
        assert np.isnan(age) == (number == 0)
        drawn += np.asarray(rows.prompt)[:, 0][np.asarray(rows.alive)].tolist()
    assert len(drawn) == len(set(drawn)) > 80
    assert not any(name % 10 % 3 == 0 for name in drawn)


def test_answers_leave_a_full_buffer_with_equal_probability():
    def kept(key):
        buffer = add_answers(init_buffer(answers(0, 1, True), 8), key, answers(0, 8, True))
        buffer = add_answers(buffer, jax.random.fold_in(key, 1), answers(8, 8, True))
        return jnp.zeros(16).at[buffer.rows.prompt[:, 0]].add(buffer.rows.alive)

    counts = np.asarray(jax.jit(jax.vmap(kept))(jax.random.split(jax.random.key(1), 4000)))
    np.testing.assert_allclose(counts.mean(0), 0.5, atol=0.04)


def test_ages_count_updates():
    buffer = INIT(answers(0, 1, True), 8)
    for update in range(3):
        buffer = ADD(buffer, jax.random.key(update), answers(1 + 2 * update, 2, True))
    ages = dict(zip(np.asarray(buffer.rows.prompt)[:, 0].tolist(), buffer.age.tolist(), strict=True))
    assert [ages[name] for name in range(1, 7)] == [2, 2, 1, 1, 0, 0]


def test_draws_prefer_rows_that_are_alive():
    alive = np.arange(20) % 4 == 0
    drawn = np.asarray(jax.jit(draw_rows, static_argnums=2)(jax.random.key(0), alive, 8))
    assert alive[drawn[:5]].all() and len(set(drawn.tolist())) == 8


def test_advantages_are_standardised_over_answers_that_are_learnt_from():
    rows = answers(5, 10, np.arange(10) < 6)
    inside = np.asarray(jax.jit(standardize)(rows.advantage, rows.alive))[:6]
    np.testing.assert_allclose([inside.mean(), inside.std()], [0.0, 1.0], atol=1e-6)


def test_a_buffer_that_never_fills_is_refused():
    with pytest.raises(ValueError, match="buffer.capacity=100: must be at least wait"):
        BufferSettings(capacity=100, batch=80)
