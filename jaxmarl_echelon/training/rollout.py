"""Rollouts: T decisions in E environments, in which replay learners learn as they go."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algos.types import Agent, Rollout, Transition
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.envs.base import Environment, TimeStep
from jaxmarl_echelon.envs.episodes import Flow
from jaxmarl_echelon.training.controllers import Controller, action_spec, observed
from jaxmarl_echelon.training.play import decide
from jaxmarl_echelon.training.types import RunState, View
from physics.sparse_batch import compute_rows

PyTree = Any

BOOTSTRAP_CHUNK = 64
# From this score on an episode counts as a success where only successes are kept.
GOOD = 0.5


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


class Pending(NamedTuple):
    """A decision per agent whose consequences are not complete: rewards may still come.

    Attributes:
      obs: `[E, A, ...]` what it was made on.
      action: `[E, A, D]` in the learner's own units.
      reward: `[E, A]` paid for it so far.
      waits: `[E, A]` bool; there is such a decision.
    """

    obs: PyTree
    action: jax.Array
    reward: jax.Array
    waits: jax.Array


def no_pending(collector: Collector, time: TimeStep) -> dict[str, Pending]:
    """Nothing pending, by role, of the roles for which there may be something."""
    if not collector.env.spec.late:
        return {}
    return {
        role: Pending(
            obs=jax.tree.map(jnp.zeros_like, time.obs[role]),
            action=jnp.zeros((*alive.shape, action_spec(collector.env.spec.role(role).action).dimensions)),
            reward=jnp.zeros(alive.shape, jnp.float32),
            waits=jnp.zeros(alive.shape, bool),
        )
        for learner in collector.learning("step")
        for role in collector.seats(learner)
        for alive in [time.alive[role]]
    }


def settle(pending: Pending, transition: Transition, goes_on: jax.Array) -> tuple[Pending, Transition]:
    """Completes transitions whose agents wait before they see what came of them.

    Args:
      pending: decisions that wait.
      transition: of this step: `alive` where an agent acted, `reward` whatever it was paid.
      goes_on: `[E, A]` bool; its story is not over and it does not act next: it waits, or goes on waiting.

    Returns:
      what waits now, and this step's complete transitions: an agent has one at most.
    """
    acted, waited = transition.alive, pending.waits & ~transition.alive

    def older(old, new):
        return jax.tree.map(
            lambda a, b: jnp.where(waited.reshape(waited.shape + (1,) * (b.ndim - 2)), a, b), old, new
        )

    reward = transition.reward + jnp.where(waited, pending.reward, 0.0)
    obs, action = older(pending.obs, transition.obs), older(pending.action, transition.action)
    begun = acted | waited
    complete = transition.replace(obs=obs, action=action, reward=reward, alive=begun & ~goes_on)
    return Pending(obs, action, reward, begun & goes_on), complete


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
        view = View(run.episodes.env, run.episodes.params, run.episodes.time)
        keys = jax.random.split(key_act, len(collector.controllers))
        memories, actions, choices = decide(
            collector.controllers, run.policies, keys, run.memories, view, run.reset
        )
        episodes, transition = episodes_lib.step(
            collector.env, key_env, run.episodes, actions, draw, cut=run.stagger == 1
        )
        records = {
            role: _joined(
                _record(agent, run, role, seat, choices[seat], memories[seat], transition)
                for seat in collector.seats(role)
            )
            for role, agent in recorded.items()
        }
        policies, pending, metrics = dict(run.policies), dict(run.pending), {}
        for k, (role, agent) in zip(
            jax.random.split(key_learn, 1 + len(learning)), learning.items(), strict=False
        ):
            decided = {
                seat: _transition(collector.env, run, seat, choices[seat].action, transition)
                for seat in collector.seats(role)
            }
            for seat in pending.keys() & decided.keys():
                goes_on = ~transition.time.alive[seat] & ~decided[seat].boundary
                pending[seat], decided[seat] = settle(pending[seat], decided[seat], goes_on)
            policies[role], metrics[role] = agent.update(run.policies[role], k, _joined(decided.values()))
        flow = _flow(run, transition)
        run = run.replace(
            policies=policies,
            pending=pending,
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
        role: Rollout(
            **record,
            carry=carries[role],
            last_value=_values(collector, run, role),
            last_skip=_waiting(collector, run, role),
        )
        for role, record in records.items()
    }
    learnt = {role: _mean_over_steps(values) for role, values in metrics.items()}
    return run, Collected(rollouts, learnt, flow, jnp.sum(quarantined))


def _flow(run: RunState, transition: episodes_lib.Stepped) -> Flow:
    """What begins and ends with one decision, `[E]`.

    An episode that begins before its environment's stagger is through may be broken off. It counts
    neither if it is nor if it ends in time, which the short ones do.
    """
    counts = run.stagger == 0
    finished = transition.finished
    return Flow(
        begins=run.reset & counts,
        tags=run.episodes.tags,
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
    score = env.spec.scores(transition.finished.results, role)
    success = jnp.zeros(alive.shape, bool) if score is None else score >= GOOD
    return Transition(
        obs=before.obs[role],
        action=action,
        reward=after.reward[role],
        discount=jnp.where(after.terminated[role], 0.0, 1.0),
        next_obs=after.obs[role],
        boundary=after.terminated[role] | after.truncated[role] | transition.reset_next[:, None],
        success=jnp.broadcast_to(success if success.ndim == 2 else success[:, None], alive.shape)
        & transition.finished.mask[:, None],
        alive=alive,
    )


def _record(agent: Agent, run: RunState, learner: str, role: str, choice, carry, transition) -> dict:
    before, after = run.episodes.time, transition.time
    over = transition.reset_next[:, None]
    waited = transition.waited.get(role)
    concerned = transition.acted[role] if waited is None else transition.acted[role] | waited
    truncated = after.truncated[role] & concerned
    return {
        "obs": observed(agent, before, role),
        "action": choice.action,
        "extras": choice.extras,
        "reward": after.reward[role],
        "reset": before.restarts(role, run.reset),
        "discount": jnp.where(after.terminated[role], 0.0, 1.0),
        "boundary": after.terminated[role] | after.truncated[role] | over,
        "bootstrap": _bootstrap(agent, run.policies[learner], truncated, after, role, carry),
        "alive": transition.acted[role],
        "skip": waited,
        "mask": before.action_mask.get(role),
    }


def _bootstrap(agent, state, truncated, after, role, carry) -> jax.Array | None:
    """Values `[E, A]` of final observations where truncated, computed for those environments only.

    They are taken inside the rollout because a recurrent critic needs the carry of that moment. None of an
    agent without a critic.
    """
    if agent.value is None:
        return None

    def value(inputs):
        obs, carry, mask = inputs
        reset = jnp.zeros(jax.tree.leaves(obs)[0].shape[:2], bool)
        return agent.value(state, obs, carry, reset, mask)

    inputs = (observed(agent, after, role), carry, after.action_mask.get(role))
    values = compute_rows(
        jnp.any(truncated, axis=1), value, inputs, jnp.zeros(truncated.shape), BOOTSTRAP_CHUNK
    )
    return jnp.where(truncated, values, 0.0)


def _waiting(collector: Collector, run: RunState, learner: str) -> jax.Array | None:
    """`[E, A]` bool; which of all that act with a learner's policy wait where the rollout ended."""
    waits = episodes_lib.waiting(collector.env.spec, run.episodes.running.tree)
    return _joined(waits[role] for role in collector.seats(learner)) if waits else None


def _values(collector: Collector, run: RunState, learner: str) -> jax.Array | None:
    """Values `[E, A]` of where the rollout ended, of all that act with a learner's policy.

    None where it has no critic.
    """
    time, agent, state = run.episodes.time, collector.agents[learner], run.policies[learner]
    if agent.value is None:
        return None

    def value(role):
        obs, reset = observed(agent, time, role), time.restarts(role, run.reset)
        return agent.value(state, obs, run.memories[role], reset, time.action_mask.get(role))

    return _joined(value(role) for role in collector.seats(learner))
