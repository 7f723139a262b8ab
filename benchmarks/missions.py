"""Cost of missions compared with the plain battle, and success of scripts by order.

    python benchmarks/missions.py [--envs 256] [--turns 5]         # steps/s in turns, bytes, compile seconds
    python benchmarks/missions.py --behaviour [--episodes 168] [KEY=VALUE ...]   # success by verb of scripts

The plain battle (`env=echelon`) and missions have the same teams, terrains and observed blocks. Each is a
rollout of uniformly random actions with automatic resets; "with curriculum" also draws episodes from
`curriculum=missions4` and lets it judge what finished, as training does after every rollout. Scripts play
what scores a run of `missions4`: held-out terrains, the last phase's difficulty, red at full fire.
"""

import argparse
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hydra import compose, initialize_config_dir
from machine import matmul_rate
from rich.console import Console
from rich.table import Table
from spread import bytes_per_environment

from jaxmarl_echelon.config_sources import config_directory
from jaxmarl_echelon.envs import episodes
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
GOAL = 0.25


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
    config = read(*chosen, *(["curriculum=missions4"] if name == COURSE else []))
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
    jobs = {name: built(name, num_envs, steps) for name in (PLAIN, ORDERS, COURSE)}
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


def measure_behaviour(console, number: int, overrides) -> None:
    """Prints the success of blue's scripts by verb, with the interval over episodes, against red's script."""
    chosen = (
        overrides if any(one.startswith("env=") for one in overrides) else [f"env={MISSIONS}", *overrides]
    )
    config = read(*chosen, "curriculum=missions4")
    env, curriculum = config.env, config.curriculum(config.env)
    task = curriculum.evaluation(curriculum.init())
    names = (*env.baselines, "none")

    @jax.jit
    def play(script, params):
        options = [
            controllers.make_script_controller(controllers.find_script(env, "blue", name)) for name in names
        ]
        red = controllers.make_script_controller(controllers.find_script(env, "red", "heuristic"))
        seats = {"blue": controllers.switch_controller(options, script), "red": red}
        posed = evaluation.evaluation_params(env, params, number)
        return evaluation.play_episodes(env, seats, {}, jax.random.key(1), posed).results

    title = f"success by verb, blue's script against red's heuristic team, {number} episodes"
    table = Table(title=title, title_justify="left")
    for column in ("", "all", "completed", *env.registry.names, "survival", "efficiency", "worst tenth"):
        table.add_column(column)
    for index, name in enumerate(names):
        found = jax.device_get(play(jnp.int32(index), task))
        mission = found["mission"]
        by_verb = [mission[found["task"] == verb] for verb in range(len(env.registry.names))]
        low, high = student_interval(mission.tolist())
        rest = [mission >= COMPLETED, *by_verb, found["survival"], found["efficiency"]]
        shown = [*rest, np.sort(mission)[: -(-mission.size // 10)]]
        cells = [f"{np.mean(values):.2f}" if values.size else "" for values in shown]
        table.add_row(name, f"{mission.mean():.2f} [{low:.2f}, {high:.2f}]", *cells)
    console.print(table)


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=32, help="decisions of a rollout")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--behaviour", action="store_true", help="measure success of scripts instead")
    parser.add_argument("--episodes", type=int, default=168)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, with --behaviour")
    given, console = parser.parse_args(), Console(width=160)
    console.print(f"jax {jax.__version__}, {matmul_rate() / 1e9:.0f} GFLOP/s")
    if given.behaviour:
        measure_behaviour(console, given.episodes, given.overrides)
    else:
        measure_cost(console, given.envs, given.steps, given.turns)


if __name__ == "__main__":
    main()
