"""Assignment of learners, pools and scripts to the roles of a run, from `controllers`."""

from collections.abc import Mapping
from fractions import Fraction

from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.selfplay.matchmaking import EXPLORATION
from jaxmarl_echelon.selfplay.settings import AUTO, EPISODE, PoolSettings

LEARNER, PER_AGENT, FROZEN, SHARED = "learner", "learner:per_agent", "frozen:", "shared:"
POOL = "pool:"
LEARNERS = (LEARNER, PER_AGENT)

Controllers = Mapping[str, str]


def has_learner(role: str, controller: str) -> bool:
    """Whether a role has its own learner, including one that plays against a pool of its past policies."""
    return controller in LEARNERS or controller == POOL + role


def assign_roles(env: Environment, chosen: Controllers) -> dict[str, str]:
    """Returns the controllers of all roles: the chosen ones, else the environment's defaults."""
    return {r.name: chosen.get(r.name) or env.controllers.get(r.name, LEARNER) for r in env.spec.roles}


def check_controllers(env: Environment, given: Controllers) -> dict[str, str]:
    """Returns the checked controllers of all roles.

    Raises:
      ValueError: one line, for unknown roles, without a learner, and for impossible assignments.
    """
    roles = [role.name for role in env.spec.roles]
    for role in given:
        if role not in roles:
            raise ValueError(f"controllers.{role}: unknown role; allowed: {', '.join(roles)}")
    chosen = assign_roles(env, given)
    if not any(has_learner(role, name) for role, name in chosen.items()):
        raise ValueError(f"controllers={chosen}: at least one role must be a learner")
    for role, name in chosen.items():
        if name.startswith((SHARED, POOL)) and not has_learner(role, name):
            _require_owner(env, role, name, chosen)
        if name == PER_AGENT and env.spec.turns:
            raise ValueError(f"controllers.{role}={name}: turn-based games need one shared learner")
    return chosen


def _require_owner(env: Environment, role: str, name: str, chosen: Controllers) -> None:
    """Checks that a role can be played by the learner, or past learner, of another role."""
    learners = [learner for learner, other in chosen.items() if other == LEARNER]
    kind, _, owner = name.partition(":")
    where = f"controllers.{role}={name}"
    if chosen.get(owner) == PER_AGENT:
        raise ValueError(f"{where}: {owner} has one learner per agent, which cannot be shared")
    if owner not in learners:
        allowed = ", ".join(f"{kind}:{learner}" for learner in learners)
        raise ValueError(f"{where}: unknown learner; allowed: {allowed}")
    ours, theirs = env.spec.role(role), env.spec.role(owner)
    if not ours.fits(theirs):
        raise ValueError(
            f"{where}: {role} and {owner} must see and do the same; observations are "
            f"{ours.observation.shape} and {theirs.observation.shape}"
        )
    if ours.critic_observation != theirs.critic_observation:
        raise ValueError(f"{where}: the critics of {role} and {owner} must see the same")


def agents_per_policy(env: Environment, controllers: Controllers, learner: str) -> int:
    """Number of agents that share a learner's policy, over all roles; 1 if each agent has its own."""
    if controllers[learner] == PER_AGENT:
        return 1
    sharing = (role for role, name in controllers.items() if name == SHARED + learner)
    return sum(env.spec.role(role).size for role in (learner, *sharing))


def agents_per_learner(
    env: Environment, controllers: Controllers, learner: str, pool: PoolSettings
) -> Fraction:
    """Agents per environment from which a learner learns; agents of a pool's role only in mirrored games."""
    mirrored = Fraction(pool.mirrored, pool.groups)
    total = Fraction(agents_per_policy(env, controllers, learner))
    for role, name in controllers.items():
        if name != POOL + learner:
            continue
        size = env.spec.role(role).size
        if env.spec.turns:
            return size * mirrored + (1 - mirrored)
        total = size * mirrored if role == learner else total + size * mirrored
    return total


def find_pool_role(controllers: Controllers) -> str | None:
    """Returns the role that a pool plays; None without a pool."""
    return next((role for role, name in controllers.items() if name.startswith(POOL)), None)


def opponent_learner(controllers: Controllers, role: str) -> str:
    """Returns the learner that plays against a role's pool: the pool's own learner, or the first other."""
    owner = controllers[role].removeprefix(POOL)
    others = (other for other, name in controllers.items() if has_learner(other, name) and other != owner)
    return owner if owner != role else next(others, owner)


def require_pool(
    env: Environment, controllers: Controllers, pool: PoolSettings, num_envs: int, shards: int
) -> None:
    """Checks that a pool can play its role, and that its groups divide the environments.

    Raises:
      ValueError: one line.
    """
    role, spec = find_pool_role(controllers), env.spec
    name, turns = controllers[role], max(spec.turns, 1)
    where, against = f"controllers.{role}={name}", opponent_learner(controllers, role)
    if sum(other.startswith(POOL) for other in controllers.values()) > 1:
        raise ValueError(f"{where}: only one role can be played by a pool")
    if turns == 1 and has_learner(role, name):
        _require_own_pool(where, role, against, pool)
    if pool.explores and turns == 1:
        raise ValueError(f"pool.mode={EXPLORATION}: {spec.name} is not turn-based")
    if pool.episodic and turns > 1:
        raise ValueError(
            f"pool.hold={EPISODE}: not allowed in {spec.name}, which is turn-based; "
            f"must be a whole number or {AUTO}"
        )
    own = spec.score if against == spec.roles[0].name else None
    if spec.role(against).score is None and own is None:
        raise ValueError(f"{where}: its opponent {against} has no score for ratings")
    _require_groups(pool, turns, num_envs, shards)


def _require_own_pool(where: str, role: str, against: str, pool: PoolSettings) -> None:
    """Checks a pool of the past of the role that it plays."""
    if against == role:
        raise ValueError(f"{where}: needs another role that is a learner, to play against it")
    if pool.league:
        raise ValueError(f"{where}: a league needs the past of {against}, pool:{against}")
    if not pool.mirrored:
        raise ValueError(f"{where}: pool.shares.mirror must be above 0, as {role} learns only there")


def _require_groups(pool: PoolSettings, turns: int, num_envs: int, shards: int) -> None:
    """Checks that shards divide a pool's groups, and these the environments."""
    for key, number in (("groups", pool.groups), ("groups that mirror", pool.mirrored)):
        if number % shards:
            raise ValueError(f"pool.{key}={number}: must be a multiple of shards={shards}")
    parts = pool.groups * turns
    if num_envs % parts:
        below = num_envs // parts * parts
        near = " or ".join(str(n) for n in (below, below + parts) if n)
        each = f" times {turns} seats" if turns > 1 else ""
        raise ValueError(
            f"num_envs={num_envs}: must be a multiple of pool.groups={pool.groups}{each}, such as {near}"
        )
