"""What accelerators compute for all rows at once equals what a CPU computes for the active ones alone.

Both run on the CPU here: programs only ask for the name of the backend.
"""

import jax
import numpy as np
import pytest

import jaxmarl_echelon as je
from jaxmarl_echelon import command_line
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.random_play import step_randomly
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program
from tests.helpers.marked import thorough

STEPS = 24
# Name, settings, and number of environments: with more rays than small batches have.
F110 = ("f110", {"action_repeat": 2}, 24)
DRIVE = ("drive", {"maps": 2, "eval_maps": 1, "steps": 12}, 16)
CARTPOLE = ("gymnax/CartPole-v1", {}, 4)
ECHELON = ("echelon", {}, 24)
TRUNCATED_OFTEN = (
    "env=gymnax/Pendulum-v1", "env.params.max_steps_in_episode=6", "algo=ppo", "tuning=none", "num_envs=4",
    "algo.horizon=16", "algo.num_minibatches=1", "algo.epochs=1", "algo.widths=[8]",
)  # fmt: skip


def play(name: str, settings: dict, num_envs: int):
    """Time steps and results of random play, with resets."""
    env = je.make(name, **settings)
    params = env.default_params()

    def draw(_key):
        return episodes.EpisodeTask(params)

    def advance(running, key):
        running, transition = step_randomly(env, key, running, draw)
        return running, (transition.time, transition.finished)

    @jax.jit
    def run(key):
        running = episodes.start_episodes(env, key, draw, num_envs)
        return jax.lax.scan(advance, running, jax.random.split(key, STEPS))[1]

    return run(jax.random.key(7))


def train(overrides: tuple[str, ...]):
    """Learners and report after one update."""
    config, _ = command_line.compose_config(list(overrides))
    program = make_program(build.build_run_config(config))
    run, report = jax.jit(lambda key: program.update(program.init(key)))(jax.random.key(7))
    return run.policies, report


def assert_same_elsewhere(monkeypatch, fn, *arguments):
    """Compares what a function returns on a CPU and where the backend is called a GPU."""
    here = jax.tree_util.tree_leaves_with_path(jax.device_get(fn(*arguments)))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # Nothing that was traced before, or is traced after, has this precision, which a CPU ignores.
    with jax.default_matmul_precision("high"):
        elsewhere = jax.tree.leaves(jax.device_get(fn(*arguments)))
    for (path, ours), theirs in zip(here, elsewhere, strict=True):
        named = jax.tree_util.keystr(path)
        np.testing.assert_allclose(np.asarray(theirs, np.float32), ours, 1e-4, 1e-4, err_msg=named)


@pytest.mark.parametrize(
    "case", [F110, CARTPOLE, thorough(DRIVE), thorough(ECHELON)], ids=lambda case: case[0]
)
def test_accelerators_play_the_same_episodes(case, monkeypatch):
    assert_same_elsewhere(monkeypatch, play, *case)


def test_accelerators_bootstrap_from_the_same_values(monkeypatch):
    assert_same_elsewhere(monkeypatch, train, TRUNCATED_OFTEN)
