"""What tests type on the command line."""

import jax
from omegaconf import OmegaConf

from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program

# F110 as small as it trains. Where several tests type the same, XLA compiles once per cache.
TINY = [
    "num_envs=8",
    "total_env_steps=128",
    "algo.horizon=8",
    "algo.num_minibatches=2",
    "algo.epochs=1",
    "algo.widths=[16]",
    "eval_every=1",
    "eval_episodes=4",
    "env.lidar_beams=12",
    "env.max_steps=60",
    "tracking=quiet",
]


def write_environments(folder, texts):
    """Writes configurations of the user's own environments, by name; returns the folder."""
    (folder / "env").mkdir()
    for name, text in texts.items():
        (folder / "env" / f"{name}.yaml").write_text(text)
    return folder


def begin(folder, config, choices):
    """Saves a state with which a composed run may begin as its `best_eval`; returns the state."""
    other = run_key(5)  # than the seed with which tests train
    state = jax.jit(make_program(build.build_run_config(config)).init)(other)
    facts = {"step": 0, "config": OmegaConf.to_container(config) | {"choices": choices}}
    checkpoints.save_checkpoint(folder / "checkpoints", ("best_eval",), state, facts)
    return state
