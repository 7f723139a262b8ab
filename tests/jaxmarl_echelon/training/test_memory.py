"""The replay's memory is known before a run starts, and one that does not fit is refused."""

import jax.numpy as jnp
import pytest

from jaxmarl_echelon.command_line import compose_config, normalize_overrides
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.host import memory
from jaxmarl_echelon.training.host.compile import compile_program

SMALL = ("algo=sac", "env.lidar_beams=8", "env.max_steps=40", "num_envs=4", "algo.replay.capacity=4000")
GOAL = "env.goal={low: [-1.5, -0.4], high: [-1.0, 0.4], radius: 0.2, amount: 1.0}"


def read(*overrides):
    return build.build_run_config(compose_config(normalize_overrides([*SMALL, *overrides]))[0])


def test_hindsight_is_counted_where_the_environment_has_goals():
    without = memory.check_replay(read(GOAL))
    relabelled = memory.check_replay(read(GOAL, "algo.replay.hindsight_ratio=0.5"))
    assert relabelled > without > 4000 * 4 * 2 * 19
    assert memory.check_replay(read(GOAL), runs=3) == 3 * without


def test_a_replay_that_exceeds_memory_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda devices: 1_000_000)
    with pytest.raises(ValueError, match=r"for 2 runs, 0.00 GB are free") as caught:
        memory.check_replay(read("algo.replay.capacity=100000"), runs=2)
    assert "algo.replay.capacity" in str(caught.value) and "\n" not in str(caught.value)


def test_on_policy_learners_allocate_no_replay():
    config, _ = compose_config(["env.lidar_beams=8"])
    assert memory.check_replay(build.build_run_config(config)) == 0


def test_a_run_that_does_not_fit_is_refused_before_anything_is_compiled():
    asked = []

    def init(key, world):
        return {"reached": key + world}

    def refuse(state, world):
        asked.append((state["reached"].shape, world.shape))
        raise memory.MemoryPlanError("too much")

    def never(*_):
        raise AssertionError("traced")

    arguments, world = (jnp.zeros((3,)),), jnp.zeros((2, 1))
    with pytest.raises(memory.MemoryPlanError, match="too much"):
        compile_program(init, never, never, arguments, world, 1, admit=refuse)
    assert asked == [((2, 3), (2, 1))]


MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1440000 kB\nMemAvailable:    8800000 kB\n"


def machine(root, group, **files):
    """The part of a file system that tells of memory: `proc`, and control groups below `sys/fs/cgroup`."""
    texts = {"proc/meminfo": MEMINFO, "proc/self/cgroup": f"{group}\n"}
    for name, text in (texts | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_caches_of_files_count_as_free(tmp_path):
    assert memory.host_free_bytes(machine(tmp_path, "0::/")) == 8_800_000 * 1024


@pytest.mark.parametrize(
    ("group", "place", "limit", "used", "cached"),
    [
        ("0::/user/run", "sys/fs/cgroup/user", "max", "current", "inactive_file"),
        ("0::/", "sys/fs/cgroup", "max", "current", "inactive_file"),
        ("4:memory:/docker/ab", "sys/fs/cgroup/memory", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"),  # noqa: E501
    ],
    ids=["nested", "container", "version 1"],
)  # fmt: skip
def test_the_limit_of_a_container_counts(tmp_path, group, place, limit, used, cached):
    files = {
        f"{place}/memory.{limit}": "3000\n",
        f"{place}/memory.{used}": "2500\n",
        f"{place}/memory.stat": f"anon 7\n{cached} 400\n",
    }
    assert memory.host_free_bytes(machine(tmp_path, group, **files)) == 900
    files[f"{place}/memory.{limit}"] = "max\n"
    assert memory.host_free_bytes(machine(tmp_path, group, **files)) == 8_800_000 * 1024


def test_unknown_free_memory_is_not_guessed(tmp_path):
    assert memory.host_free_bytes(tmp_path) is None
