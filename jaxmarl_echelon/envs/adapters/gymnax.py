"""Adapter from gymnax environments (Lange 2022; version 1.0) to `jaxmarl_echelon.envs.base`."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from algos.checks import suggest_names
from algos.types import PyTree
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.spaces import Box, Discrete

ROLE = "player"


class Gymnax(Environment):
    """One gymnax environment, with a single agent of role `player`.

    Observations are float32; discrete ones (`Discrete(n)`) are one-hot `[n]`. If termination and time
    limit coincide, the episode is terminated. gymnax's auto-reset is bypassed: `episodes` resets.
    Parameters are `{"gymnax": EnvParams}`; their time limit may be lowered, but not raised above
    `spec.episode_limit`.

    Attributes:
      spec: one role, no results.
    """

    def __init__(self, name: str, env, params: PyTree, observe: tuple[int, ...] | None = None):
        self._env, self._params, self._observe = env, params, observe
        shown = env.observation_space(params)
        self._options = getattr(shown, "n", None)
        self.spec = EnvSpec(
            name=name,
            version=1,
            roles=(
                Role(ROLE, 1, _observation_space(shown, observe), _action_space(env.action_space(params))),
            ),
            decision_period=0.0,
            episode_limit=int(params.max_steps_in_episode),
        )

    def default_params(self) -> dict[str, PyTree]:
        """Returns the configured parameters."""
        return {"gymnax": self._params}

    def reset(self, key: jax.Array, params: dict[str, PyTree]) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        obs, state = self._env.reset_env(key, params["gymnax"])
        state = jax.tree.map(lambda x: _cast(x, jnp.result_type(x)), state)
        no = jnp.zeros((), bool)
        return state, self._show(obs, jnp.float32(0.0), no, no)

    def step(
        self, key: jax.Array, state: PyTree, actions: dict[str, jax.Array], params: dict[str, PyTree]
    ) -> tuple[PyTree, TimeStep]:
        """Advances one decision."""
        own = params["gymnax"]
        obs, after, reward, terminated, _ = self._env.step_env(key, state, actions[ROLE][0], own)
        after = jax.tree.map(lambda new, old: _cast(new, old.dtype), after, state)
        truncated = self._env.is_truncated(after, own) & ~terminated
        return after, self._show(obs, reward, terminated, truncated)

    def _show(self, obs, reward, terminated, truncated) -> TimeStep:
        obs = jnp.asarray(obs) if self._options is None else jax.nn.one_hot(obs, self._options)
        if self._observe is not None:
            obs = obs[np.array(self._observe)]
        terminated, truncated = _cast(terminated, bool), _cast(truncated, bool)
        over = terminated | truncated
        return TimeStep(
            obs={ROLE: _cast(obs, jnp.float32)[None]},
            reward={ROLE: _cast(reward, jnp.float32)[None]},
            terminated={ROLE: terminated[None]},
            truncated={ROLE: truncated[None]},
            alive={ROLE: ~over[None]},
            action_mask={},
            over=over,
            info={},
        )


def make(
    name: str,
    params: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    observe: Sequence[int] | None = None,
) -> Gymnax:
    """Builds a gymnax environment.

    Args:
      name: gymnax's name, e.g. "CartPole-v1".
      params: overrides of gymnax's `EnvParams`; None values keep the default.
      options: arguments of gymnax's constructor, e.g. `size` of DeepSea.
      observe: indices of the observed features of a flat observation, e.g. to hide velocities; None for
        all.

    Raises:
      ValueError: one line, for an invalid setting.
    """
    # Imported here because it takes over a second and most runs do not need it.
    import gymnax

    known = gymnax.registered_envs
    if name not in known:
        raise ValueError(f"env.name={name}: unknown to gymnax; {suggest_names(name, known)}")
    try:
        env, defaults = gymnax.make(name, **(options or {}))
    except (TypeError, ValueError, AssertionError, OSError) as error:
        raise ValueError(f"env.options={dict(options or {})}: gymnax cannot make {name}: {error}") from error
    chosen = _read_params(defaults, params or {})
    return Gymnax(name, env, chosen, _read_observe(env.observation_space(chosen), observe))


def _read_params(defaults: PyTree, changes: Mapping[str, object]) -> PyTree:
    values = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(defaults)}
    for name, value in changes.items():
        if name not in values:
            raise ValueError(f"env.params.{name}={value}: unknown; allowed: {', '.join(values)}")
        if value is not None:
            values[name] = _read_param(name, value, values[name])
    if (limit := values["max_steps_in_episode"]) < 1:
        raise ValueError(f"env.params.max_steps_in_episode={limit}: must be at least 1")
    arrays = {name: jnp.asarray(value, jnp.result_type(value)) for name, value in values.items()}
    return defaults.replace(**arrays)


def _read_param(name: str, value, default) -> np.ndarray:
    """Returns `value` with the dtype and shape of gymnax's default."""
    wanted = jnp.asarray(default, jnp.result_type(default))
    try:
        given = np.asarray(value)
        fits = given.shape == wanted.shape and np.isfinite(given).all()
        fits = fits and (given.dtype == bool) == (wanted.dtype == bool)
    except (TypeError, ValueError):
        fits = False
    whole = wanted.dtype != jnp.int32 or (fits and (given == np.round(given)).all())
    if not fits or not whole:
        kind = f"{wanted.dtype}{list(wanted.shape)}" if wanted.ndim else wanted.dtype
        raise ValueError(f"env.params.{name}={value}: must be {kind}, like gymnax's {default}")
    return given.astype(wanted.dtype)


def _read_observe(space, observe: Sequence[int] | None) -> tuple[int, ...] | None:
    if observe is None:
        return None
    size = space.shape[0] if len(space.shape) == 1 else 0
    if not size:
        raise ValueError(f"env.observe={observe}: must be null, as observations are not a list of features")
    known = all(index in range(size) for index in observe)
    if not known or not 0 < len(set(observe)) == len(observe):
        raise ValueError(f"env.observe={observe}: must be distinct whole numbers from 0 to {size - 1}")
    return tuple(int(index) for index in observe)


def _observation_space(space, observe: tuple[int, ...] | None) -> Box:
    if hasattr(space, "n"):
        return Box((int(space.n),), 0.0, 1.0)
    # Unbounded, because some of gymnax's bounds are violated and others depend on the parameters.
    return Box(space.shape if observe is None else (len(observe),), -np.inf, np.inf)


def _action_space(space) -> Box | Discrete:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
    return Box(space.shape, low, high)


def _cast(x, dtype) -> jax.Array:
    """Converts to a strongly typed array; gymnax's mix of Python scalars and arrays would cause retraces."""
    return lax.convert_element_type(jnp.asarray(x), dtype)
