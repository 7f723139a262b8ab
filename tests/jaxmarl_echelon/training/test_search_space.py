"""Search spaces: their notation, what is drawn from them, and groups of drawn settings."""

import math

import chex
import numpy as np
import pytest

from jaxmarl_echelon import command_line
from jaxmarl_echelon.training.config import build, search_space
from jaxmarl_echelon.training.config.population_settings import PopulationSettings, adapted_numbers
from jaxmarl_echelon.training.host import group_members, variants

RATE = "algo.learning_rate"


def compose(*overrides):
    typed = ["env=gymnax/CartPole-v1", "tuning=none", *overrides]
    return command_line.compose_config(command_line.normalize_overrides(typed))


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("log(1e-4, 1e-2)", (1e-4, 1e-3, 0.00999999)),
        ("uniform(-1,1)", (-1.0, 0.0, 1.0)),
        ("integer(1,4)", (1, 3, 4)),
        ("1-log(1e-4,1e-2)", (0.9999, 0.999, 0.99)),
        ("1-log(1e-7,1e-3)", (0.9999999, 0.99999, 0.999)),
        ([0.5, "b", 2], (0.5, "b", 2)),
    ],
)
def test_shares_of_a_dimension_are_values(given, values):
    dimension = search_space.parse_dimension("key", given)
    drawn = [dimension.value(share) for share in (0.0, 0.5, 1 - 1e-9)]
    assert drawn == pytest.approx(values, rel=1e-5) if given != [0.5, "b", 2] else drawn == list(values)


def test_a_sample_lies_in_every_part_and_does_not_depend_on_other_keys():
    config, _ = compose(
        f"sweep={{{RATE}: log(1e-5,1e-1), algo.gamma: uniform(0.9,1)}}", "samples=16", "seed=3"
    )
    drawn = search_space.draw_sweep(config)
    parts = [math.floor(4 * (math.log10(one[RATE]) + 5)) for one in drawn]
    assert sorted(parts) == sorted(list(range(16)))
    assert sorted(math.floor(160 * (one["algo.gamma"] - 0.9)) for one in drawn) == list(range(16))
    alone, _ = compose(f"sweep.{RATE}=log(1e-5,1e-1)", "samples=16", "seed=3")
    assert [one[RATE] for one in search_space.draw_sweep(alone)] == [one[RATE] for one in drawn]
    other, _ = compose(f"sweep={{{RATE}: log(1e-5,1e-1)}}", "samples=16", "seed=4")
    assert search_space.draw_sweep(other)[0] != drawn[0]
    assert abs(np.corrcoef(*np.array([[math.log(d[RATE]), d["algo.gamma"]] for d in drawn]).T)[0, 1]) < 0.6


def test_distances_to_one_are_drawn_by_their_logarithm_and_bound_populations():
    config, _ = compose(
        "sweep={algo.gamma: 1-log(1e-4,1e-2)}", "samples=8", "seeds=2", "pbt={every: 2, keys: [algo.gamma]}"
    )
    drawn = [one["algo.gamma"] for one in search_space.draw_sweep(config)]
    assert sorted(math.floor(4 * (math.log10(1 - gamma) + 4)) for gamma in drawn) == list(range(8))
    assert all(0.99 <= gamma <= 0.9999 and len(str(gamma)) <= 10 for gamma in drawn)
    (number,) = adapted_numbers(config, build.build_run_config(config))
    assert (number.low, number.high) == (0.99, 0.9999)


def test_drawn_members_are_those_of_the_same_variants():
    config, choices = compose(
        f"sweep={{{RATE}: log(1e-4,1e-2), algo.gamma: [0.9,0.95]}}", "samples=2", "seeds=2"
    )
    drawn = variants.expand_members(config, choices)
    assert [one.name for one in drawn] == [f"sample_{i}_seed_{s}" for i in (0, 1) for s in (0, 1)]
    typed = [
        f"variants.{one.variant}={{{', '.join(f'{k}: {v}' for k, v in one.changes.items())}}}"
        for one in drawn[::2]
    ]
    config, choices = compose(*typed, "seeds=2")
    written = variants.expand_members(config, choices)[2:]
    assert [one.resolved for one in written] == [one.resolved for one in drawn]
    chex.assert_trees_all_equal(*map(group_members.stack_hyper, (drawn, written)))
    hyper = group_members.stack_hyper(drawn)["player"]
    np.testing.assert_array_equal(hyper["gamma"], np.float32([one.changes["algo.gamma"] for one in drawn]))
    assert drawn[0].config.env is drawn[3].config.env


# Settings with which learners use the numbers.
IN_USE = {
    "ppo_rnn_metta": (
        *("algo.sampling=prioritized", "num_envs=4", "algo.horizon=8", "algo.minibatch_size=16"),
        *("algo.core.width=8", "algo.widths=[8]"),
    )
}


@pytest.mark.parametrize(
    ("algo", "keys"),
    [
        ("ppo", ("clip", "entropy_coefficient", "target_kl", "gae_lambda", "value_coefficient")),
        ("ppo_rnn_metta", ("priority_alpha", "vtrace_rho")),
        ("a2c", ("rmsprop_decay",)),
        ("pqn", ("exploration_fraction", "epsilon_end")),
        ("dqn", ("tau", "target_period", "max_grad_norm")),
    ],
)
def test_every_number_in_use_may_vary(algo, keys):
    chosen = ", ".join(f"algo.{key}: {0.125 if key != 'target_period' else 3}" for key in keys)
    config, choices = compose(f"algo={algo}", f"variants.other={{{chosen}}}", *IN_USE.get(algo, ()))
    _, other = variants.expand_members(config, choices)
    (hyper,) = group_members.stack_hyper([other]).values()
    for key in keys:
        assert float(hyper[key][0]) == (3.0 if key == "target_period" else 0.125)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sweep={algo.gamma: loog(1,2)}", "samples=2"], "sweep.algo.gamma=loog(1,2): must be log("),
        (["sweep={algo.gamma: log(0,2)}", "samples=2"], "must be log(LOW, HIGH) with 0 < LOW < HIGH"),
        (["sweep={algo.gamma: uniform(2,1)}", "samples=2"], "with LOW < HIGH"),
        (["sweep={algo.gamma: 1-log(0,0.1)}", "samples=2"], "1-log(LOW, HIGH) with 1e-07 <= LOW < HIGH <= 1"),
        (["sweep={algo.gamma: 1-log(2e-8,0.1)}", "samples=2"], "1-log(LOW, HIGH) with 1e-07 <= LOW <"),
        (["sweep={algo.gamma: 1-log(0.1,2)}", "samples=2"], "1-log(LOW, HIGH) with 1e-07 <= LOW < HIGH <= 1"),
        (["sweep={algo.gamma: uniform(a,1)}", "samples=2"], "with numbers"),
        (["sweep={algo.gamma: [0.9]}", "samples=2"], "a list of at least two values, all different"),
        (["sweep={algo.gama: [0.9,0.8]}", "samples=2"], "sweep.algo.gama: algo.gama is no key"),
        (["sweep={algo.gamma: [0.9,0.8]}"], "samples=None: must be a whole number of at least 1"),
        (["samples=2"], "samples=2: needs sweep="),
        (["sweep={algo.epochs: [1,2]}", "samples=2"], "must be a number of the learner's state"),
        (["algo=dqn", "variants.a={algo.replay.n_step: 3}"], "algo.replay.n_step=3: must be a number"),
        (["seeds=2", "pbt={every: 2}"], "needs keys"),
        (["seeds=2", "pbt={every: 2, keys: [algo.epochs]}"], "pbt.keys=algo.epochs: must be a number"),
        (["seeds=2", "pbt={every: 0, keys: [algo.gamma]}"], "pbt.every=0: must be"),
        (["seeds=2", "pbt={every: 1, keys: [algo.gamma], exploit: 0.6}"], "pbt.exploit=0.6: must be"),
        (["seeds=2", "pbt={evry: 1, keys: [algo.gamma]}"], "pbt.evry=1: unknown key; allowed: every, keys"),
        (["pbt={every: 1, keys: [algo.gamma]}"], "needs at least two runs in a population"),
        (
            ["seeds=2", "pbt={every: 2, ready: 9999, keys: [algo.gamma]}"],
            "no exchange would take place, the first one would follow update 10000 of ",
        ),
    ],
)  # fmt: skip
def test_wrong_searches_are_refused_in_one_line(overrides, message):
    with pytest.raises(ValueError) as caught:
        config, choices = compose(*overrides)
        variants.plan_population(config, variants.expand_members(config, choices))
    assert message in str(caught.value) and "\n" not in str(caught.value)


KUHN = "env=textgames/kuhn"
POOL = "controllers.player=pool:player"
ECHELON = ("env=echelon", "env.maps=1", "tuning=none")
RAMP_OVER_UPDATES = ("curriculum=echelon_ramp", "curriculum.episodes=null", "curriculum.updates=9")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env=f110", "env.lidar_beams=12", "curriculum=phased26"], "with a curriculum of stages"),
        ([KUHN], "with a learner that plays kuhn only against itself"),
        ([KUHN, POOL, "pool.mode=mirror"], "with a learner that plays kuhn only against itself"),
        ([KUHN, POOL], "with pool.mode=mix (pfsp), because every member meets opponents of its own"),
        ([KUHN, POOL, "pool.mode=fixed", "pool.fixed=[random]"], None),
        (["env=gymnax/CartPole-v1"], None),
        ([*ECHELON, "curriculum=echelon_ramp"], "with a ramp over episodes, because every member is"),
        ([*ECHELON, *RAMP_OVER_UPDATES], None),
    ],
)
def test_members_whose_scores_cannot_be_compared_are_refused_in_one_line(overrides, message):
    typed = [*overrides, "num_envs=16", "seeds=2", "pbt={every: 2, keys: [algo.learning_rate]}"]
    config, choices = command_line.compose_config(command_line.normalize_overrides(typed))
    members = variants.expand_members(config, choices)
    if message is None:
        assert variants.plan_population(config, members).seeds == (0,)
        return
    with pytest.raises(ValueError) as caught:
        variants.plan_population(config, members)
    said = str(caught.value)
    assert said.startswith("pbt={") and message in said and "; allowed: " in said and "\n" not in said


def test_populations_are_the_runs_of_a_seed():
    pbt = "pbt={every: 3, keys: [algo.learning_rate, algo.gamma]}"
    config, choices = compose("seeds=4", "seed=7", pbt)
    plan = variants.plan_population(config, variants.expand_members(config, choices))
    assert plan.seeds == (7,) and plan.settings == PopulationSettings(3, (RATE, "algo.gamma"))
    config, choices = compose("seeds=[5,2]", f"sweep={{{RATE}: log(1e-4,1e-2)}}", "samples=2", pbt)
    members = variants.expand_members(config, choices)
    assert variants.plan_population(config, members).seeds == (5, 2)
    rate, gamma = adapted_numbers(config, members[0].config)
    assert (rate.low, rate.high) == (1e-4, 1e-2) and (gamma.low, gamma.high) == (0.0, 1.0)
    assert gamma.near_one and not rate.near_one
