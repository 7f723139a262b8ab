"""The original's sizes on one GPU: batch, memory and network. Nothing is compiled."""

import math

import jax
import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.host import memory
from jaxmarl_echelon.training.program.program import make_program

GPU = 16e9  # bytes of the one with which the original's speed was measured
PARAMETERS = {"lstm": 664_476, "mingru": 270_748}  # 595,925 in the original, which has fewer actions


@pytest.fixture(scope="module", params=["lstm", "mingru"])
def run(request):
    """The configuration as it is composed, on one scene."""
    words = [
        "env=drive",
        "algo=ppo_rnn_drive",
        "env.scenes=sanity:straight",
        f"algo.core.kind={request.param}",
    ]
    composed, choices = command_line.compose_config(words)
    assert "tuning file drive/ppo_rnn_drive" in command_line.tuning_lines(composed, choices)[0]
    return build.build_run_config(composed)


@pytest.mark.thorough
def test_the_original_batch_fits_one_gpu_and_its_program_traces(run):
    algo, learners = run.algos["vehicle"], run.env.spec.role("vehicle").size
    assert run.num_envs * learners == 16384 and run.num_envs * learners * algo.horizon == 524288
    assert algo.minibatch_size == 32768 and algo.minibatch_size // algo.horizon == 1024
    program = make_program(run)
    world = program.world
    state = jax.eval_shape(lambda key, world: program.init(key, world=world), jax.random.key(0), world)
    parameters = sum(math.prod(x.shape) for x in jax.tree.leaves(state.policies["vehicle"].params))
    assert parameters == PARAMETERS[algo.core.kind]
    held = sum(memory.array_bytes(state, world).values())
    rollout = run.num_envs * learners * algo.horizon * program.env.view.size * 4
    assert held + 2 * rollout < GPU
    after, report = jax.eval_shape(lambda state, world: program.update(state, world=world), state, world)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, after)]
    assert shapes[0] == shapes[1] and "train/score_rate" in report.metrics
