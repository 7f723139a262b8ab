"""Records of coalitions, difference rewards and Shapley values of mechs."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_after
from mission_games import LIMIT, Game, built
from mission_moments import WORDS, scenario

from jaxmarl_echelon.envs.check_env import random_actions
from jaxmarl_echelon.envs.echelon.missions.measures import coalitions, credit, facts, record, success
from jaxmarl_echelon.envs.echelon.missions.rewards import make_mission_reward
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, PAID, VERBS
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import STANDARD, Registry

REGISTRY = Registry(STANDARD)
TEAMS = (6, 2)
SIZE, BLUE = sum(TEAMS), TEAMS[0]
CELLS = 10
HP = 100.0
# Permutations for which six mechs are sampled, and for which they are enumerated.
FEW, MANY = 4, 8
SCOUT = VERBS.index("scout")
ONLY_CREDIT = {name: {"weight": float(name == "credit")} for name in PAID}


def assessed(verb=SCOUT, alive=True, present=True, by_mech=(), by_team=(), teams=TEAMS):
    """Missions with these facts; both teams have the same order."""
    size, blue = sum(teams), teams[0]
    alive, present = np.broadcast_to(alive, size), np.broadcast_to(present, size)
    strength = np.array([present[:blue].sum(), present[blue:].sum()])
    mine = facts.initial_mech_facts(size, WORDS, jnp.zeros(size, jnp.int32), jnp.zeros(size))
    ours = facts.initial_team_facts()
    mine = mine.replace(**{n: jnp.asarray(v, getattr(mine, n).dtype) for n, v in dict(by_mech).items()})
    ours = ours.replace(**{n: jnp.asarray(v, getattr(ours, n).dtype) for n, v in dict(by_team).items()})
    problem = scenario(verb=((verb, verb), (verb, verb))).replace(
        present=jnp.asarray(present), strength=jnp.int32(strength), hp=jnp.float32(strength * HP)
    )
    evidence = record.RecordInputs(
        teams=teams,
        scenario=problem,
        alive=jnp.asarray(alive) & present,
        by_mech=mine,
        by_team=ours,
        open_cells=jnp.uint32([2**CELLS - 1, *[0] * (WORDS - 1)]),
        cover_target=jnp.float32(1.0),
    )
    went, decision = np.zeros(2, bool), np.int32(100)
    outcome, whole = judge(teams, evidence[1:], went, decision)
    return credit.CreditInputs(REGISTRY, evidence, went, outcome, whole, decision)


@partial(jax.jit, static_argnums=0)
def judge(teams, arrays, went, decision):
    """The teams' records and success, by one program for all orders."""
    evidence = record.RecordInputs(teams, *arrays)
    outcome, orders = record.compute_team_records(evidence), evidence.scenario.orders
    found = success.success_parts(REGISTRY, orders.verb, outcome)
    value = success.base_success(REGISTRY, orders.verb, went, found, outcome)
    latched = evidence.by_team.latched
    return outcome, success.constrain_team_success(REGISTRY, orders, value, latched, decision, outcome)


def random_facts(seed):
    """Facts of an episode in which mechs saw, entered, hit and covered at random."""
    rng = np.random.default_rng(seed)
    blue = np.arange(SIZE) < BLUE
    dealt = rng.uniform(0, 60, SIZE) * (rng.random(SIZE) < 0.8)
    watching = rng.random((40, SIZE)) < 0.3
    sees = np.stack([watching[:, :BLUE].sum(1), watching[:, BLUE:].sum(1)], 1)
    pinning = rng.uniform(0, 2, SIZE)
    by_mech = {
        "visited": np.pad(rng.integers(0, 2**CELLS, (SIZE, 1)), ((0, 0), (0, WORDS - 1))),
        "confirmed": (rng.random((SIZE, SIZE)) < 0.3) & (blue[:, None] != blue),
        "dealt": dealt,
        "rear": dealt * rng.uniform(0, 1, SIZE),
        "pinning": pinning,
        "pinned": np.where(blue, pinning[BLUE:].sum() / BLUE, pinning[:BLUE].sum() / TEAMS[1]),
        "held": rng.uniform(1, 20, SIZE),
        "shots": rng.integers(5, 9, SIZE),
        "hits": rng.integers(0, 5, SIZE),
        "seen_cover": watching.sum(0),
        "lone_cover": (watching & (np.where(blue, sees[:, :1], sees[:, 1:]) == 1)).sum(0),
    }
    by_team = {
        "elapsed": [40, 40],
        "covered": (sees > 0).sum(0),
        "alone": [20, 10],
        "contested": [8, 8],
        "capture": [45, 10],
        "captured": [True, False],
        "engaged": [True, True],
        "exposure": [30, 20],
        "supported": [12, 9],
        "waited": [10, 12],
        "tracked": [3, 4],
        "latched": [30, NEVER],
        "arrived": [0.8, 0.6],
        "ready": [0.7, 0.9],
        "form": [1.0, 0.5],
    }
    return {"by_mech": by_mech, "by_team": by_team, "alive": rng.random(SIZE) < 0.6}, watching


def every_coalition():
    """Blue's coalitions `[64]`, each `[M]`."""
    return np.pad(coalitions.list_coalitions(BLUE), ((0, 0), (0, TEAMS[1])))


def records_of(it, members):
    # Of arguments: sums over nobody would not be exactly 0 where XLA folds constants.
    @jax.jit
    def count(arrays, outcome, members):
        team = np.zeros(len(members), np.int32)
        evidence = record.RecordInputs(it.evidence.teams, *arrays)
        return record.compute_coalition_records(evidence, outcome, team, members)

    return jax.device_get(count(it.evidence[1:], it.outcome, members))


def shapley(it, samples=MANY, key=0):
    return np.asarray(attribute("shapley", samples, it.evidence.teams, it.evidence[1:], it[2:], key))


def differences(it):
    return np.asarray(attribute("difference", 0, it.evidence.teams, it.evidence[1:], it[2:], 0))


@partial(jax.jit, static_argnums=(0, 1, 2))
def attribute(kind, samples, teams, arrays, rest, key):
    """Values of the mechs, by one program for all missions of teams of these sizes."""
    it = credit.CreditInputs(REGISTRY, record.RecordInputs(teams, *arrays), *rest)
    if kind == "difference":
        return credit.difference_rewards(it)
    return credit.shapley_values(jax.random.key(key), it, samples)


def shapley_by_orders(value, players):
    """Mean marginal contributions over all orders in which the players can join; `value(frozenset)`."""
    total = np.zeros(players)
    orders = list(itertools.permutations(range(players)))
    for order in orders:
        for place, player in enumerate(order):
            total[player] += value(frozenset(order[: place + 1])) - value(frozenset(order[:place]))
    return total / len(orders)


@pytest.mark.parametrize("players", [1, 2, 5])
def test_enumerated_values_equal_means_over_all_orders(players):
    values = np.random.default_rng(players).uniform(size=2**players)
    expected = shapley_by_orders(lambda s: values[sum(1 << i for i in s)], players)
    np.testing.assert_allclose(
        coalitions.exact_shapley_values(jnp.float32(values)), expected, rtol=1e-4, atol=1e-6
    )


def test_each_permutation_is_drawn_with_its_reverse():
    ranks = np.asarray(coalitions.draw_ranks(jax.random.key(0), 6, 3))
    assert ranks.shape == (6, 6) and (np.sort(ranks, 1) == np.arange(6)).all()
    assert (ranks[:3] + ranks[3:] == 5).all() and len(np.unique(ranks, axis=0)) > 2
    first = np.asarray(coalitions.prefix_coalitions(jnp.asarray(ranks)))
    assert (first.sum(-1) == np.arange(1, 6)).all() and (first[:, 1:] >= first[:, :-1]).all()


def test_the_whole_team_has_its_own_record_and_nobody_has_none():
    given, _ = random_facts(0)
    it = assessed(**given)
    everyone, nobody = np.arange(SIZE) < BLUE, np.zeros(SIZE, bool)
    found = records_of(it, np.stack([everyone, nobody]))
    for name, rows in zip(found._fields, found, strict=True):
        np.testing.assert_allclose(rows[0], getattr(it.outcome, name)[0], rtol=1e-6, err_msg=name)
    zero = ("strength", "casualties", "detected", "covered", "captured", "alone", "watched", "engaged")
    for name in (*zero, "protected", "enfilade", "removed", "suppression", "shots", "hits", "supported"):
        assert getattr(found, name)[1] == 0, name


def test_records_of_coalitions_equal_counts_over_their_members():
    given, watching = random_facts(1)
    it, members = assessed(**given), every_coalition()
    found, mine = records_of(it, members), given["by_mech"]
    samples = {}
    for row, inside in enumerate(members):
        who = np.flatnonzero(inside)
        dealt = mine["dealt"][who].sum()
        expected = {
            "strength": who.size,
            "casualties": (~given["alive"][who]).sum(),
            "detected": mine["confirmed"][who].any(0).sum(),
            "covered": np.bitwise_or.reduce(mine["visited"][who, 0], initial=0).bit_count() / CELLS,
            "shots": mine["shots"][who].sum(),
            "hits": mine["hits"][who].sum(),
            "enfilade": mine["rear"][who].sum() / dealt if dealt else 0.0,
            "removed": min(dealt / (TEAMS[1] * HP), 1.0),
        }
        for name, value in expected.items():
            assert getattr(found, name)[row] == pytest.approx(value, abs=1e-5), (name, who)
        samples[row] = watching[:, who].any(1).sum() / 40
        # Exact for one, all but one and all; never less than the truth.
        if who.size in (0, 1, BLUE - 1, BLUE):
            assert found.watched[row] == pytest.approx(samples[row], abs=1e-6), who
        assert found.watched[row] >= samples[row] - 1e-6
    assert len(samples) == 64


@pytest.mark.parametrize("verb", mark_after(2, VERBS))
def test_values_of_a_squad_sum_to_its_success(verb):
    """Whether coalitions are enumerated or sampled, and with an empty slot."""
    given, _ = random_facts(2)
    it = assessed(VERBS.index(verb), **given)
    for samples in (FEW, MANY):
        found = shapley(it, samples)
        sums = found[:BLUE].sum(), found[BLUE:].sum()
        assert sums == pytest.approx(np.asarray(it.success), abs=1e-6)


def test_sampled_values_are_those_of_all_coalitions_on_average():
    assert not coalitions.is_enumerated(BLUE, FEW) and coalitions.is_enumerated(BLUE, MANY)
    given, _ = random_facts(3)
    it = assessed(**given)
    keys = jax.random.split(jax.random.key(0), 256)
    drawn = jax.jit(jax.vmap(lambda key: credit.shapley_values(key, it, FEW)))(keys)
    assert np.asarray(drawn)[:, :BLUE].std(0).max() > 0.01
    np.testing.assert_allclose(drawn.mean(0), shapley(it), atol=0.01)


def test_values_equal_brute_force_and_redundant_scouts_share():
    """Two scouts saw the same enemy: without either the team found it, but not without both."""
    sees = np.zeros((SIZE, SIZE), bool)
    sees[[0, 1], BLUE], sees[2, BLUE + 1] = True, True
    entered = np.array([0b0000001111, 0b0000001111, 0b0001110000, 0, 0, 0, 0, 0])
    alive = ~np.isin(np.arange(SIZE), [4, 5])
    visited = np.pad(entered[:, None], ((0, 0), (0, WORDS - 1)))
    it = assessed(alive=alive, by_mech={"confirmed": sees, "visited": visited})

    def value(squad):
        who = sorted(squad)
        found = sees[who].any(0).sum() / TEAMS[1]
        cells = np.bitwise_or.reduce(entered[who], initial=0).bit_count() / CELLS
        costly = bool(who) and (~alive[who]).mean() > 0.5
        return (0.6 * found + 0.4 * cells) * (0.5 if costly else 1.0)

    expected, got = shapley_by_orders(value, BLUE), shapley(it)
    np.testing.assert_allclose(got[:BLUE], expected, atol=1e-6)
    without = differences(it)
    assert without[:2].tolist() == pytest.approx([0.0, 0.0]) and got[0] == pytest.approx(got[1])
    assert got[0] > 0.15 and got[2] > got[0] and without[2] == pytest.approx(0.42)
    # Lost mechs make small coalitions too costly, and an idle one that lives helps against that.
    assert got[4] == pytest.approx(got[5]) and got[4] < -0.001 and got[3] > 0.001 and without[3] == 0


@pytest.mark.parametrize("samples", [FEW, MANY])
def test_idle_mechs_and_empty_slots_get_nothing(samples):
    sees = np.zeros((SIZE, SIZE), bool)
    sees[[0, 1], BLUE] = True
    it = assessed(present=np.arange(SIZE) != 5, by_mech={"confirmed": sees})
    found = shapley(it, samples)
    assert found[2:].tolist() == pytest.approx([0.0] * (SIZE - 2), abs=1e-7)
    assert found[:2].sum() == pytest.approx(0.3)


def test_mechs_on_their_own_get_their_success():
    it = assessed(VERBS.index("assault"), teams=(1, 1))
    assert shapley(it).tolist() == pytest.approx([0.3, 0.3])


# Recorded before records of other coalitions existed; rows are verbs.
DIFFERENCES = [
    [0.118764, -0.050000, 0.010000, 0.018699, 0.152003, 0.107012, -0.150000, 0.150000],
    [0.089721, 0.075027, 0.026901, 0.054235, 0.181991, 0.132126, 0.084018, 0.234658],
    [0.030000, -0.001067, 0.040000, 0.056155, 0.066245, 0.048666, -0.070000, 0.405000],
    [0.000000, 0.046077, 0.000000, 0.028956, 0.035778, 0.064704, 0.000000, 0.561798],
    [0.133614, 0.094382, 0.036135, 0.023030, 0.061190, 0.060487, 0.078171, 0.030495],
    [0.040000, 0.300000, 0.000000, 0.000000, 0.000000, 0.000000, 0.100000, 0.320000],
    [0.000000, 0.000000, 0.000000, 0.000000, 0.000000, 0.000000, 0.000000, 0.069000],
]


def test_difference_rewards_have_not_changed():
    given, _ = random_facts(4)
    found = [differences(assessed(verb, **given)) for verb in range(len(VERBS))]
    np.testing.assert_allclose(found, DIFFERENCES, atol=1e-6)


@pytest.mark.thorough
def test_rewards_of_an_episode_sum_to_the_weighted_success_of_each_squad():
    game = Game(built(credit_kind="shapley", reward=make_mission_reward(ONLY_CREDIT)))
    params = game.env.task_params({"mission": "assault", "credit": 2.0})
    state, time = game.reset(jax.random.key(1), params)
    draw, paid = jax.jit(partial(random_actions, game.env.spec)), np.zeros(2)
    for decision in range(LIMIT):
        assert not time.over
        state, time = game.step(state, draw(jax.random.key(decision), time), params, decision)
        paid += [float(time.reward[side].sum()) for side in ("blue", "red")]
    assert time.over and state.success.min() > 0.1
    assert paid.tolist() == pytest.approx((2.0 * np.asarray(state.success)).tolist(), abs=1e-5)
    again = game.env.course.credit_mechs(jax.random.key(0), state, params)
    both = np.concatenate([time.reward["blue"], time.reward["red"]])
    np.testing.assert_allclose(again, both / 2.0, atol=1e-5)


@pytest.mark.parametrize("given", [{"credit_kind": "banzhaf"}, {"credit_samples": 0}])
def test_unknown_kinds_and_samples_are_refused(given):
    with pytest.raises(ValueError, match=f"env.{next(iter(given))}="):
        built(**given)
