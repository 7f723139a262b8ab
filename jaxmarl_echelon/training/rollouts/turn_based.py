"""Rollouts of turn-based games with one dense row per decision of a seat.

Plies are assigned in rotation to N phase agents: ply p is decided by phase agent p mod N in every
environment, whatever seat this is in the environment's current game. A phase agent keeps its seat until the
game ends, and has one row per N plies: the decision, and all rewards of its seat until its next one. Networks
compute one row per ply and environment, instead of one for each of the N seats. See
docs/reference/trainer.md 12.3.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos.types import PyTree, Rollout
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.envs.base import EnvSpec, Role
from jaxmarl_echelon.envs.episodes import EpisodeEvents
from jaxmarl_echelon.selfplay import diversity
from jaxmarl_echelon.selfplay.credit import TrajectoryInfo
from jaxmarl_echelon.selfplay.diversity import MoveHistory
from jaxmarl_echelon.training.acting.controllers import (
    Controller,
    RecordedDecision,
    from_space,
    learner_observations,
)
from jaxmarl_echelon.training.acting.decisions import ActingSeat, act_in_turn, for_all_seats, show_due_seat
from jaxmarl_echelon.training.acting.random_streams import teacher_key
from jaxmarl_echelon.training.acting.state import ControllerView, RunState
from jaxmarl_echelon.training.opponents.pool_role import TAG
from jaxmarl_echelon.training.rollouts.collect import episode_flow
from jaxmarl_echelon.training.rollouts.spec import CollectedRollout, RolloutSpec


class PlyOutcome(NamedTuple):
    """Outcome of one ply for all phase agents.

    Attributes:
      reward: `[E, N]` reward of each phase agent's seat.
      ended: `[E]` bool; the game ended by its rules.
      broken: `[E]` bool; the game was discarded.
      score: `[E, N]` fraction of the other seats that each phase agent's seat has beaten where the game
        ended; None if not requested.
      won_by_invalid: `[E, N]` 1 where the game ended by another seat's invalid action and each phase agent's
        seat won, else 0; None if not requested or if no action is invalid.
    """

    reward: jax.Array
    ended: jax.Array
    broken: jax.Array
    score: jax.Array | None = None
    won_by_invalid: jax.Array | None = None


class DecisionOutcome(NamedTuple):
    """Outcomes of decisions in T super-steps, up to the same phase agent's next ply, `[T, N, E]` each.

    Attributes:
      reward: sum of rewards from the ply itself on, within its game.
      ended: bool; its game ended by its rules.
      broken: bool; its game was discarded.
      score: fraction of the other seats that its seat has beaten where its game ended; None if not
        requested.
      won_by_invalid: bool; its seat won by another's invalid action; None if not requested or if no action
        is invalid.
    """

    reward: jax.Array
    ended: jax.Array
    broken: jax.Array
    score: jax.Array | None = None
    won_by_invalid: jax.Array | None = None


class SeatPolicy(NamedTuple):
    """Assignment of policies to phase agents, and selection of the decisions that are learnt from.

    Attributes:
      act: `(key, run, due, phase) -> (memories, action [E, 1, ...], record)`: decides for phase agent
        `phase`, int32, in every environment. `record` is the result of `record_decision`, leaves `[M, 1,
        ...]`, for the M environments in which that phase agent learns.
      pick: `(x [T, N, E, ...]) -> [T, N * M, ...]`, selects the columns of these decisions by phase agent.
      carry: `(memories) -> carry`, the learner's memories in these columns, leaves `[N * M, 1, ...]`.
      cut: `[E]` bool; games truncated after the last ply because their opponents change; None if none are.
      tagged: `(flow, phase, length [E]) -> flow`, adds tags; None if no tags are added.
      waits: `(run, phase) -> [E]` bool; games whose start is delayed beyond this ply, which passes without a
        decision like a forced ply. None if no game is delayed.
      after: `(run, flow, phase, length [E]) -> run`, applied after every ply; None for no change.
      learning: `(x [E, ...], phase) -> [M, ...]`, the environments of `act`'s record; None for all.
    """

    act: Callable
    pick: Callable
    carry: Callable
    cut: jax.Array | None = None
    tagged: Callable | None = None
    waits: Callable | None = None
    after: Callable | None = None
    learning: Callable | None = None


def uses_turn_based_rollout(collector: RolloutSpec) -> bool:
    """Whether this module collects the rollouts: turn-based games without off-policy learners."""
    return collector.env.spec.turns > 0 and not collector.learning("step")


def self_play_seats(collector: RolloutSpec) -> SeatPolicy:
    """Builds the table of pure self-play: the learner plays and learns from all phase agents, `[N * E]`."""
    (role,) = collector.env.spec.roles
    controller = collector.controllers[role.name]

    def act(key, run, now, phase):
        policy = run.policies[controller.policy]
        memories = jax.tree.map(lambda x: x[:, :, None], run.memories[role.name])
        memories, action, choice = act_in_turn(controller, key, policy, memories, now, phase)
        memories = jax.tree.map(lambda x: x[:, :, 0], memories)
        return {role.name: memories}, action, record_decision(collector, role.name, now, choice)

    def carry(memories):
        return jax.tree.map(
            lambda x: merge_phases(jnp.moveaxis(x, 1, 0)[None])[0][:, None], memories[role.name]
        )

    return SeatPolicy(act, merge_phases, carry)


def initial_phase_memories(controller: Controller, num_envs: int, seats: int) -> PyTree:
    """Returns a learner's initial memories `[E, N, ...]`, one for each phase agent."""
    return jax.tree.map(lambda x: jnp.repeat(x, seats, axis=1), controller.init(num_envs))


def hold_environments(now: ActingSeat, held: jax.Array) -> ActingSeat:
    """Marks all agents as not alive in environments `held [E]`, whose next game has not begun yet."""
    time = now.view.time
    alive = {role: flag & ~held[:, None] for role, flag in time.alive.items()}
    return now._replace(view=now.view._replace(time=time.replace(alive=alive)), held=held)


def record_decision(collector: RolloutSpec, role: str, now: ActingSeat, choice: RecordedDecision) -> dict:
    """Record of a decision for a Rollout, without its outcome, leaves `[E, 1, ...]`.

    With reward transforms it also has `seat` and `held`.
    """
    time = now.view.time
    held = (jnp.zeros_like(now.reset) if now.held is None else now.held)[:, None]
    told = {"seat": now.seat[:, None], "held": held} if collector.credits else {}
    return told | {
        "obs": learner_observations(collector.agents[role], time, role),
        "action": choice.action,
        "extras": choice.extras,
        "reset": now.reset[:, None],
        "alive": time.alive[role],
        # A row before the game begins follows no decision that its reward could be credited to.
        "skip": ~time.alive[role] & ~held,
        "mask": time.action_mask.get(role),
    }


def ask_teacher_of_seat(
    collector: RolloutSpec, key: jax.Array, memories: PyTree, now: ActingSeat, phase: jax.Array
) -> tuple[PyTree, jax.Array | None]:
    """Asks the scripted teacher what it would do for the acting seats.

    Args:
      collector: the static inputs.
      key: key of the learner's decisions.
      memories: as in `RunState.teachers`, one for each phase agent.
      now: the acting seats.
      phase: int32, the phase agent that decides.

    Returns:
      the memories after the ply, and the actions `[E, 1, D]` in the learner's units; None without a teacher.
    """
    (role,) = collector.env.spec.roles
    if role.name not in collector.teachers:
        return memories, None
    given = collector.teachers[role.name], teacher_key(key), None, memories[role.name]
    memory, action, _ = act_in_turn(*given, now, phase)
    return {role.name: memory}, from_space(role.action, action)


def collect_turn_based(
    collector: RolloutSpec, run: RunState, key: jax.Array, draw, table: SeatPolicy | None = None
) -> tuple[RunState, CollectedRollout]:
    """Plays T super-steps of N plies in E environments; arguments are as for `collect.collect_rollout`.

    `table` assigns policies to the phase agents; by default the learner plays all of them.

    The learner's rollout has axes `[T, N * M, 1]`. The outcome of the last row of each column is incomplete
    unless its game ends within it, or all games end with the rollout: only its value is used, in the previous
    row's return.
    """
    spec, table = collector.env.spec, self_play_seats(collector) if table is None else table
    (role,), turns = spec.roles, spec.turns
    broken_off = jnp.ones_like(run.reset) if collector.whole_games else table.cut

    def ply(run, inputs):
        phase, last, step_key = inputs
        key_act, key_env = jax.random.split(step_key)
        length = run.episodes.running.tree.sums.length
        now = show_due_seat(
            ControllerView(run.episodes.env, run.episodes.params, run.episodes.time), length, turns
        )
        held = None if table.waits is None else table.waits(run, phase)
        now = now if held is None else hold_environments(now, held)
        memories, action, record = table.act(key_act, run, now, phase)
        watching, taught = ask_teacher_of_seat(collector, key_act, run.teachers, now, phase)
        if taught is not None:
            record["taught"] = taught if table.learning is None else table.learning(taught, phase)
        actions = {role.name: for_all_seats(action, turns)}
        episodes, transition = episodes_lib.step_episodes(
            collector.env, key_env, run.episodes, actions, draw, cut=cut(last), held=held
        )
        told = ply_outcome(spec, transition, length, phase, scored=bool(collector.credits))
        flow = episode_flow(run, transition)
        begins_later = transition.reset_next
        if held is not None:
            flow, begins_later = flow.replace(begins=flow.begins & ~held), begins_later | held
        if table.tagged is not None:
            flow = table.tagged(flow, phase, length)
        if table.after is not None:
            run = table.after(run, flow, phase, length)
        if run.plays is not None:
            run = run.replace(plays=record_moves(role, run.plays, now, action, flow))
        run = run.replace(episodes=episodes, memories=memories, teachers=watching, reset=begins_later)
        return run, (record, told, flow, transition.quarantined)

    def cut(last):
        return None if last is None else broken_off & last

    def segment(run, inputs):
        carry = table.carry(run.memories)
        run, played = jax.lax.scan(ply, run, inputs)
        return run, (carry, played)

    plies = collector.horizon * turns
    keys = jax.random.split(key, plies).reshape(collector.segments, -1)
    phases = (jnp.arange(plies) % turns).reshape(collector.segments, -1)
    last = None if broken_off is None else (jnp.arange(plies) == plies - 1).reshape(collector.segments, -1)
    inputs = (phases, last, keys)
    run, (carries, played) = jax.lax.scan(segment, run, inputs, unroll=collector.segments == 1)
    record, told, flow, quarantined = jax.tree.map(lambda x: x.reshape((plies,) + x.shape[2:]), played)
    record = jax.tree.map(lambda x: merge_phases(x.reshape((-1, turns) + x.shape[1:])), record)
    paid = jax.tree.map(lambda x: table.pick(x)[..., None], accumulate_outcomes(told))
    seat, held = (record.pop(name, None) for name in ("seat", "held"))
    rollout = assemble_rollout(record, paid, carries, whole_games=collector.whole_games)
    # A game that began after the learner's ply and ended before its next one is no trajectory of it.
    ended = paid.ended if held is None else paid.ended & ~held
    story = TrajectoryInfo(seat, ended, paid.score, won_by_invalid=paid.won_by_invalid)
    stories = dict.fromkeys(collector.credits, story)
    return run, CollectedRollout({role.name: rollout}, {}, flow, quarantined, stories)


def record_moves(
    role: Role, plays: MoveHistory, now: ActingSeat, action: jax.Array, flow: EpisodeEvents
) -> MoveHistory:
    """Adds the moves of a ply to the record of moves; `action` is `[E, 1, ...]`."""
    moves = diversity.encode_actions(role.action, action[:, 0])
    moves = jnp.where(now.view.time.alive[role.name][:, 0], moves, diversity.NO_MOVE)
    return diversity.record_ply(plays, moves, flow.finished.mask, flow.tags[TAG], flow.over)


def ply_outcome(
    spec: EnvSpec,
    transition: episodes_lib.BatchTransition,
    length: jax.Array,
    phase: jax.Array,
    *,
    scored: bool = False,
) -> PlyOutcome:
    """Computes the outcome of a ply for all phase agents.

    Args:
      spec: spec of the environment.
      transition: the ply.
      length: `[E]` plies of each game before it.
      phase: int32, the phase agent that decided.
      scored: whether to compute the scores of ended games, and who won by an invalid action.
    """
    (role,), turns = spec.roles, spec.turns
    # Phase agent q has the seat (q - first) mod N, and the game began in the phase (phase - length) mod N.
    seats = (jnp.arange(turns) - phase + length[:, None]) % turns
    ended = jnp.all(transition.time.terminated[role.name], axis=1)
    results = transition.finished.results

    def by_phase(values):
        return jnp.take_along_axis(values, seats, axis=1)

    invalid = spec.won_by_invalid if scored else None
    return PlyOutcome(
        reward=by_phase(transition.time.reward[role.name]),
        ended=ended,
        # Discarded for other reasons than its end: a value that is not finite, or a change of opponent.
        broken=transition.reset_next & ~ended,
        score=by_phase(spec.beaten(results)) if scored else None,
        won_by_invalid=None if invalid is None else by_phase(results[invalid]),
    )


def accumulate_outcomes(told: PlyOutcome) -> DecisionOutcome:
    """Accumulates the outcomes of the plies `[T * N, E]` of T super-steps, from each decision to the next."""
    turns = told.reward.shape[-1]
    everyone = [jnp.broadcast_to(x[..., None], told.reward.shape) for x in (told.ended, told.broken)]
    total = jnp.zeros_like(select_own_plies(told.reward, 0))
    ends: list[jax.Array] = []
    ended = broken = jnp.zeros(total.shape, bool)
    for ahead in range(turns):
        running = ~(ended | broken)
        now_ended, now_broken = (select_own_plies(x, ahead) for x in everyone)
        total = total + jnp.where(running, select_own_plies(told.reward, ahead), 0.0)
        ends.append(running & now_ended)
        ended, broken = ended | (running & now_ended), broken | (running & now_broken)

    def at_end(x):
        return sum(jnp.where(here, select_own_plies(x, ahead), 0.0) for ahead, here in enumerate(ends))

    score = None if told.score is None else at_end(told.score)
    won = None if told.won_by_invalid is None else at_end(told.won_by_invalid) > 0
    return DecisionOutcome(total, ended, broken, score, won)


def select_own_plies(x: jax.Array, ahead: int) -> jax.Array:
    """Selects from `x [T * N, E, N]` each phase agent's values `ahead` plies after its own: `[T, N, E]`."""
    turns = x.shape[-1]
    later = jnp.concatenate([x[ahead:], jnp.zeros_like(x[:ahead])])
    return jnp.stack([later[phase::turns, :, phase] for phase in range(turns)], axis=1)


def merge_phases(x: jax.Array) -> jax.Array:
    """Merges the axes of phase agents and environments: `[T, N, M, ...]` to `[T, N * M, ...]`."""
    return x.reshape((x.shape[0], -1) + x.shape[3:])


def assemble_rollout(
    record: dict, paid: DecisionOutcome, carries: PyTree, *, whole_games: bool = False
) -> Rollout:
    """Combines decisions and outcomes into a learner's rollout of C columns.

    Args:
      record: results of `record_decision`, leaves `[T, C, 1, ...]`.
      paid: outcomes, `[T, C, 1]`.
      carries: memories `[k, C, 1, ...]` before each segment.
      whole_games: whether all games are over after the last row.
    """
    value, broken = record["extras"].get("value"), find_broken_decisions(paid, record["skip"])
    followed = {
        # Decisions whose game was discarded are not learnt from.
        "alive": record["alive"] & ~broken,
        "skip": record["skip"] & ~broken,
        "reward": paid.reward,
        "discount": jnp.where(paid.ended, 0.0, 1.0),
        "boundary": paid.ended | broken,
        "bootstrap": None if value is None else jnp.where(broken, value, 0.0),
    }
    last = jnp.full(paid.reward.shape[1:], not whole_games)
    last_value = None if value is None else jnp.zeros(last.shape)
    return Rollout(**record | followed, carry=carries, last_value=last_value, last_skip=last)


def find_broken_decisions(paid: DecisionOutcome, waits: jax.Array) -> jax.Array:
    """Marks the rows `[T, C, 1]` whose game was discarded before the seat's next decision.

    Args:
      paid: outcomes, `[T, C, 1]`.
      waits: bool `[T, C, 1]`, rows in which the seat waited for its turn.
    """

    def step(later, row):
        broken, ended, waits = row
        broken = broken | (later & ~ended)
        return broken & waits, broken

    rows = paid.broken, paid.ended, waits
    return jax.lax.scan(step, jnp.zeros_like(waits[0]), rows, reverse=True)[1]
