"""Statistics of the answers of language policies in a rollout."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from algos import collectives
from algos.types import Rollout

TOKENS = "train/tokens"


def answer_metrics(rollouts: Mapping[str, Rollout]) -> dict[str, jax.Array]:
    """Computes shares of formed and of illegal answers, and tokens per prompt and answer.

    Tokens of an answer are those that were chosen among several; forced ones are not computed.
    Means are over the decisions of all learners that read prompts; NaN without any. `train/tokens` counts the
    tokens that were read and written for them. Empty without such a learner.
    """
    told = [one for one in rollouts.values() if _reads_prompts(one)]
    if not told:
        return {}
    number = collectives.sum_over_shards(sum(one.alive.sum(dtype=jnp.float32) for one in told))

    def mean(value):
        total = sum(jnp.where(one.alive, value(one), 0.0).sum() for one in told)
        total = collectives.sum_over_shards(total)
        return jnp.where(number > 0, total / jnp.maximum(number, 1.0), jnp.nan)

    answer = mean(lambda one: one.extras["chosen"].sum(-1).astype(jnp.float32))
    prompt = mean(lambda one: jnp.full(one.alive.shape, one.obs.shape[-1], jnp.float32))
    return {
        "train/format_rate": mean(lambda one: one.extras["formed"].astype(jnp.float32)),
        "train/invalid_rate": mean(lambda one: 1.0 - one.extras["legal"].astype(jnp.float32)),
        "train/answer_tokens": answer,
        "train/prompt_tokens": prompt,
        TOKENS: jnp.where(number > 0, number * (answer + prompt), 0.0),
    }


def _reads_prompts(rollout: Rollout) -> bool:
    """Whether a rollout's decisions are answers of a language policy."""
    return isinstance(rollout.extras, dict) and "formed" in rollout.extras
