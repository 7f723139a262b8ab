import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.envs.echelon.missions import calibration
from jaxmarl_echelon.envs.echelon.missions.calibration import WINDOW, AgentCondition

DECISIONS = 120
AGENTS = 400
# What happens to an agent from one decision to the next: advance, wait, struggle, die.
OUTCOMES = np.array([calibration.ADVANCING, calibration.WAITING, calibration.STRUGGLING, calibration.DEAD])
DEAD = 3


@jax.jit
def play(reported, alive, trouble, distance, inside, over, weight):
    """Bonuses `[T, A]` of whole episodes of T decisions; `over [T]` where they end."""
    acted = jnp.concatenate([jnp.ones_like(alive[:1]), alive[:-1]])

    def step(reports, now):
        return calibration.score_due_reports(reports, AgentCondition(*now), weight, reported.shape[0])

    rows = (reported, acted, alive, trouble, distance, inside, over)
    return jax.lax.scan(step, calibration.empty_reports(reported.shape[1]), rows)[1]


def episode(
    reported, alive=None, trouble=None, distance=None, inside=None, weight=calibration.WEIGHT, end=None
):
    """`play` of one agent, `[T]`; by default it lives, waits and is far from its objective; nothing ends."""
    time = len(reported)
    given = [(reported, 0.0), (alive, True), (trouble, False), (distance, 50.0), (inside, False)]
    columns = [np.full(time, default) if x is None else np.asarray(x) for x, default in given]
    wide = [jnp.asarray(np.tile(column[:, None], (1, AGENTS))) for column in columns]
    over = np.arange(DECISIONS) == (DECISIONS if end is None else end)
    return np.asarray(play(*(pad(x) for x in wide), over, jnp.float32(weight)))[:time, 0] * DECISIONS


def pad(x):
    """To `DECISIONS`, so that one program serves all tests, by repeating the last row."""
    return jnp.concatenate([x, jnp.repeat(x[-1:], DECISIONS - x.shape[0], axis=0)])


def test_the_brier_score_of_an_example():
    assert calibration.WEIGHT * calibration.brier_score(0.8, 0.3) == pytest.approx(0.0375)
    trouble = np.arange(30) >= WINDOW
    paid = episode(np.full(30, 0.8), trouble=trouble)
    np.testing.assert_allclose(paid[:WINDOW], 0.0)
    np.testing.assert_allclose(paid[WINDOW:], 0.0375, atol=1e-6)


def test_a_report_is_scored_after_exactly_twenty_decisions():
    reported = np.zeros(60)
    reported[7] = 0.5  # right, as all that the agent does is wait
    paid = episode(reported)
    np.testing.assert_allclose(np.delete(paid[WINDOW:], 7), 0.05 * (1 - 0.25), atol=1e-6)
    assert paid[7 + WINDOW] == pytest.approx(0.05)


def test_outcomes_of_reports_by_condition():
    flag = jnp.array([False, True])
    dead, living = (calibration.report_outcome(jnp.bool_(x), flag[:, None], flag) for x in (False, True))
    np.testing.assert_array_equal(dead, 0.0)
    np.testing.assert_allclose(living, [[0.5, 0.7], [0.3, 0.3]])


def test_trouble_counts_for_two_seconds_and_an_advance_over_the_window():
    trouble = np.zeros(60, bool)
    trouble[30] = True
    paid = episode(np.zeros(60), trouble=trouble)
    struggling = np.isclose(paid[WINDOW:], 0.05 * (1 - 0.3**2), atol=1e-6)
    np.testing.assert_array_equal(np.flatnonzero(struggling) + WINDOW, np.arange(30, 38))
    for distance, expected in (
        (50.0 - 0.026 * np.arange(60), 0.7),
        (50.0 - 0.024 * np.arange(60), 0.5),
        (50.0 + 0.1 * np.arange(60), 0.5),
    ):
        np.testing.assert_allclose(
            episode(np.zeros(60), distance=distance)[WINDOW:], 0.05 * (1 - expected**2), atol=1e-6
        )
    inside = np.arange(60) >= 40
    paid = episode(np.zeros(60), inside=inside)[WINDOW:]
    np.testing.assert_allclose(paid, 0.05 * (1 - np.where(inside, 0.7, 0.5)[WINDOW:] ** 2), atol=1e-6)


def test_a_new_objective_does_not_count_as_an_advance():
    """Agents stand still while the objective changes from 50 voxels away to 10; then one goes a voxel on."""
    still = jnp.ones(2, bool)
    reports, bonuses = calibration.empty_reports(2), []
    for decision in range(2 * WINDOW):
        distance = jnp.full(2, 50.0 if decision < WINDOW else 10.0) - jnp.float32([0, decision >= 30])
        now = AgentCondition(jnp.full(2, 0.5), still, still, ~still, distance, ~still, jnp.bool_(False))
        reports, bonus = calibration.score_due_reports(reports, now, jnp.float32(1.0), 1)
        reports = calibration.shift_report_distances(reports, jnp.full(2, -40.0 * (decision == WINDOW - 1)))
        bonuses.append(np.asarray(bonus))
    waiting, advancing = np.asarray(bonuses)[WINDOW:].T
    np.testing.assert_allclose(waiting, 1.0)
    np.testing.assert_allclose(advancing, np.where(np.arange(WINDOW) < 10, 1.0, 1 - 0.2**2), atol=1e-6)


@pytest.mark.parametrize("death", [0, 5, WINDOW, 45])
def test_a_death_scores_every_pending_report_once(death):
    rng = np.random.default_rng(death)
    reported = rng.random(60)
    alive = np.arange(60) < death
    paid = episode(reported, alive=alive)
    pending = reported[max(death - WINDOW, 0) : death + 1]
    assert paid[death] == pytest.approx(0.05 * np.sum(1 - pending**2), abs=1e-5)
    np.testing.assert_array_equal(paid[death + 1 :], 0.0)
    np.testing.assert_allclose(
        paid[WINDOW:death], 0.05 * (1 - (reported[: max(death - WINDOW, 0)] - 0.5) ** 2), atol=1e-6
    )


@pytest.mark.parametrize("end", [0, 5, WINDOW, 45])
def test_the_end_of_an_episode_scores_every_pending_report_once(end):
    reported = np.random.default_rng(end).random(60)
    distance = np.maximum(50.0 - 0.11 * np.arange(60), 50.0 - 0.11 * max(end - 5, 0))
    paid = episode(reported, distance=distance, end=end)
    pending = np.arange(max(end - WINDOW, 0), end + 1)
    # It went on until five decisions before the end: later reports forecast an advance in vain.
    found = np.where(distance[pending] - distance[end] >= calibration.ADVANCE, 0.7, 0.5)
    assert paid[end] == pytest.approx(0.05 * np.sum(1 - (reported[pending] - found) ** 2), abs=1e-5)


def test_the_bonus_fades_after_the_second_phase():
    progress = jnp.array([0.0, 0.25, 0.5, 0.625, 0.75, 1.0])
    np.testing.assert_allclose(calibration.calibration_fade(progress), [1, 1, 1, 0.75, 0.5, 0])


def test_the_bonus_of_an_episode_is_at_most_the_weight():
    reported = np.full(DECISIONS, 0.5)
    for alive in (None, np.arange(DECISIONS) < 90):
        total = episode(reported, alive=alive).sum() / DECISIONS
        assert 0.0 < total <= calibration.WEIGHT


def chain(danger, tempo):
    """Transition matrix over `OUTCOMES`: agents that get into trouble, recover or die."""
    free = 1.0 - danger
    return np.array([
        [free * tempo, free * (1 - tempo), danger, 0.0],
        [free * 0.3, free * 0.7, danger, 0.0],
        [0.05, 0.10, 0.85 - danger / 4, danger / 4],
        [0.0, 0.0, 0.0, 1.0],
    ])  # fmt: skip


def lives(matrix, seed):
    """Conditions `[T, A]` of agents; states that the ladder reads as they are (no memory of trouble)."""
    rng = np.random.default_rng(seed)
    state = np.zeros((DECISIONS, AGENTS), int)
    cumulative = matrix.cumsum(axis=1)
    for time in range(1, DECISIONS):
        draws = rng.random((AGENTS, 1))
        state[time] = np.minimum((draws > cumulative[state[time - 1]]).sum(axis=1), DEAD)
    return state


@pytest.mark.parametrize(("danger", "tempo"), [(0.02, 0.9), (0.1, 0.7), (0.25, 0.5)])
def test_honest_forecasts_maximise_the_bonus(danger, tempo):
    matrix = chain(danger, tempo)
    state = lives(matrix, seed=1)
    memory = np.zeros_like(state, bool)
    for past in range(calibration.TROUBLE):
        memory[past:] |= state[: DECISIONS - past] == 2
    reached = np.where(state == DEAD, 0.0, np.where(memory, 0.3, OUTCOMES[np.minimum(state, 2)]))

    # The best forecast from the state and whether there was trouble lately: the mean outcome 20 decisions on.
    honest = np.full_like(reached, 0.5)
    many = lives(matrix, seed=2)
    trouble = np.zeros_like(many, bool)
    for past in range(calibration.TROUBLE):
        trouble[past:] |= many[: DECISIONS - past] == 2
    later = np.where(many == DEAD, 0.0, np.where(trouble, 0.3, OUTCOMES[np.minimum(many, 2)]))[WINDOW:]
    for kind in range(DEAD):
        for lately in (False, True):
            alike = (many[:-WINDOW] == kind) & (trouble[:-WINDOW] == lately)
            if alike.any():
                honest[(state == kind) & (memory == lately)] = later[alike].mean()

    def total(reported):
        """Mean bonus of an episode."""
        flags = (state != DEAD, state == 2, np.full(state.shape, 50.0), state == 0)
        return float(play(reported, *flags, np.zeros(len(state), bool), jnp.float32(1.0)).sum(axis=0).mean())

    best = total(honest)
    rivals = {
        "always yellow": np.full_like(honest, 0.5),
        "green until death": np.ones_like(honest),
        "always red": np.zeros_like(honest),
        "the present for the future": reached,
        "too hopeful": np.clip(honest + 0.1, 0, 1),
        "too gloomy": np.clip(honest - 0.1, 0, 1),
        "red in trouble, else green": np.where(memory, 0.0, 1.0),
    }
    paid = {name: total(reported.astype(np.float32)) for name, reported in rivals.items()}
    assert all(value < best - 1e-3 for value in paid.values()), (best, paid)


def test_no_report_gains_by_the_death_of_its_author():
    """Pending reports at a death score less the better they looked, which penalises green until the end."""
    alive = np.arange(60) < 40
    green, yellow, red = (episode(np.full(60, level), alive=alive)[40] for level in (1.0, 0.5, 0.0))
    assert green == pytest.approx(0.0, abs=1e-6)
    assert green < yellow < red
