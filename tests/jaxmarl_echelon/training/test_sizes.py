"""Settings derived from others on the command line: sizes of segments, and the precision of a run."""

import sys

import pytest

from jaxmarl_echelon import command_line, train
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.host import loop

pytestmark = pytest.mark.needs("gymnax")

MEMORY = ("algo=ppo_rnn", "env=gymnax/MemoryChain-bsuite", "num_envs=8")
TWO = ("env=f110", "controllers.defender=learner")


def read(*overrides):
    config, _ = command_line.compose_config(command_line.normalize_overrides(overrides))
    return build.build_run_config(config)


def test_horizon_follows_from_the_batch_and_the_batch_from_the_horizon():
    run = read(*MEMORY, "algo.horizon=auto", "algo.batch_size=512", "algo.segments_per_agent=4")
    assert (run.algo.horizon, run.horizon, run.steps_per_update) == (16, 64, 512)
    run = read(*MEMORY, "algo.horizon=16", "algo.batch_size=auto")
    assert build.update_sizes_of_learners(run)["player"].batch_size == 128


def test_a_role_has_sizes_of_its_own():
    sizes = ("algo.segments_per_agent=1", "algo.horizon=auto", "algo.batch_size=128")
    run = read(*TWO, *MEMORY[::2], *sizes, "algos.defender.horizon=16", "algos.defender.batch_size=auto")
    assert [algo.horizon for algo in run.algos.values()] == [16, 16]
    assert run.algos["defender"].batch_size is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("algo.horizon=auto", "algo.batch_size=100"),
            r"batch_size=100: must be a multiple of segments_per_agent \* agents = 1 \* 8; nearest: 96, 104",
        ),
        (("algo.horizon=auto",), "batch_size=auto: cannot be auto together with horizon=auto"),
        (("algo.horizon=auto", "algo.batch_size=many"), "batch_size=many: must be a whole number"),
        (("algo.horizon=auto", "algo.batch_size=64", "num_envs=0"), "num_envs=0: must be a whole number"),
        (("algo=ppo", "algo.horizon=auto"), "horizon=auto: must be a whole number"),
        (("algo=a2c", "algo.horizon=auto"), "horizon=auto: must be a whole number"),
        (("precision=fp8",), "precision=fp8: must be float32 or bf16$"),
        (("compilation=quik",), "compilation=quik: unknown; allowed: full, quick"),
    ],
)
def test_sizes_that_cannot_be_derived_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        read(*MEMORY, *overrides)


def test_precision_reaches_every_learner():
    assert read(*MEMORY, "precision=bf16").algo.compute_dtype == "bf16"
    run = read(*TWO, "algo=tqc", "+algo@algos.defender=sac", "precision=bf16")
    assert {type(algo).__name__: algo.compute_dtype for algo in run.algos.values()} == {
        "TQCConfig": "bf16",
        "SACConfig": "bf16",
    }
    run = read(*TWO, "algos.defender.compute_dtype=float32", "precision=bf16")
    assert [algo.compute_dtype for algo in run.algos.values()] == ["bf16", "float32"]


def test_the_plan_is_shown_before_a_run_whose_precision_can_be_changed_later(monkeypatch, capsys, tmp_path):
    auto = (
        "algo.horizon=auto",
        "algo.batch_size=128",
        "algo.epochs=1",
        "precision=bf16",
        "tracking=quiet",
        f"output_dir={tmp_path}",
    )
    kept = []

    def begin(run, program, resolved, *rest, **where):
        kept.append(resolved)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "train_run", begin)
    monkeypatch.setattr(sys, "argv", ["train", *MEMORY, *auto])
    with pytest.raises(KeyboardInterrupt):
        command_line.run_guarded(train.main)
    shown = capsys.readouterr().out
    for name, value in (("horizon", "16"), ("batch_size", "128"), ("gradient_steps", "4")):
        (row,) = [line for line in shown.splitlines() if line.split()[1:2] == [name]]
        assert value in row.split()
    config = build.read_saved_config({"config": kept[0]})
    assert build.build_run_config(config).algo.compute_dtype == "bf16"
    command_line.set_value(config, "precision", "float32")
    assert build.build_run_config(config).algo.compute_dtype == "float32"
    del config.precision
    config.algo.compute_dtype = "bfloat16"
    assert build.build_run_config(config).algo.compute_dtype == "bfloat16"
