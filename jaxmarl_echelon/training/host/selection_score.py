"""Selection of best checkpoints when the score of a game is uninformative.

If one policy plays all seats of a constant-sum game, the mean score over seats is the same for all policies.
"""

from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.training.config.role_assignment import LEARNER, SHARED
from jaxmarl_echelon.training.config.run_config import RunConfig

# Rating metric by the pool's anchor: without an anchor there is no reference for rating differences.
RATINGS = {"initial": "pool/rating_minus_anchor", "none": "pool/rating_mu"}


def evaluations_are_informative(env: Environment) -> bool:
    """Whether the score of evaluations can tell policies apart."""
    return not env.spec.constant_sum or bool(env.opponents)


def training_is_informative(config: RunConfig) -> bool:
    """Whether the score of training can tell policies apart."""
    return not config.env.spec.constant_sum or plays_rated_opponents(config)


def require_scored_learner(config: RunConfig) -> None:
    """Raises ValueError unless stages of a curriculum are passed by the score of a role that learns.

    Otherwise a learner that makes its opponent fail would never pass a stage, and would be judged by that.
    """
    role = config.env.spec.roles[0].name
    learns = role in config.algos or config.controllers[role].startswith(SHARED)
    if learns or not config.curriculum(config.env).stages:
        return
    raise ValueError(
        f"controllers.{role}={config.controllers[role]}: must be a learner with a curriculum of stages, "
        f"which are passed by the score of {role}; allowed: {LEARNER}, or curriculum=none"
    )


def plays_rated_opponents(config: RunConfig) -> bool:
    """Whether the learner plays some games against a pool's entries, which are rated."""
    return config.pooled is not None and config.pool.groups > config.pool.mirrored


def rating_column(config: RunConfig) -> str | None:
    """Returns the metric that rates the learner; None without ratings."""
    return RATINGS[config.pool.anchor] if plays_rated_opponents(config) else None


def describe_selection(config: RunConfig) -> tuple[str, ...]:
    """Returns a line on the choice of best checkpoints if evaluation scores are uninformative, else `()`."""
    if evaluations_are_informative(config.env):
        return ()
    follow = "best_eval follows the pool's rating"
    if rating_column(config) is None:
        follow = "best_eval and best_training follow the latest policy"
    return (f"{follow}: in evaluations one policy plays all seats, so its mean score is constant",)
