"""Threads of XLA: one for small runs."""

import re

import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.host import threads


def composed(*overrides):
    return command_line.compose_config(list(overrides))[0]


@pytest.mark.parametrize(
    ("overrides", "small"),
    [
        (["env=gymnax/CartPole-v1"], True),
        (["env=gymnax/CartPole-v1", "algo=a2c"], True),
        (["env=gymnax/CartPole-v1", "num_envs=64"], False),
        (["env=gymnax/CartPole-v1", "algo.value_widths=[256,256]"], False),
        (["env=gymnax/CartPole-v1", "algo=ppo_rnn", "num_envs=32"], False),
        (
            [
                "env=gymnax/CartPole-v1",
                "algo=ppo_rnn",
                "algo.core.width=32",
                "algo.widths=[32]",
                "num_envs=4",
            ],
            True,
        ),
        (
            [
                "env=gymnax/CartPole-v1",
                "algo=ppo_rnn",
                "algo.core.width=32",
                "algo.widths=[32]",
                "algo.head_widths=[1024]",
                "num_envs=4",
            ],
            False,
        ),
        (["env=gymnax/Pendulum-v1", "algo=sac"], True),
        (["env=gymnax/Pendulum-v1", "algo=sac", "algo.batch_size=1024"], False),
        (["env=f110"], False),
        (["env=textgames/kuhn", "algo=reinforce_lm", "num_envs=8"], False),
    ],
)
def test_runs_of_few_numbers_are_small(overrides, small):
    assert threads.is_small_run(composed(*overrides), 1) is small


def test_members_of_a_group_are_counted():
    config = composed("env=gymnax/CartPole-v1")
    assert not threads.is_small_run(config, 8)


@pytest.mark.parametrize(
    ("overrides", "before", "after"),
    [
        ([], None, "1"),
        ([], "3", "3"),
        (["threads=4"], None, "4"),
        (["threads=4"], "3", "3"),
        (["num_envs=1024"], None, None),
    ],
)
def test_the_environment_variable_wins(overrides, before, after, monkeypatch):
    monkeypatch.setattr(threads.os, "environ", {} if before is None else {"NPROC": before})
    monkeypatch.setattr(threads, "find_spec", lambda name: None)
    threads.provide_threads(composed("env=gymnax/CartPole-v1", *overrides), 1)
    assert threads.os.environ.get("NPROC") == after


def test_a_machine_with_other_devices_keeps_all_threads(monkeypatch):
    monkeypatch.setattr(threads.os, "environ", {})
    monkeypatch.setattr(threads, "find_spec", lambda name: name == "jax_plugins" or None)
    threads.provide_threads(composed("env=gymnax/CartPole-v1"), 1)
    assert not threads.os.environ


@pytest.mark.parametrize("value", ["0", "2.5", "all"])
def test_other_values_are_refused(value):
    message = f"threads={value}: must be a whole number of at least 1 or null"
    with pytest.raises(ValueError, match=re.escape(message)):
        threads.provide_threads(composed(f"threads={value}"), 1)
