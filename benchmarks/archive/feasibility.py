"""Search for attackers that make a follow-the-gap defender crash, as a test of feasibility.

    python benchmarks/archive/feasibility.py [--phase N ...] [--gain G ... --mode MODE ...] [--spawn NAME ...]

Every attacker is a vector of numbers in [0, 1] that one of the families below turns into commands:
scripts that read both poses, open-loop plans, and a feedback law on the relative pose. Each family is
searched by random sampling and refined by the cross-entropy method (R. Rubinstein, "The cross-entropy
method for combinatorial and continuous optimization", 1999); the best vectors are then evaluated on
fresh noisy episodes. Cars start at rest, without speed locks.
"""

import argparse
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from attackers import FAMILIES, Family, View
from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from algos.defaults import config_directory
from jaxmarl_echelon.envs.f110.cars.simulation import WALL_CONTACTS, poses_of
from jaxmarl_echelon.envs.f110.env import F110
from jaxmarl_echelon.envs.f110.results import COLLISION, RUNNING, SELF_CRASH, TARGET_CRASH
from jaxmarl_echelon.envs.f110.rewards import make_reward
from jaxmarl_echelon.envs.f110.state import DEFENDER
from physics.boxes import corners_of_box

# Curriculum phase: the defender's steering gain, bubble radius and aim; all spawn points, from rest.
PHASES = {
    18: (0.25, 2.0, "center"),
    19: (0.30, 2.2, "center"),
    20: (0.35, 2.5, "center"),
    21: (0.40, 2.8, "farthest"),
    22: (0.45, 3.0, "farthest"),
    23: (0.50, 3.2, "farthest"),
    24: (0.55, 3.4, "farthest"),
    25: (0.60, 3.5, "farthest"),
}
SIDES = -2.025, 0.575  # of the corridor `line2`, m
LEGEND = "successes of the best attacker, of all tried, of the first iteration, least room (m), time (s)"


class Found(NamedTuple):
    """Result of a search: `finalists` [S, F, D] and the number `tried` per spawn point.

    Successes `hits` [S], of these `early` [S] in the first iteration; the defender's least `room` [S], m.
    """

    finalists: np.ndarray
    tried: int
    hits: np.ndarray
    early: np.ndarray
    room: np.ndarray


class Attempt(NamedTuple):
    """Attackers `numbers` `[N, D]` and their spawn points `[N]`."""

    numbers: jax.Array
    spawn: jax.Array


class Trial(NamedTuple):
    """Episodes `[N]`: outcome code, the defender's minimum distance to the side walls (m), physics steps."""

    outcome: jax.Array
    room: jax.Array
    steps: jax.Array


def environment(contact: str) -> F110:
    """The configured task with all spawn points, from rest and without a speed lock."""
    # The defender clips ranges at 10 m; limiting the scan to that halves the run time.
    node = OmegaConf.load(config_directory() / "env" / "f110.yaml")
    changes = {"spawns": "all", "spawn_speed": 0.0, "lock_steps": 0, "lidar_max_range": 11.0}
    changes["wall_contact"] = contact
    return instantiate(OmegaConf.merge(node, changes), _partial_=True)(reward=make_reward({"terminal": None}))


@partial(jax.jit, static_argnums=(0, 1))
def play(env: F110, kind: Family, key, numbers, gain, radius, farthest, spawn, noise) -> Trial:
    """Plays one episode per attacker `numbers [N, D]` in [0, 1] from spawn points `spawn [N]`."""
    ftg, base = env.scripts["ftg"], env.default_params()
    driver = base.ftg.replace(steering_gain=gain, bubble_radius=radius, farthest=farthest)
    base = base.replace(ftg=driver, lidar_noise=noise)
    p = jnp.asarray(kind.low) + numbers * (jnp.asarray(kind.high) - jnp.asarray(kind.low))

    def params_of(spawn):
        return base.replace(spawn_weights=jax.nn.one_hot(spawn, base.spawn_weights.shape[0]))

    def begin(key, of):
        state, _ = env.reset(key, params_of(of.spawn))
        return state, ftg.init(), side_room(env, state)

    def decide(key, episode, of):
        state, memory, room = episode
        view = View(state.step * env.simulation.dt, *state.cars.state, side_room(env, state))
        memory, answer = ftg.act(key, memory, state, base)
        actions = {"attacker": kind.act(of.numbers, view)[None], "defender": answer}
        moved, _ = env.step(key, state, actions, params_of(of.spawn))
        return moved, memory, jnp.minimum(room, side_room(env, moved))

    state, _, room = play_to_the_end(env, key, Attempt(p, spawn), begin, decide)
    return Trial(state.outcome, room, state.step)


def play_to_the_end(env: F110, key, attempts, begin, decide):
    """Plays one episode for each of N attempts until all are over; returns the last episodes.

    Args:
      env: the environment.
      key: random key; every episode and decision has its own.
      attempts: any tree with leaves `[N, ...]`.
      begin: `(key, attempt) -> episode`, a tuple that begins with the state.
      decide: `(key, episode, attempt) -> episode` after a decision; without effect once it is over.
    """
    keys = jax.random.split(key, len(jax.tree.leaves(attempts)[0]))

    def go_on(key, episode, attempt):
        running = episode[0].outcome == RUNNING
        return jax.tree.map(lambda a, b: jnp.where(running, a, b), decide(key, episode, attempt), episode)

    def advance(carry):
        episodes, index = carry
        now = jax.vmap(jax.random.fold_in, (0, None))(keys, index)
        return jax.vmap(go_on)(now, episodes, attempts), index + 1

    def running(carry):
        (state, *_), index = carry
        return (index < env.spec.episode_limit) & jnp.any(state.outcome == RUNNING)

    start = jax.vmap(begin)(keys, attempts), jnp.int32(0)
    return jax.lax.while_loop(running, advance, start)[0]


def side_room(env: F110, state) -> jax.Array:
    """Distance of the defender's box to the nearer side wall, m; 0 is contact."""
    car = env.default_params().car
    y = corners_of_box(poses_of(state.cars.state)[DEFENDER], car.length, car.width)[:, 1]
    return jnp.minimum(jnp.min(y) - SIDES[0], SIDES[1] - jnp.max(y))


def fitness(trial: Trial) -> np.ndarray:
    """Fitness: success first, then a defender close to a wall without contact of the attacker."""
    outcome = np.asarray(trial.outcome)
    missed = -np.asarray(trial.room) - 0.3 * np.isin(outcome, (SELF_CRASH, COLLISION))
    return np.where(outcome == TARGET_CRASH, 1.0, missed)


def search(playing, rng, dims: int, spawns: np.ndarray, arguments, first=None) -> Found:
    """Runs the cross-entropy method for all spawn points in parallel.

    Each iteration also tries the other spawn points' centres. Stops early above 70 % successes at every
    spawn point.

    Args:
      playing: `(numbers [N, D], spawn [N]) -> Trial`.
      rng: NumPy generator of the samples.
      dims: D.
      spawns: `[S]` indices of the spawn points.
      arguments: the parsed command line.
      first: initial centres `[S, D]`; None for uniform initial samples.
    """
    count, size = len(spawns), arguments.population
    drawn = rng.uniform(size=(count, size, dims))
    if first is not None:
        drawn = _around(rng, first, np.full(first.shape, 0.1), size)
    pool, score = np.zeros((count, 0, dims)), np.zeros((count, 0))
    tried, hits, early, room = 0, np.zeros(count, int), None, np.full(count, np.inf)
    for _ in range(arguments.iterations):
        trial = playing(drawn.reshape(-1, dims), np.repeat(spawns, size))
        value = fitness(trial).reshape(count, size)
        tried, hits = tried + size, hits + (value == 1.0).sum(1)
        early = hits.copy() if early is None else early
        room = np.minimum(room, np.asarray(trial.room).reshape(count, size).min(1))
        # Fitness is noisy: scores decay, so that lucky attackers must be confirmed by new trials.
        pool, score = np.concatenate([drawn, pool], axis=1), np.concatenate([value, score - 0.1], axis=1)
        best = np.argsort(-score, axis=1, kind="stable")[:, : max(8, size // 8)]
        pool, score = np.take_along_axis(pool, best[..., None], 1), np.take_along_axis(score, best, 1)
        centre, spread = pool.mean(1), pool.std(1) + 0.02
        if (value == 1.0).mean(1).min() > 0.7:
            break
        drawn = _around(rng, centre, spread, size)
    finalists = np.concatenate([centre[:, None], pool[:, :7]], axis=1)
    return Found(finalists, tried, hits, early, room)


def _around(rng, centre: np.ndarray, spread: np.ndarray, size: int) -> np.ndarray:
    """Gaussian samples `[S, size, D]` around each spawn point's centre, including all centres."""
    drawn = rng.normal(centre[:, None], spread[:, None], (len(centre), size, centre.shape[1]))
    drawn[:, : len(centre)] = centre
    return drawn.clip(0, 1)


def judge(
    playing, found: Found, spawns: np.ndarray, episodes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Selects one finalist per spawn point on a few episodes, then evaluates it on fresh ones.

    Returns:
      the selected numbers `[S, D]`, their successes `[S]` and the mean physics steps of these `[S]`.
    """
    count, finalists, dims = found.finalists.shape
    each = max(1, episodes // finalists // 2)
    trial = playing(
        np.repeat(found.finalists.reshape(-1, dims), each, 0), np.repeat(spawns, finalists * each)
    )
    good = fitness(trial).reshape(count, finalists, each).mean(-1)
    chosen = found.finalists[np.arange(count), np.argmax(good, axis=1)]
    trial = playing(np.repeat(chosen, episodes, 0), np.repeat(spawns, episodes))
    won = (np.asarray(trial.outcome) == TARGET_CRASH).reshape(count, episodes)
    steps = np.asarray(trial.steps).reshape(count, episodes)
    return chosen, won.sum(1), (steps * won).sum(1) / np.maximum(won.sum(1), 1)


def player(env: F110, kind: Family, gain, radius, farthest, arguments):
    """Returns `(numbers [N, D], spawn [N]) -> Trial` against one defender, with new noise in every call."""
    keys = iter(jax.random.split(jax.random.key(arguments.seed), 1000))

    def playing(numbers, spawn):
        numbers = jnp.asarray(numbers, jnp.float32)
        return play(env, kind, next(keys), numbers, gain, radius, farthest, spawn, arguments.noise)

    return playing


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--phase", type=int, nargs="*", choices=PHASES, help="defenders of the curriculum; default: 25 to 18"
    )
    parser.add_argument("--gain", type=float, nargs="*", default=[], help="more defenders, by steering gain")
    parser.add_argument("--mode", choices=("center", "farthest"), default="farthest", help="aim of --gain")
    parser.add_argument("--radius", type=float, default=3.5, help="bubble radius of --gain")
    parser.add_argument("--family", nargs="*", choices=FAMILIES, default=list(FAMILIES), help="attackers")
    parser.add_argument("--spawn", nargs="*", help="spawn points; default: all six")
    parser.add_argument("--noise", type=float, default=0.01, help="of the ranges, m")
    parser.add_argument("--contact", choices=WALL_CONTACTS, default="field", help="test for wall contact")
    parser.add_argument("--population", type=int, default=64, help="attackers per iteration and spawn point")
    parser.add_argument("--iterations", type=int, default=12, help="at most")
    parser.add_argument("--episodes", type=int, default=256, help="that judge the best attacker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm", action="store_true", help="begin where the defender before ended")
    parser.add_argument("--verbose", action="store_true", help="print the best attackers' numbers")
    arguments = parser.parse_args()
    phases = arguments.phase if arguments.phase or arguments.gain else sorted(PHASES, reverse=True)
    arguments.defenders = [(str(phase), *PHASES[phase]) for phase in phases or ()]
    arguments.defenders += [("", gain, arguments.radius, arguments.mode) for gain in arguments.gain]
    return arguments


def main() -> None:
    """Searches, and prints a table of defenders and spawn points per family."""
    arguments, console = parse(), Console(width=160)
    env = environment(arguments.contact)
    names = tuple(arguments.spawn or env.spec.tasks)
    spawns = np.array([env.spec.tasks.index(name) for name in names])
    for name in arguments.family:
        kind, first = FAMILIES[name], None
        low, high = np.array(kind.low), np.array(kind.high)
        table = Table(title=f"{name}: {LEGEND}", title_justify="left")
        for column in ("phase", "gain", "aim", "noise", "tried", *names, "s"):
            table.add_column(column, justify="right")
        for phase, gain, radius, mode in arguments.defenders:
            begin = time.perf_counter()
            playing = player(env, kind, gain, radius, mode == "farthest", arguments)
            rng = np.random.default_rng(arguments.seed)
            found = search(playing, rng, len(kind.names), spawns, arguments, first)
            chosen, wins, steps = judge(playing, found, spawns, arguments.episodes)
            first = chosen if arguments.warm else None
            cells = [
                f"{win}/{arguments.episodes} {found.hits[i]} {found.early[i]} {found.room[i]:.3f}"
                + (f" {steps[i] * env.simulation.dt:.1f}" if win else "")
                for i, win in enumerate(wins)
            ]
            spent = f"{time.perf_counter() - begin:.0f}"
            table.add_row(phase, f"{gain}", mode, f"{arguments.noise}", str(found.tried), *cells, spent)
            if arguments.verbose:
                for spawn, row in zip(names, chosen, strict=True):
                    values = (
                        f"{k}={v:.3g}" for k, v in zip(kind.names, low + row * (high - low), strict=True)
                    )
                    console.print(name, phase, gain, mode, spawn, *values)
        console.print(table)


if __name__ == "__main__":
    main()
