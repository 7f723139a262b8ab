"""Seeds and variants as one vmapped program, with a record for each."""

import json

import chex
import jax
import numpy as np
import probes
import pytest
from compiled_once import Once
from omegaconf import OmegaConf

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import checkpoints, command_line
from jaxmarl_echelon.curricula.base import fixed
from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.training import group, loop, variants
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.program import make_program


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
        curriculum=fixed,
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
    group.Member(f"{variant}_seed_{seed}", variant, configure(seed, gain), {"seed": seed})
    for variant, gain in (("baseline", 1.0), ("unpaid", 0.0))
    for seed in (3, 4)
]


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """The group is compiled once for all tests of this file."""
    with Once().installed():
        yield


def train(folder, resume=None, stop_after=None):
    folder.mkdir(exist_ok=True)
    tracker = Tracker({"csv": CsvSink()})
    return group.train_group(MEMBERS, {"seed": 3}, folder, tracker, resume, stop_after)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    return folder, train(folder)


def learners(folder, config, name):
    program = make_program(config)
    like = jax.eval_shape(program.init, jax.random.key(0))
    return checkpoints.restore(checkpoints.find(folder, name), like).policies


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_every_member_equals_the_single_run(trained, tmp_path, member):
    folder, together = trained
    tracker = Tracker({"csv": CsvSink()})
    alone = tmp_path / "alone"
    alone.mkdir()
    summary = loop.train(member.config, make_program(member.config), member.resolved, alone, tracker)
    chex.assert_trees_all_close(
        learners(folder / member.name, member.config, "latest"),
        learners(alone, member.config, "latest"),
        rtol=2e-4,
        atol=2e-5,
    )
    assert (
        checkpoints.metadata(checkpoints.find(folder / member.name, "best_eval"))["config"] == member.resolved
    )
    if member.variant == "baseline":  # whose task scores all variants of a group
        assert together["references"][member.name] == summary["references"]
    ours, single = ((f / "eval.csv").read_text().splitlines() for f in (folder / member.name, alone))
    assert ours[0] == single[0] and len(ours) == len(single) == 4


def test_the_summary_has_a_row_per_variant(trained):
    folder, summary = trained
    assert json.loads((folder / "summary.json").read_text()) == summary
    baseline, unpaid = summary["variants"]
    assert (baseline["name"], baseline["seeds"], unpaid["name"]) == ("baseline", 2, "unpaid")
    assert baseline["low"] <= baseline["success"] <= baseline["high"]


def test_a_resumed_group_equals_an_uninterrupted_one(trained, tmp_path):
    whole, _ = trained
    halved = tmp_path / "halved"
    assert train(halved, stop_after=3)["status"] == "stopped"
    assert train(halved, resume=checkpoints.find(halved, "latest"))["status"] == "finished"
    for member in MEMBERS:
        for name in ("latest", "best_eval"):
            chex.assert_trees_all_equal(
                learners(halved / member.name, member.config, name),
                learners(whole / member.name, member.config, name),
            )
        assert (halved / member.name / "eval.csv").read_text() == (
            whole / member.name / "eval.csv"
        ).read_text()


def compose(*overrides):
    return command_line.compose_config(command_line.plain(["env.lidar_beams=8", *overrides]))


def test_members_of_seeds_and_ablations():
    config, choices = compose("seeds=2", "seed=5", "ablate=reward.pressure,reward.forcing")
    members = variants.members(config, choices)
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
    _, mild = variants.members(config, choices)
    assert float(mild.config.env.default_params().reward["pressure"]["bonus"]) == pytest.approx(0.01)
    assert OmegaConf.create(mild.resolved).reward.components.pressure.bonus == 0.01


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
        ("variants.odd={reward.nowhere: 1}", "variants.odd: reward.nowhere is no key"),
        ("variants.odd={env.lidar_beams: 9}", "env.lidar_beams=9: changes more than numbers"),
        ("variants.odd={env.lidar_max_range: 9.0}", "env.lidar_max_range=9.0: is the same, or no number"),
        ("variants.odd={algo.gamma: 0.9}", "algo.gamma=0.9: only env, reward, curriculum may differ"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(override, message):
    config, choices = compose(override)
    with pytest.raises(ValueError) as caught:
        variants.members(config, choices)
    assert message in str(caught.value) and "\n" not in str(caught.value)
