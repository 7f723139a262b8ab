"""Search for the numbers of `script:blocking` under jittered starts.

    python benchmarks/archive/blocking_search.py [--aim farthest|center|both] [--iterations N] [--output FILE]
    python benchmarks/archive/blocking_search.py --judge [--noise 0.1]   # score the laws in the code

Each spawn point's law is searched by the cross-entropy method (R. Rubinstein, "The cross-entropy method for
combinatorial and continuous optimization", 1999), beginning at the law in the code. A law's score is its
share of successes against all drivers of its aim in phases 18 to 25, in episodes that start as evaluations
do. The result is judged on fresh episodes and printed as the code's table.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from feasibility import play_to_the_end

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.f110 import results
from jaxmarl_echelon.envs.f110.env import F110
from jaxmarl_echelon.envs.f110.scripts import blocking
from jaxmarl_echelon.envs.f110.scripts.blocking import BlockingLaw

# Steering gains, bubble radii and aims (1: farthest) of the drivers in phases 18 to 25 of `phased26`, by aim.
DRIVERS = {
    "center": ((0.25, 2.0, 0), (0.30, 2.2, 0), (0.35, 2.5, 0)),
    "farthest": ((0.40, 2.8, 1), (0.45, 3.0, 1), (0.50, 3.2, 1), (0.55, 3.4, 1), (0.60, 3.5, 1)),
}
DRIVERS["both"] = DRIVERS["center"] + DRIVERS["farthest"]
# Standard deviations of the first samples, in the order of `flatten`.
SPREAD = np.array([0.05, 0.06, 0.06] * 2 + [0.1, 0.1, 0.1] + [0.5, 0.4, 0.3, 0.4, 0.06, 0.06])
LEAST_SPREAD = 0.1  # of the first, so that the search does not end early


def flatten(law: BlockingLaw) -> np.ndarray:
    """Returns the 15 numbers of a law `[..., 15]`."""
    return np.concatenate([law.poses.reshape(*law.poses.shape[:-2], 9), np.stack(law[1:], -1)], -1)


def unflatten(numbers) -> BlockingLaw:
    """Returns the law of 15 numbers `[15]`."""
    return BlockingLaw(numbers[:9].reshape(3, 3), *numbers[9:])


class Attempt(NamedTuple):
    """Laws `[N, 15]` with the spawn points and drivers that they meet, and the number of each episode."""

    index: jax.Array
    numbers: jax.Array
    spawn: jax.Array
    gain: jax.Array
    radius: jax.Array
    farthest: jax.Array


@partial(jax.jit, static_argnums=0)
def play(env: F110, key, attempts: Attempt, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Plays one episode per attempt; returns outcomes `[N]` and physics steps `[N]`."""
    ftg, base = env.scripts["ftg"], env.default_params()
    low, high = (np.asarray(bound, np.float32) for bound in env.spec.role("attacker").action.bounds())

    def params_of(of):
        driver = base.ftg.replace(steering_gain=of.gain, bubble_radius=of.radius, farthest=of.farthest)
        params = env.evaluation_params(base, of.index)
        spawn = jax.nn.one_hot(of.spawn, base.spawn_weights.shape[0])
        return params.replace(ftg=driver, spawn_weights=spawn)

    def begin(key, of):
        return env.reset(key, params_of(of))[0], jnp.float32(jnp.nan), ftg.init()

    def decide(key, episode, of):
        state, heading, memory = episode
        params, law = params_of(of), unflatten(of.numbers)
        heading, command = blocking.follow_law(law, heading, state, params, env.simulation)
        memory, answer = ftg.act(key, memory, state, params)
        drawn = jax.random.normal(jax.random.fold_in(key, 1), (2,))
        command = jnp.clip(command + noise * (high - low) / 2 * drawn, low, high)
        moved, _ = env.step(key, state, {"attacker": command[None], "defender": answer}, params)
        return moved, heading, memory

    state, *_ = play_to_the_end(env, key, attempts, begin, decide)
    return state.outcome, state.step


class Judge:
    """Scores laws by episodes whose starts and noise are new at every call."""

    def __init__(self, aim: str, seed: int, noise: float):
        self.env = je.make("f110", spawns="all", spawn_speed=0.0, lock_steps=0, lidar_max_range=11.0)
        self.drivers, self.noise = np.array(DRIVERS[aim]), np.float32(noise)
        self.keys = iter(jax.random.split(jax.random.key(seed), 10_000))

    def __call__(self, numbers: np.ndarray, repeats: int) -> tuple[np.ndarray, np.ndarray]:
        """Plays `numbers [S, P, 15]`; returns successes and seconds `[S, P, drivers, repeats]`."""
        points, laws, _ = numbers.shape
        shape = points, laws, len(self.drivers), repeats
        rows = np.broadcast_to(numbers[:, :, None, None], (*shape, 15)).reshape(-1, 15)
        spawn = np.broadcast_to(np.arange(points)[:, None, None, None], shape).reshape(-1)
        drivers = np.broadcast_to(self.drivers[None, None, :, None], (*shape, 3)).reshape(-1, 3)
        gain, radius, farthest = drivers.T.astype(np.float32)
        attempts = Attempt(np.arange(len(rows)), rows.astype(np.float32), spawn, gain, radius, farthest > 0)
        outcome, steps = play(self.env, next(self.keys), attempts, self.noise)
        won = np.asarray(outcome) == results.TARGET_CRASH
        return won.reshape(shape), np.asarray(steps).reshape(shape) * self.env.simulation.dt


def search(judge: Judge, first: np.ndarray, arguments) -> np.ndarray:
    """Returns the best laws `[S, 15]` found from `first [S, 15]`, one for each spawn point."""
    rng = np.random.default_rng(arguments.seed)
    points, size, elite = len(first), arguments.population, arguments.population // 5
    centre, spread = first.copy(), np.broadcast_to(SPREAD, first.shape).copy()
    kept, score = first[:, None], np.full((points, 1), -np.inf)
    for iteration in range(arguments.iterations):
        begin = time.perf_counter()
        drawn = rng.normal(centre[:, None], spread[:, None], (points, size, 15))
        # The mean so far, and the best ones again, as a score is noisy.
        again = kept[:, :elite]
        drawn = np.concatenate([centre[:, None], again, drawn[:, 1 + again.shape[1] :]], 1)
        won, seconds = judge(drawn, arguments.repeats)
        # Among laws that win alike, the faster one; a lost driver costs more than a lost episode.
        value = won.mean((-1, -2)) + 0.3 * won.mean(-1).min(-1) - 0.005 * seconds.mean((-1, -2))
        old = np.full_like(value, np.nan)
        old[:, 1 : 1 + again.shape[1]] = score[:, : again.shape[1]]
        value = np.where(np.isfinite(old), (value + old) / 2, value)
        order = np.argsort(-value, 1)
        kept = np.take_along_axis(drawn, order[..., None], 1)
        score = np.take_along_axis(value, order, 1)
        chosen = kept[:, :elite]
        centre = chosen.mean(1)
        spread = np.maximum(0.7 * chosen.std(1) + 0.3 * spread, LEAST_SPREAD * SPREAD)
        rates = " ".join(f"{x:.2f}" for x in won[:, 0].mean((-1, -2)))
        print(
            f"{iteration:3d} mean of the sample's centre {rates}  {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    finalists = np.concatenate([centre[:, None], kept[:, :5], first[:, None]], 1)
    won, seconds = judge(finalists, 4 * arguments.repeats)
    best = np.argmax(won.mean((-1, -2)) + 0.3 * won.mean(-1).min(-1), 1)
    return finalists[np.arange(points), best]


def main() -> None:
    """Searches, and prints the laws with their successes on fresh episodes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--aim", choices=DRIVERS, default="farthest")
    parser.add_argument("--population", type=int, default=40, help="laws per iteration and spawn point")
    parser.add_argument("--repeats", type=int, default=4, help="episodes per law and driver")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--episodes", type=int, default=64, help="per driver, that judge the result")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="file of an earlier search to begin at")
    parser.add_argument("--output", type=Path, help="file for the numbers [S, 15]")
    parser.add_argument("--judge", action="store_true", help="score the laws in the code only")
    parser.add_argument("--noise", type=float, default=0.0, help="of the commands, in half widths")
    arguments = parser.parse_args()
    judge = Judge(arguments.aim, arguments.seed, arguments.noise)
    names = judge.env.spec.tasks
    table = flatten(blocking.read_law_table(names))
    laws = table[int(arguments.aim != "center")] if arguments.start is None else np.load(arguments.start)
    if not arguments.judge:
        laws = search(judge, laws, arguments)
        if arguments.output:
            np.save(arguments.output, laws)
    won, seconds = judge(laws[:, None], arguments.episodes)
    for name, row, each, time_ in zip(names, laws, won[:, 0], seconds[:, 0], strict=True):
        rates = " ".join(f"{x:.2f}" for x in each.mean(-1))
        print(f"{name}: {each.mean():.3f} ({rates}), {time_[each].mean() if each.any() else np.nan:.1f} s")
        print("   ", np.round(row, 3).tolist())
    print(f"all: {won.mean():.3f} ({' '.join(f'{x:.2f}' for x in won.mean((0, 1, 3)))})")


if __name__ == "__main__":
    main()
