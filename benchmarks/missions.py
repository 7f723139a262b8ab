"""Cost of missions compared with the plain battle, and success of scripts by order.

    python benchmarks/missions.py [--envs 256] [--turns 5]         # steps/s in turns, bytes, compile seconds
    python benchmarks/missions.py --behaviour [--episodes 168] [KEY=VALUE ...]   # success by verb of scripts
    python benchmarks/missions.py --criteria [--episodes 168] [KEY=VALUE ...]   # what the script reaches
    python benchmarks/missions.py --pay [--episodes 168] [KEY=VALUE ...]   # reward for acting by verb, phase
    python benchmarks/missions.py --credit [--episodes 168] [KEY=VALUE ...]   # credit by verb and kind

The plain battle (`env=echelon`) and missions have the same teams, terrains and observed blocks. Each is a
rollout of uniformly random actions with automatic resets; "with curriculum" also draws episodes from
`curriculum=missions4` and lets it judge finished episodes, as training does after every rollout. Scripts
play the task that scores a run of `missions4`: held-out terrains, the last phase's difficulty, red at full
fire. The reward for acting is the discounted reward per mech of the heuristic team minus that of a team
that does nothing, in the same episodes, with the weights and the difficulty of a phase: where it is not
positive, the rewards teach idleness. Credit is that of the heuristic team's mechs at the end of the same
episodes, unweighted. The correlation r of its sum over the squad with success is negative if worse teams
get more credit. "None" is the share of mechs with a credit below .001, "spread" the standard deviation of
credit within a squad. Criteria are those of the curriculum (`curriculum=` chooses another than `missions4`):
what the heuristic team reaches in each phase, in phases with exams at full fire, and in parentheses what the
phase asks for, margin included.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hydra import compose, initialize_config_dir
from machine import matmul_rate
from rich.console import Console
from rich.table import Table
from spread import bytes_per_environment

from algos.defaults import config_directory
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.echelon.missions.measures.credit import KINDS, CreditRule
from jaxmarl_echelon.envs.echelon.missions.measures.success import COMPLETED
from jaxmarl_echelon.envs.episodes import EpisodeEvents
from jaxmarl_echelon.tracking.statistics import student_interval
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program import evaluation

TEAMS = ("env.blue=pack5", "env.red=pack5", "env.telemetry=false")
SIZES = ("env.size=[40,40,20]", "env.maps=16", "env.pages=64", "env.damaged=96", "env.time_limit=60.0")
MISSIONS = "echelon_missions"
PLAIN, ORDERS, COURSE = "plain battle", "missions", "missions with curriculum"
SHAPLEY = "missions with Shapley credit"
GOAL = 0.25
# Credit below this is none.
NO_CREDIT = 0.001


class Job(NamedTuple):
    """A compiled rollout, its state, and the cost of compilation."""

    run: object
    state: object
    compile_seconds: float
    state_bytes: float


def rollout(env, curriculum, num_envs: int, steps: int):
    """Builds a rollout of random actions.

    Returns:
      `(state, key) -> (state, rewards)` over `steps` decisions, and `(key) -> state`; a state is that of the
      curriculum, its tickets and the episodes.
    """
    roles = env.spec.roles

    def begin(key):
        course = curriculum.init()
        running = episodes.start_episodes(env, key, lambda k: curriculum.draw(k, course), num_envs)
        return course, curriculum.tickets(num_envs), running

    def run(state, key):
        course, tickets, running = state

        def one(running, key):
            key_act, key_step = jax.random.split(key)
            keys = jax.random.split(key_act, len(roles))
            actions = {
                role.name: jax.random.uniform(k, (num_envs, role.size, *role.action.shape), minval=-1.0)
                for role, k in zip(roles, keys, strict=True)
            }
            begins, tags = running.running.tree.sums.length == 0, running.tags
            running, stepped = episodes.step_episodes(
                env, key_step, running, actions, lambda k: curriculum.draw(k, course)
            )
            flow = EpisodeEvents(begins=begins, tags=tags, over=stepped.reset_next, finished=stepped.finished)
            return running, (flow, stepped.time.reward)

        running, (flow, reward) = jax.lax.scan(one, running, jax.random.split(key, steps))
        course, tickets = curriculum.update(course, tickets, flow)
        return (course, tickets, running), jax.tree.map(jnp.mean, reward)

    return run, begin


def built(name: str, num_envs: int, steps: int) -> Job:
    """Compiles one of the rollouts and begins it."""
    chosen = [f"env={'echelon' if name == PLAIN else MISSIONS}", *TEAMS, *SIZES]
    further = {COURSE: ["curriculum=missions4"], SHAPLEY: ["env.credit_kind=shapley"]}
    config = read(*chosen, *further.get(name, []))
    run, begin = rollout(config.env, config.curriculum(config.env), num_envs, steps)
    state = jax.jit(begin)(jax.random.key(0))
    start = time.perf_counter()
    compiled = jax.jit(run).lower(state, jax.random.key(1)).compile()
    seconds = time.perf_counter() - start
    return Job(compiled, state, seconds, bytes_per_environment(state[2].running.tree.env, num_envs))


def read(*overrides: str):
    """The run configuration with these overrides."""
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        return build.build_run_config(compose("config", list(overrides)))


def measure_cost(console, num_envs: int, steps: int, turns: int) -> None:
    """Prints each rollout's median rate over turns, and its extra cost compared with the plain battle."""
    jobs = {name: built(name, num_envs, steps) for name in (PLAIN, ORDERS, SHAPLEY, COURSE)}
    states, seconds = {name: job.state for name, job in jobs.items()}, {name: [] for name in jobs}
    # The first turn warms up.
    for turn in range(turns + 1):
        for name, job in jobs.items():
            begin = time.perf_counter()
            states[name], _ = jax.block_until_ready(job.run(states[name], jax.random.key(turn)))
            seconds[name].append(time.perf_counter() - begin)
    table = Table(title=f"5 v 5, 40x40, {num_envs} environments, {turns} turns", title_justify="left")
    for column in ("", "steps/s", "us/step", "more than plain", "bytes/env", "compile s"):
        table.add_column(column, justify="right" if column else "left")
    plain = np.array(seconds[PLAIN][1:])
    for name, job in jobs.items():
        own = np.array(seconds[name][1:])
        middle, ratio = np.median(own), np.median(own / plain) - 1.0
        rate = num_envs * steps / middle
        cells = f"{rate:,.0f}", f"{1e6 / rate:.0f}", f"{ratio:+.1%}", f"{job.state_bytes:,.0f}"
        table.add_row(name, *cells, f"{job.compile_seconds:.1f}")
    console.print(table)
    console.print(f"goal: at most {GOAL:.0%} more than the plain battle")


def read_missions(overrides: Sequence[str]):
    """Reads the run configuration of missions with their curriculum; `env=` chooses another size."""
    chosen = {"env": MISSIONS, "curriculum": "missions4"}
    given = {one.partition("=")[0] for one in overrides}
    return read(*(f"{key}={name}" for key, name in chosen.items() if key not in given), *overrides)


def play_scripts(env, names: Sequence[str], number: int, record: Callable | None = None) -> Callable:
    """Returns `(script, params) -> Evaluation` of blue's script of that number against red's heuristic.

    Args:
      env: the missions.
      names: blue's scripts.
      number: episodes.
      record: see `evaluation.play_episodes`.
    """

    @jax.jit
    def play(script, params):
        options = [
            controllers.make_script_controller(controllers.find_script(env, "blue", name)) for name in names
        ]
        red = controllers.make_script_controller(controllers.find_script(env, "red", "heuristic"))
        seats = {"blue": controllers.switch_controller(options, script), "red": red}
        posed = evaluation.evaluation_params(env, params, number)
        return evaluation.play_episodes(env, seats, {}, jax.random.key(1), posed, record)

    return play


def measure_behaviour(console, number: int, overrides) -> None:
    """Prints the success of blue's scripts by verb, with the interval over episodes, against red's script."""
    config = read_missions(overrides)
    env, curriculum = config.env, config.curriculum(config.env)
    task = curriculum.evaluation(curriculum.init())
    names = (*env.baselines, "none")

    play = play_scripts(env, names, number)
    title = f"success by verb, blue's script against red's heuristic team, {number} episodes"
    table = Table(title=title, title_justify="left")
    for column in ("", "all", "completed", *env.registry.names, "survival", "efficiency", "worst tenth"):
        table.add_column(column)
    for index, name in enumerate(names):
        found = jax.device_get(play(jnp.int32(index), task).results)
        mission = found["mission"]
        by_verb = [mission[found["task"] == verb] for verb in range(len(env.registry.names))]
        low, high = student_interval(mission.tolist())
        rest = [mission >= COMPLETED, *by_verb, found["survival"], found["efficiency"]]
        shown = [*rest, np.sort(mission)[: -(-mission.size // 10)]]
        cells = [f"{np.mean(values):.2f}" if values.size else "" for values in shown]
        table.add_row(name, f"{mission.mean():.2f} [{low:.2f}, {high:.2f}]", *cells)
    console.print(table)


def measure_criteria(console, number: int, overrides) -> None:
    """Prints what the heuristic team reaches in each phase, by criterion, and what the phase asks for."""
    config = read_missions(overrides)
    env, curriculum = config.env, config.curriculum(config.env)
    play, start = play_scripts(env, ("heuristic",), number), curriculum.init()
    rows = {}
    for phase, name in enumerate(curriculum.stages):
        told = curriculum.metrics(start.replace(course=start.course.replace(phase=jnp.int32(phase))))
        results = jax.device_get(play(jnp.int32(0), curriculum.stage_params(start, jnp.int32(phase))).results)
        rows[name] = reached_and_asked(results, jax.device_get(told))
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    title = f"reached by blue's heuristic team (asked for), {number} episodes by phase"
    table = Table("phase", *columns, title=title, title_justify="left")
    for name, row in rows.items():
        table.add_row(name, *(row.get(column, "") for column in columns))
    console.print(table)


def reached_and_asked(results: dict[str, np.ndarray], told: dict[str, np.ndarray]) -> dict[str, str]:
    """Returns cells of the table of criteria by criterion: the mean of episodes, and the target, if any.

    Args:
      results: `[N]` by name.
      told: metrics of a curriculum in that phase.
    """
    mission = results["mission"]
    by_verb = [mission[results["task"] == verb].mean() for verb in np.unique(results["task"])]
    reached = {"score": mission.mean(), "variance": np.var(by_verb)}
    for key in told:
        if key.endswith("/above"):
            name = key.split("/")[-2]
            reached[name] = np.mean(mission >= COMPLETED if name in ("completed", "win") else results[name])
    asked = {name: told.get(f"curriculum/criteria/{name}/above", np.nan) for name in reached}
    asked["variance"] = told["curriculum/criteria/variance/at_most"]
    shown = {name: f"{value:.{3 if name == 'variance' else 2}f}" for name, value in reached.items()}
    return {
        name: f"{text} ({asked[name]:g})" if np.isfinite(asked[name]) else text
        for name, text in shown.items()
    }


def discounted_rewards(frames, gamma: float) -> np.ndarray:
    """Returns discounted rewards per blue mech, `[N]`.

    Args:
      frames: rewards `[T, N, A]`, whether the episode is over `[T, N]`, and blue's mechs `[T, N]`.
      gamma: discount of a decision.
    """
    reward, over, mechs = (np.asarray(x) for x in frames)
    # The frame of a reset has no reward; frames after an episode's end repeat its last.
    runs = ~np.concatenate([np.zeros_like(over[:1]), over[:-1]])
    discount = gamma ** np.maximum(np.arange(len(over)) - 1, 0)
    return (reward.sum(-1) * runs * discount[:, None]).sum(0) / np.maximum(mechs[0], 1)


def rewards_for_acting(
    env, curriculum, number: int, gamma: float, phases: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns discounted rewards `[scripts, phases, verbs]` of heuristic and idle teams, and their success.

    Args:
      env: the missions.
      curriculum: of the missions; its phases' weights and difficulties are used.
      number: episodes of each phase; the verbs alternate.
      gamma: discount of a decision.
      phases: some of the phases, from 0; None for all.
    """
    names = ("heuristic", "none")
    phases = range(len(curriculum.stages)) if phases is None else phases

    def record(state, _params, time):
        return time.reward["blue"], time.over, state.scenario.strength[0]

    play = play_scripts(env, names, number, record)
    course = curriculum.init()
    shape = len(names), len(phases), len(env.registry.names)
    paid, score = np.full(shape, np.nan), np.full(shape, np.nan)
    for phase, stage in enumerate(phases):
        task = curriculum.stage_params(course, jnp.int32(stage))
        for index in range(shape[0]):
            found = jax.device_get(play(jnp.int32(index), task))
            reward = discounted_rewards(found.frames, gamma)
            for verb in range(shape[2]):
                own = found.results["task"] == verb
                if own.any():
                    paid[index, phase, verb] = reward[own].mean()
                    score[index, phase, verb] = found.results["mission"][own].mean()
    return paid, score


def measure_pay(console, number: int, overrides) -> None:
    """Prints the rewards of the heuristic and of an idle team by verb and phase, and their difference."""
    config = read_missions(overrides)
    curriculum = config.curriculum(config.env)
    gamma = float(config.env.default_params().gamma)
    paid, score = rewards_for_acting(config.env, curriculum, number, gamma)
    verbs = config.env.registry.names
    title = f"discounted reward per mech (gamma {gamma:g}): heuristic - idle = for acting; (success of both)"
    table = Table(title=title, title_justify="left")
    for column in ("verb", *curriculum.stages):
        table.add_column(column)
    for verb, name in enumerate(verbs):
        rows = zip(*(values[:, :, verb].T for values in (paid, score)), strict=True)
        cells = [
            f"{acts:+.2f} - {idles:+.2f} = {acts - idles:+.2f}  ({one:.2f}, {other:.2f})"
            for (acts, idles), (one, other) in rows
        ]
        table.add_row(name, *cells)
    console.print(table)


def credit_episodes(env, curriculum, number: int, samples: int) -> dict[str, np.ndarray]:
    """Returns the credit of blue's mechs at the end of the heuristic team's episodes.

    Args:
      env: the missions.
      curriculum: of the missions; its evaluation gives the episodes.
      number: episodes; the verbs alternate.
      samples: permutations for Shapley values; see `CreditRule`.

    Returns:
      by kind of credit `[N, A]`; `present` `[N, A]`; `mission` and `task` `[N]`.
    """
    rules = [CreditRule(kind, samples) for kind in KINDS]
    blue = env.teams[0]

    def record(state, params, _time):
        key = jax.random.fold_in(jax.random.key(2), state.echelon.battle.map_index)
        found = {
            rule.kind: dataclasses.replace(env.course, credit=rule).credit_mechs(key, state, params)[:blue]
            for rule in rules
        }
        return found | {"present": state.scenario.present[:blue]}

    @jax.jit
    def play(params):
        seats = {
            side: controllers.make_script_controller(controllers.find_script(env, side, "heuristic"))
            for side in ("blue", "red")
        }
        posed = evaluation.evaluation_params(env, params, number)
        found = evaluation.play_episodes(env, seats, {}, jax.random.key(1), posed, record)
        # Finished episodes are frozen: the last frame is that of the end.
        return found.results, jax.tree.map(lambda x: x[-1], found.frames)

    results, last = jax.device_get(play(curriculum.evaluation(curriculum.init())))
    return last | {name: results[name] for name in ("mission", "task")}


def measure_credit(console, number: int, overrides) -> None:
    """Prints the credit of the heuristic team's mechs by verb, and how its sum depends on success."""
    config = read_missions(overrides)
    env = config.env
    found = credit_episodes(env, config.curriculum(env), number, env.credit.samples)
    for kind in KINDS:
        title = f"credit by {kind} of blue's heuristic team, {number} episodes"
        table = Table(title=title, title_justify="left")
        thirds = [f"sum, {third} third by S" for third in ("worst", "middle", "best")]
        for column in ("verb", "mechs", "S", "mean", "sum / S", "r", *thirds, "none", "spread"):
            table.add_column(column)
        for verb, name in enumerate((*env.registry.names, "all")):
            own = (found["task"] == verb) | (name == "all")
            table.add_row(name, *credit_cells(found["mission"][own], found["present"][own], found[kind][own]))
        console.print(table)


def credit_cells(score: np.ndarray, present: np.ndarray, credit: np.ndarray) -> list[str]:
    """Returns a row of the table of credit.

    Args:
      score: `[N]` success of episodes.
      present: `[N, A]` bool; the slot is filled.
      credit: `[N, A]` of the mechs; 0 for empty slots.
    """
    total, mechs = credit.sum(1), present.sum(1)
    varies = min(score.std(), total.std()) > NO_CREDIT
    thirds = np.array_split(total[np.argsort(score, kind="stable")], 3)
    return [
        f"{mechs.mean():.1f}",
        f"{score.mean():.2f}",
        f"{np.mean(total / mechs):+.3f}",
        f"{total.mean() / score.mean():.2f}",
        f"{np.corrcoef(total, score)[0, 1]:+.2f}" if varies else "",
        *(f"{third.mean():.2f}" for third in thirds),
        f"{np.mean(np.abs(credit[present]) < NO_CREDIT):.0%}",
        f"{np.mean([row[here].std() for row, here in zip(credit, present, strict=True)]):.3f}",
    ]


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=32, help="decisions of a rollout")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--behaviour", action="store_true", help="measure success of scripts instead")
    parser.add_argument("--criteria", action="store_true", help="measure what a script reaches by phase")
    parser.add_argument("--pay", action="store_true", help="measure rewards for acting instead")
    parser.add_argument("--credit", action="store_true", help="measure credit instead")
    parser.add_argument("--episodes", type=int, default=168)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, with --behaviour, --pay or --credit")
    given, console = parser.parse_args(), Console(width=160)
    console.print(f"jax {jax.__version__}, {matmul_rate() / 1e9:.0f} GFLOP/s")
    if given.pay:
        measure_pay(console, given.episodes, given.overrides)
    elif given.credit:
        measure_credit(console, given.episodes, given.overrides)
    elif given.criteria:
        measure_criteria(console, given.episodes, given.overrides)
    elif given.behaviour:
        measure_behaviour(console, given.episodes, given.overrides)
    else:
        measure_cost(console, given.envs, given.steps, given.turns)


if __name__ == "__main__":
    main()
