"""Adapter from gymnax environments (Lange 2022; version 1.0) to `jaxmarl_echelon.envs.base`."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from algos.types import PyTree
from jaxmarl_echelon.envs.adapters.inward.conversions import (
    PLAYER,
    convert_action_space,
    require_known_name,
    restore_types,
    show_one_agent,
    unbounded_box,
)
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.envs.trees import strip_weak_types

# Fields of `EnvParams` which gymnax's reset and step never read, and what to do about them: a change of one
# would pass in silence.
_UNREAD = {
    "CartPole-v1": {"masscart": "set total_mass (masscart + masspole)"},
    "Acrobot-v1": {"link_length_2": "the second link shows in link_com_pos_2 alone"},
    "Asterix-MinAtar": {"shot_cool_down": "there are no shots"},
    "Seaquest-MinAtar": {
        "ramp_interval": "every surfacing is a step of the ramp",
        "enemy_move_interval": "set init_move_interval",
    },
}


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
                Role(
                    PLAYER,
                    1,
                    _observation_space(shown, observe),
                    convert_action_space(env.action_space(params)),
                ),
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
        return strip_weak_types(state), self._show(obs, 0.0, False, False)

    def step(
        self, key: jax.Array, state: PyTree, actions: dict[str, jax.Array], params: dict[str, PyTree]
    ) -> tuple[PyTree, TimeStep]:
        """Advances one decision."""
        own = params["gymnax"]
        obs, after, reward, terminated, _ = self._env.step_env(key, state, actions[PLAYER][0], own)
        after = restore_types(after, state)
        return after, self._show(obs, reward, terminated, self._env.is_truncated(after, own))

    def _show(self, obs, reward, terminated, truncated) -> TimeStep:
        obs = jnp.asarray(obs) if self._options is None else jax.nn.one_hot(obs, self._options)
        if self._observe is not None:
            obs = obs[np.array(self._observe)]
        return show_one_agent(obs, reward, terminated, truncated)


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

    require_known_name("gymnax", name, gymnax.registered_envs)
    try:
        env, defaults = gymnax.make(name, **(options or {}))
    except (TypeError, ValueError, AssertionError, OSError) as error:
        raise ValueError(f"env.options={dict(options or {})}: gymnax cannot make {name}: {error}") from error
    chosen = _read_params(defaults, params or {})
    _require_read(name, defaults, chosen)
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


def _require_read(name: str, defaults: PyTree, chosen: PyTree) -> None:
    """Raises ValueError where a parameter that gymnax does not read differs from its default."""
    for field, hint in _UNREAD.get(name, {}).items():
        value, default = getattr(chosen, field), getattr(defaults, field)
        if value != default:
            raise ValueError(
                f"env.params.{field}={value}: must be {default}, as gymnax's {name} does not read it; {hint}"
            )


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
    return unbounded_box(space.shape if observe is None else (len(observe),))
