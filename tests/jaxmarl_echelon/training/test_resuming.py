"""Resuming with changed settings: each is applied or refused, and a refusal writes nothing."""

import csv
import functools
import json
import shutil
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from marked import thorough
from omegaconf import OmegaConf

from algos.off_policy.sac import SACConfig
from algos.off_policy.teams import VDNConfig
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.traced_settings import apply_schedules
from jaxmarl_echelon import checkpoints, command_line, train
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import group_members, resume
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.program.state import apply_config_to_restored

SIZES = [
    "num_envs=4", "algo.horizon=8", "algo.num_minibatches=2", "env.lidar_beams=12", "run_name=tiny",
    "eval_every=10", "checkpoint_every=10",
]  # fmt: skip
PHASES = ["curriculum=phased13", *SIZES]
STEP = 160


def saved(*arguments):
    """A composed configuration and its choices as a checkpoint keeps them."""
    config, choices = command_line.compose_config(command_line.normalize_overrides(arguments))
    facts = {"config": json.loads(json.dumps(OmegaConf.to_container(config) | {"choices": choices}))}
    return build.read_saved_config(facts), choices


def told(before, choices, *arguments):
    """The configuration that a resumed run has after these arguments."""
    after, _ = command_line.apply_overrides(before, choices, command_line.normalize_overrides(arguments))
    resume.check_changes(before, after, STEP)
    return after


@pytest.fixture(scope="module")
def plain_run():
    return saved(*SIZES)


@pytest.fixture(scope="module")
def phased_run():
    return saved(*PHASES)


@pytest.mark.parametrize(
    "changes",
    [
        [
            ("total_env_steps=6000000", "total_env_steps", 6_000_000),
            ("eval_every=8", "eval_every", 8),
            ("eval_episodes=3", "eval_episodes", 3),
            ("checkpoint_every=8", "checkpoint_every", 8),
            ("episode_rows=5", "episode_rows", 5),
            ("precision=bf16", "algo.compute_dtype", "bf16"),
            ("compilation=quick", "compilation", "quick"),
            ("tracking=quiet", "tracking.sinks.terminal", None),
            ("algo.learning_rate=1e-5", "algo.learning_rate", 1e-5),
            ("algo.value_clip=0.3", "algo.value_clip", 0.3),
            ("algo.total_updates=77", "algo.total_updates", 77),
            ("algos.attacker.gamma=0.9", "algos.attacker.gamma", 0.9),
            ("env.ftg.steering_gain=0.35", "env.ftg.steering_gain", 0.35),
            ("env.lock_steps=0", "env.lock_steps", 0),
            ("env.spawns=all", "env.spawns", "all"),
            ("env.car.mu=0.9", "env.car.mu", 0.9),
            ("reward.components.pressure.bonus=0.5", "reward.components.pressure.bonus", 0.5),
        ],
        [
            ("updates_per_chunk=5", "updates_per_chunk", 5),
            ("tracking.sinks.terminal.every_seconds=1.5", "tracking.sinks.terminal.every_seconds", 1.5),
        ],
        # What the run has anyway is no change, whatever kind it is.
        [
            ("num_envs=4", "num_envs", 4),
            ("env=f110", "env.lidar_beams", 12),
            ("algo.num_minibatches=2", "algo.num_minibatches", 2),
        ],
    ],
    ids=["most", "others", "none"],
)
def test_changeable_settings_are_applied(plain_run, changes):
    """Each setting is judged by itself, however many are given."""
    after = told(*plain_run, *(argument for argument, _, _ in changes))
    for argument, key, value in changes:
        assert OmegaConf.select(after, key) == value, argument


def test_options_come_before_settings_and_the_last_of_a_group_counts(plain_run):
    """The command that began a run continues it, in whatever order it has its arguments."""
    arguments = ["tracking.sinks.terminal.every_seconds=1.5", "env=drive", "env=f110"]
    after = told(*plain_run, *arguments, "tracking=quiet", "tracking=tensorboard")
    assert after.tracking.sinks.terminal.every_seconds == 1.5 and "tensorboard" in after.tracking.sinks


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("num_envs=8", ["num_envs=8", "keeps its num_envs=4"]),
        ("seed=7", ["seed=7", "keeps its seed=0"]),
        ("window=64", ["window=64"]),
        ("stagger=false", ["stagger=False"]),
        ("controllers.defender=learner", ["controllers.defender=learner"]),
        ("run_name=other", ["run_name=other", "run_name=tiny"]),
        ("output_dir=elsewhere", ["output_dir=elsewhere"]),
        ("seeds=3", ["seeds=3"]),
        ("ablate=reward.pressure", ["ablate"]),
        ("variants.a={reward.components.pressure.bonus: 0.1}", ["variants"]),
        ("total_env_steps=100", ["total_env_steps=100", "at least 160"]),
        ("updates_per_chunk=2", ["updates_per_chunk=2", "5 updates"]),
        ("algo.widths=[8]", ["algo.widths=[8]", "learning_rate"]),
        ("algo.horizon=16", ["algo.horizon=16"]),
        ("algo.num_minibatches=4", ["algo.num_minibatches=4"]),
        ("algo.optimizer=muon", ["algo.optimizer=muon"]),
        ("algo.epochs=1", ["algo.epochs=1"]),
        ("algo.learning_rate_schedule=cosine", ["algo.learning_rate_schedule=cosine"]),
        ("algo.initial_std=0.5", ["algo.initial_std=0.5"]),
        ("algos.attacker.widths=[8]", ["algos.attacker.widths"]),
        ("env.lidar_beams=13", ["env.lidar_beams=13", "more than numbers"]),
        ("env.max_steps=99", ["env.max_steps=99"]),
        ("env.integrator=euler", ["env.integrator=euler", "is not a number"]),
        ("env.dt=0.005", ["env.dt=0.005"]),
        ("env.map=track:3", ["env.map=track:3"]),
        ("env.observe_time=true", ["env.observe_time=True"]),
        ("reward.components.pressure.bonus=inf", ["reward.components.pressure.bonus=inf", "finite"]),
        ("reward=gaplock_simple", ["reward=gaplock_simple", "keeps its reward=f110"]),
        ("curriculum=spawn", ["curriculum=spawn", "keeps its curriculum=none"]),
        ("algo=sac", ["algo=sac", "keeps its algo=ppo"]),
        ("+algo@algos.attacker=sac", ["algo@algos.attacker=sac"]),
        ("tracking=loud", ["tracking=loud", "quiet"]),
        ("tracking.sinks.csv=3", ["tracking.sinks.csv=3", "mapping"]),
        ("algo.gama=0.9", ["algo.gama=0.9", "unknown"]),
        ("algo.gamma=0.9,0.8", ["algo.gamma", "several"]),
        ("algo.gamma", ["algo.gamma", "KEY=VALUE"]),
        ("~algo.gamma=0.99", ["KEY=VALUE"]),
    ],
)
def test_unchangeable_settings_are_refused_in_one_line(plain_run, argument, words):
    with pytest.raises(ValueError) as caught:
        told(*plain_run, argument)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_settings_that_are_only_valid_together_can_change_together(plain_run):
    # Each by itself is refused: the slowest speed must not exceed the fastest.
    after = told(*plain_run, "env.ftg.min_speed=1.0", "env.ftg.max_speed=1.2")
    assert (after.env.ftg.min_speed, after.env.ftg.max_speed) == (1.0, 1.2)


def test_values_of_a_curriculum_apply(phased_run):
    changes = (
        ("curriculum.phases.3.criteria={success_rate: 0.55}", "criteria.success_rate", 0.55),
        ("curriculum.phases.3.settings={lock_steps: 11}", "settings.lock_steps", 11),
    )
    phase = told(*phased_run, *(argument for argument, _, _ in changes)).curriculum.phases[3]
    for argument, key, value in changes:
        assert OmegaConf.select(phase, key) == value, argument


@pytest.mark.parametrize(
    "argument",
    [
        "curriculum.phases=[{name: only}]",
        "curriculum.phases.3.name=renamed",
        "curriculum.common.criteria.window_size=999",
    ],
)
def test_a_curriculum_keeps_its_phases_and_its_windows(phased_run, argument):
    with pytest.raises(ValueError, match="curriculum.*more than numbers"):
        told(*phased_run, argument)


class Paid(probes.ContinuousTarget):
    """A probe whose reward is scaled by a setting."""

    def __init__(self, gain):
        self.gain = gain

    def default_params(self):
        return super().default_params() | {"gain": np.float32(self.gain)}

    def task_params(self, settings):
        return self.default_params() | {name: np.float32(value) for name, value in settings.items()}


def configure(total=64, gain=1.0, curriculum=constant_curriculum, algo=PPOConfig, **settings):
    small = {"horizon": 8, "widths": (8,), "learning_rate": 1e-2}
    own = {"batch_size": 8}
    if algo is PPOConfig:
        own = {"num_minibatches": 1, "learning_rate_schedule": "linear"}
    return RunConfig(
        env=Paid(gain),
        algo=algo(**small, **own, **settings),
        curriculum=curriculum,
        total_env_steps=total,
        num_envs=2,
        window=4,
        episode_rows=4,
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """`(algo, curriculum) -> checkpoint` of a run some updates on, which who asks for the same shares."""

    @functools.cache
    def save(algo, curriculum):
        program = make_program(configure(algo=algo, curriculum=curriculum))
        state = jax.jit(program.init)(jax.random.key(0))
        learners = {name: one.replace(updates=jnp.int32(4)) for name, one in state.policies.items()}
        folder = tmp_path_factory.mktemp("begun")
        return checkpoints.save_checkpoint(folder, ("latest",), state.replace(policies=learners), {"step": 1})

    return save


def continued(checkpoint, after):
    """The state of a checkpoint as a run of another configuration restores it."""
    return resume.read_checkpoint(after, make_program(after), checkpoint)


def test_a_longer_run_goes_on_learning(begun):
    ended, longer = configure(64), configure(192)
    state = continued(begun(PPOConfig, constant_curriculum), longer).policies[probes.ROLE]
    assert float(apply_schedules(ended.algo, make_hyper(ended), state.updates)["learning_rate"]) == 0.0
    rate = float(apply_schedules(longer.algo, state.hyper, state.updates)["learning_rate"])
    assert rate == pytest.approx(1e-2 * 2 / 3)


def make_hyper(config):
    (agent,) = make_program(config).agents.values()
    return agent.hyper()


@pytest.mark.parametrize(
    ("algo", "name"), [(PPOConfig, "gamma"), (SACConfig, "tau"), (SACConfig, "actor_learning_rate")]
)
def test_numbers_of_a_learner_apply(begun, algo, name):
    # The last one is None at first, so that the state has no such number.
    state = continued(begun(algo, constant_curriculum), configure(algo=algo, **{name: 0.25}))
    hyper = state.policies[probes.ROLE].hyper
    assert float(hyper[name]) == 0.25 and set(hyper) == set(make_hyper(configure(algo=algo, **{name: 0.25})))


def stages(env):
    return phased_curriculum(env, [{"name": "as_is"}, {"name": "small", "settings": {"gain": 0.5}}])


@pytest.mark.parametrize("curriculum", [constant_curriculum, stages])
def test_numbers_of_the_task_apply_to_episodes_to_come(begun, curriculum):
    after = configure(curriculum=curriculum, gain=3.0)
    state = continued(begun(PPOConfig, curriculum), after)
    course = after.curriculum(after.env)
    assert float(course.draw(jax.random.key(1), state.curriculum).params["gain"]) == 3.0
    assert state.episodes.params["gain"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("gain", "held"), [(1.0, [0, 1]), (3.0, [-1, -1])])
def test_episodes_under_way_in_another_task_do_not_count_for_a_stage(begun, gain, held):
    state = continued(begun(PPOConfig, stages), configure(curriculum=stages))
    state = state.replace(tickets=state.tickets.replace(held=jnp.arange(2), length=jnp.int32(2)))
    program = make_program(configure(curriculum=stages, gain=gain))
    assert program.renewed(state).tickets.held.tolist() == held


@pytest.mark.parametrize(("gain", "tags"), [(1.0, [0, 0]), (3.0, [-1, 0])])
def test_episodes_drawn_before_a_change_of_the_task_do_not_count_for_a_stage(begun, gain, tags):
    """The first environment begins its episode with the next decision, the second one is within one."""
    state = continued(begun(PPOConfig, stages), configure(curriculum=stages))
    state = state.replace(reset=jnp.array([True, False]), stagger=jnp.zeros(2, jnp.int32))
    program = make_program(configure(curriculum=stages, gain=gain))
    renewed = program.renewed(state)
    assert renewed.episodes.tags["stage"].tolist() == tags
    assert renewed.episodes.params["gain"].tolist() == [1.0, 1.0]
    same = state.episodes.running, renewed.episodes.running
    jax.tree.map(np.testing.assert_array_equal, *same)


WORLDS = [
    thorough(("env=f110",)),
    thorough(("env=f110", "env.map=track:7")),
    ("env=f110", "env.map=[line2,track:7]", "curriculum=phased13"),
    thorough(("env=f110", "curriculum=spawn")),
    thorough(("env=f110_race", "env.map=track:7")),
    thorough(("env=drive", "env.maps=2", "env.eval_maps=2", "env.kinds={straight: 1}")),
    thorough(("env=echelon", "env.maps=2", "curriculum=echelon_ramp")),
    ("env=echelon_missions_small", "env.maps=2", "curriculum=missions4"),
    ("env=textgames/kuhn",),
    pytest.param(("env=gymnax/CartPole-v1",), marks=pytest.mark.needs("gymnax")),
]


def memory_of(tree):
    """Addresses of the arrays in a tree of which any device holds a number."""
    held = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and leaf.size)
    return {
        leaf.unsafe_buffer_pointer() for leaf in held if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }


@pytest.mark.parametrize("arguments", WORLDS, ids=lambda arguments: " ".join(arguments))
def test_a_resumed_run_owns_copies_of_its_arrays(arguments):
    """Its state is donated: memory of the environment, its world or the curriculum would be gone with it."""
    config = build.build_run_config(
        command_line.compose_config(command_line.normalize_overrides(arguments))[0]
    )
    course = config.curriculum(config.env)
    first, later = course.init(), course.init()
    state = RunState(**dict.fromkeys(RunState.__dataclass_fields__)).replace(policies={}, curriculum=first)
    # Held to the end: the memory of one that is freed before may be given to the new state.
    held = jax.live_arrays()
    others = memory_of(held) - memory_of(first)
    kept = memory_of((config.env.default_params(), config.env.world, later)) | others
    renewed = apply_config_to_restored({}, course, state, None).curriculum
    assert jax.tree.structure(renewed) == jax.tree.structure(later) and not memory_of(renewed) & kept


def test_members_of_a_group_get_their_own_numbers(tmp_path):
    def members(gain):
        runs = [configure(gain=gain * weight) for weight in (1.0, 0.5)]
        return [group_members.Member(str(i), str(i), run, {}) for i, run in enumerate(runs)]

    start = make_program(members(1.0)[0].config)
    keys = jax.random.split(jax.random.key(0), 2)
    state = jax.jit(jax.vmap(start.init))(keys, group_members.stack_curriculum_states(members(1.0)))
    found = checkpoints.save_checkpoint(tmp_path, ("latest",), state, {"step": 1})
    state = group_members.read_group_checkpoint(members(4.0), make_program(configure(192)), found)
    assert state.curriculum["gain"].tolist() == [4.0, 2.0]
    assert state.policies[probes.ROLE].hyper["total_updates"].tolist() == [12.0, 12.0]


def run_with_replay(algo, **spec):
    """What is read of a run, with these facts of its environment."""
    spec = SimpleNamespace(**{"late": False, "turns": 0} | spec)
    return SimpleNamespace(replays=algo.replays, algos={"player": algo}, env=SimpleNamespace(spec=spec))


@pytest.mark.parametrize(
    ("algo", "after", "words"),
    [
        (SACConfig, {"env": {"gain": 2.0}}, "before env changed"),
        (SACConfig, {"reward": {"bonus": 2.0}, "env": {"gain": 2.0}}, "before env and reward changed"),
        (SACConfig, {"algo": {"gamma": 0.5}}, None),
        (PPOConfig, {"env": {"gain": 2.0}}, None),
    ],
)
def test_a_replay_with_rewards_of_another_task_is_told(algo, after, words):
    before = {"env": {"gain": 1.0}, "reward": {"bonus": 1.0}, "algo": {"gamma": 0.9}}
    lines = resume.describe_kept_replay(run_with_replay(algo()), before, before | after)
    assert len(lines) == (words is not None) and all(words in line for line in lines)


def test_a_replay_with_delayed_rewards_of_another_discount_is_told():
    """Rewards of agents that are out are stored as discounted sums, but not where discounts count turns."""
    before, after = ({"algo": {"gamma": gamma}} for gamma in (0.9, 0.5))
    (line,) = resume.describe_kept_replay(run_with_replay(SACConfig(), late=True), before, after)
    assert "delayed rewards as they were discounted before gamma changed" in line
    own = {"algos": {"player": {"gamma": 0.5}}}
    assert resume.describe_kept_replay(run_with_replay(SACConfig(), late=True), {"algos": {}}, own) == (line,)
    for run in (
        run_with_replay(SACConfig(), late=True, turns=2),
        run_with_replay(VDNConfig(), late=True),
        run_with_replay(PPOConfig(), late=True),
    ):
        assert resume.describe_kept_replay(run, before, after) == ()


def test_best_scores_are_reset_when_the_task_changes():
    facts, task = {"updates": 3, "best": {"best_eval": [1.0]}}, {"env": {"gain": 1.0}, "seed": 0}
    assert resume.carry_progress(facts, task, task | {"seed": 1}).best == {"best_eval": [1.0]}
    assert resume.carry_progress(facts, task, {"env": {"gain": 2.0}}).best == {}


def test_best_scores_of_evaluations_are_reset_when_their_number_of_episodes_changes():
    facts = {"best": {"best_eval": [1.0], "best_eval_phase_1": [1.0], "best_training": [0.5]}, "episodes": 9}
    before = {"env": {"gain": 1.0}, "eval_episodes": 4}
    found = resume.carry_progress(facts, before, before | {"eval_episodes": 256})
    assert (found.best, found.entered) == ({"best_training": [0.5]}, 0)
    assert resume.carry_progress(facts, before, before).best == facts["best"]


CARTPOLE = [
    "env=gymnax/CartPole-v1", "num_envs=4", "total_env_steps=32", "algo.horizon=8", "algo.num_minibatches=1",
    "algo.epochs=1", "algo.widths=[8]", "algo.learning_rate_schedule=linear", "eval_every=4",
    "eval_episodes=2", "checkpoint_every=4", "window=4", "run_name=pole",
]  # fmt: skip


def run(*arguments):
    """Runs a command without drawing its pictures."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "argv", ["train", *map(str, arguments)])
        monkeypatch.setattr(train, "conclude_job", lambda *_: None)
        command_line.run_guarded(train.main)


def column(folder, name):
    with (folder / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.needs("gymnax")
def test_a_run_is_started_resumed_and_resumed_with_changes(capsys, tmp_path):
    command = [*CARTPOLE, f"output_dir={tmp_path}", "resume=auto"]
    folder = tmp_path / "gymnax_CartPole-v1" / "ppo" / "pole"
    run(*command)
    assert len(column(folder, "losses/learning_rate")) == 1
    alone = tmp_path / "alone"
    shutil.copytree(checkpoints.find_checkpoint(folder, "latest"), alone)
    run(*command, "total_env_steps=96", "tracking=quiet", "algo.gamma=0.5")
    rates = column(folder, "losses/learning_rate")
    assert len(rates) == 3 and all(rate > 0 for rate in rates[1:])
    assert "gamma: 0.5" in (folder / "config.yaml").read_text()
    older = folder / "checkpoints" / "step_000000000032"
    shutil.copytree(alone, older, dirs_exist_ok=True)
    capsys.readouterr()

    before = files(folder)
    for path, reason in ((alone, "outside of a run"), (older, "has continued to step 96")):
        with pytest.raises(SystemExit) as caught:
            run(f"resume={path}", "total_env_steps=128")
        message = capsys.readouterr().err
        assert caught.value.code == 2 and reason in message and message.count("\n") == 1
        assert f"resume={path} as=NEW_NAME" in message and files(folder) == before
    for path, name in ((alone, "pole"), (older, "../pole")):
        with pytest.raises(SystemExit):
            run(f"resume={path}", f"as={name}")
        assert f"run_name={name}" in capsys.readouterr().err
    # It takes the same way in a folder of its own.
    run(f"resume={older}", "as=again", "total_env_steps=96", "tracking=quiet", "algo.gamma=0.5")
    assert files(folder) == before
    again = folder.with_name("again")
    assert column(again, "losses/learning_rate") == column(folder, "losses/learning_rate")
    facts = [
        json.loads((checkpoints.find_checkpoint(place, "latest") / "metadata.json").read_text())
        for place in (again, folder)
    ]
    assert facts[0]["scores"] == facts[1]["scores"] and facts[0]["config"]["run_name"] == "again"
    capsys.readouterr()

    damaged = checkpoints.find_checkpoint(folder, "latest") / checkpoints.METADATA
    for refused in ("algo.widths=[16]", "num_envs=8", "tracking=loud", "env.params.gravity=nan"):
        with pytest.raises(SystemExit) as caught:
            run(f"resume={folder}", refused)
        message = capsys.readouterr().err
        assert caught.value.code == 2 and refused.partition("=")[0] in message and message.count("\n") == 1
        assert files(folder) == before
    facts = json.loads(damaged.read_text())
    damaged.write_text(json.dumps({key: value for key, value in facts.items() if key != "format"}))
    with pytest.raises(SystemExit):
        run(f"resume={folder}")
    message = capsys.readouterr().err
    assert "format none" in message and f"format {checkpoints.FORMAT}" in message


@pytest.mark.needs("gymnax")
def test_a_checkpoint_that_cannot_be_read_changes_nothing(capsys, tmp_path, monkeypatch):
    config, choices = saved(*CARTPOLE, f"output_dir={tmp_path}")
    folder = command_line.run_folder(config, choices, "pole")
    resolved = OmegaConf.to_container(config, resolve=True) | {"choices": choices}
    checkpoints.save_checkpoint(
        folder / "checkpoints", ("latest",), {"x": jnp.ones(2)}, {"step": 0, "config": resolved}
    )
    before = files(folder)
    with pytest.raises(SystemExit):
        run(f"resume={folder}", "total_env_steps=64", "tracking=quiet")
    assert "checkpoint of another configuration" in capsys.readouterr().err
    assert files(folder) == before


def test_continuing_or_beginning_needs_a_name(capsys, tmp_path):
    with pytest.raises(SystemExit):
        run(f"output_dir={tmp_path}", "resume=auto")
    assert "run_name=NAME" in capsys.readouterr().err and not list(tmp_path.iterdir())
