"""A whole run as pure functions: init, update, evaluate."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from algos.types import Agent
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.training.acting import controllers as controllers_lib
from jaxmarl_echelon.training.acting.random_streams import Stream, stream_key
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.program import league
from jaxmarl_echelon.training.program.agents import (
    load_frozen_policies,
    make_agents,
    make_controllers,
    make_pool_role,
    make_reward_transforms,
    make_teachers,
)
from jaxmarl_echelon.training.program.assessment import assess_run, make_evaluations
from jaxmarl_echelon.training.program.shards import Shards
from jaxmarl_echelon.training.program.state import (
    apply_config_to_restored,
    initial_policy_state,
    initial_run_state,
    reduce_to_policy,
    sharded_leaves,
)
from jaxmarl_echelon.training.program.update import update_once
from jaxmarl_echelon.training.program.world import Parts, World, collect_world, place_parts
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec

# Bytes of base models above which they may not be constants of a compiled run.
LARGE_WORLD = 100_000_000


class Program(NamedTuple):
    """Run as pure functions of its state and of the program's `world`.

    With `world=None` the program's own world is used, as constants of the compiled code. `init`, `update` and
    `assess` run all shards, or those of one device under `jax.shard_map` (see `training.shards`).

    Attributes:
      init: `(key, course=None, world=None, hyper=None) -> RunState`; `course` is the curriculum's initial
        state, `hyper` the learners' hyper-parameters by name, see `state.collect_hyper`.
      update: `(RunState, world=None) -> (RunState, Report)`: one rollout and the learners' updates.
      assess: `(RunState, key, world=None) -> (curriculum state, Assessment)`: the deterministic evaluation
        that scores the run, and one of the current stage, which updates the curriculum. It reads only the
        parts that `policy` keeps and does not return them, so that no replay is copied.
      evaluate: `(RunState, key, params=None, record=None, episodes=None, world=None) -> Evaluation`,
        deterministic, on the task that scores the run or on `params`; `episodes` defaults to
        `eval_episodes`, see `evaluation.whole_seat_rounds`.
      evaluate_with_controllers: `(seats, policies, RunState, key, params=None, record=None, episodes=None,
        world=None) -> Evaluation`, the same episodes with other controllers: `seats` is `(Parts) ->
        controllers`. Where the environment has opponents, they play the other seats.
      policy: `(RunState) -> RunState` reduced to the parts that acting and evaluation need.
      init_policy: `(key, world=None) -> RunState`, what `policy` leaves of `init`, without the episodes that
        `init` begins: for loading and for untrained policies.
      local: `(RunState) -> RunState` with a bool for every array: whether it has an axis of shards.
      renewed: `(RunState, course=None, hyper=None) -> RunState`, applies the current configuration's
        hyper-parameters and task parameters to a restored state; `course` and `hyper` are as for `init`.
      place: `(world) -> Parts`, the parts over a world.
      controllers: `(Parts, greedy=True) -> controllers` of evaluations; sampled actions if not greedy, but
        no exploration.
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
    init_policy: Callable
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
        return make_controllers(config, *parts, greedy=greedy, explore=False)

    seats(place(None))  # unknown controllers raise here instead of at trace time

    spread, credits = Shards(config.shards), make_reward_transforms(config)
    seat = make_pool_role(config, agents, frozen)

    def local(run):
        return sharded_leaves(agents, run)

    def collector(world):
        here = place(world)
        acting = make_controllers(config, *here, greedy=False)
        whole = config.transforms.whole_games
        spec = RolloutSpec(
            here.env, here.agents, acting, config.horizon, config.segments, seat, credits, whole
        )
        teams = frozenset(role for role, algo in config.algos.items() if algo.teams)
        return spec._replace(teachers=make_teachers(config, spec), teams=teams)

    collector(None)  # likewise an unknown opponent of a pool, or teacher
    policy = partial(reduce_to_policy, agents)
    own_evaluations = make_evaluations(config, curriculum, place, seats, policy)

    def assess(run, key, world=None):
        run = policy(run)
        one = partial(assess_run, env, curriculum, own_evaluations.evaluate, scored, config.replay)
        return spread.map_shards(one, (False, False, False), (False, False))(run, key, world)

    def init_policy(key, world=None):
        key = league.first_learner_key(key, config.pool) if plays_in_league(config) else key
        return initial_policy_state(collector(world), curriculum, world or own, key)

    return Program(
        init=make_init(config, curriculum, collector, own, spread, local),
        update=make_update(config, curriculum, collector, spread, local),
        assess=assess,
        evaluate=own_evaluations.evaluate,
        evaluate_with_controllers=own_evaluations.evaluate_with_controllers,
        policy=policy,
        init_policy=init_policy,
        local=local,
        renewed=partial(apply_config_to_restored, agents, curriculum),
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

    def one(key, course, world, hyper):
        return initial_run_state(config, collector(world), curriculum, world or own, key, course, hyper)

    def member(key, number, course, world, hyper):
        return initial_run_state(
            config, collector(world), curriculum, world or own, key, course, hyper, number
        )

    def init(key, course=None, world=None, hyper=None):
        if plays_in_league(config):
            return league.vectorize_league_init(member, config.pool)(key, course, world, hyper)
        return spread.begin(one, local)(key, course, world, hyper)

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

    Raises:
      ValueError: one line, for a curriculum whose stages are only left after evaluations, which it has not.
    """
    program = make_program(config)
    if program.curriculum.needs_evaluations:
        raise ValueError(
            "curriculum: phases with eval_success_rate are never left without evaluations, which make_train "
            "does not run; set it to null, or train by the command line"
        )
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
