"""What all episodes share enters compiled programs as an argument, once, and is never saved."""

import functools
import math
import re

import jax
import numpy as np
import pytest
from omegaconf import OmegaConf

from jaxmarl_echelon import checkpoints, command_line
from jaxmarl_echelon.training import config as config_lib
from jaxmarl_echelon.training.keys import run_key
from jaxmarl_echelon.training.program import make_program, scored_assessment

LARGEST = 64 * 1024
BITS = {"bf16": 16}
SMALL = ("num_envs=8", "total_env_steps=64", "algo.horizon=4", "algo.num_minibatches=2", "algo.widths=[16]")
PARTS = ("init", "update", "assess")
JOBS = {
    "f110": ("env=f110", "env.lidar_beams=24", "env.map=[line2,track:0]", "curriculum=phased26"),
    "race": ("env=f110_race", "env.lidar_beams=24", "env.map=[track:0,track:1]"),
    "echelon": ("env=echelon", "env.maps=8"),
}
FEW_MAPS = ("env=echelon", "env.maps=2")


@functools.cache
def program_of(*overrides):
    config, _ = command_line.compose_config(command_line.plain([*SMALL, "algo=ppo", *overrides]))
    return make_program(config_lib.read(config))


@functools.cache
def text(part, *overrides):
    """The text of one of the three programs that a run compiles: "init", "update" or "assess"."""
    program = program_of(*overrides)
    key, world = run_key(0), program.world
    init = jax.jit(lambda key, world: program.init(key, world=world))
    if part == "init":
        return init.lower(key, world).as_text()
    state = jax.eval_shape(init, key, world)
    fn = {"update": program.update, "assess": scored_assessment(program, 0)}[part]
    return jax.jit(fn).lower(state, world).as_text()


def constants(text):
    """Bytes of the constants in a StableHLO text that hold more than one number over and over."""
    pattern = r"stablehlo\.constant dense<([\[\"])[^>]*> : tensor<((?:[0-9]+x)*)([a-z]+[0-9]+)>"
    for _, shape, kind in re.findall(pattern, text):
        bits = BITS.get(kind) or int(re.sub(r"[a-z]", "", kind))
        yield math.prod(int(size) for size in shape.split("x") if size) * max(bits, 8) // 8


@pytest.mark.parametrize("job", JOBS)
def test_no_large_constant_stands_in_a_lowered_program(job):
    program = program_of(*JOBS[job])
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.world.env))
    assert size > LARGEST
    for part in PARTS:
        found = text(part, *JOBS[job])
        assert "stablehlo.while" in found
        assert max(constants(found), default=0) <= LARGEST, part


def test_a_constant_would_be_seen():
    program = program_of(*JOBS["race"])
    found = jax.jit(program.init).lower(run_key(0)).as_text()
    assert max(constants(found)) > LARGEST


def test_what_is_compiled_does_not_depend_on_the_number_of_maps():
    few, many = (text("update", *overrides).count("\n") for overrides in (FEW_MAPS, JOBS["echelon"]))
    # Drawing one of n takes a few lines more or less, as n is.
    assert few == pytest.approx(many, rel=0.01)


def test_a_world_as_argument_gives_the_same_observations():
    program = program_of(*JOBS["race"])
    env, params, key = program.env, program.env.default_params(), run_key(3)
    placed = jax.jit(lambda key, world: env.with_world(world).reset(key, params)[1].obs)(key, env.world)
    np.testing.assert_allclose(placed["car"], env.reset(key, params)[1].obs["car"], rtol=1e-5, atol=1e-5)


def test_checkpoints_hold_no_world(tmp_path):
    program = program_of(*JOBS["echelon"])
    state = jax.jit(lambda key, world: program.init(key, world=world))(run_key(0), program.world)
    largest = max(leaf.size for leaf in jax.tree.leaves(program.world.env))
    sizes = [leaf.size for leaf in jax.tree.leaves(state) if hasattr(leaf, "size")]
    assert largest not in sizes
    checkpoints.save(tmp_path / "checkpoints", ("latest",), state, {"step": 0})
    written = sum(path.stat().st_size for path in (tmp_path / "checkpoints").rglob("*") if path.is_file())
    assert 0 < written < 40e6


def test_a_frozen_policy_and_a_teacher_are_no_constants(tmp_path):
    wide = [part.replace("[16]", "[256,256]") for part in SMALL]
    small = ["env.lidar_beams=24", "env.max_steps=40"]
    overrides = [*wide, *small, "env=f110", "algo=ppo", "controllers.defender=learner"]
    config, choices = command_line.compose_config(command_line.plain(overrides))
    program = make_program(config_lib.read(config))
    state = jax.jit(lambda key, world: program.init(key, world=world))(run_key(0), program.world)
    facts = {"step": 0, "config": OmegaConf.to_container(config) | {"choices": choices}}
    checkpoints.save(tmp_path / "checkpoints", ("best_eval",), state, facts)
    frozen = f"controllers.defender=frozen:{tmp_path}"
    taught = ("algo=ppo_rnn", "algo.horizon=4", f"algo.teacher={tmp_path}")
    for part in PARTS:
        found = text(part, "env=f110", *small, frozen, *taught)
        assert max(constants(found), default=0) <= LARGEST, part
