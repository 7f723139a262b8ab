"""Contract, settings and observations of the driving environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drive_runs import Programs, drive, programs, scripted
from drive_scenes import bank_of, scene, small_bank
from marked import mark_others

from jaxmarl_echelon.envs.check_env import check_env, check_traces
from jaxmarl_echelon.envs.drive.observing import features
from jaxmarl_echelon.envs.drive.rewards import make_reward

ALL = {
    name: {} for name in ("goal", "goal_again", "collision", "offroad", "lane_align", "comfort", "overspeed")
}


@pytest.fixture(scope="module")
def rich():
    """The program with all features that are off by default."""
    env = drive(
        lights="enforce",
        reward=make_reward(ALL | {"red_light": {}, "lane_center": {"weight": 0.004}, "ade": {"weight": 0.1}}),
        goal_behavior="new_goal",
        dynamics="jerk",
        actions="factored",
        layout="puffer",
        offroad_test="signed",
        observe_time=True,
        condition=["collision", "goal_radius"],
    )
    return Programs(env)


@pytest.mark.thorough
def test_the_environment_keeps_the_contract():
    check_env(programs().env, steps=95, plain=False)


def test_the_environment_is_traced_as_the_contract_says():
    check_traces(programs().env)


@pytest.mark.parametrize("others", mark_others(["idm", "replay", "static"], "replay"))
def test_scenes_may_consist_of_learners_only(others):
    env = drive(bank_of(scene(), agents=8, bodies=8), others=others)
    key, params = jax.random.key(0), env.default_params()
    state, _time = jax.eval_shape(env.reset, key, params)
    after, later = jax.eval_shape(env.step, key, state, {"vehicle": jnp.zeros(8, jnp.int32)}, params)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, after)]
    assert shapes[0] == shapes[1]
    assert later.obs["vehicle"].shape == (8, env.spec.role("vehicle").observation.shape[0])


def test_standing_traffic_has_no_speed():
    bank = bank_of(scene())
    env = drive(bank, others="static")
    simulation, params = env.simulation, env.default_params()
    state, _ = jax.jit(env.reset)(jax.random.key(0), params)
    recorded = np.asarray(bank.recording[0, 0, :, 3])
    stands = np.asarray(bank.driven[0]) & (np.arange(8) >= 4)
    assert stands.sum() == 2 and (recorded[stands] > 1.0).all()
    np.testing.assert_array_equal(state.motion.speed, np.where(stands, 0.0, recorded))
    moved = jax.jit(simulation.move)(state, jnp.zeros(4, jnp.int32))[0]
    assert (np.asarray(moved.speed)[stands] == 0).all() and (np.asarray(moved.speed)[:4] > 5.0).all()
    np.testing.assert_array_equal(np.asarray(moved.x)[stands], np.asarray(state.motion.x)[stands])


def test_new_goals_conditioning_and_the_puffer_layout(rich):
    idle = scripted(rich.env, "idle")
    states, times = rich.play(idle, 2)
    shown = times[0].obs["vehicle"]
    assert shown.shape == (4, 1848 + 3 + 1 + 3 + 2)
    assert not np.asarray(shown)[:, 7 + 3 + 1 : 7 + 3 + 1 + 3].any(), "there is no light"
    weights = np.asarray(shown)[:, 7 + 3 + 1 + 3 : 7 + 3 + 1 + 3 + 2]
    assert len(np.unique(weights)) == 8 and np.abs(weights).max() <= 1
    goals = np.stack([np.asarray(state.goal) for state in states])
    assert (goals[0] != goals[-1]).any(1).all(), "everybody reached a goal and got another one"
    assert np.isfinite(goals).all() and not np.asarray(states[-1].ghost).any()
    info = times[-1].info
    assert (np.asarray(info["goals_attempted"]) >= np.asarray(info["goals"])).all()
    # Segments are filed whole, by their midpoints: the long road's are near to the fourth learner only.
    roads = np.asarray(shown)[3, 7 + 3 + 1 + 3 + 2 + 63 * 7 :].reshape(200, 7)
    assert set(np.unique(roads[roads.any(1)][:, 6])) == {0.0, 1.0, 2.0}


def test_a_goal_counts_as_attempted_by_its_learners_own_time(rich):
    # The first learner soon leaves the road; 25 m to its goal would take 5 s.
    actions = np.array([[2, 2], [2, 1], [2, 1], [2, 1]], np.int32)
    states, times = rich.play(actions, 2, offroad_behavior="remove")
    ends = [int(np.argmin([bool(state.alive[slot]) for state in states])) for slot in range(4)]
    assert ends[0] < 40 < 60 < max(ends[1:])
    attempted = np.array([float(time.info["goals_attempted"][0]) for time in times])
    np.testing.assert_array_equal(attempted[ends[0] :], attempted[ends[0]])
    # With its goal where it leaves the road, its only attempt ends with a goal.
    last = states[ends[0] - 1]
    there = jnp.array([states[ends[0]].motion.x[0], states[ends[0]].motion.y[0]])
    last = last.replace(goal=last.goal.at[0].set(there), goal_distance=last.goal_distance.at[0].set(1.0))
    params = rich.in_scene(2, offroad_behavior="remove")
    after, time = rich.step(last, actions, params)
    assert not after.alive[0]
    assert [float(time.info[name][0]) for name in ("goals", "goals_attempted")] == [1.0, 1.0]


@pytest.mark.parametrize(
    "early_end, allowed", [("never", "true or false in this run"), ("no", "true or false")]
)
def test_episodes_that_never_end_early_need_their_own_program(early_end, allowed):
    with pytest.raises(ValueError, match=rf"^env.early_end={early_end}: must be .*{allowed}$"):
        programs().env.task_params({"early_end": early_end})


def test_partners_are_the_nearest_bodies_and_ghosts_are_not_among_them():
    shared = programs()
    states, times = shared.play(scripted(shared.env, "idle"), 2)
    block = next(block for block in shared.env.view.blocks if block.name == "partners")
    for step in (0, 40):
        state, seen = states[step], np.asarray(times[step].obs["vehicle"])
        ghost = np.concatenate([np.asarray(state.ghost), np.zeros(4, bool)])
        position = np.stack([np.asarray(state.motion.x), np.asarray(state.motion.y)], axis=-1)
        for learner in range(4):
            rows = seen[learner, block.slice].reshape(block.shape)
            away = np.hypot(*(position - position[learner]).T)
            visible = np.asarray(state.present) & ~ghost & (away <= 50.0) & (np.arange(8) != learner)
            expected = np.sort(away[visible]) if not ghost[learner] else []
            found = np.hypot(*rows[rows.any(1), :2].T) * features.POSITION_SCALE
            np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert np.asarray(states[40].ghost).any()


def test_observed_segments_lie_on_the_road():
    shared = programs()
    state, time = shared.reset(0)
    bank, view = small_bank(), shared.env.view
    block = next(block for block in view.blocks if block.name == "edges")
    rows = np.asarray(time.obs["vehicle"])[0, block.slice].reshape(block.shape)
    rows = rows[rows.any(1)]
    pose = np.array([state.motion.x[0], state.motion.y[0], state.motion.heading[0]])
    turn = np.array([[np.cos(pose[2]), -np.sin(pose[2])], [np.sin(pose[2]), np.cos(pose[2])]])
    middles = rows[:, :2] * features.POSITION_SCALE @ turn.T + pose[:2]
    segments = np.asarray(bank.segment[0])[np.asarray(bank.segment_kind[0]) == 2]
    true = (segments[:, :2] + segments[:, 2:]) / 2
    nearest = np.abs(middles[:, None] - true[None]).sum(-1).min(1)
    assert len(rows) > 10 and nearest.max() < 1e-3


@pytest.mark.parametrize(
    "given, message",
    [
        ({"dynamics": "train"}, "env.dynamics=train: unknown"),
        ({"partners": 64}, "env.partners=64: must be a whole number from"),
        ({"condition": ["collision", "speed"]}, "env.condition=speed: unknown"),
        ({"condition": ["comfort"]}, "env.condition=comfort: the reward has no component comfort"),
        ({"goal_behavior": "vanish"}, "env.goal_behavior=vanish: unknown"),
        ({"goal_radius": 0.0}, "env.goal_radius=0.0: must be a number from"),
        ({"wheels": 4}, "env.wheels: unknown"),
        ({"lights": "obey"}, "env.lights=obey: unknown"),
        ({"lights": "enforce"}, "env.lights=enforce: the reward has no component red_light; add .reward"),
    ],
)
def test_invalid_drive_settings_raise_a_one_line_error(given, message):
    with pytest.raises(ValueError, match="^" + message.replace("'", ".")) as error:
        drive(**given)
    assert "\n" not in str(error.value)


def test_curricula_change_rules_but_not_the_program():
    env = programs().env
    params = env.task_params(settings={"goal_radius": 5.0, "reward": {"collision": {"weight": -1.0}}})
    assert float(params.goal_radius) == 5.0 and float(params.reward["collision"]["weight"]) == -1.0
    with pytest.raises(ValueError, match="env.goal_behavior=new_goal: must be respawn, stop or remove"):
        env.task_params({"goal_behavior": "new_goal"})
    with pytest.raises(ValueError, match="env.partners: cannot change between episodes"):
        env.task_params({"partners": 3})


def test_numbers_that_learners_draw_cannot_be_changed():
    """A curriculum's change of them would have no effect, nor would that of a variant or a resumed run."""
    drawn = {"condition": ["collision", "lane_align_velocity", "goal_radius"]}
    paid = ALL | {"collision": {"weight": -3.0}}
    env, other = (
        drive(reward=make_reward(reward), goal_radius=radius, **drawn)
        for reward, radius in ((ALL, 2.0), (paid, 5.0))
    )
    params = env.default_params()
    jax.tree.map(np.testing.assert_array_equal, params, other.default_params())
    for settings, key in (
        ({"goal_radius": 5.0}, "env.goal_radius"),
        ({"reward": {"collision": {"weight": -1.0}}}, "reward.collision.weight"),
        ({"reward": {"lane_align": {"velocity": 0.5}}}, "reward.lane_align.velocity"),
    ):
        with pytest.raises(ValueError, match=f"^{key}: has no effect, as every learner draws it"):
            env.task_params(settings)
    changed = env.task_params({"reward": {"lane_align": {"weight": 0.5}, "offroad": {"weight": -2.0}}})
    assert float(changed.reward["lane_align"]["weight"]) == 0.5
    assert float(changed.reward["offroad"]["weight"]) == -2.0
    assert float(params.reward["goal"]["weight"]) == 1.0, "which nobody draws"


def test_evaluations_cycle_through_held_out_scenes():
    env = drive()
    env._held_out = (1, 2)
    scenes = [int(env.evaluation_params(env.default_params(), jnp.int32(i)).first_scene) for i in range(4)]
    assert scenes == [1, 2, 1, 2]
    params = jax.vmap(lambda i: env.evaluation_params(env.default_params(), i))(jnp.arange(2))
    assert params.scenes.tolist() == [1, 1]
