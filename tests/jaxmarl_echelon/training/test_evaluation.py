"""Evaluations count finite episodes, and the agents that took part in them."""

import dataclasses
import functools
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from algos.off_policy.sac import SACConfig
from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.actor_scores import task_scores
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.curricula.stages import read_episodes
from jaxmarl_echelon.envs import episodes, results
from jaxmarl_echelon.envs.base import EnvSpec, Role
from jaxmarl_echelon.envs.episodes import EpisodeTask
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import Box, Discrete
from jaxmarl_echelon.tracking import statistics as intervals
from jaxmarl_echelon.tracking import tables
from jaxmarl_echelon.tracking.base import Sink, Tracker
from jaxmarl_echelon.tracking.console import ConsoleSink
from jaxmarl_echelon.tracking.csv_sink import CsvSink, read_columns
from jaxmarl_echelon.tracking.statistics import student_interval, wilson_interval
from jaxmarl_echelon.training.acting import episode_statistics
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import group_members, loop, memory, vectorized_runs
from jaxmarl_echelon.training.host.run_record import (
    RunProgress,
    RunRecord,
    evaluation_columns,
    evaluation_values,
)
from jaxmarl_echelon.training.program import evaluation
from jaxmarl_echelon.training.program.assessment import Assessment
from jaxmarl_echelon.training.program.program import make_program

ROLE = probes.ROLE
EVERY_OTHER, ALL, NONE = range(3)


class Sick(probes.Poison):
    """Becomes not-a-number in the third of its steps: in every other evaluation episode, in all, in none.

    A sound episode returns 6 to the first agent; the second does not take part. Episodes of training are
    sound.
    """

    agents = 2

    def __init__(self, which=EVERY_OTHER, where="obs"):
        super().__init__(where)
        self.which = which

    def default_params(self):
        return super().default_params() | {"which": np.int32(self.which), "at": np.int32(3)}

    def evaluation_params(self, params, index):
        sick = (params["which"] == ALL) | ((params["which"] == EVERY_OTHER) & (index % 2 == 0))
        return params | {"poison": jnp.where(sick, params["at"], -1)}

    def roster(self, key, params):
        return jnp.array([True, False])

    def reward(self, state, action, params):
        return jnp.where(state.alive, 1.0, 0.0)


SICK = {where: Sick(where=where) for where in ("state", "obs", "reward", "info")}


def configure(env, updates=2, algo=None, **changes):
    given = {"num_envs": 4, "eval_episodes": 8, "eval_every": 1, "checkpoint_every": 1}
    given |= {"window": 8, "episode_rows": 16}
    algo = algo or PPOConfig(horizon=8, epochs=1, num_minibatches=1, widths=(8,))
    steps = updates * 4 * algo.horizon
    return RunConfig(
        env=env, algo=algo, curriculum=constant_curriculum, total_env_steps=steps, **given | changes
    )


def still(env):
    """A controller that always takes action 0."""
    agents = env.spec.roles[0].size

    def act(key, state, memory, view, reset):
        return memory, jnp.zeros((reset.shape[0], agents), jnp.int32), {}

    return Controller(lambda num_envs: (), act)


def play(env, **changes):
    """Eight episodes with these parameters instead of the environment's own."""
    params = jax.tree.map(jnp.asarray, env.default_params() | changes)
    return player(env)(jax.random.key(0), params)


@functools.cache
def player(env):
    @jax.jit
    def played(key, params):
        params = evaluation.evaluation_params(env, params, 8)
        return evaluation.play_episodes(env, {ROLE: still(env)}, {}, key, params)

    return played


summarize = jax.jit(evaluation.summarize_evaluation, static_argnums=(1, 2))


@pytest.mark.parametrize("where", SICK)
@pytest.mark.parametrize("at", [0, 3])
def test_a_nonfinite_episode_is_not_counted(where, at):
    """From the first decision or from a later one."""
    env = SICK[where]
    result = play(env, at=at)
    assert np.asarray(result.quarantined).tolist() == [True, False] * 4
    values = evaluation_values(summarize(result, env.spec, ROLE), result, env.spec)
    assert values["eval_agg/quarantined"] == 4 and values["eval_agg/num_episodes"] == 4
    assert values["eval_agg/avg_reward"] == 6.0 and values["eval_agg/std_reward"] == 0.0
    assert values["eval_agg/avg_episode_length"] == 6.0
    assert values["eval_agg/outcome/timeout"] == 1.0
    assert (values["eval_agg/success_low"], values["eval_agg/success_high"]) == wilson_interval(0, 4)
    assert all(map(math.isfinite, values.values()))
    assert set(values) <= set(evaluation_columns(env.spec, ROLE, staged=False))


def test_the_score_is_nan_without_a_finite_episode():
    env = SICK["obs"]
    result = play(env, which=ALL)
    values = evaluation_values(summarize(result, env.spec, ROLE), result, env.spec)
    assert values["eval_agg/quarantined"] == 8 and values["eval_agg/num_episodes"] == 0
    for name in ("avg_reward", "success_rate", "success_low", "success_high"):
        assert math.isnan(values[f"eval_agg/{name}"])


class Lines(Sink):
    """Keeps what is logged of evaluations."""

    def __init__(self):
        self.events = []

    def event(self, step, text):
        self.events.append(text)


def record_of(folder, config, lines):
    return RunRecord(config, make_program(config), {}, folder, Tracker({"lines": lines}), RunProgress())


class Settled(probes.TimeLimit):
    """Has nothing to vary."""

    def __init__(self, nothing):
        super().__init__(4)
        self.nothing = nothing

    def default_params(self):
        return self.nothing

    def reset(self, key, params):
        return super().reset(key, super().default_params())

    def step(self, key, state, actions, params):
        return super().step(key, state, actions, super().default_params())


@pytest.mark.parametrize("nothing", [{}, None, ()])
def test_an_environment_without_parameters_is_trained_and_evaluated(nothing):
    program, key = make_program(configure(Settled(nothing))), jax.random.key(0)
    run, _ = jax.eval_shape(program.update, jax.eval_shape(program.init, key))
    _, assessment = jax.eval_shape(program.assess, run, key)
    assert assessment.result.length.shape == (8,)
    with pytest.raises(ValueError, match="no parameters"):
        evaluation.count_episodes(nothing)


def test_a_nonfinite_score_is_never_the_best(tmp_path):
    lines = Lines()
    record = record_of(tmp_path, configure(Sick(NONE)), lines)
    scores = [5.0, math.nan, 1.0, math.nan, -200.0, math.inf, 6.0]
    better = [bool(record.improved("best_eval", [score])) for score in scores]
    assert better == [True, False, False, False, False, False, True]
    assert record.progress.best["best_eval"] == [6.0]
    pairs = [[0.5, math.nan], [0.5, 1.0], [0.5, math.nan], [math.nan, 9.0], [0.5, 1.5]]
    assert [bool(record.improved("pair", pair)) for pair in pairs] == [False, True, False, False, True]
    record.progress.best["old"] = [math.nan]
    assert record.improved("old", [-3.0]) == ["old"] and record.progress.best["old"] == [-3.0]


class Outlasting(probes.TimeLimit):
    """Ends one decision after its limit, as with `clock > LIMIT`."""

    @property
    def spec(self):
        return dataclasses.replace(super().spec, episode_limit=self.horizon - 1)


@pytest.mark.parametrize(("env", "told"), [(Outlasting(4), 1), (probes.TimeLimit(3), 0)])
def test_episodes_that_outlast_their_limit_are_told_of_once(tmp_path, env, told):
    lines, result = Lines(), play(env)
    parts = {"env": env, "agents": {ROLE: None}, "role": ROLE, "curriculum": constant_curriculum(env)}
    program = SimpleNamespace(**parts, steps_per_update=1)
    given = SimpleNamespace(num_envs=8), program, {}, tmp_path, Tracker({"lines": lines}), RunProgress()
    record = RunRecord(*given)
    for _ in range(2):
        record.assessment(Assessment(summarize(result, env.spec, ROLE), result, np.int32(0)), 1.0)
    found = [line for line in lines.events if "spec.episode_limit=3" in line]
    assert len(found) == told and all(line.startswith("8 of 8 episodes") for line in found)


@pytest.mark.thorough
def test_a_run_without_a_sound_episode_goes_on_and_says_so(tmp_path, capsys):
    config = configure(Sick(ALL))
    tracker = Tracker({"csv": CsvSink(), "console": ConsoleSink(every_seconds=0.0)})
    summary = loop.train_run(config, make_program(config), {"seed": 0}, tmp_path, tracker)
    assert summary["status"] == "finished" and "best_eval" not in summary["best"]
    assert checkpoints.has_checkpoint(tmp_path, "latest")
    assert not (tmp_path / "checkpoints" / "best_eval").exists()
    (line, *_) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("eval ")]
    assert "success -" in line and "return -" in line and "quarantined 8" in line
    columns = read_columns(tmp_path / "eval.csv")
    assert columns["quarantined"].tolist() == [8, 8, 8] and np.isnan(columns["avg_reward"]).all()
    assert not (tmp_path / "eval_episodes.csv").exists()
    require_returns_of_present(tmp_path / "episodes.csv", f"return/{ROLE}")


def require_returns_of_present(path, name):
    """A table of episodes leaves out absent agents."""
    columns = read_columns(path)
    assert len(columns["length"]) > 4 and (columns[name] == 6.0).all()


@pytest.mark.thorough
def test_a_group_counts_sound_episodes(tmp_path):
    members = [
        group_members.Member(f"seed_{seed}", "one", configure(Sick(), seed=seed), {}) for seed in (0, 1)
    ]
    summary = vectorized_runs.train_group(members, {"seed": 0}, tmp_path, Tracker({"csv": CsvSink()}))
    low, high = wilson_interval(0, 2 * 4)
    (row,) = summary["variants"]
    assert (row["success"], row["best"], row["low"], row["high"]) == (0.0, 0.0, low, high)
    pooled = read_columns(tmp_path / "eval.csv")
    assert pooled["success_high"].tolist() == [high] * 3 and pooled["quarantined"].tolist() == [4] * 3
    assert pooled["avg_reward"].tolist() == [6.0] * 3
    for member in members:
        require_returns_of_present(tmp_path / member.name / "episodes.csv", f"return/{ROLE}")
        require_returns_of_present(tmp_path / member.name / "eval_episodes.csv", "reward")


def test_seeds_without_a_sound_episode_are_left_out_of_their_variant():
    def record(rate, number):
        scores = {"eval_agg/success_rate": rate, "eval_agg/num_episodes": number}
        best = {"best_eval": [rate]} if number else {}
        grades = np.arange(number) % 2
        sums = {"success_rate": list(intervals.sum_scores(grades, np.ones(number)))}
        return SimpleNamespace(progress=RunProgress(last_eval=scores, best=best, last_sums=sums))

    named = [("some", 0.5, 4), ("some", math.nan, 0), ("none", math.nan, 0), ("none", math.nan, 0)]
    members = [SimpleNamespace(name=name, variant=name) for name, _, _ in named]
    some, none = group_members.variant_rows(
        members, [record(rate, number) for _, rate, number in named], "success_rate"
    )
    assert (some["success"], some["best"], some["low"], some["high"]) == (0.5, 0.5, *wilson_interval(2, 4))
    assert all(math.isnan(none[key]) for key in ("success", "low", "high", "best"))
    assert tables.format_interval(none["success"], none["low"], none["high"]) == "-"


def seed_record(*grades):
    """A record whose last evaluation had episodes with these scores."""
    sums = intervals.sum_scores(np.array(grades), np.ones(len(grades)))
    scores = {"eval_agg/success_rate": sums.mean}
    return SimpleNamespace(progress=RunProgress(last_eval=scores, last_sums={"success_rate": list(sums)}))


def test_the_interval_of_a_group_is_over_seeds_and_of_several_variants_there_is_none():
    success = Result("success", kind="rate")
    names = ("success_rate", "success_low", "success_high")

    def score(records, *variants):
        members = [SimpleNamespace(variant=name) for name in variants]
        found = group_members.group_score(members, records, success)
        return [found[f"eval_agg/{name}"] for name in names]

    # All episodes of one seed succeed and none of the other: 64 episodes are a sample of two.
    apart = [seed_record(*[0] * 32), seed_record(*[1] * 32)]
    assert score(apart, "baseline", "baseline") == [0.5, 0.0, 1.0]
    assert score(apart, "baseline", "other") == pytest.approx([0.5, math.nan, math.nan], nan_ok=True)
    equal = [seed_record(*[0] * 32), seed_record(*[0] * 32)]
    assert score(equal, "baseline", "baseline") == [0.0, *wilson_interval(0, 64)]
    three = [seed_record(0, 1, 1, 1), seed_record(1, 1, 0, 0), seed_record(0, 0, 0, 1)]
    low, high = student_interval([0.75, 0.5, 0.25])
    assert score(three, *["baseline"] * 3) == pytest.approx([0.5, max(low, 0.0), min(high, 1.0)])
    sick = SimpleNamespace(progress=RunProgress(last_eval={"eval_agg/success_rate": math.nan}))
    assert all(map(math.isnan, score([sick], "baseline", "baseline")))


def test_the_runs_of_one_population_have_no_interval_over_seeds():
    """They copy each other; with variants, the runs of each seed are a population of their own."""
    success, plan = Result("success", kind="rate"), object()
    records = [seed_record(0, 1, 1, 1), seed_record(1, 1, 0, 0)]

    def found(plan, *variants):
        members = [SimpleNamespace(name=f"{i}", variant=name) for i, name in enumerate(variants)]
        score = group_members.group_score(members, records, success, plan)
        row = group_members.variant_rows(members, records, "success_rate", plan=plan)[0]
        return [score["eval_agg/success_low"], score["eval_agg/success_high"]], [row["low"], row["high"]]

    alone, together = found(None, "a", "a"), found(plan, "a", "a")
    assert alone[0] == alone[1] and all(map(math.isfinite, alone[0]))
    assert all(map(math.isnan, together[0] + together[1]))
    assert all(map(math.isfinite, found(plan, "a", "b")[1]))


def test_a_table_of_variants_names_the_whole_column():
    """That of a role's own score has a part before a slash."""
    last_eval = {"eval_agg/success/defender_rate": 1.0}
    record = SimpleNamespace(progress=RunProgress(last_eval=last_eval))
    members = [SimpleNamespace(name="a", variant="a")]
    (row,) = group_members.variant_rows(members, [record], "success/defender_rate")
    assert row["measure"] == "success/defender_rate"
    head = tables.variant_table([row]).columns[2].header
    assert head == "success/defender rate [95 %]"


def test_a_return_of_one_seed_has_no_interval():
    def row(*returns):
        values = ({"eval_agg/avg_reward": x} for x in returns)
        records = [SimpleNamespace(progress=RunProgress(last_eval=one)) for one in values]
        member = SimpleNamespace(name="a", variant="a")
        (found,) = group_members.variant_rows([member] * len(returns), records, None)
        return found

    alone, both = ([row(*x)[key] for key in ("success", "low", "high")] for x in ((34.25,), (34.0, 36.0)))
    assert alone[0] == 34.25 and all(map(math.isnan, alone[1:]))
    assert both == [35.0, *student_interval([34.0, 36.0])]
    assert tables.format_interval(*alone) == "34.25"


GRADES = np.float32([0.5, 0.25, 0.0, 1.0, 0.5, 0.1, 0.0, 0.0])


def test_a_grade_is_neither_cut_nor_counted_as_a_success():
    """In the score, in its interval, in the best checkpoint's rank, and over the seeds of a group."""
    box = Box((1,), -1.0, 1.0)
    spec = EnvSpec("graded", 1, (Role(ROLE, 1, box, box),), 0.0, 9, (Result("grade", kind="rate"),), "grade")
    there, returns = {ROLE: np.ones((8, 1), bool)}, {ROLE: np.zeros((8, 1), np.float32)}

    def evaluated(grades):
        length = np.ones(8, np.int32)
        result = evaluation.Evaluation(np.zeros(8, bool), there, returns, length, {"grade": grades}, None)
        return summarize(result, spec, ROLE), result

    values = evaluation_values(*evaluated(GRADES), spec)
    found = [values[f"eval_agg/{name}"] for name in ("grade_rate", "grade_low", "grade_high")]
    np.testing.assert_allclose(
        found, [GRADES.mean(), *np.clip(student_interval(GRADES.tolist()), 0.0, 1.0)], rtol=1e-6
    )
    values = evaluation_values(*evaluated(np.round(GRADES)), spec)
    assert (values["eval_agg/grade_low"], values["eval_agg/grade_high"]) == wilson_interval(1, 8)

    def member(grades):
        env = SimpleNamespace(spec=spec, default_params=dict)
        parts = {"env": env, "agents": {ROLE: None}, "role": ROLE, "curriculum": constant_curriculum(env)}
        program = SimpleNamespace(**parts, steps_per_update=1)
        record = RunRecord(SimpleNamespace(num_envs=8), program, {}, Path(), Tracker({}), RunProgress())
        names = record.assessment(Assessment(*evaluated(grades), np.int32(0)), 1.0)
        assert names == ["best_eval"] and record.progress.best["best_eval"][0] == pytest.approx(grades.mean())
        return record

    records = [member(GRADES), member(GRADES[::-1] / 2)]
    member = SimpleNamespace(name="one", variant="one")
    (row,) = group_members.variant_rows([member] * 2, records, "grade_rate")
    every = np.concatenate([GRADES, GRADES / 2])
    assert row["success"] == pytest.approx(every.mean())
    over_all = group_members.pooled_sums(records, "grade_rate")
    ends = np.clip(student_interval(every.tolist()), 0.0, 1.0)
    np.testing.assert_allclose(intervals.score_interval(over_all), ends, rtol=1e-6)
    assert row["low"] <= ends[0] and row["high"] >= ends[1]


def test_the_curriculum_gets_the_success_rate_of_finite_episodes():
    env = SICK["obs"]
    result = play(env)
    assert float(result.score(env.spec)) == 0.0
    won = result.replace(results=result.results | {"outcome": jnp.zeros_like(result.results["outcome"])})
    assert float(won.score(env.spec)) == 1.0
    assert math.isnan(float(play(env, which=ALL).score(env.spec)))


ABSENT = probes.Absent()
ROSTERS = {(True, True): 2.0, (True, False): 2.0, (False, False): math.nan}


@pytest.mark.parametrize("roster", ROSTERS)
def test_means_are_over_the_agents_that_took_part(roster):
    """In evaluations, in training's statistics, in the table of episodes and for curricula."""
    env, expected = ABSENT, ROSTERS[roster]
    params = env.default_params() | {"roster": np.array(roster)}
    result = play(env, roster=np.array(roster))
    scalars = summarize(result, env.spec, ROLE)
    np.testing.assert_array_equal(scalars["eval_agg/avg_reward"], np.float32(expected))

    finished = played(env, params)
    metrics, rows, seen = statistics(finished, env.spec)
    np.testing.assert_array_equal(metrics["train/return"], np.float32(expected))
    assert float(metrics["train/episode_length"]) == 2.0
    np.testing.assert_array_equal(rows[f"return/{ROLE}"], np.full(4, expected, np.float32))
    seen = np.asarray(seen)[np.asarray(finished.mask)]
    np.testing.assert_array_equal(seen, np.full(4, expected, np.float32))


@functools.partial(jax.jit, static_argnums=1)
def statistics(finished, spec):
    """Metrics of the ring, rows of the table and what curricula read, of four episodes."""
    found = episode_statistics.select_finished(finished, 4, newest=True)
    metrics = rolling_metrics(found.finished, spec, 8)
    rows = episode_statistics.episode_rows(found, spec, (ROLE,))
    return metrics, rows, read_episodes(finished, spec, ROLE).reward


def rolling_metrics(finished, spec, size):
    ring = episode_statistics.add_recent(episode_statistics.init_recent(spec, size), finished, spec)
    return episode_statistics.recent_metrics(ring, spec, (ROLE,))


def played(env, params):
    """Results `[T, E]` of four episodes, one each."""
    return trainer(env)(jax.random.key(0), jax.tree.map(jnp.asarray, params))


@functools.cache
def trainer(env, number=4):
    @jax.jit
    def run(key, params):
        def draw(key):
            return EpisodeTask(params)

        def step(state, key):
            action = {ROLE: jnp.zeros((number, env.agents), jnp.int32)}
            state, transition = episodes.step_episodes(env, key, state, action, draw)
            return state, transition.finished

        start = episodes.start_episodes(env, key, draw, number)
        return jax.lax.scan(step, start, jax.random.split(key, env.horizon))[1]

    return run


GRADED = (
    Result("task", kind="code", labels=("a", "b", "c"), groups=True),
    Result("grade", kind="rate", by="task"),
    Result("reward/speed", shown="reward_components/speed", by="task"),
)


def test_results_are_reported_by_label():
    """Of two tasks of three that occur, one episode of which is quarantined, or not in the ring yet."""
    number, box = 40, Box((1,), -1.0, 1.0)
    spec = EnvSpec("graded", 1, (Role(ROLE, 1, box, box),), 0.0, 9, GRADED, "grade")
    counts = np.arange(number) > 0
    task, grade = np.arange(number) % 2, np.linspace(0.0, 1.0, number, dtype=np.float32)
    results = {"task": np.int32(task), "grade": grade, "reward/speed": -grade}
    there, returns = {ROLE: np.ones((number, 1), bool)}, {ROLE: np.zeros((number, 1), np.float32)}
    result = evaluation.Evaluation(~counts, there, returns, np.ones(number, np.int32), results, None)
    scalars = summarize(result, spec, ROLE)
    counted = jax.tree.map(lambda x: x[1:], result.finished)
    rolling = jax.jit(rolling_metrics, static_argnums=(1, 2))(counted, spec, number)
    for index, label in enumerate("ab"):
        expected = grade[counts & (task == index)].mean()
        for column, sign in (("grade_rate", 1), ("reward_components/speed", -1)):
            for values, where in ((scalars, "eval_agg"), (rolling, "train")):
                np.testing.assert_allclose(values[f"{where}/{column}/{label}"], sign * expected, rtol=1e-5)
    assert math.isnan(rolling["train/grade_rate/c"]) and math.isnan(scalars["eval_agg/grade_rate/c"])

    values = evaluation_values(scalars, result, spec)
    assert not any(name.endswith("/c") for name in values), "tasks that did not occur are left out"
    possible = evaluation_columns(spec, ROLE, staged=True)
    assert set(possible) - set(values) == {
        *(f"eval_agg/{name}/c" for name in ("task", "grade_rate", "reward_components/speed", "worst_decile")),
        "eval_agg/phase_success_rate",
    }
    np.testing.assert_allclose(values["eval_agg/worst_decile"], grade[1:5].mean(), rtol=1e-5)
    np.testing.assert_allclose(values["eval_agg/worst_decile/a"], grade[[2, 4]].mean(), rtol=1e-5)
    parts = evaluation.split_by_task(result, spec)
    rows = {name: evaluation_values(summarize(p, spec, ROLE), p, spec) for name, p in parts.items()}
    assert rows["b"]["eval_agg/worst_decile"] == values["eval_agg/worst_decile/b"]
    _, detailed = tables.task_tables({"policy": rows}, spec)
    assert [list(column.cells)[-1] for column in detailed.columns] == ["worst decile", "0.08", "0.05"]


DISTANCES = (
    Result("task", kind="code", labels=("a", "b", "c")),
    Result("contacts"),
    Result("distance", over="contacts", least=1.0, by="task"),
    Result("hits", role=ROLE),
    Result("driven", role=ROLE, over="hits", least=1.0),
)


def test_a_quantity_per_event_is_not_a_number_without_an_episode():
    """Without any event it is the quantity itself; but 0 would be the worst of all."""
    box = Box((1,), -1.0, 1.0)
    spec = EnvSpec("distances", 1, (Role(ROLE, 1, box, box),), 0.0, 9, DISTANCES)
    results = {"task": np.int32([0, 1, 1]), "contacts": np.float32([0, 0, 4])}
    results |= {"distance": np.float32([9, 6, 10]), "driven": np.float32([[9], [6], [10]])}
    results |= {"hits": np.float32([[0], [0], [4]])}
    there, returns = {ROLE: np.array([[True], [True], [False]])}, {ROLE: np.zeros((3, 1), np.float32)}
    empty = episode_statistics.recent_metrics(episode_statistics.init_recent(spec, 5), spec, (ROLE,))
    for counts, total, driven, by_task in (
        ([True, True, True], 25 / 4, 15.0, (9.0, 16 / 4, math.nan)),
        ([False, True, False], 6.0, 6.0, (math.nan, 6.0, math.nan)),
        ([False, False, False], math.nan, math.nan, (math.nan,) * 3),
    ):
        quarantined = ~np.array(counts)
        result = evaluation.Evaluation(quarantined, there, returns, np.ones(3, np.int32), results, None)
        counted = jax.tree.map(lambda x, keep=counts: x[np.array(keep)], result.finished)
        rolling = rolling_metrics(counted, spec, 5) if any(counts) else empty
        for values, where in ((summarize(result, spec, ROLE), "eval_agg"), (rolling, "train")):
            found = [values[f"{where}/distance"], *(values[f"{where}/distance/{label}"] for label in "abc")]
            np.testing.assert_allclose(found, [total, *by_task])
            np.testing.assert_allclose(values[f"{where}/driven"], driven)
    rows = episode_statistics.results_per_episode(results, there, spec)
    np.testing.assert_allclose(rows["driven"], [9.0, 6.0, math.nan])


def test_an_agent_that_dies_on_the_way_took_part():
    env = probes.DeadAgent()
    finished = jax.tree.map(lambda x: x[-1], jax.device_get(played(env, env.default_params())))
    assert finished.mask.all() and finished.present[ROLE].all()
    assert np.asarray(play(env).present[ROLE]).all()


def test_an_evaluation_by_task_is_that_of_the_tasks_episodes():
    car = Role("car", 2, Box((1,), -1.0, 1.0), Discrete(2))
    reported = (
        *results.standard_results(tasks=("bend", "ford", "hill")),
        Result("there", role="car", kind="rate"),
    )
    spec = EnvSpec("yard", 1, (car,), 0.1, 10, reported, score="there")
    quarantined = np.array([False, False, False, True])
    values = {
        "task": np.array([0, 2, 0, 2]),
        "there": np.float32([[1, 0], [1, 1], [1, 0], [0, 0]]),
    }
    present = {"car": np.array([[True, True], [True, False], [True, False], [True, True]])}
    whole = evaluation.Evaluation(
        quarantined, present, {"car": np.ones((4, 2), np.float32)}, np.full(4, 10), values, frames=None
    )
    found = evaluation.split_by_task(whole, spec)
    assert list(found) == ["bend", "hill"], "nothing was played of the second"
    score = jax.jit(lambda part: part.score(spec))
    scores = {task: float(score(part)) for task, part in found.items()}
    assert scores == pytest.approx({"bend": 2 / 3, "hill": 1.0})
    assert int(summarize(found["bend"], spec, "car")["eval_agg/num_episodes"]) == 2
    program = SimpleNamespace(env=SimpleNamespace(spec=spec), agents={"car": None}, role="car")
    rows = task_scores(program, whole)
    sick = {task: row["eval_agg/quarantined"] for task, row in rows.items()}
    assert sick == {"bend": 0, "hill": 1}, "those of other tasks are not quarantined"


@pytest.mark.parametrize("members", [1, 3])
def test_an_evaluation_returns_only_the_curriculum_state(members):
    """Least of all a replay: what comes out of a compiled function is a copy."""
    algo = SACConfig(widths=(8,), horizon=4, replay={"capacity": 1_000_000})
    config = configure(probes.ContinuousTarget(), algo=algo)
    program = make_program(config)
    keys = jax.random.split(jax.random.key(0), members)
    state = jax.eval_shape(jax.vmap(program.init), keys)
    course, assessment = jax.eval_shape(jax.vmap(program.assess), state, keys)
    assert jax.tree.structure(course) == jax.tree.structure(state.curriculum)
    assert size(state) > members * memory.replay_bytes(config) > 1000 * size((course, assessment))


def size(tree):
    """Bytes of the arrays of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
