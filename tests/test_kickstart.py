"""From a run or a script to the policy that it teaches, and on without it.

`make learn` holds what kickstarting is worth.
"""

import csv
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from compiled_once import Once

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import checkpoints, command_line, train
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.run_loading import load_run
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.training.acting.controllers import from_space, to_space
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import loop
from jaxmarl_echelon.training.program.agents import make_agents
from jaxmarl_echelon.training.program.program import make_program

ROLE = probes.ROLE
SMALL = ("env=gymnax/CartPole-v1", "tracking=quiet", "tuning=none", "num_envs=16", "total_env_steps=512")


def trained(monkeypatch, tmp_path, name, *overrides):
    """Trains a few updates and returns the run's folder."""
    monkeypatch.setattr(
        sys, "argv", ["train", *SMALL, f"output_dir={tmp_path}", f"run_name={name}", *overrides]
    )
    command_line.run_guarded(train.main)
    (run,) = tmp_path.glob(f"*/*/{name}")
    return run


@pytest.mark.thorough
@pytest.mark.needs("gymnax")
def test_a_policy_learns_from_another_run_and_acts_without_it(monkeypatch, tmp_path):
    sizes = ("algo.horizon=16", "algo.epochs=1", "algo.num_minibatches=2", "algo.widths=[16]")
    teacher = trained(monkeypatch, tmp_path, "teacher", "algo=ppo", *sizes)
    core = "algo.core={kind: gru, width: 8}"
    student = trained(
        monkeypatch, tmp_path, "student", "algo=ppo_rnn", *sizes, core, f"algo.teacher={teacher}"
    )
    with open(student / "metrics.csv") as file:
        shown = [row["losses/imitation_loss"] for row in csv.DictReader(file)]
    losses = [float(loss) for loss in shown if loss]
    assert len(losses) == 2 and all(np.isfinite(losses)) and losses[0] > 0
    shutil.rmtree(teacher)
    _, _, config, program, state = load_run(str(student), "latest")
    result = program.evaluate(state, stream_key(config.seed, Stream.FINAL), episodes=4)
    assert np.all(np.asarray(result.length) > 0)
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), result.episode_return))


RECURRENT = {"sampling": "sequential", "core": {"kind": "gru", "width": 16}, "num_minibatches": 2}
ALGOS = {
    "ppo": {"squash": True},
    "ppo_gaussian": {},
    "ppo_rnn": RECURRENT,
}


def configure(algo="ppo", env=None, updates=40, shards=1, **changes):
    """A run that learns from the script `count` alone: nothing is paid, and values stay near 0."""
    settings = {
        "teacher": "script:count",
        "teacher_coefficient_schedule": "constant",
        "horizon": 6,
        "epochs": 4,
        "num_minibatches": 4,
        "widths": (64,),
        "learning_rate": 1e-2,
        "gamma": 0.0,
        "max_grad_norm": 5.0,
        "normalize_advantage": "none",
        "normalize_observation": False,
    }
    return RunConfig(
        env=probes.Lessons(continuous=algo != "ppo_rnn", shown=algo != "ppo_rnn") if env is None else env,
        algo=PPOConfig(**settings | ALGOS[algo] | changes),
        curriculum=constant_curriculum,
        total_env_steps=updates * 16 * 6,
        num_envs=16,
        shards=shards,
        eval_episodes=8,
        window=16,
        episode_rows=16,
    )


def play(program, updates):
    """The run after some updates, and what they reported."""

    @jax.jit
    def updated(key):
        return jax.lax.scan(lambda run, _: program.update(run), program.init(key), None, updates)

    return jax.device_get(updated(jax.random.key(0)))


def answers(program, state):
    """What a policy does, and what the script would do, in episodes of both cues: `[4, 2, ...]`."""
    env, agent = program.env, program.agents[ROLE]
    policy, cue = agent.policy_state(state), jnp.array([[-1.0], [1.0]])

    def decide(carry, count):
        reset = jnp.full(cue.shape, count == 0)
        action, carry = agent.greedy(policy, env.show(count, cue), carry, reset, None)
        return carry, (to_space(env.action, action), env.right(count, cue))

    _, said = jax.lax.scan(decide, agent.initial_carry(cue.shape), jnp.arange(env.horizon))
    return jax.tree.map(lambda x: x[:, :, 0], said)


@pytest.mark.thorough
@pytest.mark.parametrize(("algo", "shards"), [("ppo", 1), ("ppo_gaussian", 2), ("ppo_rnn", 1)])
def test_a_student_does_what_its_script_does(algo, shards):
    """In several runs at once; that the script forgets its count with each episode is what makes it right.

    What it says for agents that are dead would make the loss NaN, or teach what is never right.
    """
    config = configure(algo, shards=shards, updates=100)
    program = make_program(config)

    @jax.jit
    @jax.vmap
    def learn(key):
        def update(run, _):
            run, report = program.update(run)
            return run, report.metrics["losses/imitation_loss"]

        run, losses = jax.lax.scan(update, program.init(key), None, config.updates)
        return losses, answers(program, run.policies[ROLE])

    losses, (done, right) = jax.device_get(learn(jax.random.split(jax.random.key(0), 2)))
    assert np.isfinite(losses).all()
    assert (losses[:, -5:].mean(1) < losses[:, 0] - (0.9 if algo == "ppo_rnn" else 3.0)).all()
    if algo == "ppo_rnn":
        np.testing.assert_array_equal(done, right)
    else:
        reach = np.subtract(*probes.Lessons().action.bounds()[::-1])
        assert np.abs((done - right) / reach).max() < 0.1


def test_a_script_begins_anew_with_each_episode_and_changes_no_random_stream():
    """What it says in every decision is right after as many decisions as the agent sees that there were."""
    env = probes.Lessons()

    def compare(state, key, rollout):
        del key
        right = env.right(rollout.obs[..., 1], rollout.obs[..., 0])
        apart = jnp.abs(to_space(env.action, rollout.taught) - right).max(-1) if has_teacher else 0.0
        living = rollout.alive.sum(), rollout.alive[:, :, 1].sum()
        return state, {"apart": jnp.where(rollout.alive, apart, 0.0).max(), "rows": jnp.stack(living)}

    episodes = []
    for has_teacher in (True, False):
        config = configure(env=env, updates=3, teacher="script:count" if has_teacher else None)
        agents = {role: agent._replace(update=compare) for role, agent in make_agents(config).items()}
        program = make_program(config, agents)
        run, report = play(program, config.updates)
        episodes.append((run.episodes.env, run.recent))
        assert (report.metrics["losses/apart"] < 1e-5).all()
        assert (report.metrics["losses/rows"] > 20).all() and (run.teachers is None) == (not has_teacher)
    jax.tree.map(np.testing.assert_array_equal, *episodes)


@pytest.mark.thorough
def test_a_resumed_run_goes_on_in_the_middle_of_what_its_script_remembers(tmp_path):
    config, once = configure(updates=4), Once()
    program = once.program(config)

    def run(folder, resume=None, stop_after=None):
        folder.mkdir(exist_ok=True)
        tracker, by = Tracker({}), once.compile
        loop.train_run(config, program, {"seed": 0}, folder, tracker, resume, stop_after, compiled_by=by)

    whole, halved = tmp_path / "whole", tmp_path / "halved"
    run(whole)
    run(halved, stop_after=2)
    begun = checkpoints.find_checkpoint(halved, "latest")
    like = jax.eval_shape(program.init, jax.random.key(0))
    count = checkpoints.restore_state(begun, like).teachers[ROLE]
    assert len(np.unique(count)) > 1 and count.max() < config.env.horizon + 1
    run(halved, resume=begun)
    first, second = (
        checkpoints.flatten_state(
            checkpoints.restore_state(checkpoints.find_checkpoint(folder, "latest"), like)
        )
        for folder in (whole, halved)
    )
    for name in first:
        assert first[name].tobytes() == second[name].tobytes(), name


@pytest.fixture
def typed(monkeypatch, tmp_path):
    """`(*overrides, env, algo)` types the command of a run on one of two probes."""
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "lessons.yaml").write_text("_target_: probes.Lessons\n")
    (tmp_path / "conf" / "env" / "fickle.yaml").write_text("_target_: probes.Fickle\n")

    def typed(*overrides, env="lessons", algo="ppo"):
        small = [f"env={env}" if one.startswith("env=") else one for one in SMALL]
        chosen = ["--config-dir", str(tmp_path / "conf"), *small, f"algo={algo}", "algo.widths=[16]"]
        chosen += ["algo.horizon=16", f"output_dir={tmp_path}", "run_name=student", *overrides]
        monkeypatch.setattr(sys, "argv", ["train", *chosen])
        command_line.run_guarded(train.main)

    return typed


def test_scripts_that_cannot_teach_are_refused_in_one_line(typed, tmp_path, capsys):
    def refused(*overrides, **chosen):
        with pytest.raises(SystemExit):
            typed(*overrides, **chosen)
        return capsys.readouterr().err

    assert refused("algo.teacher=script:nobody") == (
        "error: algo.teacher=script:nobody: unknown script of player; allowed: script:count\n"
    )
    assert refused("algo.teacher=script:count", env="fickle") == (
        "error: algo.teacher=script:count: player of Fickle has no scripts; must be null or a run's folder\n"
    )
    assert refused("algo.teacher=script:count", "algo.teacher_loss=reverse_kl") == (
        "error: algo.teacher_loss=reverse_kl: must be cross_entropy with teacher=script:count, which has "
        "actions, not a distribution of them\n"
    )
    assert refused("+algo.teacher=script:count", algo="a2c") == (
        "error: algo.teacher=script:count: A2CConfig cannot imitate; must be null, or for algo=ppo or "
        "ppo_rnn\n"
    )
    assert not list(tmp_path.glob("*/*/student"))


@pytest.mark.thorough
def test_what_a_script_has_taught_is_no_part_of_the_policy(typed, tmp_path):
    typed("algo.teacher=script:count")
    _, facts, config, program, state = load_run(str(next(tmp_path.glob("*/*/student"))), "latest")
    assert not facts["config"]["files"] and config.algos[ROLE].teacher == "script:count"
    assert state.policies[ROLE].teacher is None and state.teachers is None
    result = program.evaluate(state, stream_key(config.seed, Stream.FINAL), episodes=4)
    assert (np.asarray(result.length) == program.env.horizon).all()


def test_actions_of_a_space_are_mapped_to_a_learners_and_back():
    space = Box((3,), [-1.0, 0.0, 2.0], [3.0, 0.5, 2.0])
    action = jnp.array([[0.0, 0.5, 2.0], [3.0, 0.1, 2.0]])
    own = from_space(space, action)
    np.testing.assert_allclose(own, [[-0.5, 1.0, 0.0], [1.0, -0.6, 0.0]], atol=1e-6)
    np.testing.assert_allclose(to_space(space, own), action, atol=1e-6)
    np.testing.assert_allclose(from_space(space, action + 9.0)[:, :2], 1.0)


def test_the_largest_actions_lie_within_the_bounds():
    """In float32 -1 + (0.1 - -1) is more than 0.1."""
    space = Box((3,), [-1.0, -2.97, 1.12], [0.1, -0.31, 1.12])
    largest = to_space(space, jnp.ones((1, 3)))
    assert space.contains(largest).all()
    np.testing.assert_array_equal(largest[0], space.bounds()[1].astype(np.float32))
