"""Our optimisers against Optax's transformations: PPO's gradient steps and the optimiser's step alone.

    python benchmarks/optimizers.py [--names adam,adamw,rmsprop,muon] [--rows 64,128,2048] [--turns 9]

PPO's default networks (119 numbers observed, 2 actions, 256x256 tanh, actor and critic). Both sides run in
one process, in turns; times are medians over the turns, ratios are Optax's time over ours. Optax's
transformations get the same traced hyper-parameters, gradient scale and switch, and are packed in the same
way for few rows.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
from machine import matmul_rate
from rich.console import Console
from rich.table import Table
from updates import compile_call, made_up_rollout, make_learner

from algos.on_policy.ppo import PPOConfig
from algos.optim.muon import COEFFICIENTS
from algos.optim.optimizers import DEFAULTS, MUON_REST, Optimizer, make_optimizer

HORIZON = 128
HYPER = {"learning_rate": jnp.float32(3e-4), "adam_eps": jnp.float32(1e-5)}
ALONE = 200


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


@dataclass(frozen=True)
class OptaxPPO(PPOConfig):
    """PPO with Optax's optimisers."""

    def make_optimizer(self) -> Optimizer:
        """See `PPOConfig`."""
        return wrap_optax(self.optimizer)


def gradient_steps(kind: type[PPOConfig], name: str, rows: int):
    """Returns the compiled update, its argument, and its number of gradient steps on `rows` samples."""
    agents = 16 if rows <= 128 else 64
    epochs, parts = (10, HORIZON * agents // rows) if rows <= 128 else (4, max(HORIZON * agents // rows, 1))
    config = kind(
        horizon=HORIZON, epochs=epochs, num_minibatches=parts, normalize_observation=False, optimizer=name
    )
    agent, key = make_learner(config, agents), jax.random.key(0)
    state, rollout = jax.jit(agent.init)(key), made_up_rollout(key, HORIZON, agents)
    call, _ = compile_call(
        lambda state: agent.update(state, key, rollout)[0], state, options=agent.compiler_options
    )
    return call, state, epochs * parts


def steps_alone(optimizer: Optimizer, params):
    """Returns compiled steps of the optimiser on constant gradients, their argument and their number."""
    grads = jax.tree.map(jnp.ones_like, params)

    def run(carry):
        def step(carry, _):
            params, state = carry
            return optimizer.step(grads, state, params, HYPER, jnp.float32(0.5), jnp.bool_(True)), None

        return jax.lax.scan(step, carry, None, ALONE)[0]

    carry = params, optimizer.init(params)
    return jax.jit(run).lower(carry).compile(), carry, ALONE


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
    """Largest difference between the policies' parameters after one update."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(float(np.abs(x - y).max()) for x, y in pairs)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", default=",".join(TRANSFORMS))
    parser.add_argument("--rows", default="64,128,2048")
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    table = Table(title="seconds per gradient step, Optax's over ours", title_justify="left")
    for column in ("optimiser", "samples", "ours ms", "Optax ms", "ratio", "parameters differ by"):
        table.add_column(column, justify="right")
    before = os.getloadavg()[0]
    for name in arguments.names.split(","):
        for rows in map(int, arguments.rows.split(",")):
            calls = {
                "ours": gradient_steps(PPOConfig, name, rows),
                "optax": gradient_steps(OptaxPPO, name, rows),
            }
            after = [call(state).params for call, state, _ in calls.values()]
            add_row(
                table, name, str(rows), measure_in_turns(calls, arguments.turns), largest_difference(*after)
            )
        params = calls["ours"][1].params
        alone = {
            "ours": steps_alone(make_optimizer(name), params),
            "optax": steps_alone(wrap_optax(name), params),
        }
        add_row(table, name, "step alone", measure_in_turns(alone, arguments.turns))
    table.caption = (
        f"load before and after: {before:.1f} and {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
        f"matrix products at {matmul_rate() / 1e9:.0f} GFLOP/s"
    )
    Console(width=120).print(table)


def add_row(table: Table, name: str, what: str, seconds: dict[str, float], difference: float | None = None):
    """Adds the times of both sides to the table."""
    ours, theirs = seconds["ours"], seconds["optax"]
    apart = "" if difference is None else f"{difference:.1g}"
    table.add_row(name, what, f"{1e3 * ours:.3f}", f"{1e3 * theirs:.3f}", f"{theirs / ours:.2f}", apart)


if __name__ == "__main__":
    main()
