"""Gradient updates per second of every algorithm, ours and those of Stable-Baselines3, in one run.

    python benchmarks/updates.py [--peer-python PATH] [--algos tqc,sac] [--seconds 5] [--plain]

119-dimensional observations, 2-dimensional actions, 256x256 networks; batches of 256 (PPO 64, A2C 256).
`--peer-python` is a Python with stable-baselines3 and sb3-contrib (default: this one). Compilation is
reported separately.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from machine import matmul_rate, seconds_per_call
from peers import PeerError, ask
from rich.console import Console
from rich.table import Table

from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.off_policy.tqc import TQCConfig
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.optim.small_batches import lower_for_options
from algos.types import ActionSpec, Rollout, Transition

OBSERVATION, ACTION, BATCH, ROWS = 119, 2, 256, 16
GRADIENT_STEPS = 16
REPLAY = {"sac": SACConfig, "td3": TD3Config, "tqc": TQCConfig}
PEER = {
    "sac": {"policy_kwargs": {"net_arch": [256, 256]}},
    "td3": {"policy_kwargs": {"net_arch": [256, 256]}},
    "tqc": {
        "policy_kwargs": {"net_arch": [256, 256], "n_critics": 5, "n_quantiles": 25},
        "top_quantiles_to_drop_per_net": 2,
    },
    "ppo": {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "policy_kwargs": {"net_arch": [256, 256]}},
    "a2c": {"n_steps": 256, "policy_kwargs": {"net_arch": [256, 256]}},
}


def make_learner(config):
    """An agent of the sizes above."""
    action = ActionSpec("continuous", (ACTION,))
    return config.make((OBSERVATION,), action, samples=ROWS, updates=1, episode_limit=750, goal=None)


def compile_call(call, *arguments, options: Mapping[str, str] | None):
    """The compiled call, and its compilation seconds; traced and compiled plainly without options."""
    begin = time.perf_counter()
    jitted = jax.jit(call)
    lowered = jitted.lower(*arguments) if options is None else lower_for_options(jitted, *arguments)
    return lowered.compile(compiler_options=options), time.perf_counter() - begin


def replay_updates(name: str, tuned: bool):
    """Compiled gradient steps on a filled replay, their arguments, steps per call, compilation seconds."""
    config = REPLAY[name](
        batch_size=BATCH,
        learning_starts=2 * BATCH,
        updates_per_step=GRADIENT_STEPS,
        replay={"capacity": 1 << 16},
        normalize_observation=False,
    )
    agent = make_learner(config)

    def transition(key):
        seen, following = jax.random.normal(key, (2, ROWS, 1, OBSERVATION))
        flag = jnp.zeros((ROWS, 1), bool)
        return Transition(
            obs=seen,
            action=jax.random.uniform(key, (ROWS, 1, ACTION), minval=-1.0),
            reward=jax.random.normal(key, (ROWS, 1)),
            discount=jnp.ones((ROWS, 1)),
            next_obs=following,
            boundary=flag,
            success=flag,
            alive=~flag,
        )

    def run(state, key):
        def step(state, key):
            return agent.update(state, key, transition(key))[0], None

        return jax.lax.scan(step, state, jax.random.split(key, 4))[0]

    state = jax.jit(agent.init)(jax.random.key(0))
    call, seconds = compile_call(
        run, state, jax.random.key(0), options=agent.compiler_options if tuned else None
    )
    for index in range(2 * BATCH // ROWS // 4 + 1):
        state = call(state, jax.random.key(index))
    return call, (state, jax.random.key(1)), 4 * GRADIENT_STEPS, seconds


def rollout_updates(name: str, tuned: bool):
    """As `replay_updates`, for rollout learners: 16 agents, 128 or 16 decisions."""
    if name == "ppo":
        config = PPOConfig(horizon=128, epochs=10, num_minibatches=32, normalize_observation=False)
    else:
        config = A2CConfig(horizon=16, normalize_observation=False)
    steps = config.epochs * config.num_minibatches if name == "ppo" else 1
    agent = make_learner(config)
    shape = (config.horizon, ROWS, 1)
    key, zeros, no = jax.random.key(0), jnp.zeros(shape), jnp.zeros(shape, bool)
    rollout = Rollout(
        obs=jax.random.normal(key, (*shape, OBSERVATION)),
        action=jax.random.normal(key, (*shape, ACTION)),
        extras={"log_prob": zeros - 2.0, "value": zeros},
        reward=jax.random.normal(key, shape),
        reset=no,
        discount=zeros + 1.0,
        boundary=no,
        bootstrap=zeros,
        alive=~no,
        mask=None,
        carry=(),
        last_value=jnp.zeros(shape[1:]),
    )
    state = jax.jit(agent.init)(key)
    call, seconds = compile_call(
        lambda state: agent.update(state, key, rollout)[0],
        state,
        options=agent.compiler_options if tuned else None,
    )
    return call, (state,), steps, seconds


def dense(sizes: tuple[int, ...]) -> int:
    """Multiply-adds per sample of fully connected layers."""
    return sum(a * b for a, b in itertools.pairwise(sizes))


def needed_flops(name: str) -> float:
    """FLOPs of the matrix products of one gradient step.

    A forward pass counts once; a gradient of parameters adds two more, without that of the first layer's
    input; a gradient of inputs alone adds one.
    """
    hidden = (256, 256)
    outputs = {"sac": 2 * ACTION, "tqc": 2 * ACTION, "td3": ACTION}.get(name, ACTION)
    actor = dense((OBSERVATION, *hidden, outputs))
    first = OBSERVATION * 256
    if name in ("ppo", "a2c"):
        critic = dense((OBSERVATION, *hidden, 1))
        batch = 64 if name == "ppo" else BATCH
        return 2.0 * batch * (3 * (actor + critic) - 2 * first)
    critics, quantiles = {"sac": (2, 1), "td3": (2, 1), "tqc": (5, 25)}[name]
    entry = OBSERVATION + ACTION
    critic = critics * dense((entry, *hidden, quantiles))
    learnt = 4 * critic - critics * entry * 256 + actor
    acting = 3 * actor - first + 2 * critic
    if name == "td3":
        acting = (3 * actor - first + critic) / 2
    return 2.0 * BATCH * (learnt + acting)


def peer(python: str, name: str, seconds: float) -> float | None:
    """Updates per second of the peer library; None if it is not installed."""
    job = {
        "algo": name,
        "observation": OBSERVATION,
        "action": ACTION,
        "batch": BATCH,
        "seconds": seconds,
        "threads": os.cpu_count(),
        "settings": PEER[name],
    }
    try:
        return ask(python, "updates", job)["rate"]
    except PeerError as error:
        print(error, file=sys.stderr)
        return None


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--algos", default="tqc,sac,td3,ppo,a2c")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--plain", action="store_true", help="ours with plain gradient steps for small batches, too"
    )
    arguments = parser.parse_args()
    matmul = matmul_rate()
    table = Table(title=f"gradient updates per second; matrix products at {matmul / 1e9:.0f} GFLOP/s")
    for column in (
        "algorithm",
        "ours",
        "peer",
        "ratio",
        "GFLOP per update",
        "of the matmul rate",
        "compile s",
    ):
        table.add_column(column, justify="right")
    for name in arguments.algos.split(","):
        updates = replay_updates if name in REPLAY else rollout_updates
        call, values, steps, compiled = updates(name, not arguments.plain)
        ours = steps / seconds_per_call(call, *values, budget=arguments.seconds)
        theirs = peer(arguments.peer_python, name, arguments.seconds)
        work = needed_flops(name)
        table.add_row(
            name,
            f"{ours:.0f}",
            "-" if theirs is None else f"{theirs:.0f}",
            "-" if theirs is None else f"{ours / theirs:.1f}",
            f"{work / 1e9:.2f}",
            f"{100 * ours * work / matmul:.0f} %",
            f"{compiled:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
