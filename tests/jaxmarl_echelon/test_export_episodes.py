"""Exported policies in the loop: episodes go as in `evaluate`."""

import commands
import jax
import numpy as np
import pytest

import jaxmarl_echelon as je
from jaxmarl_echelon import checkpoints, command_line, run_loading
from jaxmarl_echelon.exporting.closed_loop import make_exported_controller
from jaxmarl_echelon.training.acting.controllers import switch_controller
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key

EPISODES = 64
GAME = [one for one in commands.TINY if not one.startswith("env.")]
# A defender that drives off at once and fast: it crashes in most episodes, the attacker in others.
FAST = [
    "env.max_steps=1500",
    "env.lock_steps=0",
    "env.spawns=all",
    "env.ftg.steering_gain=0.45",
    "env.ftg.min_speed=1.0",
    "env.ftg.max_speed=2.0",
]


def save_disturbed_run(folder, *overrides, given=commands.TINY):
    """Saves a checkpoint of an untrained policy with noise on all its numbers."""
    config, choices = command_line.compose_config([*given, *overrides])
    state = commands.begin(folder, config, choices)
    rng = np.random.default_rng(0)

    def disturb(x):
        noisy = np.issubdtype(x.dtype, np.floating)
        return x + 0.05 * rng.standard_normal(x.shape).astype(np.float32) if noisy else x

    policies = jax.tree.map(disturb, state.policies)
    facts = checkpoints.read_metadata(checkpoints.find_checkpoint(folder, "best_eval"))
    changed = state.replace(policies=policies)
    checkpoints.save_checkpoint(folder / "checkpoints", ("best_eval",), changed, facts | {"step": 1})
    return folder


def test_a_policy_with_a_memory_remembers_each_seat_of_a_game_with_turns(tmp_path):
    core = ["algo.core.kind=gru", "algo.core.width=8", "algo.sampling=sequential"]
    run = save_disturbed_run(tmp_path / "run", "env=textgames/tictactoe", "algo=ppo", *core, given=GAME)
    _, _, _, program, state = run_loading.load_run(str(run), "best_eval")
    exported, role = je.load_policy(je.export_policy(run)), program.env.spec.role(program.role)

    @jax.jit  # one program for both
    def play(number):
        def seats(parts):
            both = [
                program.controllers(parts)[role.name],
                make_exported_controller(exported, parts.env, role),
            ]
            return {role.name: switch_controller(both, number)}

        key = jax.random.key(0)
        result = program.evaluate_with_controllers(seats, state.policies, state, key, episodes=EPISODES)
        return result.length, result.episode_return

    ours, theirs = (jax.device_get(play(number)) for number in (1, 0))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert np.unique(theirs[0]).size > 3


@pytest.mark.thorough
def test_episodes_go_as_in_evaluations(tmp_path):
    run = save_disturbed_run(tmp_path / "run", "env=f110", "algo=ppo", *FAST)
    _, _, config, program, state = run_loading.load_run(str(run), "best_eval")
    exported = je.load_policy(je.export_policy(run))
    role, key = program.env.spec.role(program.role), stream_key(config.seed, Stream.FINAL)

    calls = []

    class Counted:
        initial_memory = staticmethod(exported.initial_memory)

        def __call__(self, *given):
            calls.append(1)
            return exported(*given)

    @jax.jit  # one program for both
    def play(number, state, world):
        def seats(parts):
            acting = program.controllers(parts, True)
            both = [acting[role.name], make_exported_controller(Counted(), parts.env, role)]
            return acting | {role.name: switch_controller(both, number)}

        return program.evaluate_with_controllers(
            seats, state.policies, state, key, episodes=EPISODES, world=world
        )

    theirs = jax.device_get(play(0, state, program.world))
    assert not calls
    ours = jax.device_get(play(1, state, program.world))
    assert len(calls) == program.env.spec.episode_limit
    (reached, counted), (expected, _) = (
        map(np.sum, result.scores(program.env.spec)) for result in (ours, theirs)
    )
    assert counted == EPISODES and reached == expected
    np.testing.assert_array_equal(ours.results["outcome"], theirs.results["outcome"])
    np.testing.assert_array_equal(ours.length, theirs.length)
    assert 8 < reached < EPISODES - 8 and np.unique(theirs.length).size > 8  # or nothing would be seen
