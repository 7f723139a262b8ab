"""The package from Python: environments, whole runs and policies, by the names of the command line."""

import functools
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from commands import write_environments
from marked import mark_after, mark_others

import jaxmarl_echelon as je
from jaxmarl_echelon import checkpoints, command_line, train
from jaxmarl_echelon.training.acting.state import ControllerView
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program

ENVIRONMENTS = {
    "target": "_target_: probes.ContinuousTarget\n",
    "memory": "_target_: probes.Memory\nhorizon: 3\n",
    "masked": "_target_: probes.MaskOnly\n",
    "rivals": "_target_: probes.Rivals\n",
}


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A folder of configurations of the user's own: small environments."""
    return write_environments(tmp_path_factory.mktemp("mine"), ENVIRONMENTS)


@functools.cache
def started(mine, *overrides):
    """A run's configuration, its program and its state before the first update."""
    config = je.read_config("num_envs=4", "algo.widths=[8]", *overrides, config_dir=mine)
    program = make_program(config)
    return config, program, jax.jit(program.init)(jax.random.key(0))


def test_importing_loads_little_and_starts_no_backend():
    """A backend of this name does not exist: whatever started one would fail."""
    command = (
        "import sys, jaxmarl_echelon as je; before = 'jax' in sys.modules; "
        "[getattr(je, name) for name in je.__all__]; print(before, 'jax' in sys.modules, je.__version__)"
    )
    environment = os.environ | {"JAX_PLATFORMS": "nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    before, after, version = done.stdout.split()
    assert (before, after) == ("False", "True") and re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_public_names_of_the_package():
    assert {*je.__all__, "__version__"} <= set(dir(je))
    with pytest.raises(AttributeError, match="jaxmarl_echelon.*no attribute 'mak'"):
        je.mak  # noqa: B018


def test_an_environment_has_the_settings_of_its_file_and_those_that_are_given():
    changes = {"lidar_beams": np.int64(12), "ftg": {"steering_gain": 0.35}, "spawns": ("pinch_left",)}
    ours = je.make("f110", reward={"components": {"pressure": {"bonus": 0.01}}}, **changes)
    overrides = ("tuning=none", "env.lidar_beams=12", "env.ftg.steering_gain=0.35", "env.spawns=[pinch_left]")
    typed = je.read_config("env=f110", *overrides, "reward.components.pressure.bonus=0.01").env
    assert ours.spec == typed.spec
    jax.tree.map(np.testing.assert_array_equal, ours.default_params(), typed.default_params())
    plain = je.make("f110", lidar_beams=12, reward="gaplock_simple")
    assert plain.spec.components != ours.spec.components


@pytest.mark.parametrize(
    ("name", "settings", "typed"),
    [
        ("f111", {}, ["env=f111"]),
        ("f110", {"lidar_beems": 12}, ["env.lidar_beems=12"]),
        ("f110", {"ftg": {"steering_gian": 0.3}}, ["env.ftg.steering_gian=0.3"]),
        ("f110", {"lidar_beams": 0}, ["env.lidar_beams=0"]),
        ("f110", {"spawns": ["pinch_up"]}, ["env.spawns=[pinch_up]"]),
        ("f110", {"reward": "gaplock"}, ["reward=gaplock"]),
        (
            "f110",
            {"reward": {"components": {"pressure": {"bones": 1}}}},
            ["reward.components.pressure.bones=1"],
        ),
    ],
)
def test_api_raises_the_errors_of_the_command_line(monkeypatch, capsys, tmp_path, name, settings, typed):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as raised:
        je.make(name, **settings)
    monkeypatch.setattr(sys, "argv", ["train", *typed])
    with pytest.raises(SystemExit) as ended:
        command_line.run_guarded(train.main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {' '.join(str(raised.value).split())}\n"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seeds=3"], "seeds.*map make_train over keys"),
        (["ablate=reward.pressure"], "ablate.*several runs"),
        (["resume=auto"], "resume=auto: only the command line can continue runs"),
        (["algo.gama=1"], "algo.gama=1: unknown key; did you mean algo.gamma"),
        (["+algo=ddpg"], "algo=ddpg: unknown algo"),
    ],
)
def test_configurations_that_are_not_one_run_are_rejected(overrides, words):
    with pytest.raises(ValueError, match=words):
        je.make_train(*overrides)


def test_a_function_without_evaluations_refuses_phases_that_ask_for_them():
    phases = ("curriculum=phased13", "curriculum.common.criteria.eval_success_rate=0.9")
    with pytest.raises(
        ValueError, match="eval_success_rate are never left without evaluations, which make_train"
    ):
        je.make_train("env=f110", *phases)


def test_an_environment_may_be_given_as_an_object(mine):
    env = je.make("target", config_dir=mine)
    assert je.read_config("num_envs=4", env=env).env is env
    state = jax.eval_shape(je.make_train(env, "num_envs=4", "algo.widths=[8]"), jax.random.key(0))
    assert state is not None
    with pytest.raises(ValueError, match=r"env.map=line2: the environment is given as an object, "):
        je.make_train(env, "env.map=line2")


def test_python_uses_the_compilation_cache_too(monkeypatch, mine):
    used = []
    monkeypatch.setattr(command_line, "use_compilation_cache", lambda: used.append("cache"))
    config = je.read_config("env=target", "num_envs=4", config_dir=mine)
    je.make_train(config)
    with pytest.raises(ValueError, match="no such folder"):
        je.load_policy("nowhere")
    assert used == ["cache"] * 3


@pytest.mark.thorough
def test_a_run_is_a_function_of_its_key(mine):
    sizes = ("algo.horizon=4", "algo.num_minibatches=1", "algo.epochs=1", "total_env_steps=32", "window=4")
    overrides = ("env=target", "algo=ppo", "num_envs=4", "algo.widths=[8]", *sizes)
    config = je.read_config(*overrides, config_dir=mine)
    keys = jax.random.split(jax.random.key(0), 2)
    run, reports = jax.jit(jax.vmap(je.make_train(*overrides, config_dir=mine)))(keys)
    assert run.updates.tolist() == [2, 2] and reports.metrics["losses/policy_loss"].shape == (2, 2)
    first = jax.jit(lambda run: jax.tree.map(lambda leaf: leaf[0], run))(run)
    same, _ = jax.jit(je.make_train(config))(keys[0])
    policies = [je.make_policy(config, state) for state in (first, same)]
    obs = jnp.zeros((3, 1))
    actions = [jax.jit(policy)(obs, policy.initial_memory((3,)))[0] for policy in policies]
    np.testing.assert_allclose(*actions, rtol=1e-4)


@pytest.mark.parametrize("algo", mark_others(["ppo", "ppo_rnn", "sac", "td3", "tqc"], "ppo_rnn", "sac"))
def test_a_policy_acts_as_in_evaluations(mine, algo):
    config, program, run = started(mine, "env=target", f"algo={algo}")
    policy, controller = je.make_policy(config, run), program.controllers(program.place(None))[probes.ROLE]
    act, decide = jax.jit(policy), jax.jit(functools.partial(controller.act, None))
    memory, kept = policy.initial_memory((4, 1)), controller.init(4)
    rows = policy.initial_memory((4,))
    _, time = jax.jit(jax.vmap(config.env.reset, in_axes=(0, None)))(
        jax.random.split(jax.random.key(1), 4), config.env.default_params()
    )
    for step in range(3):
        obs = jax.random.normal(jax.random.key(step), (4, 1, 1))
        reset = jnp.array([step == 0, step == 2, False, True])
        view = ControllerView(None, None, time.replace(obs={probes.ROLE: obs}))
        kept, expected, _ = decide(run.policies[probes.ROLE], kept, view, reset)
        action, memory = act(obs, memory, reset[:, None])
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-6)
        # Whatever the batch's axes are.
        action, rows = act(obs[:, 0], rows, reset)
        np.testing.assert_allclose(action, expected[:, 0], rtol=1e-5, atol=1e-6)
        assert all(map(config.env.spec.role(probes.ROLE).action.contains, action))


def test_actions_are_in_the_units_of_the_environment(mine):
    """The box reaches from -1 to 3 and from 0 to 0.5, what is learnt from -1 to 1."""
    config, _, run = started(mine, "env=target", "algo=ppo")
    policy, obs = je.make_policy(config, run), jnp.linspace(-1.0, 1.0, 5)[:, None]
    own, _ = policy.agent.greedy(policy.state, obs, (), jnp.zeros(5, bool), None)
    action, _ = policy(obs, policy.initial_memory((5,)))
    np.testing.assert_allclose(action, [1.0, 0.25] + np.array([2.0, 0.25]) * np.clip(own, -1, 1), rtol=1e-6)


def test_memory_is_kept_until_a_reset(mine):
    config, _, run = started(mine, "env=memory", "algo=ppo_rnn")
    policy = je.make_policy(config, run)
    fresh = policy.initial_memory((2,))
    _, memory = policy(jnp.ones((2, 1)), fresh)
    _, after = policy(jnp.zeros((2, 1)), memory, jnp.array([False, True]))
    _, alone = policy(jnp.zeros((2, 1)), fresh)
    kept, cleared = (
        [not np.allclose(a[row], b[row]) for a, b in zip(*map(jax.tree.leaves, (after, alone)), strict=True)]
        for row in (0, 1)
    )
    assert any(kept) and not any(cleared)


def test_masked_actions_are_not_taken(mine):
    config, _, run = started(mine, "env=masked", "algo=ppo")
    policy = je.make_policy(config, run)
    only = jnp.eye(4, dtype=bool)
    action, _ = policy(jnp.zeros((4, 1)), policy.initial_memory((4,)), None, only)
    assert action.tolist() == [0, 1, 2, 3]


def test_observations_of_another_shape_are_refused(mine):
    config, _, run = started(mine, "env=target", "algo=ppo")
    policy = je.make_policy(config, run)
    with pytest.raises(ValueError, match=r"obs of shape \(4, 2\): must end with \(1,\) for role player"):
        policy(jnp.zeros((4, 2)), policy.initial_memory((4,)))


def test_roles_of_policies(mine):
    both = ("env=rivals", "algo=ppo")
    config, _, run = started(mine, *both, "controllers.prey=shared:hunter")
    shared = je.make_policy(config, run, "prey")
    assert shared.role.name == "prey"
    own = je.make_policy(config, run)
    assert own.role.name == "hunter"
    jax.tree.map(np.testing.assert_array_equal, own.state, shared.state)
    with pytest.raises(ValueError, match="role=referee: has no learnt policy .*; allowed: hunter, prey"):
        je.make_policy(config, run, "referee")


@pytest.mark.parametrize(
    ("package", "extra", "override"),
    mark_after(
        4,
        [
            ("brax", "brax", "env=brax/ant"),
            ("wandb", "wandb", "tracking=wandb"),
            ("gymnax", "gymnax", "env=gymnax/CartPole-v1"),
            ("jaxmarl", "jaxmarl", "env=jaxmarl/MPE_simple_spread_v3"),
            ("pgx", "pgx", "env=pgx/connect_four"),
            ("mujoco_playground", "playground", "env=playground/CartpoleBalance"),
            ("tensorboardX", "tensorboard", "tracking=tensorboard"),
            ("mlflow", "mlflow", "tracking=mlflow"),
            ("trackio", "trackio", "tracking=trackio"),
        ],
    ),
)
def test_a_missing_package_is_one_line_and_writes_nothing(
    monkeypatch, capsys, tmp_path, mine, package, extra, override
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    line = f"{override}: needs the package {package}; install it with pip install 'jaxmarl_echelon[{extra}]'"
    for typed in ([override], ["-m", override]):
        monkeypatch.setattr(sys, "argv", ["train", *typed])
        with pytest.raises(SystemExit) as ended:
            train.script()
        assert ended.value.code == 2 and capsys.readouterr().err == f"error: {line}\n"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError) as raised:
        je.read_config(override)
    assert str(raised.value) == line


def test_a_policy_needs_no_package_that_only_showed_its_run(monkeypatch, tmp_path, mine):
    config, choices = command_line.compose_config(
        ["env=target", "tracking=wandb", "num_envs=4", "algo.widths=[8]"], command_line.Sources(mine)
    )
    run = make_program(build.build_run_config(config))
    state = jax.jit(lambda key: run.policy(run.init(key)))(jax.random.key(0))
    facts = {"step": 0, "config": {**command_line.OmegaConf.to_container(config), "choices": choices}}
    checkpoints.save_checkpoint(tmp_path / "checkpoints", ("best_eval",), state, facts, "policy")
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert je.load_policy(tmp_path).role.name == probes.ROLE
