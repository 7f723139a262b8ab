"""Arrays shared by all episodes are an argument of compiled programs, stored once and never saved."""

import functools
import math
import re

import jax
import numpy as np
import pytest
from commands import begin
from jax.extend.core import jaxprs_in_params
from marked import mark_others

from jaxmarl_echelon import checkpoints, command_line
from jaxmarl_echelon.config_sources import Sources
from jaxmarl_echelon.training.acting.random_streams import run_key
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import evaluation_as_in_training, make_program

LARGEST = 64 * 1024
BITS = {"bf16": 16}
SMALL = ("num_envs=8", "total_env_steps=64", "algo.horizon=4", "algo.num_minibatches=2", "algo.widths=[16]")
PARTS = ("init", "update", "assess")
JOBS = {
    "f110": ("env=f110", "env.lidar_beams=24", "env.map=[line2,track:0]", "curriculum=phased26"),
    "race": ("env=f110_race", "env.lidar_beams=24", "env.map=[track:0,track:1]"),
    "echelon": ("env=echelon", "env.maps=8"),
}
MORE_MAPS = (*JOBS["race"][:2], "env.map=[track:0,track:1,track:2,track:3]")


@functools.cache
def program_of(*overrides, folder=None):
    arguments = command_line.normalize_overrides([*SMALL, "algo=ppo", *overrides])
    config, _ = command_line.compose_config(arguments, Sources(folder))
    return make_program(build.build_run_config(config))


@functools.cache
def traced(part, *overrides, folder=None):
    """One of the three programs that a run compiles: "init", "update" or "assess"."""
    program = program_of(*overrides, folder=folder)
    if part == "init":
        init = jax.jit(lambda key, world: program.init(key, world=world))
        return init.trace(run_key(0), program.world)
    state = traced("init", *overrides, folder=folder).out_info
    fn = {"update": program.update, "assess": evaluation_as_in_training(program, 0)}[part]
    return jax.jit(fn).trace(state, program.world)


@functools.cache
def lowered(part, *overrides, folder=None):
    return traced(part, *overrides, folder=folder).lower()


@functools.cache
def reset_with_constants():
    """A reset of the race whose world is part of the program."""
    env = program_of(*JOBS["race"]).env
    return jax.jit(env.reset).lower(run_key(3), env.default_params())


def constants(text):
    """Bytes of the constants in a StableHLO text that hold more than one number over and over."""
    pattern = r"stablehlo\.constant dense<([\[\"])[^>]*> : tensor<((?:[0-9]+x)*)([a-z]+[0-9]+)>"
    for _, shape, kind in re.findall(pattern, text):
        bits = BITS.get(kind) or int(re.sub(r"[a-z]", "", kind))
        yield math.prod(int(size) for size in shape.split("x") if size) * max(bits, 8) // 8


@pytest.mark.parametrize("job", mark_others(JOBS, "race"))
def test_no_large_constant_stands_in_a_lowered_program(job):
    program = program_of(*JOBS[job])
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.world.env))
    assert size > LARGEST
    for part in PARTS:
        found = lowered(part, *JOBS[job]).as_text()
        assert "stablehlo.while" in found
        assert max(constants(found), default=0) <= LARGEST, part


def test_the_check_detects_a_large_constant():
    assert max(constants(reset_with_constants().as_text())) > LARGEST


def equations(jaxpr):
    """The number of equations of a traced program, with those of the programs in it."""
    return sum(1 + sum(map(equations, jaxprs_in_params(one.params))) for one in jaxpr.eqns)


@pytest.mark.thorough
def test_the_program_does_not_depend_on_the_number_of_maps():
    few, many = (
        equations(traced("update", *overrides).jaxpr.jaxpr) for overrides in (JOBS["race"], MORE_MAPS)
    )
    # Drawing one of n takes a few equations more or less, as n is.
    assert few == pytest.approx(many, rel=0.01)


def test_a_world_as_argument_gives_the_same_observations():
    env, key = program_of(*JOBS["race"]).env, run_key(3)
    params = env.default_params()
    placed = jax.jit(lambda key, world: env.with_world(world).reset(key, params)[1].obs)(key, env.world)
    own = reset_with_constants().compile()(key, params)[1].obs
    np.testing.assert_allclose(placed["car"], own["car"], rtol=1e-5, atol=1e-5)


def test_checkpoints_hold_no_world(tmp_path):
    program = program_of(*JOBS["race"])
    state = lowered("init", *JOBS["race"]).compile()(run_key(0), program.world)
    largest = max(leaf.size for leaf in jax.tree.leaves(program.world.env))
    sizes = [leaf.size for leaf in jax.tree.leaves(state) if hasattr(leaf, "size")]
    assert largest not in sizes
    checkpoints.save_checkpoint(tmp_path / "checkpoints", ("latest",), state, {"step": 0})
    written = sum(path.stat().st_size for path in (tmp_path / "checkpoints").rglob("*") if path.is_file())
    assert 0 < written < 40e6


def test_a_frozen_policy_and_a_teacher_are_no_constants(tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "rivals.yaml").write_text("_target_: probes.Rivals\n")
    learners = ("env=rivals", "algo.widths=[256,256]", "controllers.prey=learner")
    config, choices = command_line.compose_config(
        command_line.normalize_overrides([*SMALL, *learners]), Sources(tmp_path)
    )
    begin(tmp_path, config, choices)
    job = ("env=rivals", "algo=ppo_rnn", f"algo.teacher={tmp_path}", f"controllers.prey=frozen:{tmp_path}")
    world = program_of(*job, folder=tmp_path).world
    for policies in (world.policies, world.teachers):
        assert max(leaf.nbytes for leaf in jax.tree.leaves(policies)) > LARGEST
    for part in PARTS:
        found = lowered(part, *job, folder=tmp_path).as_text()
        assert max(constants(found), default=0) <= LARGEST, part
