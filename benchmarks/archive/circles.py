"""Cycling of self-play on rock, paper, scissors by matchmaking mode, with exact gradients.

    python benchmarks/archive/circles.py [--seeds 3] [--curve]

The logits of a softmax policy follow exact advantages against the opponents of a pool's mode: the policy
itself, or past policies with the mode's probabilities. A snapshot is kept every 20 of 2000 steps. Games: the
plain one, and a biased one in which a win by rock is worth two. Printed per mode and random initialisation,
over the second half: mean and maximum exploitability of single policies, of the last one, and of their
average, and the mean of the worst score against the policy's own past. `--curve` prints the mean
exploitability of every tenth of the steps.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.textgames.games.rps import PICKS
from jaxmarl_echelon.selfplay import matchmaking
from jaxmarl_echelon.selfplay.settings import PoolSettings

STEPS, EVERY, RATE = 2000, 20, 0.1
GAMES = {"plain": (1.0, 1.0, 1.0), "biased": (2.0, 1.0, 1.0)}
# Settings of the pool, and the coefficient of an entropy bonus.
MODES = {
    "mirror": ({"mode": "mirror"}, 0.0),
    "mirror, entropy .05": ({"mode": "mirror"}, 0.05),
    "lagged": ({"mode": "lagged"}, 0.0),
    "random": ({"mode": "random"}, 0.0),
    "ucb": ({"mode": "ucb"}, 0.0),
    "pfsp var": ({"mode": "pfsp", "weight": "var"}, 0.0),
    "pfsp linear": ({"mode": "pfsp", "weight": "linear"}, 0.0),
    "pfsp 2": ({"mode": "pfsp"}, 0.0),
    "pfsp 8": ({"mode": "pfsp", "power": 8.0}, 0.0),
    "half mirror, half random": ({"shares": {"mirror": 0.5, "random": 0.5}}, 0.0),
    "half mirror, half pfsp 2": ({"shares": {"mirror": 0.5, "pfsp": 0.5}}, 0.0),
    "half mirror, half pfsp 8": ({"shares": {"mirror": 0.5, "pfsp": 0.5}, "power": 8.0}, 0.0),
}


def payoffs(worth: tuple[float, ...]) -> np.ndarray:
    """Payoffs `[3, 3]` of each pick against each."""
    pick = np.arange(len(PICKS))
    beats = (pick[:, None] - pick) % 3 == 1
    won = beats * np.asarray(worth)[:, None]
    return won - won.T


def played(settings: PoolSettings, entropy: float, worth: tuple[float, ...], key: jax.Array) -> dict:
    """Policies `[STEPS, 3]`, their exploitability, and their worst score against the past."""
    game, most = jnp.asarray(payoffs(worth)), STEPS // EVERY
    mirrored = settings.mixture.get("mirror", 0.0)

    def step(state, number):
        logits, past, games = state
        policy = jax.nn.softmax(logits)
        now = number // EVERY
        past = jnp.where(number % EVERY == 0, past.at[now].set(policy), past)
        there = jnp.arange(most) <= now
        share = 0.5 + 0.5 * past @ (policy @ jnp.sign(game))
        lag = now + 1 - jnp.arange(most)
        nothing = jnp.zeros(most)
        entries = matchmaking.OpponentCandidates(there, there, lag, nothing, nothing, share, games, 1.0)
        chances = matchmaking.mixture_probabilities(settings, entries)
        other = mirrored * policy + (1 - mirrored) * chances @ past
        value = game @ other - entropy * jax.nn.log_softmax(logits)
        told = {
            "policy": policy,
            "exploitability": jnp.max(game @ policy),
            "worst": jnp.min(jnp.where(there, past @ (policy @ game), jnp.inf)),
        }
        return (logits + RATE * (value - policy @ value), past, games + chances), told

    start = (jax.random.normal(key, 3), jnp.zeros((most, 3)), jnp.zeros(most))
    _, told = jax.lax.scan(step, start, jnp.arange(STEPS))
    return told


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--curve", action="store_true")
    given = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), given.seeds)
    for game, worth in GAMES.items():
        for name, (chosen, entropy) in MODES.items():
            settings = PoolSettings(**chosen)
            told = jax.jit(jax.vmap(partial(played, settings, entropy, worth)))(keys)
            late = {key: np.asarray(value)[:, STEPS // 2 :] for key, value in told.items()}
            average = late["policy"].mean(1) @ payoffs(worth).T
            columns = {
                "mean": late["exploitability"].mean(1),
                "highest": late["exploitability"].max(1),
                "last": late["exploitability"][:, -1],
                "average": average.max(1),
                "worst score": late["worst"].mean(1),
            }
            parts = (f"{key} {' '.join(f'{x:.3f}' for x in values)}" for key, values in columns.items())
            print(f"{game:7} {name:26} {'; '.join(parts)}", flush=True)
            if given.curve:
                tenths = np.asarray(told["exploitability"]).mean(0).reshape(10, -1).mean(1)
                print(f"{'':34} {' '.join(f'{x:.3f}' for x in tenths)}")


if __name__ == "__main__":
    main()
