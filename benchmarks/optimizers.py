"""Our optimisers against Optax's transformations: gradient steps of PPO's default networks.

    python benchmarks/optimizers.py [--names adam,adamw,rmsprop,muon] [--rows 64,2048] [--turns 9]

119 numbers observed, 2 actions, 256x256 tanh, actor and critic; the loss is the mean square of the outputs.
Optax's transformations get the same traced hyper-parameters, gradient scale and switch. Both sides run in one
process, in turns; times are medians over the turns, ratios are Optax's time over ours.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
from rich.console import Console
from rich.table import Table

from algos.on_policy.ppo import PPOConfig
from algos.optim.muon import COEFFICIENTS
from algos.optim.optimizers import DEFAULTS, MUON_REST, Optimizer, make_optimizer
from algos.types import ActionSpec

OBSERVATION, ACTION, STEPS = 119, 2, 20
HYPER = {"learning_rate": jnp.float32(3e-4), "adam_eps": jnp.float32(1e-5)}


def _adam(hyper):
    return optax.scale_by_adam(hyper["adam_beta1"], hyper["adam_beta2"], hyper["adam_eps"])


def _muon(hyper):
    return optax.contrib.muon(
        hyper["learning_rate"],
        ns_coeffs=COEFFICIENTS,
        beta=hyper["muon_momentum"],
        weight_decay=hyper["weight_decay"],
        adam_b1=hyper["adam_beta1"],
        adam_b2=hyper["adam_beta2"],
        adam_learning_rate=MUON_REST["adam"] * hyper["learning_rate"],
    )


TRANSFORMS: dict[str, Callable] = {
    "adam": lambda hyper: optax.chain(_adam(hyper), optax.scale(-hyper["learning_rate"])),
    "adamw": lambda hyper: optax.chain(
        _adam(hyper),
        optax.add_decayed_weights(hyper["weight_decay"]),
        optax.scale(-hyper["learning_rate"]),
    ),
    "rmsprop": lambda hyper: optax.chain(
        optax.scale_by_rms(hyper["rmsprop_decay"], hyper["rmsprop_eps"], eps_in_sqrt=False),
        optax.scale(-hyper["learning_rate"]),
    ),
    "muon": _muon,
}


def wrap_optax(name: str) -> Optimizer:
    """Wraps Optax's optimiser of this name with the interface of ours."""
    transform = TRANSFORMS[name]

    def step(grads, state, params, hyper, scale=1.0, apply=True):
        grads = jax.tree.map(lambda g: scale * g, grads)
        updates, after = transform(DEFAULTS | hyper).update(grads, state, params)
        moved = optax.apply_updates(params, updates)
        return jax.tree.map(lambda new, old: jnp.where(apply, new, old), (moved, after), (params, state))

    return Optimizer(transform(DEFAULTS | HYPER).init, step, elementwise=name != "muon")


def compile_steps(optimizer: Optimizer, rows: int):
    """Returns compiled gradient steps on `rows` samples, 0 for the optimiser alone, and the argument."""
    action = ActionSpec("continuous", (ACTION,))
    agent = PPOConfig(normalize_observation=False).make((OBSERVATION,), action, samples=16, updates=1)
    start = jax.jit(agent.init)(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (max(rows, 1), OBSERVATION))
    reset = jnp.zeros(obs.shape[:1], bool)

    def loss(params):
        state = start.replace(params=params)
        action, _ = agent.greedy(state, obs, (), reset, None)
        return jnp.mean(action**2) + jnp.mean(agent.value(state, obs, (), reset, None) ** 2)

    def run(carry):
        def step(carry, _):
            params, state = carry
            grads = jax.grad(loss)(params) if rows else jax.tree.map(jnp.ones_like, params)
            return optimizer.step(grads, state, params, HYPER, jnp.float32(0.5), jnp.bool_(True)), None

        return jax.lax.scan(step, carry, None, STEPS)[0]

    carry = start.params, optimizer.init(start.params)
    return jax.jit(run).lower(carry).compile(), carry


def measure_in_turns(calls: dict[str, tuple], turns: int) -> dict[str, float]:
    """Median seconds per step of compiled calls `(call, argument, steps)`, interleaved after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, (call, argument, steps) in calls.items():
            begin = time.perf_counter()
            jax.block_until_ready(call(argument))
            if turn:
                times[name].append((time.perf_counter() - begin) / steps)
    return {name: median(taken) for name, taken in times.items()}


def largest_difference(first, second) -> float:
    """Largest difference between two sets of parameters."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(float(np.abs(x - y).max()) for x, y in pairs)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", default=",".join(TRANSFORMS))
    parser.add_argument("--rows", default="64,2048")
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    table = Table(title="seconds per gradient step, Optax's over ours", title_justify="left")
    for column in ("optimiser", "samples", "ours us", "Optax us", "ratio", "parameters differ by"):
        table.add_column(column, justify="right")
    before = os.getloadavg()[0]
    for name in arguments.names.split(","):
        for rows in (0, *map(int, arguments.rows.split(","))):
            sides = {"ours": make_optimizer(name), "Optax": wrap_optax(name)}
            calls = {side: (*compile_steps(one, rows), STEPS) for side, one in sides.items()}
            ends = [call(carry)[0] for call, carry, _ in calls.values()]
            seconds = measure_in_turns(calls, arguments.turns)
            times = [f"{1e6 * seconds[side]:.0f}" for side in calls]
            ratio = f"{seconds['Optax'] / seconds['ours']:.2f}"
            table.add_row(name, str(rows or "alone"), *times, ratio, f"{largest_difference(*ends):.1g}")
    table.caption = f"load before and after: {before:.1f} and {os.getloadavg()[0]:.1f}"
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
