"""Builds the learners, frozen policies, teachers and controllers of a run."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos.on_policy.distillation import Teacher
from algos.settings import teacher_script
from algos.stacked_agents import vectorize_over_agents
from algos.types import Agent, PyTree
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.config_keys import complete_key
from jaxmarl_echelon.envs.base import Environment, Role
from jaxmarl_echelon.selfplay.credit import AdvantageTransforms, make_advantage_transforms
from jaxmarl_echelon.selfplay.pool import make_pool
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.config.base_models import load_base
from jaxmarl_echelon.training.config.input_files import split_role
from jaxmarl_echelon.training.config.role_assignment import FROZEN, LEARNERS, PER_AGENT, POOL, SHARED
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.opponents.pool_role import PoolRole, simultaneous_pool_controller
from jaxmarl_echelon.training.rollouts import turn_based_pool
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec

# Key of a checkpoint's metadata with the digests of its policies' worlds.
WORLDS = "worlds"


def make_agents(config: RunConfig) -> dict[str, Agent]:
    """Builds one agent per learning role."""
    return {role: make_learner(config, role, **load_teacher(config, role)) for role in config.algos}


def make_actors(config: RunConfig) -> dict[str, Agent]:
    """Builds the agents for acting only, without their teachers, whose checkpoints may be missing."""
    return {role: make_learner(config, role) for role in config.algos}


def make_learner(config: RunConfig, name: str, **options) -> Agent:
    """Builds the agent of one role; `options` are passed to the algorithm's `make`.

    Raises:
      ValueError: one line with the key, the value and the allowed values.
    """
    spaces, sizes = config.learner_task(name)
    algo = config.algos[name]
    if algo.reads_text:
        options["base"] = load_base(config, name)
    try:
        agent = algo.make(*spaces, updates=config.updates, **sizes, **options)
    except ValueError as error:
        where = "algo" if algo == config.algo else f"algos.{name}"
        raise ValueError(complete_key(str(error), vars(algo), where)) from error
    return (
        vectorize_over_agents(agent, config.policies(name))
        if config.controllers[name] == PER_AGENT
        else agent
    )


def load_teacher(config: RunConfig, role: str) -> dict[str, Teacher]:
    """Loads the teacher of a role's learner, as keyword arguments of `make_learner`; none for a script.

    Raises:
      ValueError: as `load_frozen_policy`, and for a teacher without action probabilities.
    """
    path = config.algos[role].teacher
    if path is None or teacher_script(path) is not None:
        return {}
    policy = load_frozen_policy(config, role, path, f"algo.teacher={path}", config.agents(role))
    if policy.agent.teach is None:
        raise ValueError(f"algo.teacher={path}: must be a ppo, ppo_rnn or a2c run without privileged critics")
    return {"teacher": Teacher(*policy)}


def make_teachers(config: RunConfig, collector: RolloutSpec) -> dict[str, controllers.Controller]:
    """Builds the controllers of scripted teachers, for every role from which their learners learn.

    Raises:
      ValueError: as `controllers.find_teacher`.
    """
    env, chosen = collector.env, {name: teacher_script(algo.teacher) for name, algo in config.algos.items()}
    return {
        role: controllers.make_script_controller(controllers.find_teacher(env, role, script))
        for learner, script in chosen.items()
        if script is not None
        for role in collector.seats(learner)
    }


class FrozenPolicy(NamedTuple):
    """Policy of another run: its agent, and its state reduced to acting."""

    agent: Agent
    state: PyTree


def load_frozen_policies(config: RunConfig) -> dict[str, FrozenPolicy]:
    """Loads the policies of all roles with controller `frozen:PATH`, and the frozen opponents of a pool."""
    return load_fixed_policies(config) | {
        role: load_frozen_policy(
            config,
            role,
            name.removeprefix(FROZEN),
            f"controllers.{role}={name}",
            config.env.spec.role(role).size,
        )
        for role, name in config.controllers.items()
        if name.startswith(FROZEN)
    }


def load_fixed_policies(config: RunConfig) -> dict[str, FrozenPolicy]:
    """Loads the frozen policies among a pool's fixed opponents, by the names of `fixed_policy_name`."""
    if (role := config.pooled) is None:
        return {}
    size = config.env.spec.role(role).size
    return {
        fixed_policy_name(number): load_frozen_policy(
            config, role, name.removeprefix(FROZEN), f"pool.fixed={name}", size
        )
        for number, name in enumerate(config.pool.fixed)
        if name.startswith(FROZEN)
    }


def fixed_policy_name(number: int) -> str:
    """Name of the state of a pool's fixed opponent in `RunState.policies`."""
    return f"pool/{number}"


def make_pool_role(
    config: RunConfig, agents: Mapping[str, Agent], frozen: Mapping[str, FrozenPolicy]
) -> PoolRole | None:
    """Builds the description of the role that a pool plays; None without a pool.

    Frozen policies that act by the same program as the pool's learner, apart from their parameters, are
    stored in the pool's bank; but not those whose learners explore, as the bank's policies do.
    """
    if (role := config.pooled) is None:
        return None
    owner = config.controllers[role].removeprefix(POOL)
    decisions = config.horizon * max(config.env.spec.turns, 1)
    names = {number: fixed_policy_name(number) for number in range(len(config.pool.fixed))}
    names = {number: name for number, name in names.items() if name in frozen}
    pinned = tuple(
        number
        for number, name in names.items()
        if not frozen[name].agent.explores
        and same_arrays_as(agents[owner], frozen[name].state)
        and acts_by_same_program(agents[owner], *frozen[name], config.env.spec.role(role))
    )
    pool = make_pool(
        config.pool,
        config.env.spec.episode_limit,
        decisions,
        own=config.rival == owner,
        pinned=pinned,
        environments=config.num_envs,
    )
    fixed = tuple(None if number in pinned else names.get(number) for number in range(len(config.pool.fixed)))
    return PoolRole(role, owner, config.rival, pool, fixed)


def acts_by_same_program(ours: Agent, theirs: Agent, state: PyTree, role: Role) -> bool:
    """Whether a policy, another agent with its `state` for acting, acts by the same program as an agent."""
    if ours.digest != theirs.digest or not same_arrays_as(ours, state):
        return False
    # Language policies need a mask.
    mask = jnp.ones((1, role.size, role.action.mask_size), bool) if ours.digest else None
    obs = jnp.zeros((1, role.size, *role.observation.shape), role.observation.dtype)

    def program(agent: Agent) -> tuple[str, list]:
        agent = agent._replace(asymmetric=False)
        carry, reset = agent.initial_carry((1, role.size)), jnp.zeros((1, role.size), bool)
        inputs = obs, carry, reset, mask
        traced = jax.make_jaxpr(partial(act_in_world, agent))(agent.world, state, jax.random.key(0), *inputs)
        # The text of functions contains their addresses.
        return re.sub(r"0x[0-9a-f]+", "", str(traced)), traced.consts

    (ours, our_consts), (other, their_consts) = program(ours), program(theirs)
    return ours == other and all(map(np.array_equal, our_consts, their_consts))


def agent_digests(agents: Mapping[str, Agent]) -> dict[str, str]:
    """Returns the digests of the worlds of agents that have one, by name."""
    return {name: agent.digest for name, agent in agents.items() if agent.digest}


def require_same_worlds(folder: Path, facts: Mapping[str, Any], agents: Mapping[str, Agent]) -> None:
    """Checks that agents have the worlds that the policies of a checkpoint belong to.

    Args:
      folder: the checkpoint, for the message.
      facts: its metadata.
      agents: by name.

    Raises:
      CheckpointError: one line with both digests.
    """
    trained = facts.get(WORLDS) or {}
    for name, digest in agent_digests(agents).items():
        if name in trained and trained[name] != digest:
            raise checkpoints.CheckpointError(
                f"{folder}: {name} was trained on a base model with the digest {trained[name][:12]}, "
                f"this one has {digest[:12]}"
            )


def act_in_world(agent: Agent, world: PyTree, *inputs: PyTree) -> tuple:
    """Acts over a world that is an argument, so that it is not part of the traced program."""
    return agent.in_worlds({agent.digest: world}).act(*inputs)


def same_arrays_as(agent: Agent, state: PyTree) -> bool:
    """Whether a state for acting has the structure and shapes of an agent's."""
    own = jax.eval_shape(lambda key: agent.policy_state(agent.init(key)), jax.random.key(0))
    return build.same_shapes(own, state)


def make_reward_transforms(config: RunConfig) -> dict[str, AdvantageTransforms]:
    """Builds the reward transforms of every learner, by its name; empty if none are configured."""
    if not config.transforms:
        return {}
    return {role: make_advantage_transforms(config.transforms, config.seats(role)) for role in config.algos}


def make_pool_controller(
    config: RunConfig, env: Environment, agents: dict[str, Agent], frozen: dict[str, FrozenPolicy]
) -> controllers.Controller:
    """Builds the controller of the role that a pool plays in training."""
    seat = make_pool_role(config, agents, frozen)
    role, greedy = env.spec.role(seat.role), config.pool.greedy
    asked, fixed = single_seat_role(env, role), {}
    for number, (name, state) in enumerate(zip(config.pool.fixed, seat.fixed, strict=True)):
        if state is not None:
            theirs = frozen[state].agent
            modes = greedy or theirs.explores
            fixed[number] = controllers.make_learner_controller(theirs, asked, state, greedy=modes)
        elif number not in seat.pool.pinned:
            policy = controllers.find_script(env, role.name, name, "pool.fixed")
            fixed[number] = controllers.make_script_controller(policy)
    make = turn_based_pool.turn_based_pool_controller if env.spec.turns else simultaneous_pool_controller
    return make(seat, agents[seat.owner], role, fixed)


def single_seat_role(env: Environment, role: Role) -> Role:
    """Returns the role as a controller plays it: in turn-based games one seat at a time."""
    return replace(role, size=1) if env.spec.turns else role


def evaluation_controller(config: RunConfig, role: str) -> str:
    """Name of a role's controller in evaluations: its own, or for a pool's role the environment's script.

    If the environment has no default script for the role, the pool's learner plays it.
    """
    name = config.controllers[role]
    if not name.startswith(POOL):
        return name
    usual = config.env.controllers.get(role)
    return usual if usual not in (None, *LEARNERS) else SHARED + name.removeprefix(POOL)


def load_frozen_policy(config: RunConfig, role: str, path: str, where: str, agents: int) -> FrozenPolicy:
    """Loads a role's policy from a run's checkpoint (`best_eval`, or the one that PATH names).

    Args:
      config: the run that uses the policy.
      role: the role that the policy plays.
      path: the run's folder or a checkpoint, with `@ROLE` at the end for the policy of another role.
      where: the setting, for messages.
      agents: agents per environment that the policy controls.

    Raises:
      ValueError: one line, if that run has no policy for the role, or has other spaces.
    """
    stem, named = split_role(path, [one.name for one in config.env.spec.roles])
    folder = checkpoints.find_named_checkpoint(stem, "best_eval", where)
    facts = checkpoints.read_metadata(folder)
    checkpoints.require_single_run(folder, facts)
    theirs = build.build_run_config(build.read_saved_config(facts))
    learnt = named or role
    if (actor := theirs.controllers.get(learnt, "")).startswith((SHARED, POOL)):
        learnt = actor.removeprefix(SHARED).removeprefix(POOL)
    if learnt not in theirs.algos:
        raise ValueError(f"{where}: that run trained {', '.join(theirs.algos)}, not {learnt}")
    ours, other = config.env.spec.role(role), theirs.env.spec.role(learnt)
    if not ours.fits(other):
        raise ValueError(
            f"{where}: its observations {other.observation.shape} and actions {other.action} differ from "
            f"this run's {ours.observation.shape} and {ours.action}"
        )
    if theirs.controllers[learnt] == PER_AGENT and theirs.policies(learnt) != agents:
        raise ValueError(
            f"{where}: that run trained one policy for each of {other.size} agents, here are {agents}"
        )
    agent = make_learner(theirs, learnt)
    require_same_worlds(folder, facts, {learnt: agent})
    like = jax.eval_shape(lambda key: agent.policy_state(agent.init(key)), jax.random.key(0))
    # Only the actor is used, which takes no critic observations.
    agent = agent._replace(asymmetric=False)
    return FrozenPolicy(
        agent, agent.after_warm_up(checkpoints.restore_state(folder, like, f".policies[{learnt!r}]"))
    )


def make_controllers(
    config: RunConfig,
    env: Environment,
    agents: dict[str, Agent],
    frozen: dict[str, FrozenPolicy],
    *,
    greedy: bool,
    explore: bool = True,
) -> dict[str, controllers.Controller]:
    """Builds the controllers of all roles.

    Args:
      config: the run; `config.controllers` assigns the roles.
      env: its environment, possibly with another world; source of the scripts.
      agents: the learners.
      frozen: the frozen policies.
      greedy: whether networks act deterministically instead of sampling; with imperfect information
        (`EnvSpec.hidden`) they always sample.
      explore: whether learners that only explore by sampling (`Agent.explores`) sample like the others, and
        those in their warm-up act at random, as in training; frozen policies never do.
    """
    acting = agents | {role: policy.agent for role, policy in frozen.items()}
    result = {}
    for role in env.spec.roles:
        name = evaluation_controller(config, role.name)
        if config.controllers[role.name].startswith(POOL) and not greedy:
            result[role.name] = make_pool_controller(config, env, agents, frozen)
            continue
        policy = name.removeprefix(SHARED)
        policy = policy if policy in acting or name != config.controllers[role.name] else role.name
        if policy in acting:
            modes = greedy and not env.spec.hidden
            # Exploration is for learning: it is no part of a policy that is frozen or evaluated.
            modes = modes or (acting[policy].explores and (policy in frozen or not explore))
            result[role.name] = controllers.make_learner_controller(
                acting[policy], single_seat_role(env, role), policy, greedy=modes, warms_up=explore
            )
        else:
            policy = controllers.find_script(env, role.name, name)
            result[role.name] = controllers.make_script_controller(policy)
    return result
