"""Rollouts: T decisions in E environments, interleaved with the updates of replay learners."""

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
# Scores from here on count as success, for replays that keep only successful episodes.
GOOD = 0.5


class Collector(NamedTuple):
    """Static inputs of a rollout.

    Attributes:
      env: the environment.
      agents: role name to its learner.
      controllers: role name to its controller.
      horizon: decisions T per rollout.
      segments: equal parts of a rollout; the recurrent state is stored at the start of each.
    """

    env: Environment
    agents: dict[str, Agent]
    controllers: dict[str, Controller]
    horizon: int
    segments: int = 1

    def learning(self, when: str) -> dict[str, Agent]:
        """The agents that learn per `when`: "rollout" or "step"."""
        return {role: agent for role, agent in self.agents.items() if agent.learns == when}

    def seats(self, learner: str) -> tuple[str, ...]:
        """The roles that a learner controls and learns from, its own first."""
        others = (r for r, c in self.controllers.items() if c.policy == learner and r != learner)
        return (learner, *others)


class Collected(NamedTuple):
    """One rollout.

    Attributes:
      rollouts: role name to Rollout, axes `[T, E, A]`, for agents that learn from rollouts.
      metrics: role name to metrics of the agents that learn in each step, averaged over their gradient
        steps; NaN without any.
      flow: starts and ends of episodes, `[T, E]`.
      quarantined: int32, number of resets because of a non-finite value.
    """

    rollouts: dict[str, Rollout]
    metrics: dict[str, dict[str, jax.Array]]
    flow: Flow
    quarantined: jax.Array


class Pending(NamedTuple):
    """One incomplete transition per agent: further rewards may still be credited to it.

    Attributes:
      obs: `[E, A, ...]` observation acted on.
      action: `[E, A, D]` in the learner's own units.
      reward: `[E, A]` accumulated so far.
      waits: `[E, A]` bool; a transition is pending.
    """

    obs: PyTree
    action: jax.Array
    reward: jax.Array
    waits: jax.Array


def no_pending(collector: Collector, time: TimeStep) -> dict[str, Pending]:
    """Empty `Pending` per role of the step learners; no entries unless `EnvSpec.late`."""
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
    """Accumulates delayed rewards into pending transitions and completes those whose agents act or end.

    Args:
      pending: pending transitions.
      transition: of this step; `alive` where an agent acted, `reward` whatever it received.
      goes_on: `[E, A]` bool; the agent's story is not over and it does not act next.

    Returns:
      the new pending transitions, and the complete ones of this step, at most one per agent.
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
    """Steps the environments T times, records rollouts and updates replay learners after each step.

    Args:
      collector: the static inputs.
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
            for seat in (seat for seat in decided if seat in pending):
                goes_on = ~transition.time.alive[seat] & ~decided[seat].boundary
                pending[seat], complete = settle(pending[seat], decided[seat], goes_on)
                sound = ~transition.quarantined[:, None]
                decided[seat] = complete.replace(alive=complete.alive & sound)
            policies[role], metrics[role] = agent.update(run.policies[role], k, _joined(decided.values()))
        flow = flow_of(run, transition)
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


def flow_of(run: RunState, transition: episodes_lib.Stepped) -> Flow:
    """Starts and ends of episodes at one decision, `[E]`.

    Episodes that start before their environment's stagger has elapsed are not counted, cut or not: the
    ones that end before the cut are the short ones, and would bias the statistics.
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
    """Concatenates arrays `[E, A, ...]` of several roles along the agent axis."""
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1) if len(x) > 1 else x[0], *parts)


def _mean_over_steps(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Means of metrics `[T]`, weighted by gradient steps; NaN without any."""
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
    """Values `[E, A]` of final observations where truncated, as sparse batched work; None without a critic.

    Computed inside the rollout because a recurrent critic needs the carry of that step.
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
    """`[E, A]` bool; agents of a learner that wait at the end of the rollout; None unless `EnvSpec.late`."""
    waits = episodes_lib.waiting(collector.env.spec, run.episodes.running.tree)
    return _joined(waits[role] for role in collector.seats(learner)) if waits else None


def _values(collector: Collector, run: RunState, learner: str) -> jax.Array | None:
    """Values `[E, A]` of the observations after the rollout, of all agents of a learner.

    None without a critic.
    """
    time, agent, state = run.episodes.time, collector.agents[learner], run.policies[learner]
    if agent.value is None:
        return None

    def value(role):
        obs, reset = observed(agent, time, role), time.restarts(role, run.reset)
        return agent.value(state, obs, run.memories[role], reset, time.action_mask.get(role))

    return _joined(value(role) for role in collector.seats(learner))
