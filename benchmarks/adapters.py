"""Cost per step of the outward adapters over the compiled step, for one environment and a vector.

    python benchmarks/adapters.py [--env f110] [--envs 1024] [--rounds 20] [--steps 50]
        [--kinds single,vector]

Adapters and compiled step are timed in turns, with random actions drawn in advance; medians over the
rounds. The compiled step is `env.step` with the other roles' scripts for one environment, and
`episodes.step_episodes` with them, which begins episodes as well, for the vector. Targets: 1 ms for one
environment, 10 % for a vector of 1,024. Adapters whose package is missing are left out.
"""

import argparse
import statistics
import time
from importlib.util import find_spec

import jax
import numpy as np

import jaxmarl_echelon as je
from jaxmarl_echelon import command_line
from jaxmarl_echelon.envs.adapters.seats import choose_one_seat, make_legal, make_player
from jaxmarl_echelon.envs.episodes import EpisodeTask, Running, start_episodes, step_episodes


class Compiled:
    """The compiled step without an adapter; outputs stay on the device.

    Args:
      env: the environment.
      num_envs: E; None for one environment without a batch, which is not reset.
    """

    def __init__(self, env, num_envs: int | None):
        self.env, self.num_envs, self.key = env, num_envs, jax.random.key(0)
        seats = choose_one_seat(env)
        self.role, self.params = seats.outside[0][0], env.default_params()
        self.players = dict(seats.inside)
        self.memories = {name: self._player(name).init(num_envs or 1) for name in self.players}
        if num_envs is None:
            self.state, self.time = jax.jit(env.reset)(self.key, self.params)
            self.step = jax.jit(self._one)
        else:
            self.state = jax.jit(self._start)(env.world, self.key)
            self.step = jax.jit(self._many, donate_argnums=2)

    def _start(self, world, key):
        return start_episodes(self.env.with_world(world), key, self._draw, self.num_envs)

    def _player(self, name, env=None):
        env = env or self.env
        return make_player(env, env.spec.role(name), self.players[name])

    def _draw(self, key):
        del key
        return EpisodeTask(self.params)

    def _acted(self, env, key, memories, running, params, own):
        actions = {self.role: make_legal(self.env.spec.role(self.role), own, None)}
        memories = dict(memories)
        keys = jax.random.split(key, own.shape[0])
        for name in self.players:
            memories[name], actions[name] = self._player(name, env).act(keys, memories[name], running, params)
        return memories, actions

    def _one(self, world, key, state, memories, own):
        env, (key, key_act, key_step) = self.env.with_world(world), jax.random.split(key, 3)
        batch = jax.tree.map(lambda x: x[None], (Running(state, None, None), self.params))
        memories, actions = self._acted(env, key_act, memories, *batch, own[None])
        actions = {name: action[0] for name, action in actions.items()}
        state, reached = env.step(key_step, state, actions, self.params)
        return key, state, memories, reached

    def _many(self, world, key, state, memories, own):
        env = self.env.with_world(world)
        key, key_act, key_step = jax.random.split(key, 3)
        memories, actions = self._acted(env, key_act, memories, state.running.tree, state.params, own)
        state, transition = step_episodes(env, key_step, state, actions, self._draw)
        return key, state, memories, transition.time

    def take(self, action) -> None:
        """Takes one step and waits for it."""
        self.key, self.state, self.memories, reached = self.step(
            self.env.world, self.key, self.state, self.memories, action[..., None, :]
        )
        jax.block_until_ready(reached)


def make_takers(env, num_envs: int | None) -> dict:
    """Returns per adapter a function that takes one step, and begins an episode where one ended."""
    made = make_single_takers(env) if num_envs is None else make_vector_takers(env, num_envs)
    return {"compiled": Compiled(env, num_envs).take} | made


def make_vector_takers(env, num_envs: int) -> dict:
    """Returns the functions of `make_takers` of adapters of several environments."""
    takers = {}
    for mode in ("same_step", "next_step"):
        vector = je.to_gymnasium(env, num_envs, autoreset=mode)
        vector.reset(seed=0)
        takers[f"gymnasium {mode}"] = vector.step
    if find_spec("stable_baselines3"):
        sb3 = je.to_sb3(env, num_envs)
        sb3.reset()
        takers["sb3"] = sb3.step
    return takers


def make_single_takers(env) -> dict:
    """Returns the functions of `make_takers` of adapters of one environment."""
    takers = {}
    single = je.to_gymnasium(env)
    single.reset(seed=0)

    def take_single(action):
        if any(single.step(action)[2:4]):
            single.reset()

    takers["gymnasium"] = take_single
    if find_spec("pettingzoo"):
        parallel = je.to_pettingzoo(env)
        parallel.reset(seed=0)

        def take_parallel(action):
            parallel.step(dict.fromkeys(parallel.agents, action))
            if not parallel.agents:
                parallel.reset()

        takers["pettingzoo"] = take_parallel
    if find_spec("jaxmarl"):
        theirs, key = je.to_jaxmarl(env), jax.random.key(0)
        place = {"state": theirs.reset(key)[1]}
        step = jax.jit(theirs.step)

        def take_jaxmarl(action):
            out = step(key, place["state"], dict.fromkeys(theirs.agents, action))
            place["state"] = jax.block_until_ready(out)[1]

        takers["jaxmarl"] = take_jaxmarl
    return takers


def measure(takers: dict, actions: np.ndarray, rounds: int) -> dict[str, float]:
    """Returns the median milliseconds per step of each, timed in turns."""
    for take in takers.values():
        for action in actions[:2]:
            take(action)
    times = {name: [] for name in takers}
    for _ in range(rounds):
        for name, take in takers.items():
            begin = time.perf_counter()
            for action in actions:
                take(action)
            times[name].append(1e3 * (time.perf_counter() - begin) / len(actions))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="f110")
    parser.add_argument("--envs", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--kinds", default="single,vector")
    given = parser.parse_args()
    command_line.use_compilation_cache()
    env = je.make(given.env)
    sizes = {"vector": (given.envs, max(1, given.steps // 10)), "single": (None, given.steps)}
    for num_envs, steps in (sizes[kind] for kind in given.kinds.split(",")):
        role = env.spec.role(choose_one_seat(env).outside[0][0])
        low, high = role.action.bounds()
        shape = (steps, *(() if num_envs is None else (num_envs,)), *role.action.shape)
        actions = np.random.default_rng(0).uniform(low, high, shape).astype(np.float32)
        found = measure(make_takers(env, num_envs), actions, given.rounds)
        base = found.pop("compiled")
        print(f"{given.env}, {num_envs or 1} environments: compiled step {base:.3f} ms", flush=True)
        for name, value in found.items():
            print(f"  {name:22} {value:8.3f} ms, {value - base:+.3f} ms, {100 * (value / base - 1):+.1f} %")


if __name__ == "__main__":
    main()
