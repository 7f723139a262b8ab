"""Rewards of the mech battles by hand: the zone's arithmetic, every component, the ways to end."""

from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from echelon_battles import make_mechs
from omegaconf import OmegaConf

from jaxmarl_echelon.envs.echelon import results, zone
from jaxmarl_echelon.envs.echelon.battle.surroundings import pack_gap
from jaxmarl_echelon.envs.echelon.rewards import COMPONENTS, BattleRewardInputs, make_battle_reward

PRESETS = Path(__file__).parents[3] / "conf" / "reward"
TONS = {"scout": 20.0, "light": 35.0, "medium": 55.0, "heavy": 85.0}
ZONE = jnp.array([20.0, 20.0, 5.0])


def near(actual, wanted):
    np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=1e-7)


def situation(size=1, **changes):
    """Outside the zone, where nothing happens, but for `changes`."""
    zero, count, none = jnp.zeros(size), jnp.zeros(size, jnp.int32), jnp.zeros(size, bool)
    quiet = BattleRewardInputs(
        approach=zero,
        inside=none,
        friends_inside=count,
        tick=zero,
        fighting=none,
        pack_gap=zero,
        dealt=zero,
        kills=count,
        assists=count,
        died=none,
        alive=~none,
        result=zero,
    )
    return quiet.replace(
        **{name: jnp.broadcast_to(jnp.asarray(value), (size,)) for name, value in changes.items()}
    )


def pay(name, **changes):
    """Returns the reward of one mech from one component under its default weights."""
    reward = make_battle_reward({name: None})
    values, _ = reward(reward.params(), situation(**changes), reward.init())
    return float(values[name][0])


def hold(*mechs):
    """The hold of mechs `(team, class, distance from the centre)`."""
    team, names, away = zip(*mechs, strict=True)
    position = jnp.stack(
        [20.0 + jnp.array(away), jnp.full(len(away), 20.0), jnp.full(len(away), 9.0)], axis=1
    )
    tons = jnp.array([TONS[name] for name in names])
    return zone.compute_zone_hold(position, jnp.ones(len(away), bool), tons, jnp.array(team), ZONE)


def test_golden_contest_of_a_heavy_and_a_medium():
    held = hold((0, "heavy", 1.0), (1, "medium", 2.0))
    near(held.tick, [0.25 + 0.75 * 30 / 140, 0.25])
    near(3.0 * held.tick, [1.232143, 0.75])
    near(0.25 * held.tick, [0.102679, 0.0625])
    assert bool(held.contested) and held.inside.all()


def test_holds_without_a_contest():
    near(hold((0, "scout", 0.0), (1, "heavy", 5.1)).tick, [1.0, 0.0])
    near(hold((0, "scout", 6.0), (1, "heavy", 4.9)).tick, [0.0, 1.0])
    empty = hold((0, "scout", 6.0), (1, "heavy", 5.0))
    near(empty.tick, [0.0, 0.0])
    assert not bool(empty.contested) and float(empty.margin) == 0.0
    even = hold((0, "light", 1.0), (1, "light", 1.0))
    near(even.tick, [0.25, 0.25])
    near(hold((0, "scout", 1.0), (1, "heavy", 1.0)).margin, -65 / 105)


def test_approach_reward_matches_the_original():
    near(pay("zone_approach", approach=1.3475 / 40, friends_inside=1), 0.025266)
    near(pay("zone_approach", approach=1.3475 / 40), 0.050531)
    near(pay("zone_approach", approach=-0.1, friends_inside=2), -0.0375)
    assert pay("zone_approach", approach=0.1, inside=True) == 0.0


def test_components_by_hand():
    near(pay("zone_hold", inside=True, tick=0.410714), 1.232143)
    assert pay("zone_hold", inside=False, tick=1.0) == 0.0
    near([pay("damage", dealt=14.0), pay("damage", dealt=14.0, fighting=True)], [0.7, 1.4])
    near([pay("kills", kills=2), pay("kills", kills=2, fighting=True)], [20.0, 40.0])
    near([pay("assists", assists=1), pay("assists", assists=1, fighting=True)], [5.0, 10.0])
    near([pay("death", died=True), pay("death", died=True, fighting=True), pay("death")], [-1.0, -0.5, 0.0])
    assert pay("win", result=1.0) == 0.0
    assert COMPONENTS.keys() == make_battle_reward().params().keys()


def test_cohesion_can_be_weighted_as_in_the_earlier_version():
    reward = make_battle_reward({"cohesion": {"weight": 0.01}})
    gaps = [0.0, 10.0, 10.1, 29.9, 30.0, 50.0, 50.1, 20.0]
    living = jnp.array([True] * 7 + [False])
    values, _ = reward(reward.params(), situation(8, pack_gap=jnp.array(gaps), alive=living), ())
    near(values["cohesion"], [0.0, 0.0, 0.01, 0.01, 0.0, 0.0, -0.005, 0.0])
    assert pay("cohesion", pack_gap=20.0) == 0.0


def test_the_gap_to_the_pack_is_to_the_centre_of_its_other_living_members():
    position = [[0, 0, 1], [6, 0, 1], [0, 8, 1], [50, 0, 1], [9, 0, 1]]
    mechs = make_mechs(position, [0] * 5, alive=[True, True, True, True, False])
    pack = np.array([0, 0, 0, 1, 0])
    near(pack_gap(mechs, pack[:, None] == pack)[:4], [5.0, np.hypot(6, 4), np.hypot(3, 8), 0.0])


def test_winning_can_be_rewarded():
    reward = make_battle_reward({"win": {"weight": 5.0}})
    values, _ = reward(reward.params(), situation(3, result=jnp.array([1.0, -1.0, 0.0])), ())
    near(values["win"], [5.0, -5.0, 0.0])


def test_presets_are_the_defaults_and_take_overrides():
    node = OmegaConf.load(PRESETS / "echelon.yaml")
    preset = hydra.utils.instantiate(node)
    assert preset.names == tuple(COMPONENTS)
    assert preset.weights == make_battle_reward().weights
    node.components.kills.weight = 5
    assert hydra.utils.instantiate(node).params()["kills"]["weight"] == 5.0


def test_weights_are_traced_and_can_be_changed():
    reward, traces = make_battle_reward(), []

    @jax.jit
    def total(params):
        traces.append(1)
        values, _ = reward(params, situation(kills=1), ())
        return sum(values.values())[0]

    near(total(reward.params()), 10.0)
    near(total(reward.change(reward.params(), {"kills": {"weight": 4.0}})), 4.0)
    assert len(traces) == 1
    with pytest.raises(ValueError, match="env.reward=kill.*kills"):
        reward.change(reward.params(), {"kill": {"weight": 4.0}})
    with pytest.raises(ValueError, match="kills.heavy: unknown; allowed: weight, contested"):
        reward.change(reward.params(), {"kills": {"heavy": 4.0}})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, ("running", "running", 0)),
        ({"score": [30.0, 29.9]}, ("blue_win", "zone", 1)),
        ({"score": [12.0, 30.0]}, ("red_win", "zone", -1)),
        ({"score": [30.1, 30.2]}, ("red_win", "zone", -1)),
        ({"score": [30.0, 30.0]}, ("draw", "zone", 0)),
        ({"living": [2, 0]}, ("blue_win", "elimination", 1)),
        ({"living": [0, 1], "decision": 240}, ("red_win", "elimination", -1)),
        ({"living": [0, 0]}, ("draw", "elimination", 0)),
        ({"living": [0, 2], "score": [30.0, 0.0]}, ("blue_win", "zone", 1)),
        ({"decision": 240, "score": [1.0, 0.5], "hp": [1.0, 9.0]}, ("blue_win", "time", 1)),
        ({"decision": 240, "score": [1.0, 1.0005], "hp": [9.0, 8.0]}, ("blue_win", "time", 1)),
        ({"decision": 240, "hp": [8.0, 9.0]}, ("red_win", "time", -1)),
        ({"decision": 240}, ("draw", "time", 0)),
        ({"score": [99.0, 0.0], "zone_seconds": np.inf}, ("running", "running", 0)),
    ],
)
def test_ends_of_an_episode(changes, wanted):
    given = {
        "score": [0.0, 0.0],
        "living": [3, 3],
        "hp": [5.0, 5.0],
        "decision": 10,
        "zone_seconds": 30.0,
        "max_decisions": 240,
    } | changes
    outcome, ending, lead = results.decide_outcome(
        **{name: jnp.asarray(value) for name, value in given.items()}
    )
    assert outcome.dtype == ending.dtype == jnp.int32
    assert (*results.OUTCOMES, "running")[int(outcome)] == wanted[0]
    assert (*results.ENDINGS, "running")[int(ending)] == wanted[1]
    assert float(lead) == wanted[2]
