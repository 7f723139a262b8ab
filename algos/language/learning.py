"""Gradient steps of a language learner on the answers of a rollout."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from algos import collectives
from algos.checks import require_given
from algos.language import losses
from algos.language.answering import AnswerMode
from algos.language.reading import Reader
from algos.language.state import AnswerRows, LanguageParams, LanguageState
from algos.metrics import STEPS
from algos.optim.optimizers import Optimizer, clip_scale, global_norm
from algos.optim.packing import pack_moments, unpack_moments
from algos.types import Hyper, Metrics

# Names of the sums that an answer's loss reports.
SUMS = ("policy", "entropy", "kl", "value_loss", "gap", "chosen")


def learn_from_answers(
    config: Any,
    mode: AnswerMode,
    bind: Callable[[LanguageParams], Reader],
    optimizer: Optimizer,
    state: LanguageState,
    key: jax.Array,
    rows: AnswerRows,
    hyper: Hyper,
) -> tuple[LanguageState, Metrics]:
    """Takes the gradient steps of an update.

    Terms of tokens are summed and divided by a constant: the answers of a step times the most tokens that
    one can choose. Longer answers thus weigh neither more nor less per token (Liu et al. 2025, section 3.1).

    Args:
      config: `LanguageSettings`.
      mode: way to answer.
      bind: `(params) -> Reader`.
      optimizer: of the parameters.
      state: before the update.
      key: random key of the order of rows.
      rows: the rollout, `[N, ...]` of this shard.
      hyper: traced numbers of this update.

    Returns:
      the state and the metrics; means are NaN where nothing was learnt.
    """
    size, together = config.step_sizes(rows.alive.size)
    if config.corrects:
        rows = rows.replace(old=_old_log_probs(mode, bind, state.params, rows, size))
    objective = make_objective(config, mode, bind, state.start, hyper)
    gradient = jax.grad(objective, has_aux=True)
    steps = rows.alive.size // (size * together)

    def nothing(params, batch):
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, batch))

    def step(carry, batches):
        params, moments = carry

        def add(total, batch):
            # A micro-batch without decisions is skipped; under `vmap` it is computed and not used.
            grads, (sums, largest) = lax.cond(batch.alive.any(), gradient, nothing, params, batch)
            return jax.tree.map(jnp.add, total, (grads, sums)), largest

        start = jax.tree.map(jnp.zeros_like, (params, dict.fromkeys(SUMS, jnp.zeros(()))))
        (grads, sums), largest = lax.scan(add, start, batches)
        count = batches.alive.sum(dtype=jnp.float32)
        grads, sums, count = collectives.sum_over_shards((grads, sums, count))
        grads = jax.tree.map(lambda g: g / jnp.maximum(count, 1.0), grads)
        norm = global_norm(grads)
        scale = clip_scale(norm, hyper["max_grad_norm"])
        params, moments = optimizer.step(grads, moments, params, hyper, scale, count > 0)
        gap_max = collectives.max_over_shards(largest.max())
        return (params, moments), (sums, count, norm, gap_max)

    def epoch(carry, key):
        order = _row_order(key, rows.alive, shuffle=steps > 1)
        cut = jax.tree.map(lambda x: x[order].reshape((steps, together, size) + x.shape[1:]), rows)
        return lax.scan(step, carry, cut)

    keys = jax.random.split(collectives.fold_shard_into_key(key), config.epochs)
    (params, moments), found = lax.scan(epoch, (state.params, pack_moments(state.optimizer)), keys)
    metrics = _step_metrics(found)
    if state.start is None:
        del metrics["kl_start"]
    if state.params.value is None:
        del metrics["value_loss"]
    return state.replace(params=params, optimizer=unpack_moments(moments)), metrics


def _row_order(key: jax.Array, alive: jax.Array, *, shuffle: bool) -> jax.Array:
    """Order of rows: random where there are several steps, else those that are learnt from first."""
    if shuffle:
        return jax.random.permutation(key, alive.size)
    return jnp.argsort(~alive, stable=True)


def make_objective(config, mode: AnswerMode, bind, start: LanguageParams | None, hyper: Hyper) -> Callable:
    """Builds the loss `(params, rows) -> (sum over rows, (sums, largest gap))`."""
    width = 1.0 if config.loss == "gspo" else float(mode.choices)

    def objective(params: LanguageParams, rows: AnswerRows):
        given = rows.prompt, rows.allowed, rows.tokens, rows.chosen
        scored, hidden = mode.score(bind(params), *given)
        chosen = rows.chosen & rows.alive[:, None]
        advantage = jnp.where(rows.alive, rows.advantage, 0.0)
        terms = _policy_terms(config, scored.log_prob, rows, advantage, chosen, hyper)
        policy = -terms.sum() / width
        entropy = jnp.where(chosen, scored.entropy, 0.0).sum() / mode.choices
        loss = policy - hyper["entropy_coefficient"] * entropy
        sums = {"policy": policy, "entropy": jnp.where(chosen, scored.entropy, 0.0).sum()}
        if start is not None:
            reference, _ = mode.score(bind(jax.lax.stop_gradient(start)), *given)
            kl = losses.divergence_terms(scored.log_prob, reference.log_prob, chosen).sum()
            loss = loss + hyper["kl_coefficient"] * kl / mode.choices
            sums["kl"] = kl
        if params.value is not None:
            error = jnp.where(rows.alive, params.value(hidden) - require_given("target", rows.target), 0.0)
            sums["value_loss"] = 0.5 * jnp.square(error).sum()
            loss = loss + hyper["value_coefficient"] * sums["value_loss"]
        gap, number, largest = losses.sampler_gap(
            jax.lax.stop_gradient(scored.log_prob), rows.sampled, chosen
        )
        sums |= {"gap": gap, "chosen": number.astype(jnp.float32)}
        return loss, (dict.fromkeys(SUMS, jnp.zeros(())) | sums, largest)

    return objective


def _policy_terms(config, log_prob, rows: AnswerRows, advantage, chosen, hyper: Hyper) -> jax.Array:
    """Terms of the policy, weighted where tokens were sampled by another forward pass."""
    clips = hyper["clip"], jnp.where(jnp.isfinite(hyper["clip_high"]), hyper["clip_high"], hyper["clip"])
    weigh = losses.correction_weights
    if config.loss == "gspo":
        terms = losses.sequence_ratio_terms(log_prob, rows.old, advantage, chosen, *clips)
        weigh = losses.sequence_correction_weights
    elif config.loss == "clip":
        terms = losses.clipped_ratio_terms(log_prob, rows.old, advantage, chosen, *clips)
    else:
        terms = losses.reinforce_terms(log_prob, advantage, chosen)
    return terms * weigh(rows.old, rows.sampled, chosen) if config.corrects else terms


def _old_log_probs(mode: AnswerMode, bind, params: LanguageParams, rows: AnswerRows, size: int) -> jax.Array:
    """Log-probabilities `[N, w]` by the learner's forward pass, before its first step."""
    reader = bind(params)

    def score(batch):
        return mode.score(reader, batch.prompt, batch.allowed, batch.tokens, batch.chosen)[0].log_prob

    cut = jax.tree.map(lambda x: x.reshape((-1, size) + x.shape[1:]), rows)
    return jax.lax.stop_gradient(lax.map(score, cut).reshape(rows.tokens.shape))


def _step_metrics(found) -> Metrics:
    """Means over the answers and tokens of all steps; the gap is that of the first step."""
    sums, count, norm, gap_max = found
    total = {name: x.sum() for name, x in sums.items()}
    number, tokens = count.sum(), total["chosen"]

    def mean(x, over):
        return jnp.where(over > 0, x / jnp.maximum(over, 1.0), jnp.nan)

    stepped = (count > 0).sum(dtype=jnp.float32)
    first = {name: x.ravel()[0] for name, x in sums.items()}
    return {
        "policy_loss": mean(total["policy"], number),
        "entropy": mean(total["entropy"], tokens),
        "kl_start": mean(total["kl"], tokens),
        "value_loss": mean(total["value_loss"], number),
        "sampler_gap": mean(first["gap"], first["chosen"]),
        "sampler_gap_max": gap_max.ravel()[0],
        "gradient_norm": mean(jnp.where(count > 0, norm, 0.0).sum(), stepped),
        STEPS: stepped,
    }
