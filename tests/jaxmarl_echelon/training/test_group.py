"""Seeds and variants as one vmapped program, with a record for each."""

import contextlib
import csv
import dataclasses
import functools
import json
import math
import sys

import chex
import jax
import numpy as np
import probes
import pytest
from compiled_once import Once
from fake_packages import FakeMlflow, FakeWandb
from marked import thorough
from omegaconf import OmegaConf
from tracking_runs import run_info

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import actor_scores, checkpoints, command_line
from jaxmarl_echelon.config_keys import plain_config
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.tracking.mlflow_sink import MlflowSink
from jaxmarl_echelon.tracking.panels.curriculum import collect_criteria
from jaxmarl_echelon.tracking.view import RunView
from jaxmarl_echelon.tracking.wandb_sink import MEAN, WandbSink
from jaxmarl_echelon.training.acting.random_streams import Stream, run_key, stream_key
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import group_members, loop, reference_scores, variants, vectorized_runs
from jaxmarl_echelon.training.host.compile import compile_program
from jaxmarl_echelon.training.program.program import make_program


class Paid(probes.Credit):
    """A probe whose reward is scaled by a number of the task."""

    references = {probes.ROLE: ("lazy",)}

    def __init__(self, gain):
        self.gain = gain
        self.scripts = {
            "lazy": ScriptedPolicy(tuple, lambda key, memory, *_: (memory, np.zeros(2, np.int32)))
        }

    def default_params(self):
        return super().default_params() | {"gain": np.float32(self.gain)}


def configure(seed=0, gain=1.0, updates=4):
    return RunConfig(
        env=Paid(gain),
        algo=PPOConfig(horizon=8, epochs=2, num_minibatches=2, widths=(16,), learning_rate=1e-2),
        curriculum=constant_curriculum,
        total_env_steps=updates * 8 * 8,
        num_envs=8,
        seed=seed,
        eval_every=2,
        eval_episodes=8,
        checkpoint_every=2,
        window=16,
        episode_rows=16,
    )


MEMBERS = [
    group_members.Member(f"{variant}_seed_{seed}", variant, configure(seed, gain), {"seed": seed})
    for variant, gain in (("baseline", 1.0), ("unpaid", 0.0))
    for seed in (3, 4)
]


# The group is compiled once for all tests of this file.
ONCE = Once()


def train(folder, resume=None, stop_after=None, sinks=None, compiled_by=ONCE.compile):
    folder.mkdir(exist_ok=True)
    tracker = Tracker({"csv": CsvSink(), **(sinks or {})})
    shared = {"program": ONCE.program(MEMBERS[0].config), "compiled_by": compiled_by}
    return vectorized_runs.train_group(MEMBERS, {"seed": 3}, folder, tracker, resume, stop_after, **shared)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    return folder, train(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder and the summary of the first member's single run, and the program that it has compiled."""
    member, folder, compiled = MEMBERS[0], tmp_path_factory.mktemp("alone"), []
    program = make_program(member.config)

    def kept(*given):
        compiled.append(compile_program(*given))
        return compiled[0]

    tracker = Tracker({"csv": CsvSink()})
    summary = loop.train_run(member.config, program, member.resolved, folder, tracker, compiled_by=kept)
    return folder, summary, program._replace(init=jax.jit(program.init), update=compiled[0].chunk)


@pytest.fixture(scope="module")
def programs(alone):
    """Each variant's own program, compiled."""
    (other,) = {member.config.env.gain for member in MEMBERS if member.variant == "unpaid"}
    unpaid = make_program(configure(gain=other))
    return {
        "baseline": alone[2],
        "unpaid": unpaid._replace(init=jax.jit(unpaid.init), update=jax.jit(unpaid.update)),
    }


@functools.cache
def shapes():
    return jax.eval_shape(make_program(MEMBERS[0].config).init, jax.random.key(0)).policies[probes.ROLE]


@functools.cache
def learner(folder, name):
    """The learner's state in a checkpoint."""
    return checkpoints.restore_state(
        checkpoints.find_checkpoint(folder, name), shapes(), f".policies[{probes.ROLE!r}]"
    )


@pytest.mark.parametrize(
    "member", [*MEMBERS[:2], *map(thorough, MEMBERS[2:])], ids=lambda member: member.name
)
def test_every_member_equals_the_single_run(trained, programs, member):
    folder, together = trained
    program = programs[member.variant]
    run = program.init(run_key(member.config.seed))
    for _ in range(member.config.updates):
        run, _ = program.update(run)
    chex.assert_trees_all_close(
        learner(folder / member.name, "latest"), run.policies[probes.ROLE], rtol=2e-4, atol=2e-5
    )
    assert (
        checkpoints.read_metadata(checkpoints.find_checkpoint(folder / member.name, "best_eval"))["config"]
        == member.resolved
    )
    if member.variant == "baseline":  # whose task scores all variants of a group
        key = stream_key(member.config.seed, Stream.EVALUATION)
        assert together["references"][member.name] == reference_scores.score_references(
            program, program.policy(run), key
        )


def test_a_member_leaves_what_a_single_run_leaves(trained, alone):
    (folder, together), (other, summary, _), name = trained, alone, MEMBERS[0].name
    assert together["references"][name] == summary["references"]
    chex.assert_trees_all_close(
        learner(folder / name, "latest"), learner(other, "latest"), rtol=2e-4, atol=2e-5
    )
    single = (other / "eval.csv").read_text().splitlines()
    for member in MEMBERS:
        ours = (folder / member.name / "eval.csv").read_text().splitlines()
        assert ours[0] == single[0] and len(ours) == len(single) == 4


def test_the_summary_has_a_row_per_variant(trained):
    folder, summary = trained
    assert json.loads((folder / "summary.json").read_text()) == summary
    baseline, unpaid = summary["variants"]
    assert (baseline["name"], baseline["seeds"], unpaid["name"]) == ("baseline", 2, "unpaid")
    assert baseline["low"] <= baseline["success"] <= baseline["high"]


def test_checkpoints_of_a_variant_name_the_one_on_whose_task_it_was_scored(trained):
    folder, _ = trained
    facts = {
        member.variant: checkpoints.read_metadata(
            checkpoints.find_checkpoint(folder / member.name, "best_eval")
        )
        for member in MEMBERS
    }
    assert facts["baseline"]["scored_on"] is None and facts["unpaid"]["scored_on"] == "baseline"
    said = {name: actor_scores.compare_scores(one, one["scores"]) for name, one in facts.items()}
    assert said["baseline"].endswith("reproduced exactly") and said["unpaid"].endswith("task of baseline")


def test_a_resumed_group_equals_an_uninterrupted_one(trained, tmp_path):
    whole, _ = trained
    halved = tmp_path / "halved"
    assert train(halved, stop_after=3)["status"] == "stopped"
    # Members can be evaluated where a group was stopped.
    steps = [
        checkpoints.read_metadata(checkpoints.find_checkpoint(at, "latest"))["step"]
        for at in (halved, *(halved / member.name for member in MEMBERS))
    ]
    assert len(set(steps)) == 1
    assert train(halved, resume=checkpoints.find_checkpoint(halved, "latest"))["status"] == "finished"
    for member in MEMBERS:
        for name in ("latest", "best_eval"):
            chex.assert_trees_all_equal(
                learner(halved / member.name, name), learner(whole / member.name, name)
            )
        assert (halved / member.name / "eval.csv").read_text() == (
            whole / member.name / "eval.csv"
        ).read_text()


def rows(path):
    return list(csv.DictReader(path.open()))


def test_members_that_have_diverged_are_in_no_mean_also_after_a_resume(tmp_path):
    """Their policies still act, by the first action, and single runs would have stopped."""

    def boundless(*given):
        """With rewards of the second member whose square no number holds."""
        compiled = ONCE.compile(*given)
        state = compiled.init()
        learner = state.policies[probes.ROLE]
        scale = {"reward_scale": learner.hyper["reward_scale"].at[1].set(1e30)}
        learner = learner.replace(hyper=learner.hyper | scale)
        return compiled._replace(init=lambda: state.replace(policies={probes.ROLE: learner}))

    folder, gone = tmp_path / "group", MEMBERS[1].name
    assert train(folder, stop_after=2, compiled_by=boundless)["diverged"] == [gone]
    summary = train(folder, resume=checkpoints.find_checkpoint(folder, "latest"))
    assert summary["diverged"] == [gone] and [row["seeds"] for row in summary["variants"]] == [1, 2]
    assert sorted(summary["references"]) == sorted(member.name for member in MEMBERS if member.name != gone)
    ends = [[one["status"], one["env_steps"], one["updates"]] for one in summary["members"].values()]
    assert ends.pop(1) == ["diverged", 0, 0] and ends == [["finished", summary["env_steps"], ends[0][2]]] * 3
    own = {member.name: rows(folder / member.name / "eval.csv") for member in MEMBERS}
    assert [len(table) for table in own.values()] == [3, 1, 3, 3]
    assert len(rows(folder / gone / "metrics.csv")) == 1
    for index, row in enumerate(rows(folder / "eval.csv")):
        found = [float(table[index]["avg_reward"]) for table in own.values() if index < len(table)]
        assert float(row["avg_reward"]) == pytest.approx(np.mean(found))


def test_every_member_is_a_run_of_its_own_in_wandb(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandb())
    folder = tmp_path / "group"
    assert train(folder, stop_after=2, sinks={"wandb": WandbSink()})["status"] == "stopped"
    mean, *own = fake.runs
    assert [run.given["name"] for run in own] == [f"group/{member.name}" for member in MEMBERS]
    assert [run.given["job_type"] for run in own] == [member.variant for member in MEMBERS]
    assert (mean.given["name"], mean.given["job_type"]) == ("group", MEAN)
    assert {run.given["group"] for run in fake.runs} == {"group"}
    returns = [row["train/return"] for _, row in own[0].rows if "train/return" in row]
    rows = list(csv.DictReader((folder / MEMBERS[0].name / "metrics.csv").open()))
    assert returns == [float(row["train/return"]) for row in rows] and len(returns) == 2
    known = [run.given["id"] for run in fake.runs]
    latest = checkpoints.find_checkpoint(folder, "latest")
    train(folder, resume=latest, sinks={"wandb": WandbSink(group="mine")})
    again = fake.runs[len(known) :]
    assert [run.given["id"] for run in again] == known and len(set(known)) == 1 + len(MEMBERS)
    assert {run.given["group"] for run in again} == {"mine"} and {run.ended for run in fake.runs} == {1}


def test_members_send_their_numbers_while_the_group_goes_on(tmp_path, monkeypatch):
    """Not only at its end, which a killed process does not reach."""
    monkeypatch.setitem(sys.modules, "mlflow", fake := FakeMlflow())
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    assert train(tmp_path / "group", stop_after=2, sinks={"mlflow": MlflowSink()})["status"] == "stopped"
    # Once per update, and what is left at the end.
    calls = {run.calls for run in fake.runs.values()}
    assert len(fake.runs) == 1 + len(MEMBERS) and min(calls) >= 2


def compose(*overrides):
    return command_line.compose_config(command_line.normalize_overrides(["env.lidar_beams=8", *overrides]))


def test_members_of_seeds_and_ablations():
    config, choices = compose("seeds=2", "seed=5", "ablate=reward.pressure,reward.forcing")
    members = variants.expand_members(config, choices)
    assert [m.name for m in members] == [
        "baseline_seed_5", "baseline_seed_6",
        "without_pressure_seed_5", "without_pressure_seed_6",
        "without_forcing_seed_5", "without_forcing_seed_6",
    ]  # fmt: skip

    def weights(member):
        params = member.config.env.default_params().reward
        return {name: float(numbers["weight"]) for name, numbers in params.items()}

    assert set(weights(members[0]).values()) == {1.0}
    assert {n for n, w in weights(members[2]).items() if w == 0} == {"pressure"}
    assert {n for n, w in weights(members[4]).items() if w == 0} == {"pinch", "clearance", "turn"}
    assert members[3].config.seed == 6 and members[3].resolved["seeds"] is None


def test_variants_change_any_number():
    config, choices = compose("variants.mild={reward.components.pressure.bonus: 0.01}")
    _, mild = variants.expand_members(config, choices)
    assert float(mild.config.env.default_params().reward["pressure"]["bonus"]) == pytest.approx(0.01)
    assert OmegaConf.create(mild.resolved).reward.components.pressure.bonus == 0.01


def test_the_discount_of_potentials_follows_the_learners():
    missions = ["env=echelon_missions_small", "tuning=none"]
    config, _ = command_line.compose_config(missions)
    assert variants.following_changes(config, {"algo.gamma": 0.5}) == {"env.gamma": 0.5}
    assert variants.following_changes(config, {"algo.clip": 0.1}) == {}
    assert variants.following_changes(config, {"algos.blue.gamma": 0.5}) == {"env.gamma": 0.5}
    fixed, _ = command_line.compose_config([*missions, "env.gamma=0.9"])
    assert variants.following_changes(fixed, {"algo.gamma": 0.5}) == {}


def test_settings_of_the_task_follow_the_learners_numbers_of_a_variant():
    bonus = "reward.components.pressure.bonus"
    typed = ["variants={hasty: {algo.gamma: 0.5}}", f"{bonus}=${{algo.gamma}}"]
    config, choices = compose(*typed)
    _, hasty = variants.expand_members(config, choices)
    assert float(hasty.config.env.default_params().reward["pressure"]["bonus"]) == 0.5
    assert hasty.changes == {"algo.gamma": 0.5, bonus: 0.5}
    assert OmegaConf.select(OmegaConf.create(hasty.resolved), bonus) == 0.5
    assert group_members.name_scored_task(hasty, "baseline") == "baseline"
    config, choices = compose("seeds=2", "pbt={every: 1, keys: [algo.gamma]}", typed[1])
    with pytest.raises(ValueError) as caught:
        variants.plan_population(config, variants.expand_members(config, choices))
    assert str(caught.value) == f"pbt.keys=algo.gamma: {bonus} follows it and must not change; set {bonus}"


def test_settings_that_follow_the_learners_do_so_in_a_resumed_run():
    """Saved configurations have the numbers, for those who read them, and what they follow."""
    config, choices = command_line.compose_config(["env=echelon_missions_small", "tuning=none"])
    saved = plain_config(config, choices)
    before = build.read_saved_config({"config": saved})
    after, _ = command_line.apply_overrides(before, choices, ["algo.gamma=0.5"])
    assert (saved["env"]["gamma"], before.env.gamma, after.env.gamma) == (0.99, 0.99, 0.5)
    assert plain_config(before, choices) == saved | {
        key: value for key, value in build.PLACE.items() if key not in saved
    }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeds=0", "seeds=0: must be a whole number of at least 1"),
        ("seeds=[1,1]", "list of different seeds"),
        ("ablate=pressure", "ablate=pressure: must be reward.COMPONENT"),
        (
            "ablate=reward.kindness",
            "no such part of this reward; allowed: reward.terminal, ",
        ),
        ("variants.checkpoints={algo.gamma: 0.5}", "variants.checkpoints: must have another name"),
        ("variants.odd={reward.nowhere: 1}", "variants.odd: reward.nowhere is no key"),
        ("variants.odd={env.lidar_beams: 9}", "env.lidar_beams=9: changes more than numbers"),
        ("variants.odd={env.lidar_max_range: 9.0}", "env.lidar_max_range=9.0: is the same, or no number"),
        ("variants.odd={env.car.length: 0.4}", "'env.car.length': 0.4}: changes more than numbers"),
        ("variants.odd={env: {car: {length: 0.4}}}", "changes more than numbers"),
        ("variants.odd={num_envs: 9}", "num_envs=9: only env, reward, curriculum, algo, algos may differ"),
        ("variants.odd={algo.epochs: 9}", "algo.epochs=9: must be a number of the learner's state: algo."),
        ("variants.odd={algo.clip: 0.2}", "algo.clip=0.2: is the same as without"),
        ("variants.odd={algo.gamma: 2}", "gamma=2: must be"),
        ("variants.odd={algos.defender.gamma: 0.9}", "algos.defender: not a learner of this run"),
    ],
)
def test_invalid_groups_are_refused_in_one_line(override, message):
    config, choices = compose(override)
    with pytest.raises(ValueError) as caught:
        variants.expand_members(config, choices)
    assert message in str(caught.value) and "\n" not in str(caught.value)


DRIVE = ["env=drive", "env.maps=2", "env.eval_maps=1", "env.cache=null", "env.agents=2", "num_envs=4"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["env=textgames/kuhn", "sweep={env.opponent: [random,perfect]}"],
            "env.opponent=perfect: is the same, or no number",
        ),
        (["env.lidar_beams=8", "sweep={env.steering_delay: [1,2]}"], "is the same, or no number"),
        (
            ["env.lidar_beams=8", "curriculum=spawn", "sweep={curriculum.ema_alpha: uniform(.01,.5)}"],
            "is the same, or no number",
        ),
        # The criteria belong to the rules, which the runs share; the tasks of the phases would differ.
        (
            [
                *("env.lidar_beams=8", "curriculum=phased13"),
                "variants={b: {curriculum.common: {settings: {lock_steps: 7}, criteria: {patience: 999}}}}",
            ],
            "changes more than numbers",
        ),
        # Every learner draws the weight: the run without the component would pay it, too.
        (
            [*DRIVE, "env.scenes=sanity:two_agents", "env.condition=[collision]", "ablate=reward.collision"],
            "reward.components.collision.weight=0.0: is the same, or no number",
        ),
        # The bank's held-out scenes follow those of training.
        ([*DRIVE, "env.kinds={crossing: 1}", "variants={more: {env.maps: 3}}"], "changes more than numbers"),
    ],
    ids=["names", "delay", "curriculum", "criteria", "drawn", "scenes"],
)
def test_settings_of_the_program_are_refused(overrides, message):
    typed = [*overrides, "tuning=none", *(["samples=2"] if "sweep" in overrides[-1] else [])]
    config, choices = command_line.compose_config(command_line.normalize_overrides(typed))
    with pytest.raises(ValueError) as caught:
        variants.expand_members(config, choices)
    assert message in str(caught.value) and "\n" not in str(caught.value)


class Paying(Paid):
    """Stages may change what is paid."""

    def task_params(self, settings):
        return self.default_params() | {name: np.float32(value) for name, value in settings.items()}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"settings": {"gain": 3.0}}, False),
        ({"settings": {"gain": 3.0}, "criteria": {"success_rate": 0.2}}, True),
        ({"settings": {"gain": 3.0}, "mixture": {"rehearsal": 0.1}}, True),
        ({"settings": {"gain": 3.0}, "name": "other"}, True),
    ],
    ids=["task", "criteria", "mixture", "name"],
)
def test_variants_of_a_curriculum_change_its_tasks_alone(changes, refused):
    """All members share the rules of the base, in which other criteria would be ignored."""

    def staged(stage):
        table = [{"name": "first", "settings": {"gain": 1.0}}, {"name": "second", **stage}]
        curriculum = functools.partial(phased_curriculum, phases=table)
        return dataclasses.replace(configure(), env=Paying(1.0), curriculum=curriculum)

    base, other = staged({"settings": {"gain": 2.0}}), staged({"name": "second", **changes})
    with pytest.raises(ValueError, match="more than numbers") if refused else contextlib.nullcontext():
        variants.require_same_rules("variants.other", variants.trace_rules(base), other)


def test_a_drawn_number_may_be_rounded_to_that_of_the_base():
    noise = "sweep={env.lidar_noise: [0.01,0.010000000001,0.02]}"
    config, choices = compose("tuning=none", "env.lidar_noise=0.01", noise, "samples=3")
    assert len(variants.expand_members(config, choices)) == 3


def test_means_are_of_whatever_any_member_reports():
    """An evaluation's groups that did not occur in the first member occurred in another."""
    results = [{}, {"score": 0.5, "name": "one"}, {"score": 1.0, "task/hill": 0.25, "loss": math.nan}]
    found = group_members.mean_values(results)
    assert found == pytest.approx({"score": 0.75, "task/hill": 0.25, "loss": math.nan}, nan_ok=True)


def test_a_group_does_not_go_on_showing_a_criterion_that_no_member_has_any_more(tmp_path):
    """Both members have left the only phase with patience: the mean of that phase must not stay."""
    view = RunView(run_info(tmp_path), 0.0)
    for step, patience in ((1_000, [400.0, 200.0]), (2_000, [math.nan, 200.0]), (3_000, 2 * [math.nan])):
        members = [{"patience": one, "episodes_in_stage": 500.0} for one in patience]
        view.write("curriculum", step, group_members.mean_values(members), 0.0)
    assert [one.name for one in collect_criteria(view)] == ["episodes"]
