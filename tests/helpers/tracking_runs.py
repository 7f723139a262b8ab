"""A made-up run for the tests of tracking."""

from dataclasses import replace
from pathlib import Path

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.tracking import RunInfo, Sink

OUTCOMES = ("target_crash", "self_crash", "collision", "timeout", "idle_stop", "target_finish")
STEPS_PER_UPDATE = 1000


def run_info(folder: Path, *, updates: int = 20, resume_step: int | None = None) -> RunInfo:
    """Facts of a run of `updates` updates in `folder`."""
    reported = results.standard_results(OUTCOMES, OUTCOMES[:1])
    spec = EnvSpec("f110", 1, (), 0.02, 750, reported, "success")
    config = {"seed": 3, "choices": {"env": "f110", "algo": "ppo"}}
    return RunInfo(folder, spec, updates * STEPS_PER_UPDATE, config, resume_step)


def member_info(folder: Path, variant: str, *, resume_step: int | None = None) -> RunInfo:
    """Facts of a run of a group, whose folder is in that of the group."""
    return replace(run_info(folder, resume_step=resume_step), group=folder.parent, variant=variant)


def write_updates(sink: Sink, first: int, last: int, *, curriculum: bool = False) -> None:
    """Writes updates `first` to `last`, both included, and an evaluation after every fourth."""
    for update in range(first, last + 1):
        step, success = update * STEPS_PER_UPDATE, update / 40
        shares = [success, *(share * (1 - success) for share in (0.5, 0.2, 0.2, 0.1, 0.0))]
        outcomes = {f"outcome/{name}": share for name, share in zip(OUTCOMES, shares, strict=True)}
        values = {"return": update - 10.5, "episode_length": 123.5, "success_rate": success}
        sink.write("train", step, {**values, **outcomes})
        sink.write("losses", step, {"policy_loss": -0.01, "value_loss": 1.0 / update, "entropy": 2.5})
        if curriculum:
            sink.write("curriculum", step, {"phase": update // 5, "phase_name": "pinch_left"})
        sink.write("time", step, {"steps_per_second": 12345.0})
        if update % 4 == 0:
            interval = {"success_low": success / 2, "success_high": success + 0.1}
            evaluation = {"avg_reward": 7.25, "avg_episode_length": 99.0, "success_rate": success}
            sink.write("eval_agg", step, {**evaluation, **interval, **outcomes})
        sink.flush()
