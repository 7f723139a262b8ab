"""Optimisers with traced hyper-parameters, gradient clipping, schedules: docs/reference/trainer.md 8."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax.contrib
from flax import struct

from algos.checks import require_choice
from algos.optim.muon import (
    apply_decayed_update,
    find_matrices,
    merge_matrices,
    muon,
    nesterov_momentum,
    split_matrices,
)
from algos.optim.packing import MomentState, pack_small_arrays, pack_step
from algos.types import PyTree

SCHEDULES = ("constant", "linear", "cosine")

# Optimisers of learners of action values.
VALUE_OPTIMIZERS = ("adam", "radam")

# Fields of `optax.ScaleByAdamState`: steps, running mean of the gradients, that of their squares.
AdamMoments = tuple[jax.Array, PyTree, PyTree]

# Defaults of hyper-parameters that are missing in a step's `hyper`; `learning_rate` has no default.
DEFAULTS = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_eps": 1e-8,
    "rmsprop_decay": 0.99,
    "rmsprop_eps": 1e-5,
    "weight_decay": 0.0,
    "muon_momentum": 0.95,
}

# Learning rate of parameters that are not matrices, relative to Muon's. A step of Adam changes every number
# by about the rate; a step of Muon changes the numbers of a 256 x 256 kernel by a sixteenth of it.
MUON_REST = {"adam": 0.1, "sgd": 1.0}


class AdamState(MomentState):
    """State of Adam.

    Attributes:
      mean: running mean of the gradients, shaped like the parameters.
      square: running mean of their squares, shaped like the parameters.
      count: int32 scalar, steps taken.
    """

    SHAPED: ClassVar[tuple[str, ...]] = ("mean", "square")

    mean: PyTree
    square: PyTree
    count: jax.Array


class RMSpropState(MomentState):
    """State of RMSprop: the running mean of the squared gradients, shaped like the parameters."""

    SHAPED: ClassVar[tuple[str, ...]] = ("square",)

    square: PyTree


def global_norm(tree: PyTree) -> jax.Array:
    """Euclidean norm of all leaves together, a scalar."""
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in pack_small_arrays(tree)))


def clip_scale(norm: jax.Array, max_norm: jax.Array | float) -> jax.Array:
    """Factor that scales a gradient of this norm to at most `max_norm`; 1 if the norm is smaller."""
    return jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-12))


def interpolate_schedule(
    schedule: str, start: jax.Array | float, end: jax.Array | float, progress: jax.Array | float
) -> jax.Array:
    """Interpolates from `start` to `end` at `progress`, clipped to [0, 1].

    Args:
      schedule: "constant" (always `start`), "linear" or "cosine" (half a period).
      start: value at progress 0.
      end: value at progress 1.
      progress: fraction of the training done.

    Raises:
      ValueError: for an unknown schedule.
    """
    require_choice("schedule", schedule, SCHEDULES)
    if schedule == "constant":
        return jnp.asarray(start)
    done = jnp.clip(progress, 0.0, 1.0)
    if schedule == "cosine":
        done = 0.5 * (1.0 - jnp.cos(jnp.pi * done))
    return start + (end - start) * done


def latest_params(_state: PyTree, params: PyTree) -> PyTree:
    """Returns the parameters themselves; the default `Optimizer.evaluation_params`."""
    return params


class Optimizer(NamedTuple):
    """An optimiser as pure functions over an explicit state.

    Attributes:
      init: `(params) -> state` before the first step.
      step: `(grads, state, params, hyper, scale, apply) -> (params, state)`. `hyper` holds traced numbers
        by name: `learning_rate`, and any of `DEFAULTS`; others are ignored, so a learner can pass all of
        its own. `scale` is a factor on the gradients, from `clip_scale`; where the bool scalar
        `apply` is False nothing changes, even for non-finite gradients.
      evaluation_params: `(state, params) -> params` to act with and to save, where these differ from the
        parameters at which gradients are taken.
    """

    init: Callable
    step: Callable
    evaluation_params: Callable = latest_params


def make_optimizer(name: str, **options) -> Optimizer:
    """Builds an optimiser by name.

    Args:
      name: a key of `OPTIMIZERS`: "adam", "radam", "adamw", "muon", "schedule_free" or "rmsprop".
      options: `rest` and `stacked` of `make_muon`, `warmup_steps` of `make_schedule_free`; the other
        optimisers have no options.

    Raises:
      ValueError: for an unknown name or an option with an unknown value.
    """
    require_choice("optimizer", name, tuple(OPTIMIZERS))
    return OPTIMIZERS[name](**options)


def scale_gradients(grads: PyTree, scale: jax.Array | float) -> PyTree:
    """Returns the gradients times a scalar."""
    return jax.tree.map(lambda g: scale * g, grads)


def keep_unless(apply: jax.Array | bool, after: PyTree, before: PyTree) -> PyTree:
    """Returns `after` if `apply`, else `before`, two pytrees of one structure."""
    return jax.tree.map(lambda new, old: jnp.where(apply, new, old), after, before)


def make_adamw(decay: bool = True, rectified: bool = False) -> Optimizer:
    """Builds Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), from Optax.

    Uses `weight_decay`, `adam_beta1`, `adam_beta2` and `adam_eps`.

    Args:
      decay: False for Adam itself, which ignores `weight_decay`.
      rectified: whether steps are as small at first as the squares of few gradients are uncertain (Liu et al.
        2020, algorithm 2).
    """
    scale_moments = optax.scale_by_radam if rectified else optax.scale_by_adam

    def init(params):
        count, mean, square = cast(AdamMoments, optax.scale_by_adam().init(params))
        return AdamState(mean, square, count)

    def step(grads, state, params, hyper, scale=1.0, apply=True):
        hyper = DEFAULTS | hyper
        transform = scale_moments(hyper["adam_beta1"], hyper["adam_beta2"], hyper["adam_eps"])
        moments = optax.ScaleByAdamState(state.count, state.mean, state.square)
        update, after = transform.update(scale_gradients(grads, scale), moments)
        count, mean, square = cast(AdamMoments, after)
        rates = hyper["learning_rate"], hyper["weight_decay"] if decay else 0.0
        params = apply_decayed_update(params, update, *rates, apply)
        return params, keep_unless(apply, AdamState(mean, square, count), state)

    return Optimizer(init, pack_step(step))


def make_adam() -> Optimizer:
    """Builds Adam (Kingma and Ba 2015), which uses `adam_beta1`, `adam_beta2` and `adam_eps`."""
    return make_adamw(decay=False)


def make_radam() -> Optimizer:
    """Builds rectified Adam (Liu et al. 2020), which uses the hyper-parameters of `make_adam`."""
    return make_adamw(decay=False, rectified=True)


def make_rmsprop() -> Optimizer:
    """Builds RMSprop (Tieleman and Hinton 2012) without momentum or bias correction, from Optax.

    Uses `rmsprop_decay` and `rmsprop_eps`, which is added to the root of the running mean.
    """

    def init(params):
        return RMSpropState(cast(optax.ScaleByRmsState, optax.scale_by_rms().init(params)).nu)

    def step(grads, state, params, hyper, scale=1.0, apply=True):
        hyper = DEFAULTS | hyper
        transform = optax.scale_by_rms(hyper["rmsprop_decay"], hyper["rmsprop_eps"], eps_in_sqrt=False)
        moments = optax.ScaleByRmsState(state.square)
        update, after = transform.update(scale_gradients(grads, scale), moments)
        params = apply_decayed_update(params, update, hyper["learning_rate"], 0.0, apply)
        return params, keep_unless(apply, RMSpropState(cast(optax.ScaleByRmsState, after).nu), state)

    return Optimizer(init, pack_step(step))


class MuonState(struct.PyTreeNode):
    """State of Muon.

    Attributes:
      momentum: running mean of the gradients of the matrices, None in place of other parameters.
      rest: `AdamState` or running mean of the gradients of the others, None in place of the matrices.
    """

    momentum: PyTree
    rest: PyTree


def make_muon(rest: str = "adam", stacked: tuple[str, ...] = ()) -> Optimizer:
    """Builds Muon for matrix parameters, with Adam or SGD for the rest and decoupled decay for both.

    Uses `muon_momentum`, `weight_decay`, `rest_rate` (learning rate of the rest as a fraction of
    `learning_rate`, by default that of `MUON_REST`), and Adam's hyper-parameters for the rest.

    Args:
      rest: "adam", or "sgd" for plain Nesterov momentum, as in PufferLib's Muon.
      stacked: see `find_matrices`.

    Raises:
      ValueError: for an unknown `rest`.
    """
    require_choice("rest", rest, tuple(MUON_REST))
    defaults = DEFAULTS | {"rest_rate": MUON_REST[rest]}
    adamw = make_adamw()

    def init(params):
        matrices, others = split_matrices(params, find_matrices(params, stacked))
        zeros = jax.tree.map(jnp.zeros_like, (matrices, others))
        return MuonState(zeros[0], adamw.init(others) if rest == "adam" else zeros[1])

    def step_rest(grads, state, params, hyper, scale, apply):
        if rest == "adam":
            return adamw.step(grads, state, params, hyper, scale, apply)
        update, state = nesterov_momentum(grads, state, hyper["muon_momentum"], scale, apply)
        rates = hyper["learning_rate"], hyper["weight_decay"]
        return apply_decayed_update(params, update, *rates, apply), state

    def step(grads, state, params, hyper, scale=1.0, apply=True):
        hyper = defaults | hyper
        layout = find_matrices(params, stacked)
        (matrices, others), (slopes, other_grads) = (
            split_matrices(params, layout),
            split_matrices(grads, layout),
        )
        matrices, momentum = muon(
            slopes,
            state.momentum,
            matrices,
            layout,
            learning_rate=hyper["learning_rate"],
            beta=hyper["muon_momentum"],
            weight_decay=hyper["weight_decay"],
            scale=scale,
            apply=apply,
        )
        slower = hyper | {"learning_rate": hyper["rest_rate"] * hyper["learning_rate"]}
        others, rest_state = step_rest(other_grads, state.rest, others, slower, scale, apply)
        return merge_matrices(matrices, others), MuonState(momentum, rest_state)

    return Optimizer(init, step)


def make_schedule_free(warmup_steps: int = 0) -> Optimizer:
    """Builds schedule-free AdamW (Defazio et al. 2024), as implemented in Optax.

    The parameters are the points at which gradients are taken; `evaluation_params` is the average to
    act with and to save. Uses `weight_decay` and Adam's hyper-parameters, where `adam_beta1` is the weight of
    the average in those points: above 0, and constant in a run.

    Args:
      warmup_steps: steps over which the learning rate rises from 0.
    """

    def transform(hyper):
        return optax.contrib.schedule_free_adamw(
            learning_rate=hyper["learning_rate"],
            warmup_steps=warmup_steps or None,
            b1=hyper["adam_beta1"],
            b2=hyper["adam_beta2"],
            eps=hyper["adam_eps"],
            weight_decay=hyper["weight_decay"],
        )

    def step(grads, state, params, hyper, scale=1.0, apply=True):
        hyper = DEFAULTS | hyper
        updates, after = transform(hyper).update(scale_gradients(grads, scale), state, params)
        after = cast(optax.contrib.ScheduleFreeState, after)._replace(
            b1=jnp.asarray(hyper["adam_beta1"], state.b1.dtype)
        )
        return keep_unless(apply, (optax.apply_updates(params, updates), after), (params, state))

    return Optimizer(
        init=transform(DEFAULTS | {"learning_rate": 0.0}).init,
        step=step,
        evaluation_params=optax.contrib.schedule_free_eval_params,
    )


OPTIMIZERS = {
    "adam": make_adam,
    "radam": make_radam,
    "adamw": make_adamw,
    "muon": make_muon,
    "schedule_free": make_schedule_free,
    "rmsprop": make_rmsprop,
}
