"""A run's state: before the first update, after a restore, and reduced to what acting needs."""

import dataclasses

import jax
import jax.numpy as jnp

from algos import collectives
from algos.types import Agent, Hyper, PyTree, mark_all_shared
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.selfplay import diversity
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay.league import LeagueMembership
from jaxmarl_echelon.training.acting import episode_statistics
from jaxmarl_echelon.training.acting.decisions import repeat_for_seats
from jaxmarl_echelon.training.acting.random_streams import InitialKeys, split_initial
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.opponents import seat_rounds
from jaxmarl_echelon.training.program.agents import (
    fixed_policy_name,
)
from jaxmarl_echelon.training.program.world import World
from jaxmarl_echelon.training.rollouts import turn_based
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec
from jaxmarl_echelon.training.rollouts.transitions import empty_pending


def reduce_to_policy(agents: dict[str, Agent], run: RunState) -> RunState:
    """Reduces a run to the parts that acting and evaluation need: no replay, optimisers or episodes."""
    policies = {
        name: agents[name].policy_state(state) if name in agents else state
        for name, state in run.policies.items()
    }
    return run.replace(
        key=None,
        policies=policies,
        memories=None,
        reset=None,
        episodes=None,
        stagger=None,
        tickets=None,
        recent=None,
        pending=None,
        pool=None,
        plays=None,
        had=None,
        credit=None,
        teachers=None,
        league=None,
    )


def sharded_leaves(agents: dict[str, Agent], run: RunState) -> RunState:
    """Marks the arrays of a run that have an axis of shards; see `Program.local`."""
    marks = mark_all_shared(run)
    policies = {
        name: agents[name].local(state) if name in agents else marks.policies[name]
        for name, state in run.policies.items()
    }
    parts = ("memories", "reset", "episodes", "stagger", "pending", "plays", "had", "teachers")
    mine = {part: jax.tree.map(lambda _x: True, getattr(marks, part)) for part in parts}
    credit = marks.credit and {role: one.replace(running=True) for role, one in marks.credit.items()}
    return marks.replace(policies=policies, credit=credit, **mine)


def apply_config_to_restored(
    agents: dict[str, Agent],
    curriculum: Curriculum,
    run: RunState,
    course: PyTree = None,
    hyper: dict[str, Hyper] | None = None,
) -> RunState:
    """Applies the configuration's hyper-parameters and tasks to a restored run; all else is bit-identical.

    The new arrays are copies: the state is donated, and the curriculum's initial state may hold the
    environment's own arrays. `course` and `hyper` replace the configuration's, see `Program.init`.
    """
    policies = replace_hyper(run.policies, collect_hyper(agents) if hyper is None else hyper)
    fresh = copy_arrays(curriculum.init() if course is None else course)
    others = run.league
    if others is not None:
        others = jax.vmap(lambda one: apply_config_to_restored(agents, curriculum, one, fresh, hyper))(others)
    tickets, episodes = run.tickets, run.episodes
    if tickets is not None:
        tickets = curriculum.requeued(tickets, run.curriculum, fresh)
    if episodes is not None:
        # The last decision may have drawn episodes for the task of before, which begin with the next one.
        tags = curriculum.retagged(episodes.tags, run.curriculum, fresh)
        waiting = {name: jnp.where(run.reset, tag, episodes.tags[name]) for name, tag in tags.items()}
        episodes = episodes.with_tags(waiting)
    course = curriculum.retasked(run.curriculum, fresh)
    return run.replace(
        policies=policies, curriculum=course, tickets=tickets, episodes=episodes, league=others
    )


def collect_hyper(agents: dict[str, Agent]) -> dict[str, Hyper]:
    """Returns the configured hyper-parameters of all learners that have any, by name."""
    return {name: one.hyper() for name, one in agents.items() if one.hyper is not None}


def replace_hyper(policies: dict[str, PyTree], hyper: dict[str, Hyper]) -> dict[str, PyTree]:
    """Replaces the hyper-parameters of the policies named by `hyper` by copies of its arrays."""
    return {
        name: state.replace(hyper=copy_arrays(hyper[name])) if name in hyper else state
        for name, state in policies.items()
    }


def copy_arrays(tree: PyTree) -> PyTree:
    """Copies all arrays of a tree."""
    return jax.tree.map(jnp.array, tree)


def has_traced_hyperparameters(agents: dict[str, Agent], name: str) -> bool:
    """Whether a policy's state holds hyper-parameters from the configuration."""
    return name in agents and agents[name].hyper is not None


def initial_run_state(
    config,
    collector,
    curriculum: Curriculum,
    world: World,
    key: jax.Array,
    course: PyTree,
    hyper: dict[str, Hyper] | None = None,
    member: jax.Array | None = None,
) -> RunState:
    """Returns one shard's state before the first update.

    `course` is the curriculum's state, None for its initial one; `hyper` replaces hyper-parameters of the
    configuration, by learner; `member` is the index of a league's learner.
    """
    keys = split_initial(key)
    learners = replace_hyper(initial_learners(collector.agents, world, keys), hyper or {})
    (others, pinned), pool, seat = split_frozen(collector, world), None, collector.seat
    if seat is not None:
        policy = collector.agents[seat.owner].rollout_policy(learners[seat.owner])
        origin = learners[seat.owner]
        if has_traced_hyperparameters(collector.agents, seat.owner):
            origin = origin.replace(hyper={})
        membership = None if member is None else LeagueMembership(member, origin, jnp.int32(0))
        pool = pool_lib.init_pool(seat.pool, keys.opponents, policy, membership, pinned)
    explores = seat is not None and seat.pool.settings.explores
    course = curriculum.init() if course is None else course
    number = config.num_envs // collectives.num_shards()
    episodes = episodes_lib.start_episodes(
        collector.env, keys.episodes, lambda k: curriculum.draw(k, course), number
    )
    limit = collector.env.spec.episode_limit
    stagger = collectives.local_rows(jax.random.randint(keys.stagger, (config.num_envs,), 1, limit + 1))
    return RunState(
        key=keys.run,
        policies=learners | others,
        memories=initial_memories(collector, number),
        reset=jnp.ones(number, bool),
        episodes=episodes,
        # Turn-based games end at different times anyway, and must not be truncated.
        stagger=jnp.where(config.stagger and not collector.env.spec.turns, stagger, 0),
        curriculum=course,
        tickets=curriculum.tickets(config.num_envs),
        recent=episode_statistics.init_recent(collector.env.spec, config.window),
        pending=empty_pending(collector, episodes.time),
        updates=jnp.int32(0),
        pool=pool,
        plays=diversity.init(number, seat.pool.settings.entries, limit) if explores else None,
        had=seat_rounds.begin_round(number, collector.env.spec.turns) if rotates_seats(collector) else None,
        credit={
            role: one.init(config.columns(role) * config.policies(role) // collectives.num_shards())
            for role, one in collector.credits.items()
        }
        or None,
        teachers=initial_teacher_memories(collector, number),
    )


def initial_learners(agents: dict[str, Agent], world: World, keys: InitialKeys) -> dict[str, PyTree]:
    """Returns the states of all learners before the first update, by name."""
    learner_keys = jax.random.split(keys.learners, len(agents))
    return {
        role: agent.init(k) if role not in world.teachers else agent.init_with(k, world.teachers[role])
        for k, (role, agent) in zip(learner_keys, agents.items(), strict=True)
    }


def split_frozen(collector: RolloutSpec, world: World) -> tuple[dict[str, PyTree], list[PyTree]]:
    """Returns the frozen policies of roles by name, and those of the pool in the order of its entries."""
    numbers = () if collector.seat is None else collector.seat.pool.pinned
    others = jax.tree.map(jnp.asarray, dict(world.policies))
    return others, [others.pop(fixed_policy_name(number)) for number in numbers]


def initial_policy_state(
    collector: RolloutSpec, curriculum: Curriculum, world: World, key: jax.Array
) -> RunState:
    """Returns `initial_run_state` as `reduce_to_policy` leaves it, and begins no episode for that."""
    others, _ = split_frozen(collector, world)
    learners = initial_learners(collector.agents, world, split_initial(key))
    nothing = {field.name: None for field in dataclasses.fields(RunState)}
    run = RunState(**nothing | {"curriculum": curriculum.init(), "updates": jnp.int32(0)})
    return reduce_to_policy(collector.agents, run.replace(policies=learners | others))


def initial_memories(collector: RolloutSpec, num_envs: int) -> dict[str, PyTree]:
    """Memories of controllers before the first decision, by role name; in turn-based games of all seats."""
    if collector.env.spec.turns and collector.seat is None:
        ((role, one),) = collector.controllers.items()
        return {role: turn_based.initial_phase_memories(one, num_envs, collector.env.spec.turns)}
    return {role: one.init(num_envs) for role, one in collector.controllers.items()}


def initial_teacher_memories(collector: RolloutSpec, num_envs: int) -> dict[str, PyTree] | None:
    """Memories of scripted teachers before the first decision, as in `RunState.teachers`."""
    memories = {role: one.init(num_envs) for role, one in collector.teachers.items()}
    if seats := collector.env.spec.turns:
        memories = repeat_for_seats(memories, seats)
    return memories or None


def rotates_seats(collector: RolloutSpec) -> bool:
    """Whether a learner plays one seat of each game, and all seats in rotation."""
    return collector.seat is not None and collector.env.spec.turns > 0
