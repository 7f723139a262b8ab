"""Rollouts: T decisions in E environments, interleaved with the updates of replay learners."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algos.types import Agent, Rollout, Transition
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.envs.base import Environment, EnvSpec, TimeStep
from jaxmarl_echelon.envs.episodes import Finished, Flow
from jaxmarl_echelon.selfplay.credit import Credit, Story
from jaxmarl_echelon.training.controllers import Controller, action_spec, observed
from jaxmarl_echelon.training.play import decide
from jaxmarl_echelon.training.pools.meetings import meetings
from jaxmarl_echelon.training.pools.opponents import Seat, lead, score_of, split
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
      seat: the role that a pool plays; None without one.
      credits: learner's name to its reward transforms; empty without any.
      whole_games: whether turn games that are under way at the end of a rollout are broken off.
    """

    env: Environment
    agents: dict[str, Agent]
    controllers: dict[str, Controller]
    horizon: int
    segments: int = 1
    seat: Seat | None = None
    credits: Mapping[str, Credit] = MappingProxyType({})
    whole_games: bool = False

    def learning(self, when: str) -> dict[str, Agent]:
        """The agents that learn per `when`: "rollout" or "step"."""
        return {role: agent for role, agent in self.agents.items() if agent.learns == when}

    def seats(self, learner: str) -> tuple[str, ...]:
        """The roles that a learner controls and learns from, its own first."""
        others = (r for r, c in self.controllers.items() if c.policy == learner and r != learner)
        pooled = self.seat is not None and self.seat.owner == learner and self.seat.role != learner
        mirrors = pooled and self.seat.pool.settings.mirrored > 0
        return (learner, *others, *([self.seat.role] if mirrors else []))

    def part(self, role: str, tree: PyTree) -> PyTree:
        """Of arrays `[E, ...]` the environments in which a role's learner plays it, and learns."""
        if self.seat is None or self.seat.role != role:
            return tree
        return split(tree, self.seat.mirrored(jax.tree.leaves(tree)[0].shape[0]))[0]

    def memory(self, role: str, memories: dict[str, PyTree]) -> PyTree:
        """The memory of a role's learner, in the environments of `part`."""
        pooled = self.seat is not None and self.seat.role == role
        return memories[role].mirror if pooled else memories[role]


class Collected(NamedTuple):
    """One rollout.

    Attributes:
      rollouts: role name to Rollout, axes `[T, E, A]`, for agents that learn from rollouts.
      metrics: role name to metrics of the agents that learn in each step, averaged over their gradient
        steps; NaN without any.
      flow: starts and ends of episodes, `[T, E]`.
      quarantined: int32, number of resets because of a non-finite value.
      stories: role name to what its learner's reward transforms know of its rollout.
    """

    rollouts: dict[str, Rollout]
    metrics: dict[str, dict[str, jax.Array]]
    flow: Flow
    quarantined: jax.Array
    stories: Mapping[str, Story] = MappingProxyType({})


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
            obs=jax.tree.map(jnp.zeros_like, now.obs[role]),
            action=jnp.zeros((*alive.shape, action_spec(collector.env.spec.role(role).action).dimensions)),
            reward=jnp.zeros(alive.shape, jnp.float32),
            waits=jnp.zeros(alive.shape, bool),
        )
        for learner in collector.learning("step")
        for role in collector.seats(learner)
        for now, alive in [collector.part(role, (time, time.alive[role]))]
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
    met = meetings(collector.seat, collector.agents, run)

    def step(run, inputs):
        step_key, last = inputs
        key_act, key_env, key_learn = jax.random.split(step_key, 3)
        view = View(run.episodes.env, run.episodes.params, run.episodes.time)
        keys = jax.random.split(key_act, len(collector.controllers))
        memories, actions, choices = decide(
            collector.controllers, met.policies(run), keys, run.memories, view, run.reset
        )
        episodes, transition = episodes_lib.step(
            collector.env, key_env, run.episodes, actions, draw, cut=met.cut(run.stagger == 1, last)
        )
        records = {
            role: _joined(
                _record(
                    agent,
                    run.policies[role],
                    seat,
                    collector.part(seat, moment_of(run, transition)),
                    choices[seat],
                    collector.memory(seat, memories),
                )
                for seat in collector.seats(role)
            )
            for role, agent in recorded.items()
        }
        stories = {
            role: _joined(
                _story(collector.env.spec, seat, number, collector.part(seat, moment_of(run, transition)))
                for number, seat in enumerate(collector.seats(role))
            )
            for role in collector.credits
        }
        policies, pending, metrics = dict(run.policies), dict(run.pending), {}
        for k, (role, agent) in zip(
            jax.random.split(key_learn, 1 + len(learning)), learning.items(), strict=False
        ):
            decided = {
                seat: _transition(
                    collector.env,
                    seat,
                    collector.part(seat, moment_of(run, transition)),
                    choices[seat].action,
                )
                for seat in collector.seats(role)
            }
            for seat in (seat for seat in decided if seat in pending):
                alive = collector.part(seat, transition.time.alive[seat])
                goes_on = ~alive & ~decided[seat].boundary
                pending[seat], complete = settle(pending[seat], decided[seat], goes_on)
                sound = ~collector.part(seat, transition.quarantined)[:, None]
                decided[seat] = complete.replace(alive=complete.alive & sound)
            policies[role], metrics[role] = agent.update(run.policies[role], k, _joined(decided.values()))
        flow = met.tagged(flow_of(run, transition))
        run = run.replace(
            policies=policies,
            pending=pending,
            episodes=episodes,
            memories=memories,
            reset=transition.reset_next,
            stagger=jnp.maximum(run.stagger - 1, 0),
        )
        return run, (records, stories, metrics, flow, jnp.sum(transition.quarantined))

    def segment(run, inputs):
        carries = {
            role: _joined(collector.memory(seat, run.memories) for seat in collector.seats(role))
            for role in recorded
        }
        run, played = jax.lax.scan(step, run, inputs)
        return run, (carries, played)

    keys = jax.random.split(key, collector.horizon).reshape(collector.segments, -1)
    inputs = (keys, met.last(collector.horizon, collector.segments))
    run, (carries, played) = jax.lax.scan(segment, run, inputs, unroll=collector.segments == 1)
    records, stories, metrics, flow, quarantined = jax.tree.map(
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
    return run, Collected(rollouts, learnt, flow, jnp.sum(quarantined), stories)


class Moment(NamedTuple):
    """One decision of E environments: time steps before and after it, and what became of it.

    Attributes:
      before, after: time steps.
      reset: `[E]` bool; the episode begins with it.
      transition: see `episodes.Stepped`.
    """

    before: TimeStep
    after: TimeStep
    reset: jax.Array
    transition: episodes_lib.Stepped


def moment_of(run: RunState, transition: episodes_lib.Stepped) -> Moment:
    """The decision that led from a run's state to a transition."""
    return Moment(run.episodes.time, transition.time, run.reset, transition)


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
    """Concatenates arrays `[E, A, ...]` of several roles along the agent axis.

    Of different numbers of environments as columns `[C, 1, ...]`.
    """

    def join(*x):
        if len(x) == 1:
            return x[0]
        if len({one.shape[0] for one in x}) == 1:
            return jnp.concatenate(x, axis=1)
        return jnp.concatenate([one.reshape(-1, 1, *one.shape[2:]) for one in x])

    return jax.tree.map(join, *parts)


def _mean_over_steps(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Means of metrics `[T]`, weighted by gradient steps; NaN without any."""
    weight = metrics["gradient_steps"]
    total = jnp.sum(weight)

    def mean(values):
        summed = jnp.sum(jnp.where(weight > 0, values * weight, 0.0))
        return jnp.where(total > 0, summed / jnp.maximum(total, 1.0), jnp.nan)

    return {name: mean(values) for name, values in metrics.items()} | {"gradient_steps": total}


def _transition(env, role: str, moment: Moment, action: jax.Array) -> Transition:
    before, after, transition = moment.before, moment.after, moment.transition
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


def _record(agent: Agent, state: PyTree, role: str, moment: Moment, choice, carry) -> dict:
    before, after, transition = moment.before, moment.after, moment.transition
    over = transition.reset_next[:, None]
    waited = transition.waited.get(role)
    concerned = transition.acted[role] if waited is None else transition.acted[role] | waited
    truncated = after.truncated[role] & concerned
    return {
        "obs": observed(agent, before, role),
        "action": choice.action,
        "extras": choice.extras,
        "reward": after.reward[role],
        "reset": before.restarts(role, moment.reset),
        "discount": jnp.where(after.terminated[role], 0.0, 1.0),
        "boundary": after.terminated[role] | after.truncated[role] | over,
        "bootstrap": _bootstrap(agent, state, truncated, after, role, carry),
        "alive": transition.acted[role],
        "skip": waited,
        "mask": before.action_mask.get(role),
    }


def _story(spec: EnvSpec, role: str, number: int, moment: Moment) -> Story:
    """What transforms know of a decision of the learner's role of this number, `[E, A]`."""
    after, transition = moment.after, moment.transition
    acted, waited = transition.acted[role], transition.waited.get(role)
    concerned = acted if waited is None else acted | waited
    ended = after.terminated[role] | transition.finished.mask[:, None]
    score = jnp.broadcast_to(_won(spec, role, transition.finished)[:, None], acted.shape)
    return Story(jnp.full(acted.shape, number), concerned & ended, score)


def _won(spec: EnvSpec, role: str, finished: Finished) -> jax.Array:
    """`[E]`: 1 where a role has won a finished episode, 1/2 for draws, 0 where it has lost."""
    others = [one.name for one in spec.roles if one.name != role]
    if score_of(spec, role, finished) is None:
        return jnp.full(finished.mask.shape, 0.5)
    return 0.5 + 0.5 * jnp.sign(lead(spec, role, others[0] if len(others) == 1 else None, finished))


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
    seats = collector.seats(learner)
    return _joined(collector.part(role, waits[role]) for role in seats) if waits else None


def _values(collector: Collector, run: RunState, learner: str) -> jax.Array | None:
    """Values `[E, A]` of the observations after the rollout, of all agents of a learner.

    None without a critic.
    """
    time, agent, state = run.episodes.time, collector.agents[learner], run.policies[learner]
    if agent.value is None:
        return None

    def value(role):
        now, reset = collector.part(role, (time, run.reset))
        obs, reset = observed(agent, now, role), now.restarts(role, reset)
        carry = collector.memory(role, run.memories)
        return agent.value(state, obs, carry, reset, now.action_mask.get(role))

    return _joined(value(role) for role in collector.seats(learner))
