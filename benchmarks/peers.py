"""Peer libraries of comparisons: SB3, rejax, PyTorch, f1tenth_gym, transformers, in a subprocess.

    python benchmarks/peers.py train '{"algo": "sac", "env": "Pendulum-v1", "steps": 20000, ...}'
    python benchmarks/peers.py plain '{"algorithm": "PPO", "env": "CartPole-v1", "runs": 3, ...}'
    python benchmarks/peers.py updates '{"algo": "tqc", "observation": 119, "action": 2, ...}'
    python benchmarks/peers.py steps '{"num_envs": 64, "observation": 119, "action": 2, ...}'
    python benchmarks/peers.py segments '{"kind": "lstm", "width": 128, "horizon": 64, "rows": 64, ...}'
    python benchmarks/peers.py simulator '{"race": {"map": "PATH.yaml", "beams": 108, "poses": [...]}, ...}'
    python benchmarks/peers.py generate '{"model": "FOLDER", "prompts": [[...]], "count": 48}'
    python benchmarks/peers.py logits '{"model": "FOLDER", "adapters": "FOLDER", "tokens": [[...]], ...}'

Needs `pip install stable-baselines3 sb3-contrib`, `rejax==0.1.3 gymnax==0.0.9` for `plain`, only torch for
`segments`, torch, transformers and peft for `logits` and `generate`, and f1tenth_gym's f110_gym (the classic
one: 4 values per step) for `simulator` and for `steps` with a "race". Prints one line of JSON.
"""

import json
import subprocess
import sys
import time


class PeerError(Exception):
    """A peer could not be measured; the message is the last line of its stderr."""


def ask(python: str, command: str, job: dict) -> dict:
    """Runs one of the commands above in the peer's Python; returns the printed JSON.

    Raises:
      PeerError: if that Python or the library is missing, or the command fails.
    """
    try:
        done = subprocess.run([python, __file__, command, json.dumps(job)], capture_output=True, text=True)
    except OSError as error:
        raise PeerError(str(error)) from error
    if done.returncode:
        raise PeerError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def algorithms():
    """Returns the algorithms' classes by name."""
    from sb3_contrib import TQC
    from stable_baselines3 import A2C, PPO, SAC, TD3

    return {"a2c": A2C, "ppo": PPO, "sac": SAC, "td3": TD3, "tqc": TQC}


def train(job: dict) -> dict:
    """Trains one seed; returns mean and standard deviation of 20 deterministic returns, and seconds."""
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


def plain(job: dict) -> dict:
    """Compiles and runs a training of rejax without evaluations; returns seconds of both."""
    import rejax

    runs, steps = job.pop("runs"), job["total_timesteps"]
    algorithm = getattr(rejax, job.pop("algorithm")).create(
        **job, eval_freq=steps, skip_initial_evaluation=True
    )
    algorithm = algorithm.replace(eval_callback=lambda *_: ())
    return time_program(algorithm.train, runs)


def time_program(train, runs: int) -> dict:
    """Compiles and runs `(key) -> tree`; returns wall-clock and CPU seconds of compiling, and of each run."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    # Whether there is a cache is decided at the first compilation of a process, which may have been.
    compilation_cache.reset_cache()
    jax.block_until_ready(jax.jit(lambda key: jax.random.split(key))(jax.random.key(0)))
    begin, processor, seconds = time.perf_counter(), time.process_time(), []
    compiled = jax.jit(train).lower(jax.random.key(0)).compile()
    compiling, processor = time.perf_counter() - begin, time.process_time() - processor
    for seed in range(runs):
        key = jax.random.key(seed)
        begin = time.perf_counter()
        jax.block_until_ready(compiled(key))
        seconds.append(time.perf_counter() - begin)
    return {"compiling": compiling, "processor": processor, "seconds": seconds}


def noise(job: dict):
    """A class of environments of the given sizes with random observations and negligible cost."""
    import gymnasium
    import numpy as np

    shown = np.random.default_rng(0).uniform(-1.0, 1.0, (64, job["observation"])).astype(np.float32)

    class Noise(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (job["observation"],), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (job["action"],), np.float32)
        steps = 0

        def reset(self, *, seed=None, options=None):  # noqa: ARG002
            return shown[0], {}

        def step(self, action):
            self.steps += 1
            return shown[self.steps % 64], float(action[0]), False, self.steps % 500 == 0, {}

    return Noise


def two_cars(race: dict):
    """f1tenth_gym with two cars on a map: reset and step functions.

    Args:
      race: `map`, a map's yaml file; `beams` per scan; starting `poses` `[N, 2, 3]`.

    Returns:
      `start() -> scan`, from the next of the poses, and `move(steer, speed) -> (scan, over)`: the first car
      is controlled, the other drives straight at 0.44 m/s. Episodes end on contact or after 500 steps.
    """
    import itertools

    import numpy as np
    import yaml
    from f110_gym.envs import F110Env
    from f110_gym.envs.base_classes import RaceCar

    with open(race["map"]) as file:
        image = yaml.safe_load(file)["image"]
    settings = {
        "map": race["map"].removesuffix(".yaml"),
        "map_ext": "." + image.rpartition(".")[2],
        "num_agents": 2,
        "timestep": 0.01,
    }
    params = F110Env(**settings).params
    # All cars share one lidar, created by the first; environments would create it with 1080 beams.
    RaceCar.scan_simulator = None
    RaceCar(params, 0, num_beams=race["beams"], fov=4.7)
    gym = F110Env(**settings)
    places = itertools.cycle(np.array(race["poses"]))
    steps = itertools.count()

    def start():
        nonlocal steps
        steps = itertools.count(1)
        return gym.reset(next(places))[0]["scans"][0]

    def move(steer, speed):
        seen = gym.step(np.array([[steer, speed], [0.0, 0.44]]))[0]
        return seen["scans"][0], bool(seen["collisions"].any()) or next(steps) == 500

    if len(start()) != race["beams"]:
        raise ValueError("this f110_gym does not let its lidar be replaced")
    return start, move


def racing(job: dict):
    """A class of environments of the given sizes around f1tenth_gym: observations are its scan, zero-padded.

    Instances would share one simulator, so create only one.
    """
    import gymnasium
    import numpy as np

    start, move = two_cars(job["race"])
    size = job["observation"]

    class Racing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (job["action"],), np.float32)

        def show(self, scan):
            return np.concatenate([scan, np.zeros(size - len(scan))], dtype=np.float32)

        def reset(self, *, seed=None, options=None):  # noqa: ARG002
            return self.show(start()), {}

        def step(self, action):
            scan, over = move(0.4 * action[0], 1.0 + action[1])
            return self.show(scan), float(action[1]), over, False, {}

    return Racing


def simulator(job: dict) -> dict:
    """Steps per second of f1tenth_gym alone, including resets, with both cars driving straight."""
    start, move = two_cars(job["race"])
    over = True

    def some():
        nonlocal over
        for _ in range(500):
            if over:
                start()
            over = move(0.0, 0.44)[1]

    return {"rate": 500 / _median(some, job["seconds"])}


def steps(job: dict) -> dict:
    """Steps per second of PPO, acting and learning; without a "race", environments have negligible cost."""
    import torch
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(job["threads"])
    environments = DummyVecEnv([racing(job) if "race" in job else noise(job)] * job["num_envs"])
    model = algorithms()["ppo"]("MlpPolicy", environments, device="cpu", **job["settings"])
    model.set_logger(configure(None, []))
    _, callback = model._setup_learn(1)

    def update():
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model.train()

    return {"rate": model.n_steps * job["num_envs"] / _median(update, job["seconds"])}


def updates(job: dict) -> dict:
    """Gradient steps per second on synthetic data of the given sizes."""
    import numpy as np
    import torch
    from stable_baselines3.common.logger import configure

    torch.set_num_threads(job["threads"])
    Noise = noise(job)
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


def segments(job: dict) -> dict:
    """Decisions per second in gradient steps of recurrent PPO on synthetic sequences.

    Uses the library's fused recurrent layer, which has no resets within a sequence.
    """
    import torch
    from torch import nn

    torch.set_num_threads(job["threads"])
    width, shape = job["width"], (job["horizon"], job["rows"])
    trunk = nn.Sequential(nn.Linear(job["features"], width), nn.Tanh())
    layers = {"none": None, "lstm": nn.LSTM, "gru": nn.GRU}[job["kind"]]
    core = layers and layers(width, width)
    heads = nn.Linear(width, job["actions"] + 1)
    parameters = [p for part in (trunk, core, heads) if part is not None for p in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4)
    obs = torch.randn(*shape, job["features"])
    action = torch.randint(job["actions"], shape)
    old, advantage, target, value_before = torch.full(shape, -0.7), *torch.randn(3, *shape)

    def step():
        hidden = trunk(obs)
        hidden = hidden if core is None else core(hidden)[0]
        *logits, value = heads(hidden).split([job["actions"], 1], dim=-1)
        value = value[..., 0]
        policy = torch.distributions.Categorical(logits=logits[0], validate_args=False)
        ratio = torch.exp(policy.log_prob(action) - old)
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        near = value_before + (value - value_before).clamp(-0.2, 0.2)
        error = torch.maximum((value - target) ** 2, (near - target) ** 2)
        loss = (0.25 * error - gain - 0.01 * policy.entropy()).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()

    step()
    times = []
    for _ in range(job["repeats"]):
        begin = time.perf_counter()
        for _ in range(job["steps"]):
            step()
        times.append(time.perf_counter() - begin)
    return {"rate": job["steps"] * shape[0] * shape[1] / min(times)}


def logits(job: dict) -> dict:
    """Logits of a language model without and with adapters, and copies of both as the libraries write them.

    Args:
      job: folders `model` and `adapters` to read, `model_copy` and `adapters_copy` to write; `tokens`
        `[R, S]`; `shard_size` of the copy, such as "20KB".

    Returns:
      "plain" and "adapted" `[R, S, V]`, and versions of the libraries.
    """
    import peft
    import torch
    import transformers

    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(job["model"], dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.tensor(job["tokens"])
    with torch.no_grad():
        plain = model(tokens).logits.tolist()
        model.save_pretrained(job["model_copy"], max_shard_size=job["shard_size"])
        adapted = peft.PeftModel.from_pretrained(model, job["adapters"])
        found = adapted(tokens).logits.tolist()
        adapted.save_pretrained(job["adapters_copy"])
    versions = {library.__name__: library.__version__ for library in (torch, transformers, peft)}
    return {"plain": plain, "adapted": found, "versions": versions}


def generate(job: dict) -> dict:
    """Seconds of greedy generation by transformers; `job` has `model`, `prompts` and `count`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32).eval()
    prompts = torch.tensor(job["prompts"])
    how = {"max_new_tokens": job["count"], "min_new_tokens": job["count"], "do_sample": False}

    def call():
        with torch.no_grad():
            return model.generate(prompts, attention_mask=torch.ones_like(prompts), pad_token_id=0, **how)

    return {"seconds": _median(call, 3.0)}


def _median(call, budget: float) -> float:
    call()
    times = []
    while sum(times) < budget or len(times) < 3:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    commands = (train, plain, updates, steps, segments, simulator, generate, logits)
    command = {c.__name__: c for c in commands}[sys.argv[1]]
    print(json.dumps(command(json.loads(sys.argv[2]))))
