"""Stable-Baselines3's PPO on the default F110 task through `to_sb3`: success rate against steps.

    python benchmarks/adapters_sb3.py [--steps 800000] [--minutes 10] [--seed 0]

Settings are those of `conf/tuning/f110/ppo.yaml`, as far as SB3 has them: no mean of policies, and a
KL stop at 1.5 times the bound. Needs `pip install 'jaxmarl_echelon[sb3]'`. Success rates are those of
training episodes, whose actions are sampled, and at the end of deterministic episodes.
"""

import argparse
import math
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnvWrapper

import jaxmarl_echelon as je
from jaxmarl_echelon import command_line

ENVS, HORIZON = 128, 512


class ScaledReward(VecEnvWrapper):
    """Multiplies rewards by the `reward_scale` of the tuned settings."""

    def reset(self):
        """Begins episodes."""
        return self.venv.reset()

    def step_wait(self):
        """Returns a step with scaled rewards."""
        obs, rewards, ended, infos = self.venv.step_wait()
        return obs, 0.025 * rewards, ended, infos


class Curve(BaseCallback):
    """Counts ends and successes between rollouts, prints them, and stops after some minutes."""

    def __init__(self, minutes: float, every: int):
        super().__init__()
        self.ends, self.wins, self.every, self.next = 0, 0, every, every
        self.begin, self.limit = time.perf_counter(), 60 * minutes

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "is_success" in info:
                self.ends, self.wins = self.ends + 1, self.wins + info["is_success"]
        seconds = time.perf_counter() - self.begin
        if self.num_timesteps >= self.next:
            rate = self.wins / max(self.ends, 1)
            print(f"{self.num_timesteps:9,} steps {seconds:5.0f} s {self.ends:5} ends {rate:.3f}", flush=True)
            self.ends, self.wins, self.next = 0, 0, self.next + self.every
        return seconds < self.limit


def evaluate(model: PPO, env) -> float:
    """Returns the success rate of deterministic episodes, the first of each environment."""
    env.seed(10_000)
    obs, done, wins = env.reset(), np.zeros(env.num_envs, bool), 0
    while not done.all():
        obs, _, ended, infos = env.step(model.predict(obs, deterministic=True)[0])
        wins += sum(infos[row]["is_success"] for row in np.flatnonzero(ended & ~done))
        done |= ended
    return wins / env.num_envs


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=800_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    command_line.use_compilation_cache()
    torch.set_num_threads(1)
    env = je.to_sb3(je.make("f110", pose_jitter=[0.05, 0.05, 0.05]), ENVS)
    env.seed(given.seed)
    settings = {
        "n_steps": HORIZON,
        "batch_size": ENVS * HORIZON // 32,
        "n_epochs": 4,
        "learning_rate": lambda left: 1e-3 * left,
        "gamma": 0.9995,
        "gae_lambda": 0.998,
        "normalize_advantage": False,
        "vf_coef": 0.1,
        "target_kl": 0.03,
        "policy_kwargs": {"net_arch": [256, 256], "log_std_init": math.log(0.45)},
    }
    model = PPO("MlpPolicy", ScaledReward(env), **settings, seed=given.seed, device="cpu")
    with torch.no_grad():
        model.policy.action_net.bias.copy_(torch.tensor([0.0, 0.44]))
    model.learn(given.steps, callback=Curve(given.minutes, 65_536))
    print(f"deterministic success rate of {ENVS} episodes: {evaluate(model, env):.3f}")


if __name__ == "__main__":
    main()
