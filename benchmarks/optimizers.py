"""Our Muon against Optax's: gradient steps of PPO's default networks.

    python benchmarks/optimizers.py [--rows 64,2048] [--turns 9]

119 numbers observed, 2 actions, 256x256 tanh, actor and critic; the loss is the mean square of the outputs.
Optax's transformation gets the same traced hyper-parameters, gradient scale and switch. Both sides run in one
process, in turns; times are medians over the turns, ratios are Optax's time over ours.
"""

import argparse
import os
import time
from statistics import median

import jax
import jax.numpy as jnp
import optax.contrib
from rich.console import Console
from rich.table import Table

from algos.on_policy.ppo import PPOConfig
from algos.optim.muon import COEFFICIENTS
from algos.optim.optimizers import DEFAULTS, MUON_REST, Optimizer, keep_unless, make_muon, scale_gradients
from algos.types import ActionSpec

OBSERVATION, ACTION, STEPS = 119, 2, 20
HYPER = {"learning_rate": jnp.float32(3e-4), "adam_eps": jnp.float32(1e-5)}


def make_optax_muon() -> Optimizer:
    """Wraps Optax's Muon with the interface of ours."""

    def transform(hyper):
        return optax.contrib.muon(
            hyper["learning_rate"],
            ns_coeffs=COEFFICIENTS,
            beta=hyper["muon_momentum"],
            weight_decay=hyper["weight_decay"],
            adam_b1=hyper["adam_beta1"],
            adam_b2=hyper["adam_beta2"],
            adam_learning_rate=MUON_REST["adam"] * hyper["learning_rate"],
        )

    def step(grads, state, params, hyper, scale=1.0, apply=True):
        updates, after = transform(DEFAULTS | hyper).update(scale_gradients(grads, scale), state, params)
        return keep_unless(apply, (optax.apply_updates(params, updates), after), (params, state))

    return Optimizer(transform(DEFAULTS | HYPER).init, step)


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


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="64,2048")
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    table = Table(title="seconds per gradient step, Optax's over ours", title_justify="left")
    for column in ("samples", "ours us", "Optax us", "ratio"):
        table.add_column(column, justify="right")
    before = os.getloadavg()[0]
    sides = {"ours": make_muon(), "Optax": make_optax_muon()}
    for rows in (0, *map(int, arguments.rows.split(","))):
        calls = {side: (*compile_steps(one, rows), STEPS) for side, one in sides.items()}
        seconds = measure_in_turns(calls, arguments.turns)
        times = [f"{1e6 * seconds[side]:.0f}" for side in calls]
        table.add_row(str(rows or "alone"), *times, f"{seconds['Optax'] / seconds['ours']:.2f}")
    table.caption = f"load before and after: {before:.1f} and {os.getloadavg()[0]:.1f}"
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
