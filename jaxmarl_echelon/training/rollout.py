"""Rollouts: T decisions in E environments, in which replay learners learn as they go."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algos.types import Agent, Rollout, Transition
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.envs.episodes import Flow
from jaxmarl_echelon.training.controllers import Controller
from jaxmarl_echelon.training.types import RunState, View
from physics.sparse_batch import compute_rows

PyTree = Any

BOOTSTRAP_CHUNK = 64


class Collector(NamedTuple):
    """What a rollout needs that never changes during a run.

    Attributes:
      env: the environment.
      agents: role name to the agent that learns it.
      controllers: role name to who acts for it.
      horizon: decisions T per rollout.
      segments: parts of a rollout, of equal length, before each of which recurrent state is kept.
    """

    env: Environment
    agents: dict[str, Agent]
    controllers: dict[str, Controller]
    horizon: int
    segments: int = 1

    def learning(self, when: str) -> dict[str, Agent]:
        """The agents that learn from a "rollout" or in each "step"."""
        return {role: agent for role, agent in self.agents.items() if agent.learns == when}

    def seats(self, learner: str) -> tuple[str, ...]:
        """The roles that a learner acts for and learns from, its own first."""
        others = (r for r, c in self.controllers.items() if c.policy == learner and r != learner)
        return (learner, *others)


class Collected(NamedTuple):
    """One rollout.

    Attributes:
      rollouts: role name to its Rollout, axes `[T, E, A]`, of the agents that learn from one.
      metrics: role name to the metrics of the agents that learnt in each step, averaged over their
        gradient steps; NaN while there was none.
      flow: beginnings and ends of episodes, `[T, E]`.
      quarantined: int32, how often an environment was reset for a non-finite number.
    """

    rollouts: dict[str, Rollout]
    metrics: dict[str, dict[str, jax.Array]]
    flow: Flow
    quarantined: jax.Array


def act(collector: Collector, run: RunState, key: jax.Array):
    """Lets every role decide once.

    Returns:
      memories, actions in the environment's spaces, and each learner's extras, by role name.
    """
    view = View(run.episodes.env, run.episodes.params, run.episodes.time)
    memories, actions, extras = {}, {}, {}
    keys = jax.random.split(key, len(collector.controllers))
    policies = run.policies
    for role_key, (role, controller) in zip(keys, sorted(collector.controllers.items()), strict=True):
        memories[role], actions[role], extras[role] = controller.act(
            role_key, policies.get(controller.policy), run.memories[role], view, run.reset
        )
    return memories, actions, extras


def collect(collector: Collector, run: RunState, key: jax.Array, draw) -> tuple[RunState, Collected]:
    """Plays T decisions; records what rollout learners need and lets replay learners learn.

    Args:
      run: the run; its episodes, memories, reset flags and replay learners are advanced.
      key: typed random key.
      draw: `(key) -> Drawn`, draws a new episode's parameters.

    Returns:
      the advanced run and the rollout.
    """
    recorded, learning = collector.learning("rollout"), collector.learning("step")

    def step(run, step_key):
        key_act, key_env, key_learn = jax.random.split(step_key, 3)
        memories, actions, extras = act(collector, run, key_act)
        episodes, transition = episodes_lib.step(
            collector.env, key_env, run.episodes, actions, draw, cut=run.stagger == 1
        )
        records = {
            role: _joined(
                _record(agent, run, role, seat, extras[seat], memories[seat], transition)
                for seat in collector.seats(role)
            )
            for role, agent in recorded.items()
        }
        learners, metrics = dict(run.learners), {}
        for k, (role, agent) in zip(
            jax.random.split(key_learn, 1 + len(learning)), learning.items(), strict=False
        ):
            batch = _joined(
                _transition(collector.env, run, seat, extras[seat]["action"], transition)
                for seat in collector.seats(role)
            )
            learners[role], metrics[role] = agent.update(run.learners[role], k, batch)
        flow = _flow(run, transition)
        run = run.replace(
            learners=learners,
            episodes=episodes,
            memories=memories,
            reset=transition.reset_next,
            stagger=jnp.maximum(run.stagger - 1, 0),
        )
        return run, (records, metrics, flow, jnp.sum(transition.quarantined))

    def segment(run, keys):
        carries = {role: _joined(run.memories[seat] for seat in collector.seats(role)) for role in recorded}
        run, played = jax.lax.scan(step, run, keys)
        return run, (carries, played)

    keys = jax.random.split(key, collector.horizon).reshape(collector.segments, -1)
    run, (carries, played) = jax.lax.scan(segment, run, keys, unroll=collector.segments == 1)
    records, metrics, flow, quarantined = jax.tree.map(
        lambda x: x.reshape((collector.horizon,) + x.shape[2:]), played
    )
    rollouts = {
        role: Rollout(**record, carry=carries[role], last_value=_values(collector, run, role))
        for role, record in records.items()
    }
    learnt = {role: _mean_over_steps(values) for role, values in metrics.items()}
    return run, Collected(rollouts, learnt, flow, jnp.sum(quarantined))


def _flow(run: RunState, transition: episodes_lib.Transition) -> Flow:
    """What begins and ends with one decision, `[E]`.

    An episode that begins before its environment's stagger is through may be broken off. It counts
    neither if it is nor if it ends in time, which the short ones do.
    """
    counts = run.stagger == 0
    finished = transition.finished
    return Flow(
        begins=run.reset & counts,
        stage=run.episodes.stage,
        over=transition.reset_next,
        finished=finished.replace(mask=finished.mask & counts),
    )


def _joined(parts) -> PyTree:
    """Arrays `[E, A, ...]` of several roles as those of one, agent by agent."""
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1) if len(x) > 1 else x[0], *parts)


def _mean_over_steps(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Means of metrics `[T]` over the gradient steps that they stand for."""
    weight = metrics["gradient_steps"]
    total = jnp.sum(weight)

    def mean(values):
        summed = jnp.sum(jnp.where(weight > 0, values * weight, 0.0))
        return jnp.where(total > 0, summed / jnp.maximum(total, 1.0), jnp.nan)

    return {name: mean(values) for name, values in metrics.items()} | {"gradient_steps": total}


def _transition(env, run: RunState, role: str, action: jax.Array, transition) -> Transition:
    before, after = run.episodes.time, transition.time
    alive = transition.acted[role]
    success = env.spec.succeeded(transition.finished.outcome, role)
    return Transition(
        obs=before.obs[role],
        action=action,
        reward=after.reward[role],
        discount=jnp.where(after.terminated[role], 0.0, 1.0),
        next_obs=after.obs[role],
        boundary=after.terminated[role] | after.truncated[role] | transition.reset_next[:, None],
        success=jnp.broadcast_to(success[:, None], alive.shape),
        alive=alive,
    )


def _record(agent: Agent, run: RunState, learner: str, role: str, extras, carry, transition) -> dict:
    before, after = run.episodes.time, transition.time
    shape = before.alive[role].shape
    over = transition.reset_next[:, None]
    truncated = after.truncated[role] & transition.acted[role]
    return {
        "obs": before.obs[role],
        "action": extras["action"],
        "log_prob": extras["log_prob"],
        "value": extras["value"],
        "reward": after.reward[role],
        "reset": jnp.broadcast_to(run.reset[:, None], shape),
        "discount": jnp.where(after.terminated[role], 0.0, 1.0),
        "boundary": after.terminated[role] | after.truncated[role] | over,
        "bootstrap": _bootstrap(agent, run.learners[learner], truncated, after, role, carry),
        "alive": transition.acted[role],
        "mask": before.action_mask.get(role),
    }


def _bootstrap(agent, state, truncated, after, role, carry) -> jax.Array:
    """Values `[E, A]` of final observations where truncated, computed for those environments only.

    They are taken inside the rollout because a recurrent critic needs the carry of that moment.
    """

    def value(inputs):
        obs, carry, mask = inputs
        reset = jnp.zeros(jax.tree.leaves(obs)[0].shape[:2], bool)
        return agent.value(state, obs, carry, reset, mask)

    inputs = (after.obs[role], carry, after.action_mask.get(role))
    values = compute_rows(
        jnp.any(truncated, axis=1), value, inputs, jnp.zeros(truncated.shape), BOOTSTRAP_CHUNK
    )
    return jnp.where(truncated, values, 0.0)


def _values(collector: Collector, run: RunState, learner: str) -> jax.Array:
    """Values `[E, A]` of where the rollout ended, of all that act with a learner's policy."""
    time, agent, state = run.episodes.time, collector.agents[learner], run.learners[learner]

    def value(role):
        reset = jnp.broadcast_to(run.reset[:, None], time.alive[role].shape)
        return agent.value(state, time.obs[role], run.memories[role], reset, time.action_mask.get(role))

    return _joined(value(role) for role in collector.seats(learner))
