"""Several learners at once, and roles whose policies are frozen."""

import csv
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from duels import Duel
from marked import thorough
from omegaconf import OmegaConf

from algos.off_policy.dqn import DQNConfig
from algos.off_policy.learning import flatten_transition, store_decision
from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.on_policy.ppo import PPOConfig
from algos.types import ObservationSpec
from jaxmarl_echelon import actor_scores, checkpoints
from jaxmarl_echelon.command_line import compose_config, normalize_overrides
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.episodes import EpisodeTask, start_episodes
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.tracking.base import Tracker
from jaxmarl_echelon.tracking.csv_sink import CsvSink
from jaxmarl_echelon.training.acting.controllers import Controller, switch_controller, to_space
from jaxmarl_echelon.training.acting.state import ControllerView, RunState
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host import loop
from jaxmarl_echelon.training.opponents.pool_role import Opponents
from jaxmarl_echelon.training.program.agents import (
    FrozenPolicy,
    fixed_policy_name,
    load_frozen_policies,
    load_frozen_policy,
    make_agents,
    make_controllers,
    make_pool_role,
)
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.program.round_robin import make_bank_controller
from jaxmarl_echelon.training.rollouts import collect
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec

SMALL = (
    "env.lidar_beams=8", "env.max_steps=40", "num_envs=4", "total_env_steps=64", "eval_episodes=2",
    "algo.horizon=8", "algo.num_minibatches=2", "algo.widths=[16]", "episode_rows=8", "window=8",
)  # fmt: skip


@functools.cache
def read(*overrides):
    config, choices = compose_config(normalize_overrides([*SMALL, *overrides]))
    return config, choices, build.build_run_config(config)


def untrained(run, key=5):
    """A run's state with its first policies, and with nothing else."""
    agents = make_agents(run)
    keys = dict(zip(agents, jax.random.split(jax.random.key(key), len(agents)), strict=True))
    policies = jax.jit(lambda keys: {name: agent.init(keys[name]) for name, agent in agents.items()})(keys)
    return RunState(**dict.fromkeys(RunState.__dataclass_fields__) | {"policies": policies})


def save(folder, config, choices, state):
    resolved = OmegaConf.to_container(config) | {"choices": choices}
    checkpoints.save_checkpoint(
        folder / "checkpoints", ("best_eval",), state, {"step": 0, "config": resolved}
    )


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    """A checkpoint of a run whose two cars both learnt."""
    config, choices, run = read("controllers.defender=learner")
    folder, state = tmp_path_factory.mktemp("saved"), untrained(run)
    save(folder, config, choices, state)
    return folder, state


def on_a_duel(**changes):
    given = {
        "env": Duel(),
        "algo": PPOConfig(horizon=8, widths=(16,), num_minibatches=2),
        "total_env_steps": 64,
        "num_envs": 4,
    }
    given |= {"curriculum": constant_curriculum, "window": 8, "episode_rows": 8}
    return build.RunConfig(**given | changes)


def test_both_learn_each_with_settings_of_its_own():
    """As they are typed for two cars, on a duel."""
    _, _, typed = read(
        "controllers.defender=learner", "algos.defender.gamma=0.5", "algos.defender.widths=[8]"
    )
    assert typed.algos["attacker"].gamma != typed.algos["defender"].gamma == 0.5
    # Whose first actions are cars' own.
    own = {name: dataclasses.replace(algo, initial_action=None) for name, algo in typed.algos.items()}
    own = {"blue": own["attacker"], "red": own["defender"]}
    program = make_program(on_a_duel(algo=own["blue"], algos=own, controllers={"red": "learner"}))

    @jax.jit
    def first(key):
        state = program.init(key)
        after, report = program.update(state)
        return state.policies, after.policies, report.metrics

    before, after, metrics = jax.device_get(first(jax.random.key(0)))
    for role in ("blue", "red"):
        moved = jax.tree.map(lambda a, b: np.any(a != b), before[role].params, after[role].params)
        assert any(jax.tree.leaves(moved)), role
        assert f"losses/{role}/policy_loss" in metrics and f"train/return/{role}" in metrics
    assert float(after["red"].hyper["gamma"]) == 0.5
    assert sum(x.size for x in jax.tree.leaves(after["red"].params)) < sum(
        x.size for x in jax.tree.leaves(after["blue"].params)
    )


def test_a_frozen_policy_may_come_from_another_role(saved_run):
    folder, state = saved_run
    _, _, run = read(f"controllers.defender=frozen:{folder}@attacker")
    loaded = load_frozen_policies(run)["defender"].state.average
    jax.tree.map(np.testing.assert_array_equal, loaded, state.policies["attacker"].average)


def test_a_frozen_policy_per_agent_acts_for_as_many_agents_and_for_no_other_number(tmp_path):
    cars = ("env=f110_race", "env.lidar_beams=8", "env.max_steps=20", "algo.horizon=4")
    config, choices, run = read(*cars, "env.cars=2", "controllers.car=learner:per_agent")
    state = untrained(run)
    save(tmp_path, config, choices, state)
    policy = load_frozen_policy(run, "car", str(tmp_path), "controllers.car", agents=2)
    jax.tree.map(np.testing.assert_array_equal, policy.state.params, state.policies["car"].params)
    obs = np.ones((4, 2, *run.env.spec.role("car").observation.shape), np.float32)
    action, _ = jax.jit(policy.agent.greedy)(policy.state, obs, (), np.zeros((4, 2), bool), None)
    action = np.asarray(action)
    assert action.shape == (4, 2, 2) and (action[:, 0] != action[:, 1]).any()
    _, _, three = read(*cars, "env.cars=3")
    with pytest.raises(
        ValueError, match="^here: that run trained one policy for each of 2 agents, here are 3$"
    ):
        load_frozen_policy(three, "car", str(tmp_path), "here", agents=3)


@pytest.mark.thorough
def test_a_shared_policy_acts_and_learns_from_both_seats():
    """Experience of the second role reaches the shared learner, and both roles act alike."""
    run = on_a_duel(controllers={"red": "shared:blue"})
    (agent,) = make_agents(run).values()

    def update(state, key, rollout):
        state, metrics = agent.update(state, key, rollout)
        return state, metrics | {"rollout": rollout}

    program = make_program(run, {"blue": agent._replace(update=update)})

    @jax.jit
    def played(key):
        state = program.init(key)
        after, report = program.update(state)
        seen = state.episodes.time.obs
        mirrored = state.episodes.time.replace(obs={"blue": seen["blue"], "red": seen["blue"]})
        view = ControllerView(state.episodes.env, state.episodes.params, mirrored)
        acts = {
            role: c.act(key, state.policies[c.policy], state.memories[role], view, state.reset)[1]
            for role, c in program.controllers(program.place(None)).items()
        }
        return state, after, report.metrics, acts

    state, after, metrics, acts = jax.device_get(played(jax.random.key(0)))
    assert set(state.policies) == {"blue"} and run.agents("blue") == 4
    batch, seen = metrics["losses/rollout"], state.episodes.time.obs
    assert batch.alive.shape == (8, 4, 4) and batch.last_value.shape == (4, 4)
    np.testing.assert_array_equal(batch.obs[0, :, :2], seen["blue"])
    np.testing.assert_array_equal(batch.obs[0, :, 2:], seen["red"])
    assert "losses/policy_loss" in metrics and int(after.updates) == 1
    moved = jax.tree.map(
        lambda a, b: np.any(a != b), state.policies["blue"].params, after.policies["blue"].params
    )
    assert any(jax.tree.leaves(moved))
    np.testing.assert_array_equal(acts["blue"], acts["red"])


@pytest.mark.parametrize("shared", [thorough(False), True])
def test_every_role_keeps_its_own_successes(shared):
    """Also where one learner acts for both: the sign of what is seen first tells whose success it was."""
    replay = {"capacity": 120, "success_capacity": 60, "success_ratio": 0.5}
    config = build.RunConfig(
        env=probes.Rivals(),
        algo=TD3Config(widths=(4,), horizon=12, batch_size=4, learning_starts=1000, replay=replay),
        curriculum=constant_curriculum,
        total_env_steps=96,
        num_envs=8,
        controllers={"prey": "shared:hunter"} if shared else {},
        stagger=False,
    )
    program = make_program(config)
    agents = {role: only_remembering(config, role, agent) for role, agent in program.agents.items()}
    playing = collector(program, config)._replace(agents=agents)

    @jax.jit
    def played(key):
        run, _ = collect.collect_rollout(playing, program.init(key), jax.random.key(1), draw(program))
        return [learner.replay.successes.ring for learner in run.policies.values()]

    rings = played(jax.random.key(0))
    cue, place = np.concatenate([np.asarray(ring.obs)[0, : ring.count[0]] for ring in rings]).T
    assert set(place) == {0.0, 1.0}
    np.testing.assert_array_equal(cue, np.where(place == 0, 1.0, -1.0))


def only_remembering(config, role, agent):
    """A learner with a replay that fills it and learns nothing."""
    (shape, action), sizes = config.learner_task(role)
    replay = config.algos[role].make_replay(shape, action, **sizes)

    def update(state, key, batch):
        rows = flatten_transition(batch, ObservationSpec(shape))
        return store_decision(replay, state, rows), {"gradient_steps": jnp.float32(0.0)}

    return agent._replace(update=update)


def test_successes_of_the_environments_roles():
    spec = probes.Rivals().spec
    codes = np.array([-1, 0, 1])
    values = {"outcome": codes}
    for role, wanted in (("hunter", [0, 1, 0]), ("prey", [0, 0, 1]), (None, [0, 1, 0])):
        assert spec.scores(values, role).tolist() == wanted
    plain_roles = tuple(dataclasses.replace(role, score=None) for role in spec.roles)
    unnamed = dataclasses.replace(spec, roles=plain_roles)
    assert unnamed.scores(values, "hunter").tolist() == [0, 1, 0]
    assert unnamed.scores(values, "prey") is None
    assert dataclasses.replace(unnamed, score=None).scores(values, "hunter") is None


def test_the_defender_succeeds_where_its_reward_pays_and_it_is_whole():
    _, _, run = read()
    spec, table = run.env.spec, run.env.default_params().reward["terminal"]
    for code, outcome in enumerate(spec.outcomes):
        ended = {"outcome": np.int32(code)}
        assert spec.scores(ended, "attacker") == (outcome == "target_crash")
        assert spec.scores(ended, "defender") == (-table[outcome] > 0)


def collector(program, run):
    acting = make_controllers(run, program.env, program.agents, {}, greedy=False)
    return RolloutSpec(program.env, program.agents, acting, run.horizon, run.segments)


def draw(program):
    return lambda key: EpisodeTask(program.env.default_params())


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            "shared:defender",
            "controllers.defender=shared:defender: unknown learner; allowed: shared:attacker",
        ),
        ("shared:nobody", "controllers.defender=shared:nobody: unknown learner; allowed: shared:attacker"),
    ],
)
def test_a_policy_is_shared_with_a_learner(choice, message):
    with pytest.raises(ValueError, match=message):
        read(f"controllers.defender={choice}")


def test_a_frozen_role_does_not_explore():
    """Epsilon is 1 in a new state; the role's learner plays at random, the frozen policy never."""
    run = on_a_duel(algo=DQNConfig(widths=(8,), horizon=8), controllers={"red": "frozen:RUN"})
    env, own = run.env, make_agents(run)["blue"]
    frozen = {"red": FrozenPolicy(own, None)}
    acting = make_controllers(run, env, {"blue": own}, frozen, greedy=False)

    @jax.jit
    def act(key):
        state, reset = own.policy_state(own.init(key)), jnp.ones(256, bool)
        begun = start_episodes(env, key, lambda _key: EpisodeTask(env.default_params()), 256)
        view = ControllerView(begun.env, begun.params, begun.time)
        best, _ = own.greedy(state, begun.time.obs["red"], (), None, None)
        return best[..., 0], {role: one.act(key, state, (), view, reset)[1] for role, one in acting.items()}

    best, action = jax.device_get(act(jax.random.key(0)))
    np.testing.assert_array_equal(action["red"], best)
    assert (action["blue"] != best).mean() > 0.25


def test_a_frozen_opponent_of_a_pool_does_not_explore():
    """It has the learner's program, but no place in the bank, whose policies do."""
    pool = PoolSettings(capacity=2, groups=2, mode="fixed", fixed=("frozen:RUN",), hold=1)
    algo = DQNConfig(widths=(8,), horizon=8)
    run = on_a_duel(algo=algo, controllers={"red": "pool:blue"}, pool=pool)
    env, own = run.env, make_agents(run)["blue"]
    state = jax.jit(lambda key: own.policy_state(own.init(key)))(jax.random.key(1))
    frozen = {fixed_policy_name(0): FrozenPolicy(own, state)}
    assert make_pool_role(run, {"blue": own}, frozen).pool.pinned == ()
    acting = make_controllers(run, env, {"blue": own}, frozen, greedy=False)["red"]

    @jax.jit
    def act(key):
        begun = start_episodes(env, key, lambda _key: EpisodeTask(env.default_params()), 256)
        view, reset = ControllerView(begun.env, begun.params, begun.time), jnp.ones(256, bool)
        bank = jax.tree.map(lambda x: jnp.stack([x, x]), state)
        met = Opponents(state, bank, jnp.full(2, pool.first_fixed), (state,), jnp.zeros(2, jnp.int32))
        _, action, _ = acting.act(key, met, acting.init(256), view, reset)
        return action, own.greedy(state, begun.time.obs["red"], (), None, None)[0][..., 0]

    np.testing.assert_array_equal(*act(jax.random.key(0)))


class Covert(Duel):
    """The same with what the environments of games with hidden information declare."""

    @property
    def spec(self):
        return dataclasses.replace(super().spec, hidden=True)


def test_evaluations_with_hidden_information_sample_policies_and_do_not_explore():
    """Epsilon is 1 in a new state. A round robin of such policies plays their best actions, too."""
    algos = {"blue": DQNConfig(widths=(8,), horizon=8), "red": PPOConfig(horizon=8, widths=(8,))}
    run = on_a_duel(env=Covert(), algo=algos["blue"], algos=algos, controllers={"red": "learner"})
    program = make_program(run)
    own = program.agents["blue"]
    acting = {"evaluated": program.controllers(program.place(None))}
    acting["sampled"] = program.controllers(program.place(None), greedy=False)
    acting["training"] = make_controllers(run, run.env, program.agents, {}, greedy=False)

    @jax.jit
    def act(key):
        policies = {name: one.policy_state(one.init(key)) for name, one in program.agents.items()}
        begun = start_episodes(run.env, key, lambda _key: EpisodeTask(run.env.default_params()), 256)
        view, reset = ControllerView(begun.env, begun.params, begun.time), jnp.ones(256, bool)
        given = {
            name: {role: one[role].act(key, policies[role], (), view, reset)[1] for role in policies}
            for name, one in acting.items()
        }
        bank = jax.tree.map(lambda x: jnp.stack([x, x]), policies["blue"])
        banked = make_bank_controller(own, run.env.spec.role("blue"), bank)
        given["bank"] = {"blue": banked.act(key, None, (), view, reset)[1]}
        best = {
            name: one.greedy(policies[name], begun.time.obs[name], (), None, None)[0][..., 0]
            for name, one in program.agents.items()
        }
        return best, given

    best, given = jax.device_get(act(jax.random.key(0)))
    for name in ("evaluated", "sampled", "bank"):
        np.testing.assert_array_equal(given[name]["blue"], best["blue"], err_msg=name)
    assert (given["training"]["blue"] != best["blue"]).mean() > 0.25
    assert (given["evaluated"]["red"] != best["red"]).mean() > 0.25
    assert actor_scores.judging_spec(program).hidden
    alone = make_program(dataclasses.replace(run, algos={}, controllers={}))
    assert not actor_scores.judging_spec(alone).hidden


class CovertTarget(probes.ContinuousTarget):
    """A game with hidden information and continuous actions."""

    @property
    def spec(self):
        return dataclasses.replace(super().spec, hidden=True)


def test_evaluations_with_hidden_information_sample_policies_in_their_warm_up():
    """The policy is all but deterministic; the actions of the warm-up are uniform."""
    algo = SACConfig(widths=(8,), horizon=8, initial_std=0.01, log_std_min=-5.0)
    run = on_a_duel(env=CovertTarget(), algo=algo)
    program = make_program(run)
    (own,), role = program.agents.values(), run.env.spec.role(probes.ROLE)
    acting = {
        "evaluated": program.controllers(program.place(None))[probes.ROLE],
        "training": make_controllers(run, run.env, program.agents, {}, greedy=False)[probes.ROLE],
    }

    @jax.jit
    def act(key):
        state = own.policy_state(own.init(key))
        begun = start_episodes(run.env, key, lambda _key: EpisodeTask(run.env.default_params()), 256)
        view, reset = ControllerView(begun.env, begun.params, begun.time), jnp.ones(256, bool)
        given = {name: one.act(key, state, (), view, reset)[1] for name, one in acting.items()}
        bank = make_bank_controller(own, role, jax.tree.map(lambda x: jnp.stack([x, x]), state))
        given["bank"] = bank.act(key, None, (), view, reset)[1]
        best = own.greedy(state, begun.time.obs[probes.ROLE], (), None, None)[0]
        return given, to_space(role.action, best)

    given, best = jax.device_get(act(jax.random.key(0)))
    away = {name: np.abs(action - best).max() for name, action in given.items()}
    assert away["training"] > 1.0 and 0.0 < away["evaluated"] < 0.2 and 0.0 < away["bank"] < 0.2


def test_evaluations_with_hidden_information_sample_the_mean_of_the_policies():
    """Of a whole state as of the part that a checkpoint is read for; the latest policy is another one."""
    algo = PPOConfig(horizon=8, widths=(8,), num_minibatches=2, policy_average=0.9)
    program = make_program(on_a_duel(env=CovertTarget(), algo=algo))

    @jax.jit
    def played(key):
        run = program.init(key)
        state = run.policies[probes.ROLE]
        latest = state.replace(params=jax.tree.map(lambda x: x + 1.0, state.params))
        run = run.replace(policies={probes.ROLE: latest})
        both = run, program.policy(run)
        return [program.evaluate(one, key, episodes=4).episode_return[probes.ROLE] for one in both]

    np.testing.assert_array_equal(*played(jax.random.key(0)))


@pytest.mark.thorough
def test_a_frozen_role_acts_as_saved_and_gets_no_gradient(saved_run):
    folder, state = saved_run
    _, _, run = read(f"controllers.defender=frozen:{folder}")
    program = make_program(run)
    assert list(program.agents) == ["attacker"]
    theirs = make_agents(read("controllers.defender=learner")[2])["defender"]

    @jax.jit
    def played(key):
        before = program.init(key)
        after, report = program.update(before)
        view = ControllerView(before.episodes.env, before.episodes.params, before.episodes.time)
        controller = program.controllers(program.place(None))["defender"]
        _, action, _ = controller.act(key, before.policies["defender"], (), view, before.reset)
        wanted, _ = theirs.greedy(state.policies["defender"], view.time.obs["defender"], (), None, None)
        wanted = to_space(program.env.spec.role("defender").action, wanted)
        return before.policies, after.policies, report.metrics, action, wanted

    before, after, metrics, action, wanted = jax.device_get(played(jax.random.key(0)))
    assert set(before) == {"attacker", "defender"}
    saved = state.policies["defender"].average
    jax.tree.map(np.testing.assert_array_equal, before["defender"].average, saved)
    jax.tree.map(np.testing.assert_array_equal, before["defender"].average, after["defender"].average)
    assert "losses/policy_loss" in metrics
    np.testing.assert_allclose(action, wanted)


def test_invalid_frozen_policies_are_refused_in_one_line(saved_run, tmp_path):
    folder, _ = saved_run
    cases = {
        f"controllers.defender=frozen:{tmp_path}/nowhere": "no such folder",
        f"controllers.defender=frozen:{folder} env.lidar_beams=9": "its observations (19,)",
    }
    for typed, message in cases.items():
        _, _, run = read(*typed.split(" "))
        with pytest.raises(ValueError) as caught:
            make_program(run)
        assert message in str(caught.value) and "\n" not in str(caught.value)


def test_settings_of_a_role_that_does_not_learn_are_refused():
    with pytest.raises(ValueError, match="algos.defender: not a learner of this run; learners: attacker"):
        read("algos.defender.gamma=0.5")
    with pytest.raises(ValueError, match="need rollouts of one length"):
        read("controllers.defender=learner", "algos.defender.horizon=16", "algos.defender.num_minibatches=2")


def test_probe_learners_need_no_settings_of_their_own():
    env = probes.ConstantReward()
    config = build.RunConfig(
        env=env, algo=PPOConfig(horizon=4), curriculum=lambda env: None, total_env_steps=4, num_envs=4
    )
    assert config.algos == {probes.ROLE: config.algo} and config.horizon == 4


def test_one_of_several_controllers_acts_and_remembers():
    def counting(step, policy=None):
        def act(key, state, memory, view, reset):
            memory = memory + step
            return memory, memory[:, None] + (0 if policy is None else state), {}

        return Controller(lambda num_envs: jnp.zeros(num_envs, jnp.int32), act, policy)

    @jax.jit
    def acts(index):
        controller = switch_controller([counting(1), counting(10, "attacker"), counting(5)], index)
        assert controller.policy == "attacker"
        memory, actions = controller.init(2), []
        for _ in range(2):
            memory, action, _ = controller.act(None, jnp.int32(100), memory, None, None)
            actions.append(action[:, 0])
        return memory, jnp.stack(actions)

    for index, wanted in enumerate(([1, 2], [110, 120], [5, 10])):
        memory, actions = acts(index)
        assert actions.T.tolist() == [wanted] * 2
        touched = [bool(m.any()) for m in memory]
        assert touched == [number == index for number in range(3)]


@pytest.mark.thorough
def test_the_best_policy_is_that_of_who_learns(tmp_path):
    """If only the second role learns, its own score decides, which falls where the first one's rises."""
    config = RunConfig(
        env=Duel(),
        algo=PPOConfig(horizon=8, widths=(8,), num_minibatches=1, epochs=2, learning_rate=0.01),
        curriculum=constant_curriculum,
        total_env_steps=12 * 8 * 8,
        num_envs=8,
        eval_every=1,
        eval_episodes=32,
        controllers={"blue": "still", "red": "learner"},
    )
    program = make_program(config)
    assert (program.env.spec.judged_by(["red"]), program.env.spec.judged_by(["blue", "red"])) == (
        "red_success_rate",
        "success_rate",
    )
    summary = loop.train_run(config, program, {"seed": config.seed}, tmp_path, Tracker({"csv": CsvSink()}))
    with (tmp_path / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    won = [float(row["red_success_rate"]) for row in rows]
    # Its returns are the first role's, who stands still and is beaten.
    assert summary["best"]["best_eval"] == [pytest.approx(max(won))] and max(won) > 0.8
    assert max(float(row["success_rate"]) for row in rows) != max(won)
