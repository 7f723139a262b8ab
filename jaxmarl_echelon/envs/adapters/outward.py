"""Our environments for users of Gymnasium, PettingZoo, Stable-Baselines3 and JaxMARL.

Agents are called `{role}_{index}`. Roles that do not learn are played inside the compiled step, by the
environment's own scripts unless `controllers` says otherwise. The packages are optional and imported here
only when they are asked for. See docs/adapters.md.
"""

from typing import Any

from algos.types import PyTree
from jaxmarl_echelon.envs.adapters.seats import Controllers, choose_all_seats, choose_one_seat
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.optional_packages import import_package


def to_gymnasium(
    env: Environment,
    num_envs: int | None = None,
    *,
    agent: str | None = None,
    controllers: Controllers | None = None,
    autoreset: str = "same_step",
    params: PyTree = None,
) -> Any:
    """Converts an environment to a Gymnasium `Env`, or `VectorEnv`, of one agent.

    An episode ends with the agent's trajectory or with the environment's episode. Actions are in the role's
    space; those outside are clipped, and those that a mask forbids replaced by a legal one.

    Args:
      env: the environment, without turns.
      num_envs: number E of environments of a `VectorEnv`, stepped by one program; None for an `Env`.
      agent: name of the agent; None for the first of the first role that learns.
      controllers: by role the script's name, `ScriptedPolicy` or `Policy` that plays its other agents; the
        environment's own for omitted roles.
      autoreset: "same_step", "next_step" or "disabled": Gymnasium's modes of a `VectorEnv`.
      params: the environment's parameters; None for its own.

    Returns:
      the environment; observations, rewards and flags are copies.

    Raises:
      ValueError: one line, for a missing package, an invalid argument, or an environment with turns.
    """
    import_package("gymnasium", "to_gymnasium", "gymnasium")
    from gymnasium.vector import AutoresetMode

    from jaxmarl_echelon.envs.adapters.gymnasium_env import SeatEnv, SeatVectorEnv

    modes = {mode.name.lower(): mode for mode in AutoresetMode}
    if autoreset not in modes:
        raise ValueError(f"autoreset={autoreset}: unknown; allowed: {', '.join(modes)}")
    seats = choose_one_seat(env, agent, controllers)
    if num_envs is None:
        return SeatEnv(env, seats, params)
    return SeatVectorEnv(env, seats, num_envs, modes[autoreset], params)


def to_pettingzoo(env: Environment, *, controllers: Controllers | None = None, params: PyTree = None) -> Any:
    """Converts an environment to a PettingZoo `ParallelEnv` of the agents of all roles that learn.

    Results of a step include agents that end in it; then they leave `agents`. In turn-based games all seats
    stay to the end, and only the action of the seat whose info has "alive" counts.

    Args:
      env: the environment.
      controllers: by role "learner" for agents of the `ParallelEnv`, or the script's name, `ScriptedPolicy`
        or `Policy` that plays it; the environment's own for omitted roles.
      params: the environment's parameters; None for its own.

    Returns:
      the environment; observations are copies.

    Raises:
      ValueError: one line, for a missing package or an invalid argument.
    """
    import_package("pettingzoo", "to_pettingzoo", "pettingzoo")
    from jaxmarl_echelon.envs.adapters.pettingzoo_env import SeatsParallelEnv

    return SeatsParallelEnv(env, choose_all_seats(env, controllers), params)


def to_sb3(
    env: Environment,
    num_envs: int,
    *,
    agent: str | None = None,
    controllers: Controllers | None = None,
    params: PyTree = None,
) -> Any:
    """Converts an environment to a Stable-Baselines3 `VecEnv` of one agent, stepped by one program.

    Actions of boxes are in [-1, 1]. Episodes end and begin as in `to_gymnasium` with "same_step".

    Args:
      env: the environment, without turns.
      num_envs: number E of environments.
      agent, controllers, params: as for `to_gymnasium`.

    Raises:
      ValueError: one line, for a missing package, an invalid argument, or an environment with turns.
    """
    import_package("stable_baselines3", "to_sb3", "sb3")
    from jaxmarl_echelon.envs.adapters.sb3_env import SeatVecEnv

    return SeatVecEnv(env, choose_one_seat(env, agent, controllers), num_envs, params)


def to_jaxmarl(env: Environment, *, controllers: Controllers | None = None, params: PyTree = None) -> Any:
    """Converts an environment to a JaxMARL `MultiAgentEnv` of the agents of all roles that learn.

    Args:
      env: the environment.
      controllers, params: as for `to_pettingzoo`.

    Returns:
      the environment, whose methods can be compiled, vmapped and scanned.

    Raises:
      ValueError: one line, for a missing package or an invalid argument.
    """
    import_package("jaxmarl", "to_jaxmarl", "jaxmarl")
    from jaxmarl_echelon.envs.adapters.jaxmarl_env import SeatsMultiAgentEnv

    return SeatsMultiAgentEnv(env, choose_all_seats(env, controllers), params)
