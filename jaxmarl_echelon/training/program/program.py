"""A whole run as pure functions: init, update, evaluate."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos import collectives
from algos.types import Agent, PyTree, Rollout, mark_all_shared
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs import episodes as episodes_lib
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.envs.episodes import Finished
from jaxmarl_echelon.selfplay import diversity, league_pool
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay import report as pool_report
from jaxmarl_echelon.selfplay.league import LeagueMembership
from jaxmarl_echelon.training.acting import answer_statistics, episode_statistics
from jaxmarl_echelon.training.acting import controllers as controllers_lib
from jaxmarl_echelon.training.acting.decisions import repeat_for_seats
from jaxmarl_echelon.training.acting.random_streams import Stream, split_initial, split_update, stream_key
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.opponents import pool_role, seat_rounds
from jaxmarl_echelon.training.program import league
from jaxmarl_echelon.training.program.agents import (
    fixed_policy_name,
    load_frozen_policies,
    make_agents,
    make_controllers,
    make_pool_role,
    make_reward_transforms,
    make_teachers,
)
from jaxmarl_echelon.training.program.assessment import assess_run, make_evaluations
from jaxmarl_echelon.training.program.shards import Shards
from jaxmarl_echelon.training.program.world import Parts, World, collect_world, place_parts
from jaxmarl_echelon.training.rollouts import collect as rollout
from jaxmarl_echelon.training.rollouts import turn_based, turn_based_pool
from jaxmarl_echelon.training.rollouts.spec import CollectedRollout, RolloutSpec
from jaxmarl_echelon.training.rollouts.transitions import empty_pending

# Bytes of base models above which they may not be constants of a compiled run.
LARGE_WORLD = 100_000_000


class Report(NamedTuple):
    """Output of an update for the host.

    Attributes:
      metrics: scalars by their full names (`train/...`, `losses/...`, `curriculum/...`).
      episodes: table of finished episodes, see `episode_statistics.episode_rows`.
      entries: table of the pool's entries, see `selfplay.report.pool_rows`; empty without a pool.
    """

    metrics: dict[str, jax.Array]
    episodes: dict[str, jax.Array]
    entries: dict[str, jax.Array] = {}


class Program(NamedTuple):
    """Run as pure functions of its state and of the program's `world`.

    With `world=None` the program's own world is used, as constants of the compiled code. `init`, `update` and
    `assess` run all shards, or those of one device under `jax.shard_map` (see `training.shards`).

    Attributes:
      init: `(key, course=None, world=None) -> RunState`; `course` is the initial curriculum state.
      update: `(RunState, world=None) -> (RunState, Report)`: one rollout and the learners' updates.
      assess: `(RunState, key, world=None) -> (curriculum state, Assessment)`: the deterministic evaluation
        that scores the run, and one of the current stage, which updates the curriculum. It reads only the
        parts that `policy` keeps and does not return them, so that no replay is copied.
      evaluate: `(RunState, key, params=None, record=None, episodes=None, world=None) -> Evaluation`,
        deterministic, on the task that scores the run or on `params`; `episodes` defaults to
        `eval_episodes`, see `evaluation.whole_seat_rounds`.
      evaluate_as: `(seats, policies, RunState, key, params=None, record=None, episodes=None, world=None)
        -> Evaluation`, the same episodes with other controllers: `seats` is `(Parts) -> controllers`. Where
        the environment has opponents, they play the other seats.
      policy: `(RunState) -> RunState` reduced to the parts that acting and evaluation need.
      local: `(RunState) -> RunState` with a bool for every array: whether it has an axis of shards.
      renewed: `(RunState, course=None) -> RunState`, applies the current configuration's hyper-parameters
        and task parameters to a restored state; `course` is as for `init`.
      place: `(world) -> Parts`, the parts over a world.
      controllers: `(Parts, greedy=True) -> controllers` of evaluations; sampled actions if not greedy.
      world: see `World`.
      env, agents, curriculum: the parts of which it was built.
      steps_per_update: environment steps per update.
    """

    init: Callable
    update: Callable
    assess: Callable
    evaluate: Callable
    evaluate_with_controllers: Callable
    policy: Callable
    local: Callable
    renewed: Callable
    env: Environment
    agents: dict[str, Agent]
    place: Callable[[World | None], Parts]
    controllers: Callable[..., dict[str, controllers_lib.Controller]]
    world: World
    curriculum: Curriculum
    steps_per_update: int

    @property
    def compiler_options(self) -> dict[str, str]:
        """XLA options for `update`, which is then traced by `algos.optim.small_batches.lower_for_options`."""
        return {name: x for agent in self.agents.values() for name, x in agent.compiler_options.items()}

    @property
    def role(self) -> str:
        """Role that scores the run: the first learner's."""
        return next(iter(self.agents))


def make_program(config: RunConfig, agents: dict[str, Agent] | None = None) -> Program:
    """Builds the program of a run.

    Args:
      config: the run.
      agents: role name to learner; None for `make_agents`.

    Raises:
      ValueError: for a configuration whose parts are inconsistent.
    """
    env = config.env
    agents = make_agents(config) if agents is None else agents
    frozen = load_frozen_policies(config)
    curriculum = config.curriculum(env)
    scored = next(iter(agents))

    own = collect_world(env, agents, frozen)

    def place(world):
        return place_parts(Parts(env, agents, frozen), world)

    def seats(parts, greedy=True):
        return make_controllers(config, *parts, greedy=greedy)

    seats(place(None))  # unknown controllers raise here instead of at trace time

    spread, credits = Shards(config.shards), make_reward_transforms(config)
    seat = make_pool_role(config, agents, frozen)

    def local(run):
        return sharded_leaves(agents, run)

    def collector(world):
        here = place(world)
        acting = seats(here, False)
        whole = config.transforms.whole_games
        spec = RolloutSpec(
            here.env, here.agents, acting, config.horizon, config.segments, seat, credits, whole
        )
        return spec._replace(teachers=make_teachers(config, spec))

    collector(None)  # likewise an unknown opponent of a pool, or teacher
    own_evaluations = make_evaluations(config, curriculum, place, seats)

    def assess(run, key, world=None):
        run = reduce_to_policy(agents, run)
        one = partial(assess_run, env, curriculum, own_evaluations.evaluate, scored, config.replay)
        return spread.map_shards(one, (False, False, False), (False, False))(run, key, world)

    return Program(
        init=make_init(config, curriculum, collector, own, spread, local),
        update=make_update(config, curriculum, collector, spread, local),
        assess=assess,
        evaluate=own_evaluations.evaluate,
        evaluate_with_controllers=own_evaluations.evaluate_with_controllers,
        policy=lambda run: reduce_to_policy(agents, run),
        local=local,
        renewed=lambda run, course=None: apply_config_to_restored(agents, curriculum, run, course),
        env=env,
        agents=agents,
        place=place,
        controllers=seats,
        world=own,
        curriculum=curriculum,
        steps_per_update=config.steps_per_update,
    )


def plays_in_league(config: RunConfig) -> bool:
    """Whether the learners of a run form a league."""
    return config.pooled is not None and config.pool.league is not None


def make_init(
    config: RunConfig,
    curriculum: Curriculum,
    collector: Callable,
    own: World,
    spread: Shards,
    local: Callable,
) -> Callable:
    """Builds `Program.init`; see there.

    Args:
      config, curriculum: of the run.
      collector: `(world) -> RolloutSpec`.
      own: the program's world.
      spread: the run's shards.
      local: see `Program.local`.
    """

    def one(key, course, world):
        return initial_run_state(config, collector(world), curriculum, world or own, key, course)

    def member(key, number, course, world):
        return initial_run_state(config, collector(world), curriculum, world or own, key, course, number)

    def init(key, course=None, world=None):
        if plays_in_league(config):
            return league.vectorize_league_init(member, config.pool)(key, course, world)
        return spread.begin(one, local)(key, course, world)

    return init


def make_update(
    config: RunConfig, curriculum: Curriculum, collector: Callable, spread: Shards, local: Callable
) -> Callable:
    """Builds `Program.update`; arguments are as for `make_init`."""

    def one(run, world):
        return update_once(config, collector(world), curriculum, run)

    def update(run, world=None):
        if plays_in_league(config):
            return league.vectorize_league_update(one, config.pool)(run, world)
        where = local(run)
        return spread.map_shards(one, (where, False), (where, False))(run, world)

    return update


def evaluation_as_in_training(program: Program, seed: int) -> Callable:
    """Returns the evaluation `(RunState, world) -> (curriculum state, Assessment)` of a run, as in training.

    Compiling it hits the persistent compilation cache of the run.
    """

    def assess(run, world):
        return program.assess(run, stream_key(seed, Stream.EVALUATION), world)

    return assess


def make_train_function(config: RunConfig) -> Callable:
    """Returns the whole run as one pure function `(key, world=None) -> (RunState, Report [updates])`.

    For notebooks and `jax.vmap` over seeds; the command line runs the same update in chunks. Pass a large
    world, the function's attribute `world`, as an argument: otherwise its arrays are constants of the
    compiled code. Base models of more than `LARGE_WORLD` bytes must be passed.
    """
    program = make_program(config)
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(program.world.agents))

    def train(key, world=None):
        if world is None and size > LARGE_WORLD:
            raise ValueError(
                f"make_train: the base model has {size / 1e6:,.0f} MB; pass it as train(key, train.world)"
            )
        start = program.init(key, world=world)
        return jax.lax.scan(lambda run, _: program.update(run, world), start, None, config.updates)

    train.world = program.world
    return train


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
    agents: dict[str, Agent], curriculum: Curriculum, run: RunState, course: PyTree
) -> RunState:
    """Applies the configuration's hyper-parameters and tasks to a restored run; all else is bit-identical.

    The new arrays are copies: the state is donated, and the curriculum's initial state may hold the
    environment's own arrays.
    """
    policies = {
        name: state.replace(hyper=copy_arrays(agents[name].hyper()))
        if has_traced_hyperparameters(agents, name)
        else state
        for name, state in run.policies.items()
    }
    fresh = copy_arrays(curriculum.init() if course is None else course)
    others = run.league
    if others is not None:
        others = jax.vmap(lambda one: apply_config_to_restored(agents, curriculum, one, fresh))(others)
    return run.replace(
        policies=policies, curriculum=curriculum.retasked(run.curriculum, fresh), league=others
    )


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
    member: jax.Array | None = None,
) -> RunState:
    """Returns one shard's state before the first update.

    `course` is the curriculum's state, None for its initial one; `member` the index of a league's learner.
    """
    keys = split_initial(key)
    learner_keys = jax.random.split(keys.learners, len(collector.agents))
    learners = {
        role: agent.init(k) if role not in world.teachers else agent.init_with(k, world.teachers[role])
        for k, (role, agent) in zip(learner_keys, collector.agents.items(), strict=True)
    }
    pool, seat, others = None, collector.seat, dict(world.policies)
    if seat is not None:
        policy = collector.agents[seat.owner].rollout_policy(learners[seat.owner])
        origin = learners[seat.owner]
        if has_traced_hyperparameters(collector.agents, seat.owner):
            origin = origin.replace(hyper={})
        membership = None if member is None else LeagueMembership(member, origin, jnp.int32(0))
        pinned = [others.pop(fixed_policy_name(number)) for number in seat.pool.pinned]
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
        policies=learners | jax.tree.map(jnp.asarray, others),
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


def update_once(config, collector, curriculum: Curriculum, run: RunState) -> tuple[RunState, Report]:
    """Runs one rollout, then updates every rollout learner and the curriculum, for one shard."""
    own_keys = split_update(run.key)
    collect = rollout.collect_rollout
    if turn_based.uses_turn_based_rollout(collector):
        collect = (
            turn_based.collect_turn_based
            if collector.seat is None
            else turn_based_pool.collect_turn_based_pool
        )
    run, collected = collect(collector, run, own_keys.rollout, lambda k: curriculum.draw(k, run.curriculum))
    policies, losses = dict(run.policies), dict(collected.metrics)
    said = answer_statistics.answer_metrics(collected.rollouts)
    credit, rollouts = apply_reward_transforms(collector, run, collected)
    keys = jax.random.split(own_keys.learning, len(collector.agents))
    for k, (role, agent) in zip(keys, collector.agents.items(), strict=True):
        if role in rollouts:
            policies[role], losses[role] = agent.update(run.policies[role], k, rollouts[role])
    flow = collected.flow
    pool, plays, policies = update_pool(collector, run, own_keys.opponents, policies, flow.finished)
    finished = judged = flow.finished
    if collector.seat is not None:
        finished = pool_role.restrict_to_own_seat(collector.env.spec, collector.seat, finished)
        judged = pool_role.select_scored_games(collector.env.spec, collector.seat, finished)
    course, tickets = curriculum.update(
        run.curriculum, run.tickets, collectives.gather_shards(flow.replace(finished=finished), 1)
    )
    newest = episode_statistics.select_finished(judged, config.window, newest=True).finished
    run = run.replace(
        key=own_keys.following,
        policies=policies,
        curriculum=course,
        tickets=tickets,
        recent=episode_statistics.add_recent(run.recent, newest, collector.env.spec),
        updates=run.updates + 1,
        pool=pool,
        plays=plays,
        credit=credit,
    )
    roles = tuple(collector.agents)
    metrics = {}
    for role in roles:
        prefix = "losses" if len(roles) == 1 else f"losses/{role}"
        metrics |= {f"{prefix}/{name}": value for name, value in losses[role].items()}
    metrics |= episode_statistics.recent_metrics(run.recent, collector.env.spec, roles)
    metrics |= said | curriculum.metrics(run.curriculum)
    metrics |= episode_statistics.quarantine_metrics(collected.quarantined)
    rows = episode_statistics.episode_rows(finished, collector.env.spec, roles, config.episode_rows)
    entries = {}
    if collector.seat is not None:
        metrics |= pool_report.pool_metrics(collector.seat.pool, pool)
        if plays is not None:
            metrics |= pool_report.exploration_metrics(plays, collector.env.spec.roles[0].action)
        entries = pool_report.pool_rows(collector.seat.pool, pool)
    return run, Report(metrics, rows, entries)


def apply_reward_transforms(
    collector, run: RunState, collected: CollectedRollout
) -> tuple[PyTree, dict[str, Rollout]]:
    """Applies reward transforms to the rollouts; returns the transforms' states and the rollouts."""
    credit, rollouts = {}, dict(collected.rollouts)
    for role, transforms in collector.credits.items():
        given = run.credit[role], rollouts[role], collected.transform_inputs[role]
        credit[role], rollouts[role] = transforms.apply(*given)
    return credit or None, rollouts


def update_pool(
    collector, run: RunState, key: jax.Array, policies: dict[str, PyTree], finished: Finished
) -> tuple[PyTree, PyTree, dict[str, PyTree]]:
    """Updates the pool after a rollout's games and the learners' updates; None without a pool.

    Returns the pool, the record of moves, and the policies, in which a league's learner may be reset.
    """
    seat, plays = collector.seat, run.plays
    if seat is None:
        return None, None, policies
    before = run.pool
    if plays is not None:
        moves = diversity.action_count(collector.env.spec.roles[0].action)
        before = before.replace(
            distinct=diversity.distinct_ngram_share(plays, moves, diversity.MATCHMAKING_GRAM)
        )
    rated = finished
    if rotates_seats(collector):
        rated = seat_rounds.balance_seats(finished, seat.pool.settings.entries, collector.env.spec.turns)
    counts = pool_role.count_outcomes(collector.env.spec, seat, rated)
    agent, learner = collector.agents[seat.owner], policies[seat.owner]
    games = pool_role.select_ranked_games(
        jax.random.fold_in(key, pool_role.RANKED), collector.env.spec, seat, rated
    )
    points = pool_role.sum_rival_scores(collector.env.spec, seat, rated)
    given = seat.pool, before, key, counts, agent.rollout_policy(learner), games, points
    if before.league is not None:
        after, anew = league_pool.update_league_pool(*given)
        origin = before.league.origin
        if has_traced_hyperparameters(collector.agents, seat.owner):
            origin = origin.replace(hyper=learner.hyper)
        learner = jax.tree.map(lambda x, y: jnp.where(anew, x, y), origin, learner)
        return after, plays, policies | {seat.owner: learner}
    after = pool_lib.update_pool_state(*given)
    if plays is not None:
        plays = diversity.clear_entries(plays, after.iteration != before.iteration)
    return after, plays, policies
