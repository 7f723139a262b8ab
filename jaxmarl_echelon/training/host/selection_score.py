"""What the best checkpoints of a run are chosen by where the score of its games tells nothing.

Where one policy plays all seats of a constant-sum game, the mean score over seats is that of any policy.
"""

from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.training.config.run_config import RunConfig

# By the pool's anchor: without one, differences of ratings have nothing to refer to.
RATINGS = {"initial": "pool/rating_minus_anchor", "none": "pool/rating_mu"}


def evaluations_tell(env: Environment) -> bool:
    """Whether the score of evaluations can tell policies apart."""
    return not env.spec.constant_sum or bool(env.opponents)


def training_tells(config: RunConfig) -> bool:
    """Whether the score of training can tell policies apart."""
    return not config.env.spec.constant_sum or meets_others(config)


def meets_others(config: RunConfig) -> bool:
    """Whether some games are against entries of a pool, which are rated, and not only against itself."""
    return config.pooled is not None and config.pool.groups > config.pool.mirrored


def rating_column(config: RunConfig) -> str | None:
    """The metric that rates the learner; None where nobody does."""
    return RATINGS[config.pool.anchor] if meets_others(config) else None


def describe(config: RunConfig) -> tuple[str, ...]:
    """A line about the best checkpoints where the score of evaluations tells nothing; empty elsewhere."""
    if evaluations_tell(config.env):
        return ()
    follow = "best_eval follows the pool's rating"
    if rating_column(config) is None:
        follow = "best_eval and best_training follow the latest policy"
    return (f"{follow}: in evaluations one policy plays all seats, whose mean score is always the same",)
