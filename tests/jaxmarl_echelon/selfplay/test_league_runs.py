"""Runs of a league: who is met, who learns, when snapshots are left, what a resumed run knows."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from duels import Duel
from played_runs import History, loose, plain, played, same

from algos.on_policy.a2c import A2CConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.curricula.base import fixed
from jaxmarl_echelon.envs.textgames.games import kuhn
from jaxmarl_echelon.selfplay import league
from jaxmarl_echelon.selfplay.pool import LEARNER, SNAPSHOT
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training import agents as agents_lib
from jaxmarl_echelon.training import resuming
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.pools import leagues, opponents
from jaxmarl_echelon.training.record import environment

NUM_ENVS, UPDATES = 16, 8
POOL = PoolSettings(
    capacity=2,
    groups=4,
    snapshot_every=2,
    fixed=("random",),
    hold=1,
    league={"main": 1, "main_exploiter": 1, "league_exploiter": 1},
)


def configured(**changes) -> RunConfig:
    given = {
        "env": kuhn.make(),
        "algo": A2CConfig(horizon=8, widths=(8,)),
        "controllers": {"player": "pool:player"},
        "pool": POOL,
    }
    return RunConfig(curriculum=fixed, total_env_steps=10_000, num_envs=NUM_ENVS, **given | changes)


@pytest.fixture(scope="module")
def run() -> History:
    """Updates of a league of three."""
    return played(configured(), UPDATES)


def stacked(state):
    """The runs of all learners in NumPy, of which parts are taken without a program for each."""
    return jax.tree.map(plain, STACKED(state))


STACKED = jax.jit(leagues.stacked)


def params(state, member: int, role: str = "player"):
    return jax.tree.map(lambda x: x[member], stacked(state).policies[role].params)


def test_groups_play_present_learners_and_all_pasts(run):
    """Own numbers: the exploiter's entry 0 is itself, its entry 1 the main agent."""
    seat, agent = agents_lib.make_seat(configured(), {}, {}), run.program.agents["player"]

    @jax.jit
    @functools.partial(jax.vmap, axis_name=league.AXIS)
    def met(run):
        slots = jnp.array([0, 1, 2, 4, 5, 8])
        return opponents.opponents(seat, agent, run.pool.replace(slots=slots), run.policies).bank

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


def test_only_the_learner_of_a_group_learns_from_it(run):
    """Other games of the main agent, in which exploiters are met, change nobody else."""
    config, (program, states, _, update) = configured(), run
    assert config.columns("player") == NUM_ENVS
    assert config.steps_per_update == program.steps_per_update == 3 * 2 * 8 * NUM_ENVS
    before = states[0].replace(pool=states[0].pool.replace(slots=jnp.array([1, 1, 2, 2])))
    ours, theirs = (update(before.replace(key=jax.random.key(seed)))[0] for seed in (1, 2))
    assert not same(params(ours, 0), params(theirs, 0))
    assert all(same(params(ours, member), params(theirs, member)) for member in (1, 2))
    assert not same(params(ours, 1), params(before, 1))


def test_snapshots_ratings_and_resets(run):
    _, states, reports, _ = run
    runs = [stacked(state) for state in states]
    resets = 0
    for before, after in zip(runs, runs[1:], strict=False):
        pools = after.pool
        for member in range(3):
            own = np.asarray(league.order(10, member))
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


def test_a_resumed_league_goes_on_bit_for_bit(run, tmp_path):
    program, states, _, update = run
    facts = {"step": 3, "environment": environment(program.env.spec)}
    checkpoints.save(tmp_path / "checkpoints", ("latest",), states[3], facts)
    like = jax.eval_shape(program.init, jax.random.key(0))
    restored = resuming.restore(program, checkpoints.find(tmp_path, "latest"), like)
    assert same(restored, states[3])
    assert same(update(loose(restored))[0], states[4])


def test_teams_that_act_at_once():
    """Blue's learners play blue, their past and present red; the games of every group are counted."""
    config = configured(
        env=Duel(), controllers={"red": "pool:blue"}, pool=replace(POOL, fixed=("coin",)), stagger=False
    )
    assert config.columns("blue") == 2 * NUM_ENVS
    _, (state,), _, update = played(config, 0)
    state = state.replace(pool=state.pool.replace(slots=jnp.array([1, 2, 3, 9])))
    after, _ = update(state)
    runs = stacked(after)
    games = runs.pool.wins[:, 0] + runs.pool.wins[:, :, 0] + runs.pool.draws[:, 0]
    assert (np.flatnonzero(games[0]) == [1, 2, 3, 9]).all() and (games.sum(axis=1) > 0).all()
    assert not any(same(*(params(one, member, "blue") for one in (after, state))) for member in range(3))
    for _ in range(3):
        after, _ = update(after)
    assert int(after.pool.taken) >= 4
