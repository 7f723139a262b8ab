import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.envs.spaces import Box, Discrete, MultiDiscrete

INF = float("inf")


@pytest.mark.parametrize(
    "space",
    [
        Box((3,), -1.0, [0.0, 1.0, 2.0]),
        Box((2, 2), -INF, INF),
        Box((2,), [0.5, -INF], [INF, -3.0]),
        Box((4,), 0, 255, dtype="uint8"),
        Box((), 0.0, 1.0, dtype=jnp.bfloat16),
        Discrete(5),
        MultiDiscrete((3, 1, 7)),
    ],
    ids=str,
)
def test_samples_belong_to_the_space(space):
    samples = jax.jit(jax.vmap(space.sample))(jax.random.split(jax.random.key(0), 500))
    assert samples.shape == (500, *space.shape)
    assert samples.dtype == space.dtype
    assert np.asarray(space.contains(samples)).shape == (500,)
    assert np.asarray(space.contains(samples)).all()
    hash(space)


def test_bounded_samples_fill_the_whole_range():
    samples = np.asarray(Box((2000,), -1.0, 3.0).sample(jax.random.key(1)))
    assert samples.min() < -0.98 and samples.max() > 2.98
    assert abs(samples.mean() - 1.0) < 0.1
    counts = np.bincount(np.asarray(Box((3000,), 2, 4, dtype="int32").sample(jax.random.key(1))))
    assert (counts[:2] == 0).all() and (counts[2:] > 900).all() and counts.size == 5


def test_box_contains_its_bounds_and_nothing_beyond():
    box = Box((2,), [0.1, -1.0], [0.3, 1.0])
    x = jnp.array([[0.1, 1.0], [0.3, -1.0], [0.31, 0.0], [0.2, -1.01], [jnp.nan, 0.0]])
    assert box.contains(x).tolist() == [True, True, False, False, False]


def test_equal_descriptions_are_equal_and_hash_alike():
    a = Box((2,), np.zeros(2, np.float32), jnp.ones(2))
    b = Box([2], [0, 0], (1.0, 1.0))
    assert a == b and hash(a) == hash(b)
    assert MultiDiscrete([2, 3]) == MultiDiscrete((2, 3))


def test_discrete_membership_and_mask():
    assert Discrete(3).contains(jnp.array([-1, 0, 2, 3])).tolist() == [False, True, True, False]
    mask = jnp.array([False, True, False, True])
    draws = jax.jit(jax.vmap(Discrete(4).sample, (0, None)))(jax.random.split(jax.random.key(2), 200), mask)
    assert set(draws.tolist()) == {1, 3}


def test_multi_discrete_mask_is_read_choice_after_choice():
    space = MultiDiscrete((2, 3, 1))
    assert space.mask_size == 6
    mask = jnp.array([False, True, True, False, True, True])
    draws = np.asarray(
        jax.jit(jax.vmap(space.sample, (0, None)))(jax.random.split(jax.random.key(3), 200), mask)
    )
    assert set(draws[:, 0]) == {1} and set(draws[:, 1]) == {0, 2} and set(draws[:, 2]) == {0}
    assert space.contains(jnp.array([[1, 2, 0], [1, 2, 1], [2, 0, 0]])).tolist() == [True, False, False]


def test_a_mask_without_legal_options_still_gives_an_element():
    assert int(Discrete(3).sample(jax.random.key(0), jnp.zeros(3, bool))) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box((2,), 1.0, 0.0), "low=1.0"),
        (lambda: Box((2,), float("nan"), 0.0), "low=nan"),
        (lambda: Box((2,), [0.0, 0.0, 0.0], 1.0), "broadcast"),
        (lambda: Box((2,), 0, INF, dtype="uint8"), "uint8"),
        (lambda: Discrete(0), "n=0"),
        (lambda: MultiDiscrete((2, 0)), "sizes="),
        (lambda: MultiDiscrete(()), "sizes="),
        (lambda: Box((2,), 0.0, 1.0).contains(jnp.zeros(3)), "shape"),
    ],
)
def test_mistakes_are_named_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
