"""Share of a script's actions that a policy's observations explain: what a pupil can learn from a teacher.

    python benchmarks/imitation.py [--script heuristic] [--decisions 1280] [--epochs 10] [KEY=VALUE ...]
    python benchmarks/imitation.py env=echelon_missions env.telemetry=false env.navigation=true

The script plays its role in 64 environments, with noise of .1 or .4 on its actions, so that it also meets
what it would not do itself; the other roles have the environment's own controllers. A network of two hidden
layers is fitted to the script's actions, by the mean squared error over nine tenths of the decisions. The
last tenth gives R², the share of the variance that is explained, of each number of the action that varies.
What stays far from 1, with more epochs and wider layers too, depends on facts that the observation does not
contain, or on chance: a policy that imitates the script takes the mean over them.
"""

import argparse
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from missions import read
from rich.console import Console
from rich.table import Table

from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.episodes import EpisodeTask
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.acting.state import ControllerView

NUM_ENVS, CHUNK, BATCH = 64, 20, 1024
NOISE = (0.1, 0.4)
LEARNER = "learner"
# Variances below this are those of numbers that the script does not use.
LEAST_VARIANCE = 1e-3


def make_rollout(env, role, script: str):
    """Returns `(key) -> state` and `(state, key) -> (state, (obs, action, alive))` of `CHUNK` decisions."""
    teacher = controllers.make_script_controller(controllers.find_teacher(env, role.name, script))
    seats = {role.name: teacher}
    for other in env.spec.roles:
        name = env.controllers.get(other.name, LEARNER)
        if other.name != role.name:
            name = script if name == LEARNER else name
            seats[other.name] = controllers.make_script_controller(
                controllers.find_script(env, other.name, name)
            )
    spread = jnp.where(jnp.arange(NUM_ENVS) % 2 == 0, *NOISE)[:, None, None]

    def draw(_key):
        return EpisodeTask(env.default_params())

    def begin(key):
        running = episodes.start_episodes(env, key, draw, NUM_ENVS)
        memories = {name: seat.init(NUM_ENVS) for name, seat in seats.items()}
        return running, memories, jnp.ones(NUM_ENVS, bool)

    def decide(state, key):
        running, memories, reset = state
        key_noise, key_step, *keys = jax.random.split(key, 2 + len(seats))
        view = ControllerView(running.env, running.params, running.time)
        actions, moved = {}, {}
        for (name, seat), own in zip(seats.items(), keys, strict=True):
            moved[name], actions[name], _ = seat.act(own, None, memories[name], view, reset)
        wanted = controllers.from_space(role.action, actions[role.name])
        noisy = wanted + spread * jax.random.normal(key_noise, wanted.shape)
        actions[role.name] = controllers.to_space(role.action, noisy)
        seen = running.time.obs[role.name], wanted, running.time.alive[role.name]
        running, stepped = episodes.step_episodes(env, key_step, running, actions, draw)
        return (running, moved, stepped.reset_next), seen

    return jax.jit(begin), jax.jit(
        lambda state, key: jax.lax.scan(decide, state, jax.random.split(key, CHUNK))
    )


def collect(env, role, script: str, decisions: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns observations `[N, D]` and the script's actions `[N, B]`, in [-1, 1], of living agents."""
    begin, run = make_rollout(env, role, script)
    state, observations, actions = begin(jax.random.key(0)), [], []
    for number in range(-(-decisions // CHUNK)):
        state, seen = run(state, jax.random.key(number + 1))
        observed, wanted, alive = jax.device_get(seen)
        observations.append(observed[alive].astype(np.float32))
        actions.append(wanted[alive])
    return np.concatenate(observations), np.concatenate(actions)


def explained_variance(inputs: np.ndarray, targets: np.ndarray, widths: tuple[int, ...], epochs: int):
    """Returns R² and variance `[B]` of targets in the last tenth, of a network fitted to the other rows."""
    known = len(inputs) * 9 // 10
    mean, deviation = inputs[:known].mean(0), inputs[:known].std(0) + 1e-6
    inputs = np.clip((inputs - mean) / deviation, -10.0, 10.0)
    sizes, random = (inputs.shape[1], *widths, targets.shape[1]), np.random.default_rng(0)
    layers = [
        (jnp.asarray(random.normal(0.0, rows**-0.5, (rows, columns)), jnp.float32), jnp.zeros(columns))
        for rows, columns in itertools.pairwise(sizes)
    ]
    steps = epochs * known // BATCH
    optimizer = optax.adam(optax.linear_schedule(1e-3, 0.0, steps))

    def predict(layers, rows):
        for weights, bias in layers[:-1]:
            rows = jnp.tanh(rows @ weights + bias)
        return rows @ layers[-1][0] + layers[-1][1]

    def loss(layers, rows, wanted):
        return jnp.mean((predict(layers, rows) - wanted) ** 2)

    @jax.jit
    def step(layers, state, rows, wanted):
        update, state = optimizer.update(jax.grad(loss)(layers, rows, wanted), state)
        return optax.apply_updates(layers, update), state

    state = optimizer.init(layers)
    for _ in range(steps):
        chosen = random.integers(0, known, BATCH)
        layers, state = step(layers, state, inputs[chosen], targets[chosen])
    held_out = targets[known:]
    error = np.mean((np.asarray(jax.jit(partial(predict, layers))(inputs[known:])) - held_out) ** 2, axis=0)
    variance = held_out.var(0)
    return 1.0 - error / np.maximum(variance, 1e-12), variance


def main() -> None:
    """Collects, fits and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--script", default="heuristic")
    parser.add_argument("--role", help="whose script (default: the first role)")
    parser.add_argument("--decisions", type=int, default=1280, help=f"of each of {NUM_ENVS} environments")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--widths", type=int, nargs="+", default=(128, 128))
    parser.add_argument("overrides", nargs="*", help="of the configuration, such as env=f110")
    given = parser.parse_args()
    env = read(*given.overrides).env
    try:
        role = env.spec.role(given.role or env.spec.roles[0].name)
        controllers.find_teacher(env, role.name, given.script)
    except (KeyError, ValueError) as error:
        parser.error(error.args[0])
    if not isinstance(role.action, Box):
        parser.error(f"{env.spec.name}: actions of {role.name} are not continuous")
    inputs, targets = collect(env, role, given.script, given.decisions)
    shares, variances = explained_variance(inputs, targets, tuple(given.widths), given.epochs)
    layers = " and ".join(map(str, given.widths))
    title = f"{env.spec.name}: {len(inputs):,} decisions of {role.name}'s {given.script}, "
    title += f"{given.epochs} epochs, layers of {layers}"
    table = Table("number of the action", "R²", "variance", title=title, title_justify="left")
    for number, (share, variance) in enumerate(zip(shares, variances, strict=True)):
        if variance > LEAST_VARIANCE:
            table.add_row(str(number), f"{share:.2f}", f"{variance:.3f}")
    console = Console()
    console.print(table)
    varies = variances > LEAST_VARIANCE
    unexplained = float(((1.0 - shares) * variances)[varies].sum() / variances[varies].sum())
    console.print(f"explained in all: {1.0 - unexplained:.2f} of the variance of {varies.sum()} numbers")


if __name__ == "__main__":
    main()
