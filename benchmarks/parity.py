"""Differences between the same episodes on a CPU and on an accelerator.

    python benchmarks/parity.py [ENV ...] [--decisions 16] [--envs 256]

Both play the same actions from the same key. Rewards, observations and flags of each decision are compared:
the share of environments in which they differ by more than 1e-3 of their size (above 1), and the largest
difference of all. Simulations are chaotic at contacts, so differences of the last bits grow with time.
"""

import argparse

import jax
import numpy as np

import jaxmarl_echelon as je
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.random_play import step_randomly

ENVIRONMENTS = ("gymnax/CartPole-v1", "f110", "drive", "echelon")
TOLERANCE = 1e-3


def play(name: str, num_envs: int, decisions: int, device):
    """Returns observations, rewards and flags `[T, E, ...]` of random play on a device."""
    env = je.make(name)
    params = env.default_params()

    def draw(_key):
        return episodes.EpisodeTask(params)

    def advance(running, key):
        running, transition = step_randomly(env, key, running, draw)
        after = transition.time
        return running, (after.obs, after.reward, after.terminated, after.truncated, after.alive)

    def run(key):
        running = episodes.start_episodes(env, key, draw, num_envs)
        return jax.lax.scan(advance, running, jax.random.split(key, decisions))[1]

    with jax.default_device(device):
        return jax.device_get(jax.jit(run)(jax.random.key(11)))


def differences(here, there) -> tuple[np.ndarray, np.ndarray]:
    """Returns the share of environments that differ, and the largest difference, by decision `[T]`."""
    apart = []
    for ours, theirs in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True):
        ours, theirs = (np.asarray(x, np.float64).reshape(*x.shape[:2], -1) for x in (ours, theirs))
        apart.append((np.abs(ours - theirs) / np.maximum(1, np.abs(ours))).max(-1))
    largest = np.max(apart, axis=0)
    return (largest > TOLERANCE).mean(1), largest.max(1)


def main() -> None:
    """Prints one line per environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environments", nargs="*", default=ENVIRONMENTS)
    parser.add_argument("--decisions", type=int, default=16)
    parser.add_argument("--envs", type=int, default=256)
    given = parser.parse_args()
    devices = jax.devices("cpu")[0], jax.devices()[0]
    for name in given.environments:
        share, largest = differences(*(play(name, given.envs, given.decisions, one) for one in devices))
        print(
            f"{name} on {devices[1].device_kind}: largest difference after 1 decision {largest[0]:.1e}",
            end="",
        )
        print(f", after {given.decisions} {largest[-1]:.1e}, of {given.envs} environments", end=" ")
        print(f"{share[0]:.3f} and {share[-1]:.3f} differ by more than {TOLERANCE}", flush=True)


if __name__ == "__main__":
    main()
