"""Population based training: selection and variation, and groups that are trained by it."""

import csv
import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from compiled_once import Once

from algos.on_policy.ppo import PPOConfig
from algos.types import ActionSpec
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.config.population_settings import AdaptedNumber, PopulationSettings
from jaxmarl_echelon.training.host import group_members, vectorized_runs
from jaxmarl_echelon.training.host.run_record import RunProgress, RunRecord
from jaxmarl_echelon.training.program import population
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.program.update import Report

RATE = AdaptedNumber("algo.learning_rate", (probes.ROLE,), "learning_rate", 1e-4, 1.0)
GAMMA = AdaptedNumber("algo.gamma", (probes.ROLE,), "gamma", 0.0, 1.0)


def test_the_worst_copy_one_of_the_best_and_nobody_else():
    scores = jnp.array([0.9, 0.1, 0.5, 0.8, 0.2, 0.6, 0.55, 0.3])
    found = [population.select_parents(jax.random.key(i), scores, 0.25) for i in range(20)]
    parents = np.stack(found)
    assert set(parents[:, 1]) | set(parents[:, 4]) == {0, 3}
    assert (np.delete(parents, (1, 4), axis=1) == np.delete(np.arange(8), (1, 4))).all()


def test_equal_and_unknown_scores_change_nothing_and_broken_members_are_replaced():
    alone = np.arange(4)
    for scores in ([0.5] * 4, [jnp.nan] * 4, [jnp.nan, 0.5, jnp.nan, 0.5]):
        np.testing.assert_array_equal(
            population.select_parents(jax.random.key(0), jnp.array(scores), 0.5), alone
        )
    ranks = population.rank_members(
        jnp.array([[0.5, 0.5, 0.25, jnp.nan, -jnp.inf], [1.0, 2.0, 9.0, 1.0, 5.0]])
    )
    np.testing.assert_array_equal(ranks, [2, 3, 1, np.nan, -np.inf])
    broken = jnp.array([0.2, -jnp.inf, jnp.nan, 0.1])
    np.testing.assert_array_equal(population.select_parents(jax.random.key(0), broken, 0.25), [0, 0, 2, 3])


def test_numbers_are_multiplied_within_their_range():
    factors = (0.5, 2.0)
    rates = population.perturb_number(jax.random.key(0), jnp.full(64, 0.1), RATE, factors)
    assert set(np.unique(rates)) == set(np.float32([0.05, 0.2]))
    assert population.perturb_number(jax.random.key(1), jnp.ones((8, 3)), RATE, factors).max() == 1.0
    gammas = population.perturb_number(jax.random.key(0), jnp.full((64, 2), 0.99), GAMMA, factors)
    assert np.unique(gammas) == pytest.approx([0.98, 0.995], abs=1e-6)
    assert (gammas[:, 0] == gammas[:, 1]).all()


def test_a_member_that_replaces_a_broken_learner_keeps_nothing_of_what_that_remembered():
    agent = PPOConfig(horizon=2, widths=(2,)).make((1,), ActionSpec("discrete", (2,)), updates=1)
    one = jax.tree.map(lambda x: jnp.stack([x, x]), agent.init(jax.random.key(0)))
    broken = jax.tree.map(lambda x: x.at[1].set(jnp.nan), one.params)
    unused = dict.fromkeys(RunState.__dataclass_fields__)
    told = {"carry": jnp.array([[1.0, jnp.nan], [jnp.nan, 2.0]]), "nearest": jnp.full((2, 1), jnp.inf)}
    mine = {"policies": {probes.ROLE: one.replace(params=broken)}, "recent": jnp.zeros(2)}
    runs = RunState(**unused | mine | {"memories": told, "updates": jnp.ones(2, jnp.int32)})
    settings = PopulationSettings(every=1, keys=("algo.learning_rate",), exploit=0.5)
    group = population.Population(settings, (RATE,), 1, jax.random.split(jax.random.key(3), 1), ("score",))
    after, lineage = population.exchange_learners(
        group, {probes.ROLE: agent}, runs, {"score": jnp.array([0.5, jnp.nan])}
    )
    np.testing.assert_array_equal(lineage["parent"], [0, 0])
    np.testing.assert_array_equal(after.memories["carry"], [[1.0, np.nan], [0.0, 2.0]])
    np.testing.assert_array_equal(after.memories["nearest"], told["nearest"])


def ascend(exchanges, steps=40):
    """Climbs on surrogates of `1.2 - x^2 - y^2` with own weights (Jaderberg et al. 2017, section 4.1).

    Each of two members moves one coordinate only, so that its best value alone is 1.2 - 0.81. Copies keep
    their own weights ("exploit only" in the paper's figure 2). Returns the best true value.
    """
    place, weights = jnp.array([[0.9, 0.9], [0.9, 0.85]]), jnp.eye(2)
    settings = PopulationSettings(every=4, keys=("x", "y"), exploit=0.5)
    keys = jax.random.split(jax.random.key(3), 1)
    group = population.Population(settings, (), 1, keys, ("score",))
    for step in range(1, steps + 1):
        place = place - 0.2 * weights * place
        if exchanges and step % settings.every == 0:
            parents = population.choose_parents(group, jnp.int32(step), 1.2 - jnp.sum(place**2, axis=1))
            place = place[parents]
    return float(jnp.max(1.2 - jnp.sum(place**2, axis=1)))


def test_the_quadratic_is_climbed_by_members_that_cannot_climb_it_alone():
    assert ascend(exchanges=False) == pytest.approx(1.2 - 0.81, abs=0.02)
    assert ascend(exchanges=True) > 1.1


def configure(seed, rate):
    return RunConfig(
        env=probes.Credit(),
        algo=PPOConfig(horizon=8, epochs=2, num_minibatches=2, widths=(16,), learning_rate=rate),
        curriculum=constant_curriculum,
        total_env_steps=6 * 8 * 8,
        num_envs=8,
        seed=seed,
        eval_every=3,
        eval_episodes=8,
        checkpoint_every=2,
        window=16,
        episode_rows=16,
    )


def member(rate, seed):
    changes = {"algo.learning_rate": rate}
    return group_members.Member(f"{rate}_{seed}", str(rate), configure(seed, rate), {"seed": seed}, changes)


RATES = (1e-2, 1e-4, 3e-3, 0.0)
MEMBERS = [member(rate, seed) for rate in RATES for seed in (3, 4)]
PLAN = group_members.PopulationPlan(
    PopulationSettings(every=3, keys=("algo.learning_rate",), exploit=0.25), (RATE,), (3, 4)
)


# The group is compiled once for all tests of this file.
ONCE = Once()


def train(folder, resume=None, stop_after=None):
    folder.mkdir(exist_ok=True)
    shared = {"program": ONCE.program(MEMBERS[0].config), "compiled_by": ONCE.compile}
    return vectorized_runs.train_group(
        MEMBERS, {"seed": 3}, folder, Tracker({"csv": CsvSink()}), resume, stop_after, plan=PLAN, **shared
    )


def pair_of_members(folder, **changes):
    """A group of two members without a program of its own, for what it does with reports."""
    pair, program = MEMBERS[::2][:2], ONCE.program(MEMBERS[0].config)
    pair = [one._replace(config=dataclasses.replace(one.config, **changes)) for one in pair]
    records = [
        RunRecord(one.config, program, {}, folder / one.name, Tracker({}), RunProgress()) for one in pair
    ]
    return vectorized_runs.RunGroup(pair, program, records, {}, Tracker({}), folder, plan=PLAN)


def report_of_pair(parents, ended=0, **metrics):
    """Reports `[K, 2]` of updates that each end with an exchange; `ended` episodes are not listed."""
    found = {"train/success_rate": 0.5, "train/window_episodes": 16.0, "train/quarantined_environments": 0.0}
    shape = np.shape(parents)
    return Report(
        {name: np.broadcast_to(value, shape) for name, value in (found | metrics).items()},
        {"number": np.full(shape, ended), "length": np.zeros((*shape, 0))},
        lineage={"due": np.ones(shape, bool), "parent": np.array(parents)},
    )


def test_the_best_checkpoint_of_training_is_not_of_a_learner_that_was_just_copied(tmp_path, monkeypatch):
    group, saved = pair_of_members(tmp_path), []
    monkeypatch.setattr(group, "_save_member", lambda _state, index, names: saved.append((index, names)))
    for parents, kept in (([[0, 0]], [0]), ([[0, 1]], [1])):
        group.training_scores(None, group.reports(report_of_pair(parents), 1.0))
        assert [index for index, names in saved if names] == kept
        saved.clear()


def test_a_member_that_diverges_and_is_replaced_within_a_chunk_goes_on(tmp_path):
    group = pair_of_members(tmp_path, updates_per_chunk=2, eval_every=2)
    broken = np.array([[0.5, np.nan], [0.5, 0.5]])
    given = report_of_pair([[0, 0], [0, 1]], ended=3, **{"losses/value_loss": broken})
    assert [bool(values) for values in group.reports(given, 1.0)] == [True, True]
    assert not group.diverged
    assert [(one.progress.updates, one.progress.episodes) for one in group.records] == [(2, 6)] * 2
    given = report_of_pair([[0, 1], [0, 1]], ended=3, **{"losses/value_loss": broken[::-1]})
    assert [bool(values) for values in group.reports(given, 1.0)] == [True, False]
    assert group.diverged == {MEMBERS[2].name} and group.records[1].progress.episodes == 12


def shapes():
    return jax.eval_shape(make_program(MEMBERS[0].config).init, jax.random.key(0)).policies[probes.ROLE]


def learner(folder, like=None):
    found = checkpoints.find_checkpoint(folder, "latest")
    return checkpoints.restore_state(found, like or shapes(), f".policies[{probes.ROLE!r}]")


def rows(path):
    return list(csv.DictReader(path.open()))


@pytest.fixture(scope="module")
def evolved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evolved")
    return folder, train(folder)


def test_the_lineage_says_who_copied_whom(evolved):
    folder, summary = evolved
    assert json.loads((folder / "summary.json").read_text()) == summary
    table = rows(folder / "pbt.csv")
    assert [int(row["step"]) for row in table] == [192] * 8 + [384] * 8
    copied = [row for row in table if row["parent"] != row["member"]]
    assert copied
    before = {one.name: np.float32(one.changes["algo.learning_rate"]) for one in MEMBERS}
    for start in range(0, len(table), 8):
        now = {row["member"]: row for row in table[start : start + 8]}
        for name, row in now.items():
            parent = row["parent"]
            assert parent.rpartition("_")[2] == name.rpartition("_")[2]  # populations are apart
            rate = np.float32(row["algo.learning_rate"])
            if parent == name:
                assert rate == before[name]
            else:
                assert float(now[parent]["train/return"]) > float(row["train/return"])
                allowed = [np.clip(before[parent] * f, 1e-4, 1.0) for f in PLAN.settings.perturb]
                assert min(abs(rate - one) for one in allowed) < 1e-8
        before = {name: np.float32(row["algo.learning_rate"]) for name, row in now.items()}
    for one in MEMBERS:
        assert np.float32(learner(folder / one.name).hyper["learning_rate"]) == before[one.name]
    facts = checkpoints.read_metadata(checkpoints.find_checkpoint(folder / MEMBERS[2].name, "latest"))
    assert facts["scored_on"] is None  # the task is the same in all of them
    last = [row for row in table[-8:] if row["parent"] != row["member"]]
    for row in last:
        mine, parents = learner(folder / row["member"]), learner(folder / row["parent"])
        chex.assert_trees_all_equal((mine.params, mine.optimizer), (parents.params, parents.optimizer))


def test_members_equal_single_runs_until_they_copy_and_resume_to_the_same_bits(evolved, tmp_path):
    (whole, _), halved = evolved, tmp_path / "halved"
    assert train(halved, stop_after=2)["status"] == "stopped"
    every = jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(MEMBERS), *x.shape), x.dtype), shapes())
    group, one = learner(halved, like=every), MEMBERS[3]
    program = make_program(one.config)
    run, update = jax.jit(program.init)(run_key(one.config.seed)), jax.jit(program.update)
    for _ in range(2):
        run, _ = update(run)
    mine = jax.tree.map(lambda x: x[3], group)
    chex.assert_trees_all_close(mine, run.policies[probes.ROLE], rtol=2e-4, atol=2e-5)
    assert np.float32(mine.hyper["learning_rate"]) == np.float32(1e-4)
    # Once before the first exchange, and once after it.
    train(halved, resume=checkpoints.find_checkpoint(halved, "latest"), stop_after=4)
    assert train(halved, resume=checkpoints.find_checkpoint(halved, "latest"))["status"] == "finished"
    for member in MEMBERS:
        chex.assert_trees_all_equal(learner(halved / member.name), learner(whole / member.name))
    for name in ("pbt.csv", "members.csv"):
        assert (halved / name).read_text() == (whole / name).read_text()
