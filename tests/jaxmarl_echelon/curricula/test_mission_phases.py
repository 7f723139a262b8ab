"""Phases of the mission curriculum against a plain reading of its rules, episode by episode."""

import jax
import jax.numpy as jnp
import mission_runs as runs
import numpy as np
import pytest
from mission_reference import DWELL, SHAPE, SMALL, WINDOW, Reference, agree, made, same
from mission_runs import METRICS

from jaxmarl_echelon.curricula.missions import transitions
from jaxmarl_echelon.curricula.missions.curriculum import mission_curriculum
from jaxmarl_echelon.envs.echelon.missions import weights
from jaxmarl_echelon.envs.echelon.missions.state import VERBS


def test_bernoulli_episodes_go_through_all_phases_and_back():
    """Skill rises and falls; phases, counts, estimates and weights are those of the plain reading."""
    curriculum, update, metrics = made()
    pay = jax.jit(transitions.current_reward_weights)
    rng, reference, state = np.random.default_rng(3), Reference(WINDOW, DWELL), curriculum.init()
    visited, paid = [0], [np.asarray(pay(state.plan, state.course))]
    skills = [0.5] * 5 + [0.97] * 12 + [0.6] * 4 + [0.05] * 14 + [0.55] * 4
    for number, skill in enumerate(skills):
        # A few episodes belong to other phases, as just after a transition.
        stage = np.where(rng.random(SHAPE) < 0.1, rng.integers(0, 4, SHAPE), reference.phase)
        batch = runs.episodes(rng, SHAPE, stage, skill, share=0.9)
        reference.play(*batch)
        state = update(state, runs.rollout(*batch))
        agree(reference, state.course)
        if reference.phase != visited[-1]:
            decided = metrics(state)["curriculum/decided_success"]
            np.testing.assert_allclose(decided, reference.decided, atol=1e-5)
        visited.append(reference.phase)
        paid.append(np.asarray(pay(state.plan, state.course)))
        if number % 6 == 0 and len(reference.rows) > 1:
            compare(reference, metrics(state))
    assert list(dict.fromkeys(visited)) == [0, 1, 2, 3] and visited[-1] == 0
    assert reference.moves == [3, 3]
    np.testing.assert_allclose(np.sum(paid, axis=0)[:3].sum(), len(paid), atol=1e-3)


def compare(reference, found):
    for name in METRICS:
        number, mean, _, low, high = reference.bounds(name)
        if number > 1:
            values = [found[f"curriculum/criteria/{name}/{end}"] for end in ("rate", "low", "high")]
            np.testing.assert_allclose(values, [mean, low, high], atol=1e-4)
    np.testing.assert_allclose(found["curriculum/criteria/variance/number"], reference.variance(), atol=1e-5)
    scores = sorted(row["mission"] for row in reference.rows)
    worst = np.mean(scores[: -(-len(scores) // 10)])
    np.testing.assert_allclose(found["curriculum/worst_decile"], worst, atol=1e-5)
    assert found["curriculum/criteria/window/count"] == len(reference.rows)


def test_a_phase_is_never_left_before_its_dwell():
    curriculum, update, _ = made()
    state = curriculum.init()
    for done in range(WINDOW, DWELL + 1, 20):
        batch = runs.episodes(np.random.default_rng(0), SHAPE, 0, 1.0)
        first = np.arange(60).reshape(SHAPE) < (WINDOW if done == WINDOW else 20)
        state = update(state, runs.rollout(first, *batch[1:]))
        assert int(state.course.phase) == (done == DWELL), done
    assert int(state.course.episodes) == 0 and int(state.course.judged) == 0


def test_only_episodes_at_full_fire_count_for_a_win():
    curriculum, update, metrics = made()
    state = curriculum.init()
    state = state.replace(course=state.course.replace(phase=jnp.int32(2)))
    for _ in range(6):
        mask, tags, results = runs.episodes(np.random.default_rng(1), SHAPE, 2, 0.9)
        # Success against enemies that hold their fire, and none against those that do not.
        results["win"] = np.zeros(SHAPE)
        results["completed"] = 1.0 - results["full_fire"]
        state = update(state, runs.rollout(mask, tags, results))
    assert int(state.course.phase) == 2
    found = metrics(state)
    assert found["curriculum/criteria/win/rate"] == 0.0 and found["curriculum/criteria/win/met"] == 0.0


def test_verbs_that_differ_too_much_keep_the_phase():
    curriculum, update, metrics = made()
    state = curriculum.init()
    state = state.replace(course=state.course.replace(phase=jnp.int32(2)))
    mask, tags, results = runs.episodes(np.random.default_rng(1), SHAPE, 2, 1.0)
    results["task"] = np.arange(60).reshape(SHAPE) % len(VERBS)
    for score, phase in (((results["task"] < 4), 2), (np.ones(SHAPE), 3)):
        results["mission"] = score.astype(np.float32)
        after = state
        for _ in range(2):
            found = metrics(after)["curriculum/criteria/variance/number"]
            after = update(after, runs.rollout(mask, tags, results))
        assert int(after.course.phase) == phase
        assert found == pytest.approx(np.var([1, 1, 1, 1, 0, 0, 0]) if phase == 2 else 0.0, abs=1e-6)


def test_weights_change_without_a_jump():
    curriculum, *_ = made()
    plan = curriculum.init().plan
    course = curriculum.init().course

    @jax.jit
    def along(course):
        each = jax.vmap(lambda n: transitions.current_reward_weights(plan, course.replace(episodes=n)))
        return each(jnp.arange(300)), each(jnp.arange(300) + 100)

    entered = course.replace(
        phase=jnp.int32(1), before=jnp.array([0.9, 0.1, 0.0, 0.05]), advances=jnp.int32(1)
    )
    paid = np.asarray(along(entered)[0])
    np.testing.assert_allclose(paid[0], entered.before, atol=1e-6)
    np.testing.assert_allclose(paid[:, :3].sum(axis=1), 1.0, atol=1e-5)
    # In 20 episodes from (0.9, 0.1, 0) to what the schedule says; afterwards only the schedule moves.
    steps = np.abs(np.diff(paid, axis=0)).max(axis=1)
    assert steps[:20].min() > 0.015 and steps[20:].max() < 0.01
    exact = [weights.family_shares(0, transitions.curriculum_progress(plan, 1, n)) for n in (0, 10, 20, 250)]
    np.testing.assert_allclose(paid[10, :3], 0.5 * (entered.before[:3] + exact[1]), atol=1e-5)
    np.testing.assert_allclose(paid[[20, 250], :3], exact[2:], atol=1e-6)
    # Progress does not leave a phase by itself.
    far = transitions.curriculum_progress(plan, jnp.arange(4), 10**6)
    assert np.all(far < np.arange(1, 5) / 4) and np.all(far > np.arange(1, 5) / 4 - 0.001)
    # Before the first transition there is nothing to blend from.
    np.testing.assert_allclose(
        along(course)[0][5, :3],
        weights.family_shares(0, transitions.curriculum_progress(plan, 0, 5)),
        atol=1e-6,
    )


def test_rollout_length_does_not_matter():
    curriculum, update, _ = made()
    rng = np.random.default_rng(5)
    batches = [runs.episodes(rng, SHAPE, 0, 0.99) for _ in range(3)]
    joined = [jax.tree.map(lambda *x: np.concatenate(x), *(b[i] for b in batches)) for i in range(3)]
    one = two = curriculum.init()
    for batch in batches:
        one = update(one, runs.rollout(*batch))
    two = update(two, runs.rollout(*joined))
    assert int(one.course.phase) == 1
    same(one, two)


def test_resuming_is_exact_within_a_phase():
    """All progress is arrays: written out and read back, with episodes under way, nothing differs."""
    curriculum, *_ = made()
    step = jax.jit(curriculum.update)
    rng, phase = np.random.default_rng(7), 0
    state, tickets = curriculum.init(), curriculum.tickets(SHAPE[1])
    twin = (state, tickets)
    for number in range(9):
        flow = runs.rollout(*runs.episodes(rng, SHAPE, phase, 0.95))
        # Every other episode goes on into the next rollout.
        begins = np.asarray(flow.begins).copy()
        over = begins.copy()
        over[-1, ::2] = False
        begins[0, ::2] = number == 0
        mask = jnp.asarray(over)
        done = flow.finished.replace(mask=flow.finished.mask & mask)
        flow = flow.replace(begins=jnp.asarray(begins), over=mask, finished=done)
        state, tickets = step(state, tickets, flow)
        twin = step(*jax.tree.map(jnp.asarray, jax.device_get(twin)), flow)
        same((state, tickets), twin)
        phase = int(state.course.phase)
    assert phase > 0 and int(tickets.length) > 0
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))


EASIER = [runs.PHASES[0] | {"difficulty": [0.0, 0.1]}, *runs.PHASES[1:]]


@pytest.mark.parametrize(
    ("changes", "kept"), [({}, True), ({"phases": EASIER}, False), ({"verbs": {"hold": 1.0}}, False)]
)
def test_episodes_of_a_task_that_has_changed_no_longer_count(changes, kept):
    """The progress through the schedule goes on."""
    curriculum, update, _ = made()
    state = update(curriculum.init(), runs.rollout(*runs.episodes(np.random.default_rng(0), SHAPE, 0, 0.5)))
    tickets = curriculum.tickets(2)
    tickets = tickets.replace(length=jnp.int32(1), held=tickets.held.at[0].set(0))
    other = mission_curriculum(runs.Missions(), **SMALL | changes)
    fresh = other.init()
    course = other.retasked(state, fresh).course
    same(course, state.course if kept else state.course.replace(judged=jnp.int32(0)))
    same(other.requeued(tickets, state, fresh), tickets if kept else curriculum.tickets(2))
    drawn = {"stage": jnp.array([0, 1])}
    assert other.retagged(drawn, state, fresh)["stage"].tolist() == ([0, 1] if kept else [-1, 1])
    assert int(state.course.judged) == int(course.episodes) == 60


def test_evaluations_decide_with_the_evaluation_gate():
    curriculum, update, metrics = made("evaluation")
    judge = jax.jit(curriculum.evaluated)
    rng, state = np.random.default_rng(2), curriculum.init()

    def evaluation(skill, counted):
        _, _, results = runs.episodes(rng, (80,), 0, skill)
        return runs.finished(rng.permutation(80) < counted, {}, results)

    for _ in range(2):
        state = update(state, runs.rollout(*runs.episodes(rng, SHAPE, 0, 1.0)))
    assert int(state.course.episodes) == 120 and int(state.course.judged) == 0, "training is not judged"
    for counted in (WINDOW - 1, WINDOW - 1, 70):
        state = judge(state, jnp.float32(0.5), evaluation(0.99, counted))
        assert int(state.course.judged) == counted, "each evaluation is judged alone, without the quarantined"
        assert int(state.course.phase) == 0, "a transition waits for the update"
        found = metrics(state)["curriculum/criteria/survival/met"]
        state = update(state, runs.rollout(*runs.episodes(rng, SHAPE, 0, 0.0)))
        assert int(state.course.phase) == (counted >= WINDOW)
    assert found == 1.0 and int(state.course.judged) == 0
    with pytest.raises(ValueError, match="eval_episodes=59: curriculum.gate=evaluation needs at least"):
        curriculum.evaluated(state, 0.5, runs.finished(*runs.episodes(rng, (59,), 0, 1.0)))
    training = made()[0]
    before = training.init()
    same(before, training.evaluated(before, jnp.float32(1.0), evaluation(1.0, 80)))
