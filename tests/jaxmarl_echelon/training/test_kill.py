"""A run that is killed at any moment leaves checkpoints that can be read and continued."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from marked import thorough

from jaxmarl_echelon import checkpoints

RUN = """
import sys
from pathlib import Path

import probes
from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.command_line import use_compilation_cache
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.training.host import loop
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.program.program import make_program

use_compilation_cache()
folder = Path(sys.argv[1])
config = RunConfig(
    env=probes.TimeLimit(horizon=5),
    algo=PPOConfig(horizon=4, epochs=1, num_minibatches=1, widths=(64, 64)),
    curriculum=constant_curriculum,
    total_env_steps=10**9,
    num_envs=8,
    eval_every=1,
    eval_episodes=4,
    checkpoint_every=1,
    window=8,
    episode_rows=8,
)
begun = (folder / "checkpoints" / "latest").exists()
resume = checkpoints.find_checkpoint(folder, "latest") if begun else None
print("ready", flush=True)
loop.train_run(config, make_program(config), {"seed": 0}, folder, Tracker({}), resume)
"""


# The same protocol without a run: checkpoints of a few arrays, as fast as they can be written.
WRITER = """
import sys
from pathlib import Path

import numpy as np

from jaxmarl_echelon import checkpoints

folder = Path(sys.argv[1])
begun = (folder / "checkpoints" / "latest").exists()
step = checkpoints.read_metadata(checkpoints.find_checkpoint(folder, "latest"))["step"] if begun else 0
print("ready", flush=True)
while True:
    step += 32
    state = {"updates": np.int32(step // 32), "weights": np.full((200, 1000), step, np.float32)}
    facts = {"step": step, "updates": step // 32}
    checkpoints.save_checkpoint(folder / "checkpoints", ("latest", "best_eval"), state, facts)
"""


@pytest.mark.parametrize(
    ("script", "prefix", "kills"), [thorough(RUN, ".updates", 2), (WRITER, "['updates']", 4)]
)
def test_kills_at_random_moments(script, prefix, kills, tmp_path, repository):
    moments = random.Random(0)
    environment = os.environ | {"PYTHONPATH": str(repository / "tests" / "helpers")}
    steps = [0]
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            cwd=repository,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline().strip() == "ready"
        _wait_for_a_later_checkpoint(tmp_path, steps[-1], process)
        time.sleep(moments.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = checkpoints.find_checkpoint(tmp_path, "latest")
        facts = checkpoints.read_metadata(found)
        saved = checkpoints.restore_state(found, jax.ShapeDtypeStruct((), "int32"), prefix=prefix)
        assert int(saved) == facts["updates"]
        if script is WRITER:
            like = jax.ShapeDtypeStruct((200, 1000), "float32")
            assert (checkpoints.restore_state(found, like, prefix="['weights']") == facts["step"]).all()
        steps.append(facts["step"])
    assert all(later > earlier for earlier, later in itertools.pairwise(steps))


def _wait_for_a_later_checkpoint(folder: Path, step: int, process) -> None:
    for _ in range(1200):
        assert process.poll() is None, "the run ended by itself"
        try:
            if checkpoints.read_metadata(checkpoints.find_checkpoint(folder, "latest"))["step"] > step:
                return
        except checkpoints.CheckpointError:
            pass
        time.sleep(0.05)
    raise AssertionError("no checkpoint within a minute")
