"""A run of missions that is stopped while weights blend between phases goes on to the same bits."""

import jax
import pytest
from mission_games import built

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.curricula.missions.curriculum import mission_curriculum
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.program.program import make_program

BEFORE, AFTER, BLEND = 5, 4, 30


def configuration():
    """One against one, red scripted; the first phase asks for survivors, and is left soon."""

    def curriculum(env):
        first = {"name": "first", "difficulty": [0.0, 0.4], "criteria": {"survival": 0.0}}
        second = {"name": "second", "difficulty": [0.5, 1.0], "exams": 0.5}
        sizes = {"window": 4, "dwell": 4, "nominal_episodes": 40, "blend_episodes": BLEND}
        return mission_curriculum(env, [first, second], advance_margin=0.0, **sizes)

    few = {"blue": ["medium"], "red": ["light"], "friendly_count": 1, "enemy_count": 1}
    return RunConfig(
        env=built(**few, time_limit=1.5, telemetry=False, spawn_jitter=0.1),
        algo=PPOConfig(horizon=4, widths=(8,), epochs=1, num_minibatches=1),
        curriculum=curriculum,
        total_env_steps=10_000,
        num_envs=4,
        eval_episodes=4,
        window=8,
        episode_rows=8,
    )


@pytest.mark.thorough
def test_missions_resumed_within_a_blend_go_on_to_the_same_bits(tmp_path):
    """With battles, scenarios and reports under way, through a checkpoint on disk."""
    program = make_program(configuration())
    init, update = jax.jit(program.init), jax.jit(program.update)

    def go_on(state, updates):
        for _ in range(updates):
            state, _ = update(state)
        return state

    half = go_on(init(jax.random.key(0)), BEFORE)
    course = half.curriculum.course
    assert int(course.phase) == 1 and 0 < int(course.episodes) < BLEND, "within a blend"
    checkpoints.save_checkpoint(tmp_path, ("latest",), half, {"step": BEFORE})
    like = jax.eval_shape(program.init, jax.random.key(0))
    again = checkpoints.restore_state(checkpoints.find_checkpoint(tmp_path, "latest"), like)
    before = checkpoints.flatten_state(half)
    whole, resumed = (checkpoints.flatten_state(go_on(state, AFTER)) for state in (half, again))
    for part in ("running", "memories", "course", "params"):
        names = [name for name in whole if part in name]
        assert any((before[name] != whole[name]).any() for name in names), f"{part}: nothing happened"
    for name in whole:
        assert whole[name].tobytes() == resumed[name].tobytes(), name
