"""The other side of comparisons: Stable-Baselines3 and sb3-contrib, in a process of their own.

    python benchmarks/peers.py train '{"algo": "sac", "env": "Pendulum-v1", "steps": 20000, ...}'
    python benchmarks/peers.py updates '{"algo": "tqc", "observation": 119, "action": 2, ...}'

Needs `pip install stable-baselines3 sb3-contrib`. Prints one line of JSON.
"""

import json
import sys
import time


def algorithms():
    """Names to classes."""
    from sb3_contrib import TQC
    from stable_baselines3 import A2C, PPO, SAC, TD3

    return {"a2c": A2C, "ppo": PPO, "sac": SAC, "td3": TD3, "tqc": TQC}


def train(job: dict) -> dict:
    """Trains one seed; the mean and the spread of 20 deterministic episodes, and seconds."""
    import gymnasium
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(job.get("threads", 1))
    environments = make_vec_env(job["env"], n_envs=job.get("num_envs", 1), seed=job["seed"])
    make = algorithms()[job["algo"]]
    model = make("MlpPolicy", environments, seed=job["seed"], device="cpu", **job["settings"])
    begin = time.perf_counter()
    model.learn(job["steps"])
    seconds = time.perf_counter() - begin
    mean, spread = evaluate_policy(model, gymnasium.make(job["env"]), 20, deterministic=True, warn=False)
    return {"mean": float(mean), "std": float(spread), "seconds": seconds}


def updates(job: dict) -> dict:
    """Gradient steps per second on made-up data of the given sizes."""
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3.common.logger import configure

    torch.set_num_threads(job["threads"])

    class Noise(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (job["observation"],), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (job["action"],), np.float32)

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 0.0, False, False, {}

    model = algorithms()[job["algo"]]("MlpPolicy", Noise(), device="cpu", **job["settings"])
    model.set_logger(configure(None, []))
    if job["algo"] in ("a2c", "ppo"):
        _, callback = model._setup_learn(model.n_steps)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        steps = model.n_steps // model.batch_size * model.n_epochs if job["algo"] == "ppo" else 1
        return {"rate": steps / _median(model.train, job["seconds"])}
    for _ in range(2 * job["batch"]):
        seen, following = Noise.observation_space.sample(), Noise.observation_space.sample()
        action = Noise.action_space.sample()[None]
        model.replay_buffer.add(seen[None], following[None], action, np.zeros(1), np.zeros(1), [{}])

    def step():
        model.train(gradient_steps=4, batch_size=job["batch"])

    return {"rate": 4 / _median(step, job["seconds"])}


def _median(call, budget: float) -> float:
    call()
    times = []
    while sum(times) < budget or len(times) < 3:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    print(json.dumps({"train": train, "updates": updates}[sys.argv[1]](json.loads(sys.argv[2]))))
