"""A whole run as three pure functions: init, update, evaluate."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algos.types import Agent
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.training import controllers as controllers_lib
from jaxmarl_echelon.training import evaluation, on_policy, statistics
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.types import RunState

PyTree = Any


class Report(NamedTuple):
    """What an update shows to the host.

    Attributes:
      metrics: scalars by their full names (`train/...`, `losses/...`, `curriculum/...`).
      episodes: table of finished episodes, see `statistics.episode_rows`.
    """

    metrics: dict[str, jax.Array]
    episodes: dict[str, jax.Array]


class Program(NamedTuple):
    """A run as pure functions of its state.

    Attributes:
      init: `(key) -> RunState`.
      update: `(RunState) -> (RunState, Report)`: one rollout and what is learnt from it.
      evaluate: `(RunState, key, record=None) -> Evaluation`, deterministic.
      evaluate_as: `(controllers, learners, RunState, key, record=None) -> Evaluation`, the same
        episodes played by other actors.
      env, agents, controllers: what it was built from.
      steps_per_update: environment steps (decisions of an environment) of one update.
    """

    init: Callable
    update: Callable
    evaluate: Callable
    evaluate_as: Callable
    env: Environment
    agents: dict[str, Agent]
    controllers: dict[str, controllers_lib.Controller]
    steps_per_update: int


def make_program(config: RunConfig) -> Program:
    """Builds the program of a run. Raises ValueError where parts of the configuration do not fit."""
    env = config.env
    agents = make_agents(config)
    acting = make_controllers(config, agents, greedy=False)
    greedy = make_controllers(config, agents, greedy=True)
    collector = on_policy.Collector(env, agents, acting, config.algo.horizon)
    curriculum = config.curriculum(env)

    def init(key):
        return initial_state(config, collector, curriculum, key)

    def update(run):
        return update_once(config, collector, curriculum, run)

    def evaluate_as(controllers, learners, run, key, record=None):
        params = curriculum.evaluation(run.curriculum)
        params = evaluation.evaluation_params(env, params, config.eval_episodes)
        return evaluation.play(env, controllers, learners, key, params, record)

    def evaluate(run, key, record=None):
        return evaluate_as(greedy, run.learners, run, key, record)

    return Program(init, update, evaluate, evaluate_as, env, agents, greedy, config.steps_per_update)


def make_train(config: RunConfig) -> Callable:
    """The whole run as one pure function `(key) -> (RunState, Report [updates])`.

    For notebooks and for `jax.vmap` over seeds; the command line runs the same update in chunks.
    """
    program = make_program(config)

    def train(key):
        return jax.lax.scan(lambda run, _: program.update(run), program.init(key), None, config.updates)

    return train


def make_agents(config: RunConfig) -> dict[str, Agent]:
    """One agent for every role whose controller is `learner`."""
    agents = {}
    for role in config.env.spec.roles:
        if config.controllers[role.name] == "learner":
            action = controllers_lib.action_spec(role.action)
            samples = config.num_envs * role.size
            agents[role.name] = config.algo.make(role.observation.shape, action, samples, config.updates)
    return agents


def make_controllers(config: RunConfig, agents: dict[str, Agent], *, greedy: bool):
    """Controllers of all roles; learners act greedily or by sampling."""
    result = {}
    for role in config.env.spec.roles:
        name = config.controllers[role.name]
        if name == "learner":
            result[role.name] = controllers_lib.learner(agents[role.name], role, greedy=greedy)
        else:
            policy = controllers_lib.find_script(config.env, role.name, name)
            result[role.name] = controllers_lib.script(policy)
    return result


def initial_state(config, collector, curriculum: Curriculum, key: jax.Array) -> RunState:
    """The state before the first update."""
    key_run, key_learners, key_env, key_stagger = jax.random.split(key, 4)
    learner_keys = jax.random.split(key_learners, len(collector.agents))
    learners = {
        role: agent.init(k) for k, (role, agent) in zip(learner_keys, collector.agents.items(), strict=True)
    }
    course = curriculum.init()
    episodes = episodes_lib.start(
        collector.env, key_env, lambda k: curriculum.draw(k, course), config.num_envs
    )
    limit = collector.env.spec.episode_limit
    stagger = jax.random.randint(key_stagger, (config.num_envs,), 1, limit + 1)
    return RunState(
        key=key_run,
        learners=learners,
        memories={role: c.init(config.num_envs) for role, c in collector.controllers.items()},
        reset=jnp.ones(config.num_envs, bool),
        episodes=episodes,
        stagger=jnp.where(config.stagger, stagger, 0),
        curriculum=course,
        recent=statistics.recent_init(collector.env.spec, config.window),
        updates=jnp.int32(0),
    )


def update_once(config, collector, curriculum: Curriculum, run: RunState) -> tuple[RunState, Report]:
    """One rollout, one learning pass for every learner, and what the curriculum makes of it."""
    key, key_rollout, key_learn = jax.random.split(run.key, 3)
    run, collected = on_policy.collect(
        collector, run, key_rollout, lambda k: curriculum.draw(k, run.curriculum)
    )
    learners, metrics = dict(run.learners), {}
    keys = jax.random.split(key_learn, len(collector.agents))
    for k, (role, agent) in zip(keys, collector.agents.items(), strict=True):
        learners[role], losses = agent.update(run.learners[role], k, collected.rollouts[role])
        prefix = "losses" if len(collector.agents) == 1 else f"losses/{role}"
        metrics |= {f"{prefix}/{name}": value for name, value in losses.items()}
    run = run.replace(
        key=key,
        learners=learners,
        curriculum=curriculum.update(run.curriculum, collected.finished),
        recent=statistics.recent_add(run.recent, collected.finished),
        updates=run.updates + 1,
    )
    roles = tuple(collector.agents)
    metrics |= statistics.recent_metrics(run.recent, collector.env.spec, roles)
    metrics |= curriculum.metrics(run.curriculum)
    metrics["train/quarantined"] = collected.quarantined
    rows = statistics.episode_rows(collected.finished, roles, config.episode_rows)
    return run, Report(metrics, rows)
