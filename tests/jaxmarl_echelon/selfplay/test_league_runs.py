"""Runs of a league: who is met, who learns, when snapshots are left, what a resumed run knows."""

import csv
import functools
import itertools
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from duels import Duel
from played_runs import History, loose, plain, same

from algos.on_policy.a2c import A2CConfig
from jaxmarl_echelon import checkpoints, read_config
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.selfplay import league
from jaxmarl_echelon.selfplay.pool import LEARNER, SNAPSHOT
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink, read_columns
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import loop, resume
from jaxmarl_echelon.training.host.compile import compile_program
from jaxmarl_echelon.training.host.run_record import versioned_name
from jaxmarl_echelon.training.opponents import pool_role
from jaxmarl_echelon.training.program import agents
from jaxmarl_echelon.training.program import league as leagues
from jaxmarl_echelon.training.program.program import make_program

NUM_ENVS, UPDATES = 16, 8
TYPED = (
    "env=textgames/kuhn",
    "tuning=none",
    "algo=ppo",
    "algo.horizon=8",
    "algo.widths=[8]",
    "algo.num_minibatches=1",
    "algo.epochs=1",
    f"num_envs={NUM_ENVS}",
    f"total_env_steps={UPDATES * 3 * 2 * 8 * NUM_ENVS}",
    f"eval_every={UPDATES}",
    "eval_episodes=16",
    f"checkpoint_every={UPDATES}",
    "controllers.player=pool:player",
    "pool=league",
    "pool.capacity=2",
    "pool.groups=4",
    "pool.snapshot_every=2",
    "pool.fixed=[random]",
    "pool.hold=1",
)
TEAMS = PoolSettings(
    capacity=2,
    groups=4,
    snapshot_every=2,
    fixed=("coin",),
    hold=1,
    league={"main": 1, "main_exploiter": 1, "league_exploiter": 1},
)


class League(NamedTuple):
    """A run, its folder, and its states and reports."""

    config: RunConfig
    folder: Path
    history: History


@pytest.fixture(scope="module")
def league_run(tmp_path_factory) -> League:
    """Updates of a league of three."""
    config, folder = read_config(*TYPED), tmp_path_factory.mktemp("league")
    program, states, reports, compiled = make_program(config), [], [], []

    def watched(*given):
        parts = compile_program(*given)

        def init():
            states.append(loose(run := parts.init()))
            return run

        def chunk(run):
            run, found = parts.chunk(run)
            states.append(loose(run))
            reports.append(jax.tree.map(lambda x: x[0], jax.device_get(found)))
            return run, found

        compiled.append(parts)
        return parts._replace(init=init, chunk=chunk)

    def update(state):
        # Of a copy, as chunks take the memory of the state that they begin with.
        after, found = compiled[0].chunk(loose(state))
        return after, jax.tree.map(lambda x: x[0], jax.device_get(found))

    tracker = Tracker({"csv": CsvSink()})
    loop.train_run(config, program, {"seed": config.seed}, folder, tracker, compiled_by=watched)
    return League(config, folder, History(program, states, reports, update))


@pytest.fixture(scope="module")
def run(league_run) -> History:
    return league_run.history


def stacked(state):
    """The runs of all learners in NumPy, of which parts are taken without a program for each."""
    return jax.tree.map(plain, STACKED(state))


STACKED = jax.jit(leagues.stack_league)


def params(state, member: int, role: str = "player"):
    return jax.tree.map(lambda x: x[member], stacked(state).policies[role].params)


def test_a_league_is_one_program_with_numbers_of_every_learner():
    """Traced only; thorough tests play it."""
    program = make_program(read_config(*TYPED))
    state = jax.eval_shape(program.init, jax.random.key(0))
    after, report = jax.eval_shape(program.update, state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), after
    )
    assert {"pool/main/rating_mu", "pool/main_exploiter/resets", "losses/league_exploiter/entropy"} <= set(
        report.metrics
    )
    assert program.steps_per_update == 3 * 2 * 8 * NUM_ENVS


@pytest.mark.thorough
def test_episodes_are_listed_at_the_steps_of_all_learners(league_run):
    expected = []
    for number, report in enumerate(league_run.history.reports):
        rows = report.episodes["step"][: int(report.episodes["number"])]
        expected += (league_run.config.steps_per_update * number + 3 * NUM_ENVS * (rows + 1)).tolist()
    steps = read_columns(league_run.folder / "episodes.csv")["step"].tolist()
    assert steps == expected and steps[-1] > 3 * NUM_ENVS * (16 * UPDATES - 4)


def test_groups_play_present_learners_and_all_pasts(league_run):
    """Own numbers: the exploiter's entry 0 is itself, its entry 1 the main agent."""
    run = league_run.history
    seat, agent = agents.make_pool_role(league_run.config, {}, {}), run.program.agents["player"]

    @jax.jit
    @functools.partial(jax.vmap, axis_name=league.AXIS)
    def met(run):
        slots = jnp.array([0, 1, 2, 4, 5, 8])
        return pool_role.select_opponents(seat, agent, run.pool.replace(slots=slots), run.policies).bank

    runs = STACKED(run.states[-1])
    present = jax.tree.map(plain, jax.jit(jax.vmap(agent.policy_state))(runs.policies["player"]))
    pasts, bank = (jax.tree.map(plain, tree) for tree in (runs.pool.bank, met(runs)))
    for member, numbers in enumerate(([0, 1, 2], [1, 0, 2], [2, 1, 0])):
        for place, number in enumerate(numbers):
            own = jax.tree.map(lambda x, at=number: x[at], present)
            assert same(jax.tree.map(lambda x, at=(member, place): x[at], bank), own)
        for place, (owner, slot) in enumerate(((0, 1), (1, 0), (2, 1)), start=3):
            past = jax.tree.map(lambda x, at=(owner, slot): x[at], pasts)
            assert same(jax.tree.map(lambda x, at=(member, place): x[at], bank), past)


@pytest.mark.thorough
def test_only_the_learner_of_a_group_learns_from_it(league_run):
    """Other games of the main agent, in which exploiters are met, change nobody else."""
    config, _, (program, states, _, update) = league_run
    assert config.columns("player") == NUM_ENVS
    assert config.steps_per_update == program.steps_per_update == 3 * 2 * 8 * NUM_ENVS
    before = states[0].replace(pool=states[0].pool.replace(slots=jnp.array([1, 1, 2, 2])))
    ours, theirs = (update(before.replace(key=jax.random.key(seed)))[0] for seed in (1, 2))
    assert not same(params(ours, 0), params(theirs, 0))
    assert all(same(params(ours, member), params(theirs, member)) for member in (1, 2))
    assert not same(params(ours, 1), params(before, 1))


@pytest.mark.thorough
def test_snapshots_ratings_and_resets(run):
    _, states, reports, _ = run
    runs = [stacked(state) for state in states]
    resets = 0
    for before, after in itertools.pairwise(runs):
        pools = after.pool
        for member in range(3):
            own = np.asarray(league.common_numbering(10, member))
            np.testing.assert_array_equal(pools.rating[member][own], pools.rating[0])
            np.testing.assert_array_equal(pools.kind[member], pools.kind[0])
            changed = pools.iteration[0] != before.pool.iteration[0]
            slots = 3 + 2 * member + np.arange(2)
            # A snapshot of the policy after learning, in the learner's own bank; the anchor stays.
            assert not changed[slots[0]] and bool(changed[slots].any()) == bool(pools.waited[member] == 0)
            if pools.waited[member] > 0:
                continue
            assert 2 <= int(before.pool.waited[member]) + 1 <= 4
            past = jax.tree.map(lambda x, at=member: x[at, 1], pools.bank).params
            own, first = (jax.tree.map(lambda x, at=member: x[at], one) for one in (after, runs[0]))
            anew = int(own.pool.league.resets) - int(before.pool.league.resets[member])
            resets += anew
            assert anew <= (member > 0) and (member != 1 or anew)
            assert same(own.policies["player"].params, first.policies["player"].params if anew else past)
            if anew:
                assert not same(past, own.policies["player"].params) and not own.pool.games.any()
                assert own.pool.rating[0].tolist() == first.pool.rating[0].tolist()
    assert resets >= 2 and int(runs[-1].pool.wins.sum()) > 100
    kinds = np.asarray(runs[-1].pool.kind[0])
    assert (kinds[:3] == LEARNER).all() and (kinds[3:9] == SNAPSHOT).all()
    metrics = reports[-1].metrics
    assert {"pool/main/rating_mu", "pool/main_exploiter/resets", "losses/league_exploiter/entropy"} <= set(
        metrics
    )
    assert int(metrics["pool/main_exploiter/resets"]) >= 2


@pytest.mark.thorough
def test_table_lists_all_learners_and_the_owner_of_each_snapshot(league_run):
    entries = read_rows(league_run.folder / "pool.csv")
    last = [
        row for row in entries if row["step"] == entries[-1]["step"] == str(league_run.config.total_env_steps)
    ]
    assert [row["name"] for row in last[:3]] == ["main now", "main_exploiter now", "league_exploiter now"]
    parents = {(row["entry"], row["parent"]) for row in last if row["kind"] == "snapshot"}
    assert {("3", "main"), ("5", "main_exploiter"), ("7", "league_exploiter")} <= parents


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.thorough
def test_resumed_league_continues_bit_for_bit(run, tmp_path):
    program, states, _, update = run
    facts = {"step": 3, "environment": versioned_name(program.env.spec)}
    checkpoints.save_checkpoint(tmp_path / "checkpoints", ("latest",), states[3], facts)
    like = jax.eval_shape(lambda: states[3])
    restored = resume.restore_run(program, checkpoints.find_checkpoint(tmp_path, "latest"), like)
    assert same(restored, states[3])
    assert same(update(restored)[0], states[4])


@pytest.mark.thorough
def test_league_of_simultaneous_teams():
    """Blue's learners play blue, their past and present red; the games of every group are counted."""
    config = RunConfig(
        env=Duel(),
        algo=A2CConfig(horizon=8, widths=(8,)),
        curriculum=constant_curriculum,
        total_env_steps=10_000,
        num_envs=NUM_ENVS,
        controllers={"red": "pool:blue"},
        pool=TEAMS,
        stagger=False,
    )
    assert config.columns("blue") == 2 * NUM_ENVS
    program = make_program(config)

    def update(run, _):
        after, _ = program.update(run)
        return after, after

    @jax.jit
    def first(key):
        start = program.init(key)
        start = start.replace(pool=start.pool.replace(slots=jnp.array([1, 2, 3, 9])))
        return start, jax.lax.scan(update, start, None, 4)[1]

    state, later = first(jax.random.key(0))
    later = jax.tree.map(plain, later)
    after, last = (jax.tree.map(lambda x, at=at: x[at], later) for at in (0, 3))
    runs = stacked(after)
    games = runs.pool.wins[:, 0] + runs.pool.wins[:, :, 0] + runs.pool.draws[:, 0]
    assert (np.flatnonzero(games[0]) == [1, 2, 3, 9]).all() and (games.sum(axis=1) > 0).all()
    assert not any(same(*(params(one, member, "blue") for one in (after, state))) for member in range(3))
    assert int(last.pool.taken) >= 4
