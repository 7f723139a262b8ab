"""Our action distributions against distrax's: largest differences, and times of a loss with its gradient.

    python benchmarks/distributions.py [--samples 8192] [--turns 9]

The loss is the mean of log-probability and entropy, as in PPO; where distrax has no entropy it is the
log-probability alone on both sides. Both sides run in one process, in turns; times are medians over the
turns, ratios are distrax's time over ours.
"""

import argparse
import os
from collections.abc import Callable

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from optimizers import measure_in_turns
from rich.console import Console
from rich.table import Table

from algos.nets.distributions import SQUASH_LIMIT, Gaussian, MultiCategorical, SquashedGaussian

SIZES = (9, 5, 3)
REPEATS = 20


def _normal(mean, log_std):
    return distrax.Independent(distrax.Normal(mean, jnp.exp(log_std)), 1)


def _squashed(mean, log_std):
    return distrax.Transformed(_normal(mean, log_std), distrax.Block(distrax.Tanh(), 1))


def _joint(logits, mask):
    logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    edges = np.cumsum(SIZES)[:-1]
    return distrax.Joint(tuple(distrax.Categorical(part) for part in jnp.split(logits, edges, -1)))


def loss_of(entropy: bool) -> Callable:
    """Returns `(distribution, action) -> scalar`."""

    def loss(distribution, action):
        value = distribution.log_prob(action)
        return jnp.mean(value + distribution.entropy() if entropy else value)

    return loss


def make_cases(samples: int) -> dict[str, tuple]:
    """Returns by name: both constructors, their first argument, the other one, both actions, with entropy."""
    keys = jax.random.split(jax.random.key(0), 5)
    mean = jax.random.normal(keys[0], (samples, 2))
    log_std = jnp.full((samples, 2), -0.5)
    raw = Gaussian(mean, log_std).sample(keys[1])
    squashed = SquashedGaussian(mean, log_std).sample(keys[1])
    logits = jax.random.normal(keys[2], (samples, sum(SIZES)))
    mask = jax.random.bernoulli(keys[3], 0.7, logits.shape).at[:, np.cumsum((0, *SIZES[:-1]))].set(True)
    choices = MultiCategorical.masked(logits, SIZES, mask).sample(keys[4])

    def ours(logits, mask):
        return MultiCategorical.masked(logits, SIZES, mask)

    return {
        "Gaussian, 2": (Gaussian, _normal, mean, log_std, (raw, raw), True),
        "tanh-squashed, 2": (SquashedGaussian, _squashed, mean, log_std, (squashed, squashed), False),
        f"masked choices {SIZES}": (
            ours,
            _joint,
            logits,
            mask,
            (choices, tuple(jnp.moveaxis(choices, -1, 0))),
            True,
        ),
    }


def compile_loss(make: Callable, loss: Callable, other, action):
    """Returns the compiled value and gradient with respect to the first argument, `REPEATS` times."""

    def run(first):
        def once(first, _):
            value, slope = jax.value_and_grad(lambda x: loss(make(x, other), action))(first)
            return first + 1e-6 * slope, value

        return jax.lax.scan(once, first, None, REPEATS)

    return jax.jit(run)


def saturated_log_probs() -> str:
    """Says what both sides return for the log-probability of actions at the bounds."""
    mean, log_std = jnp.array([[8.0]]), jnp.array([[0.0]])
    action = jnp.clip(jnp.tanh(mean), -SQUASH_LIMIT, SQUASH_LIMIT)
    ours = SquashedGaussian(mean, log_std).log_prob(action)[0]
    theirs = [_squashed(mean, log_std).log_prob(x)[0] for x in (action, jnp.tanh(mean + 2.0))]
    sampled = _squashed(mean, log_std).sample(seed=jax.random.key(0), sample_shape=10_000)
    bad = 1.0 - jnp.isfinite(_squashed(mean, log_std).log_prob(sampled)).mean()
    return (
        f"tanh-squashed, mean 8: log-probability of the clipped mode {ours:.3f} (distrax {theirs[0]:.3f}), "
        f"of an unclipped action {theirs[1]:.3f} in distrax; {bad:.0%} of its own samples have no finite one"
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    table = Table(title=f"loss and gradient of {arguments.samples:,} samples", title_justify="left")
    for column in ("distribution", "ours us", "distrax us", "ratio", "log-prob differs by", "gradient by"):
        table.add_column(column, justify="right")
    before = os.getloadavg()[0]
    for name, (ours, theirs, first, other, actions, entropy) in make_cases(arguments.samples).items():
        calls, found = {}, []
        for side, make, action in zip(("ours", "distrax"), (ours, theirs), actions, strict=True):
            calls[side] = compile_loss(make, loss_of(entropy), other, action), first, REPEATS
            density = jax.jit(lambda x, make=make, a=action, o=other: make(x, o).log_prob(a))(first)
            found.append((np.asarray(density), np.asarray(calls[side][0](first)[0])))
        seconds = measure_in_turns(calls, arguments.turns)
        apart = [f"{np.abs(x - y).max():.1g}" for x, y in zip(*found, strict=True)]
        times = [f"{1e6 * seconds[side]:.0f}" for side in calls]
        table.add_row(name, *times, f"{seconds['distrax'] / seconds['ours']:.2f}", *apart)
    table.caption = (
        f"load before and after: {before:.1f} and {os.getloadavg()[0]:.1f}; {saturated_log_probs()}"
    )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
