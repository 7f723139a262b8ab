"""Checks of an environment against the contract of `jaxmarl_echelon.envs.base`: `check_env`."""

import re
import warnings
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from algos.types import PyTree
from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, TimeStep
from jaxmarl_echelon.envs.check_parameters import check_parameter_names
from jaxmarl_echelon.envs.check_rollout import RolloutRecord, check_record, is_key, require_that
from jaxmarl_echelon.envs.results import COMPONENT, REDUCTIONS, RESULT_KINDS, Result
from jaxmarl_echelon.envs.spaces import Box, Discrete, MultiDiscrete
from jaxmarl_echelon.envs.trees import layout_difference

TOLERANCE = 1e-4
BATCH = 3


def check_env(
    env: Environment,
    key: jax.Array | None = None,
    steps: int = 64,
    params: PyTree | None = None,
    plain: bool = True,
) -> None:
    """Plays an environment with random legal actions and checks the whole contract with trainers.

    Use it in a test of your own environment:

        def test_my_environment_keeps_the_contract():
            check_env(MyEnvironment())

    Raises at the first fault, with one line that names the field, its value and the expected one. It
    checks, in this order:

    * static facts: `env.spec` is hashable and consistent, parameters are arrays or numbers, methods have the
      parameter names of `Environment`, `Viewer` and `Comparison`;
    * layout: every array has the shape and dtype of the spec, reset and step return the same structure
      with the same `info` keys, all entries of `spec.results` exist, reward components are exactly those
      among the results, and step is traced once;
    * purity: the same key and actions give the same bits; results agree with and without `jax.jit` and
      `jax.vmap`;
    * play: all values are finite, observations lie in their space, flags are consistent (see `TimeStep`),
      agents whose trajectory has ended are not alive and get no reward unless a new trajectory begins,
      agents that take turns (`EnvSpec.turns`) are alive only in their turn and terminate together, results
      are in range, and every episode ends within `spec.episode_limit` decisions.

    A reset that ignores its key only causes a warning.

    Args:
      env: the environment.
      key: typed key for resets and actions; `jax.random.key(0)` by default.
      steps: minimum number of decisions; play continues until an episode has ended.
      params: the environment's parameters; its defaults if None.
      plain: whether to run reset and step without `jax.jit` as well, which takes minutes for a large
        environment. Otherwise purity is checked by comparing two traces.

    Raises:
      AssertionError: at the first violation of the contract.
    """
    key = jax.random.key(0) if key is None else key
    check_parameter_names(env)
    params = env.default_params() if params is None else params
    check_spec(env.spec)
    _check_params(params)
    compiled = _Compiled(env)
    _check_layout(env.spec, compiled, key, params)
    _check_purity(env, compiled, key, params, plain)
    _check_play(env.spec, compiled, key, params, steps)


def check_traces(env: Environment) -> None:
    """Runs the checks of `check_env` that need neither compilation nor play: facts, layout, purity of traces.

    Args:
      env: the environment, checked with its default parameters.

    Raises:
      AssertionError: at the first violation of the contract.
    """
    key, params = jax.random.key(0), env.default_params()
    check_spec(env.spec)
    _check_params(params)
    compiled = _Compiled(env)
    _check_layout(env.spec, compiled, key, params)
    state, time = jax.eval_shape(compiled.reset, key, params)
    actions = jax.eval_shape(compiled.act, key, time)
    _require_one_program("reset", compiled.reset, env.reset, key, params)
    _require_one_program("step", compiled.step, env.step, key, state, actions, params)


def random_actions(spec: EnvSpec, key: jax.Array, time: TimeStep) -> dict[str, jax.Array]:
    """Draws legal actions for every agent: per role `[A, ...]` in its action space."""
    keys = jax.random.split(key, len(spec.roles))
    return {
        role.name: jax.vmap(role.action.sample)(
            jax.random.split(role_key, role.size), time.action_mask.get(role.name)
        )
        for role, role_key in zip(spec.roles, keys, strict=True)
    }


def check_spec(spec: EnvSpec) -> None:
    """Raises a one-line AssertionError unless the static facts of an environment are consistent."""
    require_that(isinstance(spec, EnvSpec), f"env.spec is {type(spec).__name__}, expected EnvSpec")
    try:
        hash(spec)
    except TypeError as error:
        raise AssertionError(f"env.spec must be hashable (tuples, not lists): {error}") from None
    for field, kind in (("roles", Role), ("results", Result)):
        given = getattr(spec, field)
        fits = isinstance(given, tuple) and all(isinstance(one, kind) for one in given)
        require_that(fits, f"spec.{field} is {given!r}, expected a tuple, as in ({kind.__name__}(...),)")
    names = [role.name for role in spec.roles]
    require_that(len(names) > 0, "spec.roles is empty, expected at least one Role")
    require_that(len(set(names)) == len(names), f"spec.roles has names {names}, expected distinct ones")
    for role in spec.roles:
        require_that(role.size >= 1, f"spec.roles: {role.name!r} has size {role.size}, expected at least 1")
        for field in ("observation", "action"):
            space = getattr(role, field)
            known = isinstance(space, Box | Discrete | MultiDiscrete)
            require_that(known, f"spec.roles: {role.name!r}.{field} is {space!r}, expected a Space")
        if isinstance(role.action, Box):
            bounds = f"low={role.action.low} high={role.action.high}"
            bounded = bool(np.isfinite(role.action.bounds()).all())
            require_that(bounded, f"spec.roles: {role.name!r}.action has {bounds}, expected finite bounds")
        _require_score(spec, role.score, f"spec.roles: {role.name!r}.score")
    limit = spec.episode_limit
    whole = isinstance(limit, int | np.integer) and limit >= 1
    require_that(whole, f"spec.episode_limit is {limit!r}, expected a whole number of at least 1")
    _check_turns(spec)
    _check_results(spec)
    _require_score(spec, spec.score, "spec.score")
    first = spec.roles[0]
    require_that(
        first.score in (None, spec.score),
        f"spec.roles: {first.name!r}.score is {first.score!r}, expected spec.score {spec.score!r} or None "
        "for the first role",
    )


def _check_turns(spec: EnvSpec) -> None:
    require_that(
        spec.stakes >= 0, f"spec.stakes is {spec.stakes}, expected 0 or the most that a seat can win"
    )
    if spec.turns == 0:
        require_that(spec.stakes == 0, f"spec.stakes is {spec.stakes}, expected 0 where agents take no turns")
        return
    require_that(spec.turns >= 2, f"spec.turns is {spec.turns}, expected 0 or at least 2")
    sizes = [role.size for role in spec.roles]
    found = f"spec.turns is {spec.turns}, but the roles have sizes {sizes}"
    require_that(sizes == [spec.turns], f"{found}: expected one role with an agent per turn")
    require_that(spec.late, f"spec.turns is {spec.turns}, expected spec.late: waiting seats receive rewards")
    names = {result.name for result in spec.results}
    missing = [f"score/{seat}" for seat in range(spec.turns) if f"score/{seat}" not in names]
    require_that(not missing, f"spec.results lack {missing}, the final scores of seats that take turns")


def _check_results(spec: EnvSpec) -> None:
    known = {result.name: result for result in spec.results}
    require_that(len(known) == len(spec.results), "spec.results must be Results with distinct names")
    roles = {role.name for role in spec.roles}
    for name, result in known.items():
        label = f"spec.results: {name!r}"
        for field in ("labels", "among"):
            given = getattr(result, field)
            found = f"{label}.{field} is {given!r}"
            # A text would be read as a tuple of its letters.
            require_that(isinstance(given, tuple), f"{found}, expected a tuple, as in ({given!r},)")
        require_that(
            result.kind in RESULT_KINDS, f"{label}.kind is {result.kind!r}, expected one of {RESULT_KINDS}"
        )
        known_way = result.reduce in REDUCTIONS
        require_that(known_way, f"{label}.reduce is {result.reduce!r}, expected one of {REDUCTIONS}")
        there = result.role is None or result.role in roles
        require_that(there, f"{label}.role is {result.role!r}, expected a role of {sorted(roles)}")
        if result.kind == "code":
            require_that(len(result.labels) > 0, f"{label} is a code, expected labels")
            require_that(result.reduce == "last", f"{label} is a code, expected reduce='last'")
        per_agent = result.reduce == "mean" and result.role is not None
        require_that(
            not per_agent, f"{label}.reduce is 'mean' of a role, expected 'sum' over a count of steps"
        )
        if result.over is not None:
            number = result.over in known and known[result.over].kind != "code"
            require_that(number, f"{label}.over is {result.over!r}, expected the name of another number")
        if result.among:
            source = known.get(result.entry)
            labels = source.labels if source is not None else ()
            wanted = (
                f"{label}.among is {result.among}, expected labels of the code {result.entry!r}: {labels}"
            )
            require_that(result.kind == "rate" and set(result.among) <= set(labels), wanted)


def _require_score(spec: EnvSpec, name: str | None, label: str) -> None:
    numbers = [result.name for result in spec.results if result.kind != "code"]
    require_that(
        name is None or name in numbers, f"{label} is {name!r}, expected one of spec.results {numbers}"
    )


def _check_params(params: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        require_that(
            isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float),
            f"params{jax.tree_util.keystr(path)} is {leaf!r}, expected an array or a number",
        )


def _check_layout(spec: EnvSpec, compiled: "_Compiled", key: jax.Array, params: PyTree) -> None:
    state, time = _pair("reset", jax.eval_shape(compiled.reset, key, params))
    _check_time_layout(spec, time, "reset")
    actions = jax.eval_shape(compiled.act, key, time)
    next_state, next_time = _pair("step", jax.eval_shape(compiled.step, key, state, actions, params))
    _check_time_layout(spec, next_time, "step")
    for name, expected, got in (("state", state, next_state), ("time step", time, next_time)):
        difference = layout_difference(expected, got)
        require_that(difference is None, f"{name} from step must be laid out as from reset: {difference}")
    leaves = jax.tree_util.tree_leaves_with_path(state)
    for (path, leaf), after in zip(leaves, jax.tree.leaves(next_state), strict=True):
        require_that(
            leaf.weak_type == after.weak_type,
            f"state{jax.tree_util.keystr(path)} is weakly typed from only one of reset and step, which makes "
            f"a second trace of step; expected {leaf.dtype} from both, as in jnp.{leaf.dtype}(0)",
        )


def _pair(source: str, returned: PyTree) -> tuple[PyTree, PyTree]:
    pair = isinstance(returned, tuple) and len(returned) == 2
    found = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
    require_that(pair, f"{source} returned {found}, expected (state, time step)")
    return returned


def _check_time_layout(spec: EnvSpec, time: TimeStep, source: str) -> None:
    require_that(isinstance(time, TimeStep), f"{source} returned {type(time).__name__}, expected TimeStep")
    roles = {role.name: role for role in spec.roles}
    flag = np.dtype(bool)
    for field, dtype in (
        ("obs", None),
        ("reward", np.dtype("float32")),
        ("terminated", flag),
        ("truncated", flag),
        ("alive", flag),
    ):
        values = getattr(time, field)
        found = f"{field} from {source} has {list(values)}"
        require_that(set(values) == set(roles), f"{found}, expected roles {list(roles)}")
        for name, role in roles.items():
            space = role.observation
            shape, wanted = ((), dtype) if dtype is not None else (space.shape, space.dtype)
            _require_array(f"{field}[{name!r}] from {source}", values[name], (role.size, *shape), wanted)
    for name, mask in time.action_mask.items():
        known = name in roles and roles[name].action.mask_size > 0
        require_that(known, f"action_mask[{name!r}] from {source} is unexpected: no such discrete role")
        shape = (roles[name].size, roles[name].action.mask_size)
        _require_array(f"action_mask[{name!r}] from {source}", mask, shape, flag)
    for field in ("present", "begins"):
        for name, values in getattr(time, field).items():
            known = name in roles
            require_that(
                known, f"{field} from {source} has {name!r}, expected some of the roles {list(roles)}"
            )
            _require_array(f"{field}[{name!r}] from {source}", values, (roles[name].size,), flag)
    for name, role in roles.items():
        space = role.critic_observation
        wanted = f"critic_obs[{name!r}] from {source}"
        require_that(
            (space is None) == (name not in time.critic_obs), f"{wanted}: must be there if role says so"
        )
        if space is not None:
            _require_array(wanted, time.critic_obs[name], (role.size, *space.shape), space.dtype)
    _require_array(f"over from {source}", time.over, (), flag)
    _check_info_layout(spec, time.info, source)


def _check_info_layout(spec: EnvSpec, info: dict[str, jax.Array], source: str) -> None:
    kept = {result.entry: result for result in results.stored_results(spec.results)}
    for name, result in kept.items():
        require_that(name in info, f"info[{name!r}] from {source} is missing, expected as of spec.results")
        shape = () if result.role is None else (spec.role(result.role).size,)
        found = f"info[{name!r}] from {source} is {list(info[name].shape)}"
        require_that(info[name].shape == shape, f"{found}, expected {list(shape) or 'a scalar'}")
        if result.kind == "code":
            _require_array(f"info[{name!r}] from {source}", info[name], shape, np.dtype("int32"))
    for name, value in info.items():
        scalar = name in kept or value.shape == ()
        require_that(scalar, f"info[{name!r}] from {source} is {list(value.shape)}, expected a scalar")
    components = {name.removeprefix(COMPONENT) for name in info if name.startswith(COMPONENT)}
    require_that(
        components == set(spec.components),
        f"info from {source} has reward components {sorted(components)}, "
        f"expected those of spec.results, {sorted(spec.components)}, under {COMPONENT}NAME",
    )
    for name in spec.components:
        label = f"info[{COMPONENT + name!r}] from {source}"
        _require_array(label, info[COMPONENT + name], (), np.dtype("float32"))


def _require_array(label: str, array: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> None:
    single = hasattr(array, "dtype")
    found = f"{array.dtype}{list(array.shape)}" if single else type(array).__name__
    wanted = f"{dtype}{list(shape)}"
    require_that(found == wanted, f"{label} is {found}, expected {wanted}")


class _Compiled:
    """Jitted functions of the environment, traced once for all checks, with a count of traces of `step`."""

    def __init__(self, env: Environment):
        self.traces = 0
        self.reset = jax.jit(env.reset)
        self.step = jax.jit(partial(self._counted, env.step))
        self.act = jax.jit(partial(random_actions, env.spec))

    def _counted(self, step: Callable, *arguments):
        self.traces += 1
        return step(*arguments)


def _check_purity(env: Environment, compiled: _Compiled, key: jax.Array, params: PyTree, plain: bool) -> None:
    keys = jax.random.split(key, BATCH)
    singles = []
    for one in keys:
        state, time = compiled.reset(one, params)
        actions = compiled.act(one, time)
        singles.append(((state, time), actions, compiled.step(one, state, actions, params)))

    start, actions, once = singles[0]
    if plain:
        first, again = (
            (env.reset(keys[0], params), env.step(keys[0], start[0], actions, params)) for _ in range(2)
        )
        _require_equal("the same key and actions", first, again, 0.0)
        _require_equal("jax.jit", first, (start, once), TOLERANCE)
    else:
        _require_one_program("reset", compiled.reset, env.reset, keys[0], params)
        _require_one_program("step", compiled.step, env.step, keys[0], start[0], actions, params)

    # One program, because one per shape and dtype takes seconds to compile.
    stack = jax.jit(lambda *all_: jax.tree.map(lambda *rows: jnp.stack(rows), *all_))
    starts, actions, onces = stack(*singles)
    batched_reset = jax.vmap(compiled.reset, (0, None))
    batched_step = jax.vmap(compiled.step, (0, 0, 0, None))
    _require_equal("jax.vmap of reset", starts, jax.jit(batched_reset)(keys, params), TOLERANCE)
    batched = jax.jit(batched_step)(keys, starts[0], actions, params)
    _require_equal("jax.vmap of step", onces, batched, TOLERANCE)
    _warn_of_equal_starts(env.spec, starts)


def _require_one_program(name: str, compiled: jax.stages.Wrapped, function: Callable, *arguments) -> None:
    """Raises if a second trace of a compiled function differs, so that it depends on hidden state."""
    # JAX caches traces by function; a new lambda forces a second trace.
    traced = (compiled, jax.jit(lambda *given: function(*given)))
    first, again = (one.trace(*arguments).jaxpr for one in traced)
    same = same_traces(first, again)
    require_that(same, f"{name} gives another program when it is traced again: it is not a pure function")


def trace_decision(env: Environment, params: PyTree) -> ClosedJaxpr:
    """Traces what an environment does with its parameters: reset, a step, and those of evaluations."""

    def decide(key, params):
        params = env.evaluation_params(params, jnp.int32(0))
        state, time = env.reset(key, params)
        return env.step(key, state, random_actions(env.spec, key, time), params)

    return jax.make_jaxpr(decide)(jax.random.key(0), params)


def same_traces(ours: ClosedJaxpr, theirs: ClosedJaxpr) -> bool:
    """Whether two traces are the same program, with equal constants."""
    texts = [re.sub(r" at 0x[0-9a-f]+|id=\d+", "", str(traced)) for traced in (ours, theirs)]
    return texts[0] == texts[1] and all(
        np.array_equal(_numbers(a), _numbers(b), equal_nan=_numbers(a).dtype.kind in "fc")
        for a, b in zip(ours.consts, theirs.consts, strict=True)
    )


def _require_equal(what: str, expected: PyTree, got: PyTree, tolerance: float) -> None:
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(got), strict=True):
        a, b = _numbers(a), _numbers(b)
        inexact = jnp.issubdtype(a.dtype, jnp.inexact)
        close = np.isclose(a, b, tolerance, tolerance, equal_nan=True) if inexact else a == b
        if not close.all():
            where = tuple(np.argwhere(~close)[0].tolist())
            leaf = f"{jax.tree_util.keystr(path)}{list(where) or ''}"
            raise AssertionError(f"{what} changes {leaf}: {b[where]}, expected {a[where]}")


def _numbers(leaf: jax.Array) -> np.ndarray:
    leaf = jnp.asarray(leaf)
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _warn_of_equal_starts(spec: EnvSpec, starts: tuple[PyTree, TimeStep]) -> None:
    state, time = starts
    shown = [leaf for leaf in jax.tree.leaves((state, time.obs)) if not is_key(leaf)]
    if all((np.asarray(leaf) == np.asarray(leaf)[:1]).all() for leaf in shown):
        warnings.warn(f"{spec.name}: reset gives the same start for different keys", stacklevel=4)


def _check_play(spec: EnvSpec, compiled: _Compiled, key: jax.Array, params: PyTree, steps: int) -> None:
    records, age, ended, late = [], 0, False, False
    key_reset, key = jax.random.split(key)
    state, time = compiled.reset(key_reset, params)
    while not late and (len(records) < steps or not ended):
        key, key_act, key_step, key_reset = jax.random.split(key, 4)
        before, fresh = time, np.array(age == 0)
        state, time = compiled.step(key_step, state, compiled.act(key_act, time), params)
        numbers = jax.tree.map(lambda leaf: None if is_key(leaf) else np.asarray(leaf), state)
        records.append(RolloutRecord(before, fresh, numbers, time))
        age += 1
        late = age >= spec.episode_limit and not time.over
        if time.over:
            state, time = compiled.reset(key_reset, params)
            age, ended = 0, True
    check_record(spec, jax.tree.map(lambda *rows: np.stack(rows), *records))
    require_that(not late, f"over is still False after spec.episode_limit={spec.episode_limit} decisions")
    traces = compiled.traces
    require_that(traces == 1, f"step was traced {traces} times for inputs of one layout, expected 1")
