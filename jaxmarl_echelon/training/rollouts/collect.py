"""Rollouts: T decisions in E environments, interleaved with the updates of replay learners.

See docs/reference/trainer.md 12.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.metrics import mean_over_steps
from algos.types import Agent, PyTree, Rollout
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.envs.episodes import EpisodeEvents, Finished
from jaxmarl_echelon.selfplay.credit import TrajectoryInfo
from jaxmarl_echelon.training.acting.controllers import from_space, learner_observations
from jaxmarl_echelon.training.acting.decisions import Decisions, decide_for_roles
from jaxmarl_echelon.training.acting.random_streams import teacher_key
from jaxmarl_echelon.training.acting.state import ControllerView, RunState
from jaxmarl_echelon.training.opponents.pool_role import role_score, score_margin
from jaxmarl_echelon.training.opponents.schedule import OpponentSchedule, make_opponent_schedule
from jaxmarl_echelon.training.rollouts.spec import (
    CollectedRollout,
    RolloutSpec,
    StepRecord,
    concatenate_roles,
    make_step_record,
)
from jaxmarl_echelon.training.rollouts.transitions import make_transition, settle_pending
from physics.sparse_batch import compute_rows, on_accelerator

# Environments per chunk of values of final observations, at least; and the number of agents times numbers of
# the learner's state up to which an accelerator computes those of all agents, in less time than a loop takes.
BOOTSTRAP_CHUNK = 64
BOOTSTRAP_ALL = 1e9


def collect_rollout(
    collector: RolloutSpec, run: RunState, key: jax.Array, draw
) -> tuple[RunState, CollectedRollout]:
    """Steps the environments T times, records rollouts and updates replay learners after each step.

    Args:
      collector: the static inputs.
      run: the run; its episodes, memories, reset flags, scripted teachers and replay learners are advanced.
      key: typed random key.
      draw: `(key) -> EpisodeTask`, draws the parameters of a new episode.

    Returns:
      the advanced run and the rollout.
    """
    recorded = collector.learning("rollout")
    met = make_opponent_schedule(collector.seat, collector.agents, run)
    step = partial(_step, collector, met, draw)

    def segment(run, inputs):
        carries = {
            role: concatenate_roles(collector.memory(seat, run.memories) for seat in collector.seats(role))
            for role in recorded
        }
        run, played = collectives.run_in_order(partial(jax.lax.scan, step), run, inputs)
        return run, (carries, played)

    keys = jax.random.split(key, collector.horizon).reshape(collector.segments, -1)
    inputs = (keys, met.last(collector.horizon, collector.segments))
    loop = partial(jax.lax.scan, segment, unroll=collector.segments == 1)
    run, (carries, played) = collectives.run_in_order(loop, met.start(run), inputs)
    run = met.end(run)
    records, infos, metrics, flow, quarantined = jax.tree.map(
        lambda x: x.reshape((collector.horizon,) + x.shape[2:]), played
    )
    rollouts = {
        role: Rollout(
            **record,
            carry=carries[role],
            last_value=_values(collector, run, role),
            last_skip=_waiting(collector, run, role),
            last_alive=_acting(collector, run, role),
        )
        for role, record in records.items()
    }
    learnt = {role: mean_over_steps(values) for role, values in metrics.items()}
    return run, CollectedRollout(rollouts, learnt, flow, quarantined, infos)


class _DecidedStep(NamedTuple):
    """One step of E environments: the decisions, the actions of scripted teachers by role, and its record."""

    decisions: Decisions
    taught: dict[str, jax.Array]
    moment: StepRecord


def _step(
    collector: RolloutSpec, met: OpponentSchedule, draw, run: RunState, inputs
) -> tuple[RunState, tuple]:
    """Decides and steps once, and updates replay learners; returns the run and the rows of this decision."""
    step_key, last = inputs
    key_act, key_env, key_learn = jax.random.split(step_key, 3)
    run = met.begin(run, key_act)
    view = ControllerView(run.episodes.env, run.episodes.params, run.episodes.time)
    keys = jax.random.split(key_act, len(collector.controllers))
    decisions = decide_for_roles(
        collector.controllers, met.policies(run), keys, run.memories, view, run.reset
    )
    watching, taught = ask_teachers(collector, key_act, run, view)
    episodes, transition = episodes_lib.step_episodes(
        collector.env, key_env, run.episodes, decisions.actions, draw, cut=met.cut(run, last)
    )
    decided = _DecidedStep(decisions, taught, make_step_record(run, transition))
    records, infos = _records(collector, run, decided), _trajectory_infos(collector, decided)
    policies, pending, metrics = _learn_from_step(collector, run, key_learn, decided)
    flow = met.tagged(run, episode_flow(run, transition))
    run = run.replace(
        policies=policies,
        pending=pending,
        episodes=episodes,
        memories=decisions.memories,
        teachers=watching,
        reset=transition.reset_next,
        stagger=jnp.maximum(run.stagger - 1, 0),
    )
    return run, (records, infos, metrics, flow, transition.quarantined)


def _records(collector: RolloutSpec, run: RunState, decided: _DecidedStep) -> dict[str, dict]:
    """Rows of the Rollouts of all learners that learn from rollouts, by role."""

    def record(agent, role, seat):
        return _record(
            agent,
            run.policies[role],
            seat,
            collector.part(seat, decided.moment),
            decided.decisions.choices[seat],
            collector.memory(seat, decided.decisions.memories),
            turns=collector.env.spec.turns > 0,
            of_team=role in collector.teams,
            taught=collector.part(seat, decided.taught[seat]) if seat in decided.taught else None,
        )

    return {
        role: concatenate_roles(record(agent, role, seat) for seat in collector.seats(role))
        for role, agent in collector.learning("rollout").items()
    }


def _trajectory_infos(collector: RolloutSpec, decided: _DecidedStep) -> dict[str, TrajectoryInfo]:
    """Inputs of the reward transforms of all learners that have some, by role."""

    def info(number, seat, scored):
        moment = collector.part(seat, decided.moment)
        return _trajectory_info(collector.env.spec, seat, number, moment, scored=scored)

    return {
        role: concatenate_roles(
            info(number, seat, credit.scored) for number, seat in enumerate(collector.seats(role))
        )
        for role, credit in collector.credits.items()
    }


@jax.named_scope("learn")
def _learn_from_step(
    collector: RolloutSpec, run: RunState, key: jax.Array, decided: _DecidedStep
) -> tuple[dict[str, PyTree], dict[str, PyTree], dict[str, dict[str, jax.Array]]]:
    """Updates replay learners with one decision; returns policies, pending transitions and metrics."""
    policies, pending, metrics = dict(run.policies), dict(run.pending), {}
    learning = collector.learning("step")
    keys = jax.random.split(key, 1 + len(learning))
    for k, (role, agent) in zip(keys, learning.items(), strict=False):
        gamma = 1.0 if collector.env.spec.turns > 0 else agent.gamma(run.policies[role])
        columns = []
        for seat in collector.seats(role):
            moment = collector.part(seat, decided.moment)
            one = make_transition(collector.env, seat, moment, decided.decisions.choices[seat].action)
            if seat in pending:
                cut = moment.transition.cut_while_out.get(seat)
                pending[seat], one = settle_pending(pending[seat], one, ~moment.after.alive[seat], gamma, cut)
                one = one.replace(alive=one.alive & ~moment.transition.quarantined[:, None])
            columns.append(one)
        policies[role], metrics[role] = agent.update(run.policies[role], k, concatenate_roles(columns))
    return policies, pending, metrics


def ask_teachers(
    collector: RolloutSpec, key: jax.Array, run: RunState, view: ControllerView
) -> tuple[PyTree, dict[str, jax.Array]]:
    """Asks scripted teachers what they would do in the states that the learners have reached.

    Args:
      collector: the static inputs.
      key: key of the learners' decisions.
      run: the run before these decisions.
      view: the environments before these decisions.

    Returns:
      the memories of the teachers after the decision, and their actions `[E, A, D]` in the learners' units by
      role name.
    """
    if not collector.teachers:
        return run.teachers, {}
    keys = jax.random.split(teacher_key(key), len(collector.teachers))
    memories, actions, _ = decide_for_roles(collector.teachers, {}, keys, run.teachers, view, run.reset)
    spec = collector.env.spec
    return memories, {role: from_space(spec.role(role).action, x) for role, x in actions.items()}


def episode_flow(run: RunState, transition: episodes_lib.BatchTransition) -> EpisodeEvents:
    """Starts and ends of episodes at one decision, `[E]`.

    Episodes that start before their environment's stagger has elapsed are not counted, truncated or not:
    those that end before the truncation are short, and would bias the statistics.
    """
    counts = run.stagger == 0
    finished = transition.finished
    return EpisodeEvents(
        begins=run.reset & counts,
        tags=run.episodes.tags,
        over=transition.reset_next,
        finished=finished.replace(mask=finished.mask & counts),
    )


def _record(
    agent: Agent,
    state: PyTree,
    role: str,
    moment: StepRecord,
    choice,
    carry,
    *,
    turns: bool,
    of_team: bool,
    taught: jax.Array | None,
) -> dict:
    """Row of a learner's Rollout for one decision, without `carry` and what follows the last one.

    Where a limit cuts an episode, agents that are out by then have a value, but no share in that of a team.
    """
    before, after, transition = moment.before, moment.after, moment.transition
    over = transition.reset_next[:, None]
    waited = transition.waited.get(role)
    concerned = transition.acted[role] if waited is None else transition.acted[role] | waited
    truncated = after.truncated[role] & concerned
    gone = transition.cut_while_out.get(role) if of_team else None
    ended = after.terminated[role] if gone is None else after.terminated[role] | gone
    return {
        "obs": learner_observations(agent, before, role),
        "action": choice.action,
        "extras": choice.extras,
        "reward": after.reward[role],
        "reset": before.restarts(role, moment.reset),
        "discount": jnp.where(ended, 0.0, 1.0),
        "boundary": after.terminated[role] | after.truncated[role] | over,
        "bootstrap": _bootstrap(agent, state, truncated, after, role, carry),
        "alive": transition.acted[role],
        "skip": waited if turns else None,
        "out": None if turns else waited,
        "mask": before.action_mask.get(role),
        "taught": taught,
    }


def _trajectory_info(
    spec: EnvSpec, role: str, number: int, moment: StepRecord, *, scored: bool
) -> TrajectoryInfo:
    """Inputs of the reward transforms for one decision of the learner's role `number`, `[E, A]`.

    If transforms use scores (`scored`), an agent's decisions are rewarded at the end of the episode, even if
    its own trajectory ended before: the result is known only then. An episode in which the other role had no
    agent has no result.
    """
    after, transition = moment.after, moment.transition
    acted, waited = transition.acted[role], transition.waited.get(role)
    finished = transition.finished.mask[:, None]
    over = jnp.broadcast_to(transition.reset_next[:, None], acted.shape)
    score = jnp.broadcast_to(_won(spec, role, transition.finished), acted.shape)
    if scored:
        ended = finished & transition.finished.present[role] & ~jnp.isnan(score)
    else:
        concerned = acted if waited is None else acted | waited
        ended = concerned & (after.terminated[role] | finished)
        over = over | after.terminated[role] | after.truncated[role]
    return TrajectoryInfo(jnp.full(acted.shape, number), ended, score, over)


def _won(spec: EnvSpec, role: str, finished: Finished) -> jax.Array:
    """Result of a finished episode, `[E, 1]`, or `[E, A]` by agent: 1 for a win, 1/2 a draw, 0 a loss.

    NaN where a role that is compared by its agents' scores had no agent.

    A win is a higher score than that of the only other role if that role has a score, else a score above 1/2.
    """
    own = spec.scores(finished.results, role)
    if own is None:
        return jnp.full((finished.mask.shape[0], 1), 0.5)
    others = [one.name for one in spec.roles if one.name != role]
    if len(others) == 1 and role_score(spec, others[0], finished) is not None:
        ahead = score_margin(spec, role, others[0], finished)[:, None]
    else:
        ahead = own.reshape(own.shape[0], -1) - 0.5
    return 0.5 + 0.5 * jnp.sign(ahead)


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

    inputs = (learner_observations(agent, after, role), carry, after.action_mask.get(role))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state))
    if on_accelerator() and truncated.size * numbers < BOOTSTRAP_ALL:
        return jnp.where(truncated, value(inputs), 0.0)
    room = max(BOOTSTRAP_CHUNK, truncated.shape[0] // 64)
    values = compute_rows(jnp.any(truncated, axis=1), value, inputs, jnp.zeros(truncated.shape), room)
    return jnp.where(truncated, values, 0.0)


def _waiting(collector: RolloutSpec, run: RunState, learner: str) -> jax.Array | None:
    """Mask `[E, A]` of a learner's agents that wait for their turn after the rollout; None without turns."""
    if not collector.env.spec.turns:
        return None
    waits = episodes_lib.awaiting_reward(collector.env.spec, run.episodes.running.tree)
    seats = collector.seats(learner)
    return concatenate_roles(collector.part(role, waits[role]) for role in seats) if waits else None


def _acting(collector: RolloutSpec, run: RunState, learner: str) -> jax.Array | None:
    """Mask `[E, A]` of a learner's agents that act after the rollout; None but for learners of teams."""
    if learner not in collector.teams:
        return None
    alive = run.episodes.time.alive
    return concatenate_roles(collector.part(role, alive[role]) for role in collector.seats(learner))


def _values(collector: RolloutSpec, run: RunState, learner: str) -> jax.Array | None:
    """Values `[E, A]` of the observations after the rollout, of all agents of a learner.

    None without a critic.
    """
    time, agent, state = run.episodes.time, collector.agents[learner], run.policies[learner]
    if agent.value is None:
        return None

    def value(role):
        now, reset = collector.part(role, (time, run.reset))
        obs, reset = learner_observations(agent, now, role), now.restarts(role, reset)
        carry = collector.memory(role, run.memories)
        return agent.value(state, obs, carry, reset, now.action_mask.get(role))

    return concatenate_roles(value(role) for role in collector.seats(learner))
