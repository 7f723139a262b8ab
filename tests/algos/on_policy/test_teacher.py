"""Kickstarting: the imitation losses, and a small recurrent learner that takes over what a teacher does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import thorough

from algos.nets.distributions import Gaussian, MultiCategorical, SquashedGaussian
from algos.on_policy.distillation import (
    SQUASHED_LIMIT,
    Teacher,
    TeacherTargets,
    action_imitation_loss,
    imitation_loss,
)
from algos.on_policy.ppo import PPOConfig
from algos.types import ActionSpec, Rollout

SHAPE, ACTION = (3,), ActionSpec("discrete", (4,))
T, E = 8, 16


def test_the_imitation_loss_is_zero_for_equal_policies_and_adds_the_value_error():
    student = Gaussian(jnp.zeros((5, 2)), jnp.zeros((5, 2)))
    lesson = TeacherTargets(student, jnp.ones(5))
    for kind in ("cross_entropy", "reverse_kl"):
        loss = imitation_loss(kind, lesson, student, jnp.full(5, 3.0), 0.25)
        np.testing.assert_allclose(loss, 0.5 * 0.25 * 4.0)


@pytest.mark.parametrize(("kind", "expected"), [("cross_entropy", 0.0), ("reverse_kl", 1.0)])
def test_imitation_losses_are_divergences_in_opposite_directions(kind, expected):
    """A narrow student within a wide teacher is cheap one way round, and dear the other."""
    narrow = Gaussian(jnp.zeros((1, 1)), jnp.full((1, 1), -2.0))
    wide = Gaussian(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    one = imitation_loss(kind, TeacherTargets(wide, jnp.zeros(1)), narrow, jnp.zeros(1), 0.0)
    other = imitation_loss(kind, TeacherTargets(narrow, jnp.zeros(1)), wide, jnp.zeros(1), 0.0)
    assert float((one < other)[0]) == expected


def test_families_must_be_the_same():
    lesson = TeacherTargets(SquashedGaussian(jnp.zeros((1, 1)), jnp.zeros(1)), jnp.zeros(1))
    with pytest.raises(ValueError, match="squash: the teacher acts with a SquashedGaussian"):
        imitation_loss("reverse_kl", lesson, Gaussian(jnp.zeros((1, 1)), jnp.zeros(1)), jnp.zeros(1), 0.0)


def settings(**changes):
    return PPOConfig(
        **{
            "horizon": T,
            "sampling": "sequential",
            "num_minibatches": 2,
            "widths": (16,),
            "teacher": "somewhere",
            "learning_rate": 0.01,
            "total_updates": 1000,
        }
        | changes
    )


@pytest.fixture(scope="module")
def teacher():
    config = PPOConfig(widths=(32, 32), normalize_observation=True)
    agent = config.make(SHAPE, ACTION, updates=1)
    state = agent.policy_state(jax.jit(agent.init)(jax.random.key(7)))
    sharp = jax.tree_util.tree_map_with_path(
        lambda path, x: 2000.0 * x if "policy" in jax.tree_util.keystr(path) else x, state.params
    )
    moments = state.observations.replace(mean=jnp.array([0.5, -0.5, 0.0]))
    return Teacher(agent, state.replace(params=sharp, observations=moments))


def rollout(agent, state, key):
    """Experience of an agent in an environment with random observations and ends of episodes."""
    keys = jax.random.split(key, T)
    obs = jax.random.normal(key, (T, E, 1, *SHAPE))
    reset = jax.random.bernoulli(key, 0.2, (T, E, 1))
    first = agent.initial_carry((E, 1))

    def decide(carry, now):
        action, carry, extras = agent.act(state, now[0], now[1], carry, now[2], None)
        return carry, (action, extras)

    _, (action, extras) = jax.lax.scan(decide, first, (keys, obs, reset))
    ones, zeros = jnp.ones((T, E, 1)), jnp.zeros((T, E, 1))
    return Rollout(
        obs=obs,
        action=action,
        extras=extras,
        reward=zeros,
        reset=reset,
        discount=ones,
        boundary=jnp.concatenate([reset[1:], reset[:1]]),
        bootstrap=zeros,
        alive=ones.astype(bool),
        mask=None,
        carry=jax.tree.map(lambda x: x[None], first),
        last_value=jnp.zeros((E, 1)),
    )


def learnt_once(agent):
    """`key -> parameters` after an update on the agent's own experience."""

    @jax.jit
    def learn(key):
        state = agent.init(jax.random.key(0))
        return agent.update(state, key, rollout(agent, state, key))[0].params

    return learn


@pytest.mark.parametrize(("core", "loss"), [thorough("none", "reverse_kl"), ("gru", "cross_entropy")])
def test_a_smaller_learner_takes_over_what_its_teacher_does(teacher, core, loss):
    config = settings(
        core={"kind": core, "width": 16}, teacher_loss=loss, teacher_coefficient_schedule="constant"
    )
    agent = config.make(SHAPE, ACTION, samples=E, updates=1000, teacher=teacher)

    @jax.jit
    def learnt(key):
        def step(state, key):
            return agent.update(state, key, rollout(agent, state, key))

        state, metrics = jax.lax.scan(step, agent.init(jax.random.key(0)), jax.random.split(key, 150))
        frozen = agent.policy_state(state)
        assert frozen.teacher is None
        obs, reset = jax.random.normal(jax.random.key(5), (256, *SHAPE)), jnp.ones(256, bool)
        chosen, _ = agent.greedy(frozen, obs, agent.initial_carry((256,)), reset, None)
        wanted, _ = teacher.agent.greedy(teacher.state, obs, (), reset, None)
        return metrics["imitation_loss"], chosen == wanted

    losses, agree = learnt(jax.random.key(1))
    assert np.mean(losses[-10:]) < 0.25 * np.mean(losses[:3])
    assert np.mean(agree) > 0.85


def test_a_teacher_weight_of_zero_has_no_effect(teacher):
    with_one = settings(teacher_coefficient=0.0).make(SHAPE, ACTION, samples=E, updates=9, teacher=teacher)
    without = settings(teacher=None).make(SHAPE, ACTION, samples=E, updates=9)
    ours, theirs = (learnt_once(agent)(jax.random.key(2)) for agent in (with_one, without))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, theirs)


def test_a_recurrent_teacher_advances_on_the_learners_observations():
    """Its lessons about a rollout are what it would have said while the rollout went on."""
    theirs = settings(teacher=None, core={"kind": "lstm", "width": 8}).make(SHAPE, ACTION, updates=1)
    teacher = Teacher(theirs, theirs.policy_state(jax.jit(theirs.init)(jax.random.key(3))))
    agent = settings().make(SHAPE, ACTION, samples=E, updates=9, teacher=teacher)
    play = jax.jit(lambda key: rollout(agent, agent.init(jax.random.key(0)), key))
    batch = jax.device_get(play(jax.random.key(4)))
    carry = jax.tree.map(lambda x: x[0], batch.carry[1])
    teach = jax.jit(lambda obs, carry, reset: theirs.teach(teacher.state, obs, carry, reset, None)[1])
    value = teach(batch.obs, carry, batch.reset)

    @jax.jit
    def decide(obs, carry, reset):
        seen = teacher.state, obs, carry, reset, None
        return theirs.value(*seen), theirs.greedy(*seen)[1]

    for t in range(T):
        said, carry = decide(batch.obs[t], carry, batch.reset[t])
        np.testing.assert_allclose(said, value[t], atol=1e-5)


def test_the_weight_falls_and_settings_are_checked(teacher):
    agent = settings(total_updates=4).make(SHAPE, ACTION, samples=E, updates=4, teacher=teacher)

    @jax.jit
    def weights(key):
        def step(state, key):
            state, metrics = agent.update(state, key, rollout(agent, state, key))
            return state, metrics["teacher_coefficient"]

        return jax.lax.scan(step, agent.init(key), jax.random.split(key, 3))[1]

    np.testing.assert_allclose(weights(jax.random.key(0)), [1.0, 0.75, 0.5], rtol=1e-6)
    with pytest.raises(ValueError, match="teacher=somewhere: must be None with sampling=samples"):
        settings(sampling="samples")
    with pytest.raises(ValueError, match="teacher_loss=mse: unknown; allowed: cross_entropy, reverse_kl"):
        settings(teacher_loss="mse")
    bare = settings().make(SHAPE, ACTION, samples=E, updates=4)
    with pytest.raises(ValueError, match="teacher=somewhere: must be loaded"):
        jax.eval_shape(learnt_once(bare), jax.random.key(0))


def test_divergences_of_masked_choices():
    mask = jnp.array([True, True, False, True])
    first = MultiCategorical.masked(jnp.array([1.0, 0.0, 5.0, -1.0]), (4,), mask)
    lesson = TeacherTargets(first, jnp.zeros(()))
    second = MultiCategorical.masked(jnp.array([0.0, 0.0, -9.0, 2.0]), (4,), mask)
    loss, gradient = jax.jit(
        jax.value_and_grad(
            lambda logits: imitation_loss(
                "cross_entropy", lesson, MultiCategorical.masked(logits, (4,), mask), jnp.zeros(()), 0.0
            )
        )
    )(second.logits)
    p = np.exp([1.0, 0.0, -1.0]) / np.exp([1.0, 0.0, -1.0]).sum()
    q = np.exp([0.0, 0.0, 2.0]) / np.exp([0.0, 0.0, 2.0]).sum()
    np.testing.assert_allclose(loss, (p * np.log(p / q)).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, [*(q - p)[:2], 0.0, (q - p)[2]], atol=1e-6)


def test_the_likelihood_of_a_scripts_action_is_finite_at_bounds_and_behind_masks():
    bounds = jnp.array([[-1.0, 1.0], [0.5, 0.0]])

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def squashed(mean):
        loss = action_imitation_loss(SquashedGaussian(mean, jnp.full(2, -5.0)), bounds)
        return loss.sum(), loss

    (_, loss), gradient = squashed(jnp.zeros((2, 2)))
    assert np.isfinite(loss).all() and np.isfinite(gradient).all()
    gradient = squashed(jnp.arctanh(jnp.array([[-SQUASHED_LIMIT, SQUASHED_LIMIT], [0.5, 0.0]])))[1]
    np.testing.assert_allclose(gradient, 0.0, atol=0.1)

    mask = jnp.array([[True, True, False, True, True]] * 2)

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def chosen(logits):
        student = MultiCategorical.masked(logits, (3, 2), mask)
        loss = action_imitation_loss(student, jnp.array([[1, 0], [2, 0]]))
        return loss.sum(), loss

    (_, loss), gradient = chosen(jnp.array([[0.0, 0.0, 5.0, 0.0, 0.0]] * 2))
    np.testing.assert_allclose(loss, [2 * np.log(2), 0.0], rtol=1e-6)
    np.testing.assert_allclose(gradient, [[0.5, -0.5, 0.0, -0.5, 0.5], [0.0] * 5], atol=1e-6)


def test_a_script_needs_no_segments_but_cross_entropy():
    scripted = settings(teacher="script:any", sampling="samples")
    assert "teacher_value_weight" not in scripted.adjustable()
    assert "teacher_coefficient" in scripted.adjustable()
    with pytest.raises(
        ValueError, match="teacher_loss=reverse_kl: must be cross_entropy with teacher=script:any"
    ):
        settings(teacher="script:any", teacher_loss="reverse_kl")
    for sampling in ("samples", "sequential"):
        agent = settings(teacher="script:any", sampling=sampling).make(SHAPE, ACTION, samples=E, updates=4)
        with pytest.raises(ValueError, match="teacher=script:any: must be loaded"):
            jax.eval_shape(learnt_once(agent), jax.random.key(0))
