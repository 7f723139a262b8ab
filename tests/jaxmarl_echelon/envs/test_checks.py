import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from marked import mark_after
from probes import ROLE

import jaxmarl_echelon as je
from jaxmarl_echelon import envs
from jaxmarl_echelon.envs import contract, results
from jaxmarl_echelon.envs.base import Comparison, Environment, Viewer
from jaxmarl_echelon.envs.check_env import check_env, random_actions
from jaxmarl_echelon.envs.check_parameters import check_parameter_names
from jaxmarl_echelon.envs.results import Result
from jaxmarl_echelon.envs.spaces import Box

# Another test of the same probes holds what needs no play.
PLAYED = probes.Pictures | probes.Comings | probes.Rivals


@pytest.mark.parametrize(
    "env",
    mark_after(3, sorted(probes.CONFORMING, key=lambda env: not isinstance(env, PLAYED))),
    ids=lambda env: env.spec.name,
)
def test_sound_environments_pass(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, steps=8)


DEAD_AGENT = probes.DeadAgent()
START = DEAD_AGENT.reset  # one function, which jax compiles once for all that it is the reset of


class Broken(Environment):
    """A sound environment with one fault: each argument replaces one of its functions or values."""

    def __init__(self, env=None, spec=None, reset=None, step=None, params=None):
        self.env = env or DEAD_AGENT
        if env is None and reset is None and type(self) is Broken:
            self.reset = START
        self.spec = dataclasses.replace(self.env.spec, **(spec or {}))
        self.spoil_reset = reset or (lambda key, state, time: (state, time))
        self.spoil_step = step or (lambda key, state, time: (state, time))
        self.params = params or {}

    def default_params(self):
        return self.env.default_params() | self.params

    def reset(self, key, params):
        return self.spoil_reset(key, *self.env.reset(key, params))

    def step(self, key, state, actions, params):
        return self.spoil_step(key, *self.env.step(key, state, actions, params))


def with_role(**changes):
    role = probes.DeadAgent().spec.roles[0]
    return {"roles": (dataclasses.replace(role, **changes),)}


def show(**changes):
    """Replaces fields of the time step; callables get the old value, dictionaries are merged."""

    def spoil(key, state, time):
        for field, new in changes.items():
            old = getattr(time, field)
            new = new(old) if callable(new) else new
            time = time.replace(**{field: old | new if isinstance(new, dict) else new})
        return state, time

    return spoil


def per_role(fn):
    return lambda values: {ROLE: fn(values[ROLE])}


def counter_step():
    calls = itertools.count()

    def spoil(key, state, time):
        return state.replace(level=state.level + next(calls)), time

    return spoil


def without(name):
    return lambda key, state, time: (
        state,
        time.replace(info={k: v for k, v in time.info.items() if k != name}),
    )


def still_alive(key, state, time):
    back = state.clock == 3
    return state, time.replace(alive={ROLE: time.alive[ROLE] | back})


def batch_dependent(key, state, time):
    noise = jax.random.uniform(key) if isinstance(state.level, jax.core.Tracer) else 0.0
    return state.replace(level=state.level + noise), time


def replaced(name, **changes):
    return tuple(dataclasses.replace(one, **changes) if one.name == name else one for one in SOUND)


def stuck_at_the_end(key, state, time):
    return state, time.replace(action_mask={ROLE: jnp.ones((1, 2), bool) & ~time.over})


SOUND = probes.DeadAgent().spec.results
BROKEN = {
    "observation shape": (
        dict(step=show(obs=per_role(lambda x: x[:, 0]))),
        r"obs\['player'\] from step is float32\[2\], expected float32\[2, 1\]",
    ),
    "reward dtype": (
        dict(reset=show(reward=per_role(lambda x: x.astype(jnp.int32)))),
        r"reward\['player'\] from reset is int32\[2\], expected float32\[2\]",
    ),
    "missing role": (
        dict(step=show(obs=lambda x: x | {"other": x[ROLE]})),
        r"obs from step has .*other.*expected roles \['player'\]",
    ),
    "observation out of space": (
        dict(spec=with_role(observation=Box((1,), -0.5, 0.5))),
        r"obs\['player'\] lies outside its space",
    ),
    "observation not finite": (
        dict(step=show(obs=per_role(lambda x: x / 0))),
        r"obs\['player'\] is not finite",
    ),
    "state not finite": (
        dict(step=lambda key, state, time: (state.replace(level=state.level + jnp.nan), time)),
        r"state.level is not finite",
    ),
    "mask of the wrong size": (
        dict(reset=show(action_mask={ROLE: jnp.ones((2, 3), bool)})),
        r"action_mask\['player'\] from reset is bool\[2, 3\], expected bool\[2, 2\]",
    ),
    "mask that allows no action": (
        dict(
            reset=show(action_mask={ROLE: jnp.zeros((2, 2), bool)}),
            step=show(action_mask={ROLE: jnp.ones((2, 2), bool)}),
        ),
        r"action_mask\['player'\] allows no action",
    ),
    "mask that allows no action at a limit": (
        dict(env=probes.TimeLimit(3), reset=stuck_at_the_end, step=stuck_at_the_end),
        r"action_mask\['player'\] allows no action for an agent that is truncated \(step 2",
    ),
    "team that is gone before the end": (
        dict(spec={"late": True, "ends_with_team": True}, step=show(alive=per_role(jnp.zeros_like))),
        r"no agent is alive\['player'\], but over is unset, against spec.ends_with_team",
    ),
    "info key after steps only": (
        dict(step=show(info={"speed": jnp.float32(1)})),
        r"time step from step .*info\['speed'\] is unexpected",
    ),
    "info key lost in steps": (dict(step=without("start")), r"info\['start'\] is missing"),
    "info not a scalar": (
        dict(reset=show(info={"start": jnp.zeros(2)})),
        r"info\['start'\] from reset is \[2\], expected a scalar",
    ),
    "component not in the spec": (
        dict(
            spec={"results": results.standard_results(("done", "timeout"), ("done",), components=("main",))}
        ),
        r"reward components \['count', 'main'\], expected those of spec.results, \['main'\]",
    ),
    "component missing": (
        dict(reset=without("reward/main")),
        r"info\['reward/main'\] from reset is missing, expected as of spec.results",
    ),
    "outcome missing": (
        dict(reset=without("outcome"), step=without("outcome")),
        r"info\['outcome'\] from reset is missing",
    ),
    "outcome code unknown": (
        dict(spec={"results": replaced("outcome", labels=("done",))}, params={}, env=probes.TimeLimit(3)),
        r"info\['outcome'\] at the end is not in 0..0",
    ),
    "result missing": (
        dict(spec={"results": (*SOUND, Result("laps"))}),
        r"info\['laps'\] from reset is missing, expected as of spec.results",
    ),
    "result of a role without its axis": (
        dict(spec={"results": (*SOUND, Result("clock", role=ROLE))}),
        r"info\['clock'\] from reset is \[\], expected \[2\]",
    ),
    "score above 1": (
        dict(spec={"results": (*SOUND, Result("clock")), "score": "clock"}),
        r"info\['clock'\] at the end is not in 0..1",
    ),
    "rate above 1": (
        dict(spec={"results": (*SOUND, Result("clock", kind="rate"))}),
        r"info\['clock'\] at the end is not in 0..1",
    ),
    "mean rate in per cent": (
        dict(spec={"results": (*SOUND, Result("clock", kind="rate", reduce="mean"))}),
        r"'clock' of an episode, the mean of info\['clock'\], is not in 0..1",
    ),
    "largest score above 1": (
        dict(spec={"results": (*SOUND, Result("clock", reduce="max")), "score": "clock"}),
        r"'clock' of an episode, the max of info\['clock'\], is not in 0..1",
    ),
    "code unknown": (
        dict(
            spec={"results": (*SOUND, Result("ending", kind="code", labels=("a",), source="outcome"))},
            env=probes.TimeLimit(3),
        ),
        r"info\['outcome'\] at the end is not in -1..0",
    ),
    "over unknown": (
        dict(spec={"results": (*SOUND, Result("clock", over="metres"))}),
        r"'clock'.over is 'metres', expected the name of another number",
    ),
    "reduction unknown": (
        dict(spec={"results": (*SOUND, Result("clock", reduce="median"))}),
        r"'clock'.reduce is 'median', expected one of",
    ),
    "mean of a role": (
        dict(spec={"results": (*SOUND, Result("clock", role=ROLE, reduce="mean"))}),
        r"'clock'.reduce is 'mean' of a role, expected 'sum'",
    ),
    "alive but absent": (
        dict(
            reset=show(present={ROLE: jnp.array([True, False])}),
            step=show(present={ROLE: jnp.zeros(2, bool)}),
        ),
        r"alive\['player'\] is set for a slot that is not present",
    ),
    "a story that begins before the last one ends": (
        dict(
            env=probes.TimeLimit(3),
            reset=show(begins={ROLE: jnp.zeros(1, bool)}),
            step=show(begins={ROLE: jnp.ones(1, bool)}),
        ),
        r"begins\['player'\] is set for a running trajectory",
    ),
    "what only critics see": (
        dict(spec=with_role(critic_observation=Box((3,), -1.0, 1.0))),
        r"critic_obs\['player'\] from reset: must be there",
    ),
    "outcome while running": (
        dict(step=show(info={"outcome": jnp.int32(0)})),
        r"info\['outcome'\] is not -1 while",
    ),
    "task unknown": (dict(params={"task": np.int32(7)}), r"info\['task'\] is not in 0..2"),
    "state dtype changes": (
        dict(step=lambda key, state, time: (state.replace(clock=state.clock.astype(jnp.float32)), time)),
        r"\.clock is float32\[\], expected int32\[\]",
    ),
    "state weakly typed once": (
        dict(
            reset=lambda key, state, time: (state.replace(level=0.0), time),
            step=lambda key, state, time: (state.replace(level=state.level + jnp.float32(1)), time),
        ),
        r"state.level is weakly typed",
    ),
    "over without flags": (dict(step=show(terminated=per_role(jnp.zeros_like))), r"terminated\['player'\]"),
    "both flags": (
        dict(step=show(truncated=per_role(jnp.ones_like))),
        r"terminated\['player'\] and truncated\['player'\] are both set",
    ),
    "alive after termination": (
        dict(step=show(alive=per_role(jnp.ones_like))),
        r"alive\['player'\] is set for an agent just terminated",
    ),
    "back from the dead": (dict(step=still_alive), r"alive\['player'\] is set again"),
    "pay for the dead": (
        dict(params={"garbage": np.float32(3)}),
        r"reward\['player'\] is not 0 for an agent that is not alive .step 1, index \[1\]",
    ),
    "reward after reset": (
        dict(reset=show(reward=per_role(jnp.ones_like))),
        r"reward\['player'\] is not 0 after a reset",
    ),
    "over after reset": (dict(reset=show(over=jnp.ones_like)), r"over is set by a reset"),
    "nobody alive": (
        dict(reset=show(alive=per_role(jnp.zeros_like)), step=show(alive=per_role(jnp.zeros_like))),
        r"alive is False for every agent after a reset",
    ),
    "never ends": (dict(env=probes.TimeLimit(9), spec={"episode_limit": 7}), r"spec.episode_limit=7"),
    "hidden state": (dict(step=counter_step()), r"the same key and actions changes \[1\]\[0\].level"),
    "depends on tracing": (dict(step=batch_dependent), r"jax.jit changes"),
    "spec not hashable": (dict(spec={"results": [SOUND[0]]}), r"env.spec must be hashable"),
    "a role without the comma of a tuple": (
        dict(spec={"roles": probes.DeadAgent().spec.roles[0]}),
        r"spec.roles is Role\(name='player'.*, expected a tuple, as in \(Role\(...\),\)",
    ),
    "labels without the comma of a tuple": (
        dict(spec={"results": (*SOUND, Result("ending", kind="code", labels="goal", source="outcome"))}),
        r"'ending'.labels is 'goal', expected a tuple, as in \('goal',\)",
    ),
    "success among the letters of a label": (
        dict(spec={"results": replaced("success", among="done")}),
        r"'success'.among is 'done', expected a tuple, as in \('done',\)",
    ),
    "limit in seconds": (dict(spec={"episode_limit": 7.5}), r"spec.episode_limit is 7.5, expected a whole"),
    "no roles": (dict(spec={"roles": ()}), r"spec.roles is empty"),
    "space unknown": (dict(spec=with_role(action="left or right")), r"'player'.action is 'left or right'"),
    "stakes without turns": (dict(spec={"stakes": 2.0}), r"spec.stakes is 2.0, expected 0 where agents"),
    "score unknown": (dict(spec={"score": "win"}), r"spec.score is 'win', expected one of spec.results"),
    "score of a role unknown": (
        dict(spec=with_role(score="win")),
        r"'player'.score is 'win', expected one of spec.results",
    ),
    "score of the first role is another": (
        dict(spec=with_role(score="reward/main")),
        r"'player'.score is 'reward/main', expected spec.score 'success' or None for the first role",
    ),
    "outcome that is none": (
        dict(spec={"results": replaced("success", among=("won",))}),
        r"'success'.among is \('won',\), expected labels of the code 'outcome'",
    ),
    "action without bounds": (
        dict(spec=with_role(action=Box((1,), [0.0], [np.inf]))),
        r"'player'.action has low=\(0.0,\) high=\(inf,\), expected finite bounds",
    ),
    "observations by name": (
        dict(step=show(obs=per_role(lambda obs: {"place": obs}))),
        r"obs\['player'\] from step is dict, expected float32",
    ),
    "what gym returns": (
        dict(step=lambda key, state, time: (time.obs, state, time.reward, time.over, {})),
        r"step returned 5 values, expected \(state, time step\)",
    ),
    "params not arrays": (
        dict(params={"name": "oval"}),
        r"params\['name'\] is 'oval', expected an array or a number",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_faults_are_named(fault):
    arguments, message = BROKEN[fault]
    with pytest.raises(AssertionError, match=message) as error:
        check_env(Broken(**arguments), steps=8)
    assert "\n" not in str(error.value)


def renamed_step(key, state, actions, parameters):
    return DEAD_AGENT.step(key, state, actions, parameters)


class OtherViewer(Viewer):
    def picture(self, path, recorded):
        """Draws nothing."""


MISNAMED = {
    "a renamed parameter": (
        dict(step=renamed_step),
        "env.step has the parameters key, state, actions, parameters, expected key, state, actions, params",
    ),
    "a missing parameter": (
        dict(evaluation_params=lambda params: params),
        "env.evaluation_params has the parameters params, expected params, index",
    ),
    "one parameter too many": (
        dict(task_params=lambda settings, strict: settings),
        "env.task_params has the parameters settings, strict, expected settings",
    ),
    "no parameter": (
        dict(task_params=lambda: {}),
        "env.task_params has the parameters none, expected settings",
    ),
    "a viewer": (
        dict(viewer=OtherViewer()),
        "env.viewer.picture has the parameters path, recorded, expected path, evaluation",
    ),
}


@pytest.mark.parametrize("fault", MISNAMED)
def test_methods_need_the_parameter_names_of_the_contract(fault):
    attributes, message = MISNAMED[fault]
    env = Broken()
    for name, value in attributes.items():
        setattr(env, name, value)
    with pytest.raises(AssertionError, match=f"^{message}$"):
        check_env(env, steps=8)


def test_methods_may_have_further_parameters_with_defaults():
    env = Broken()
    env.task_params = lambda settings, strict=False: settings
    env.describe = lambda *given, **named: ()
    check_parameter_names(env)


CONTRACT = Environment, Viewer, Comparison
# Each needs the optional package of its name.
ADAPTERS = {
    f"{envs.__name__}.adapters.{name}": package
    for name, package in {
        "gymnasium_env": "gymnasium",
        "gymnasium_spaces": "gymnasium",
        "gymnax": "gymnax",
        "jaxmarl_env": "jaxmarl",
        "pettingzoo_env": "pettingzoo",
        "sb3_env": "stable_baselines3",
    }.items()
}


def import_every_module():
    """Here and not at import, as it takes seconds that collecting this file would cost every worker."""
    for module in pkgutil.walk_packages(envs.__path__, f"{envs.__name__}."):
        if module.name.endswith("__main__"):
            continue
        if importlib.util.find_spec(ADAPTERS.get(module.name, "jax")) is not None:
            importlib.import_module(module.name)


def descendants(kind):
    return [one for child in kind.__subclasses__() for one in (child, *descendants(child))]


@pytest.mark.parametrize("kind", CONTRACT, ids=lambda kind: kind.__name__)
def test_every_class_of_the_package_has_the_parameter_names_of_its_contract(kind):
    import_every_module()
    own = [one for one in descendants(kind) if one.__module__.startswith(envs.__name__)]
    assert own
    for one, (name, method) in itertools.product(own, vars(kind).items()):
        if inspect.isfunction(method):
            names = [list(inspect.signature(each).parameters) for each in (getattr(one, name), method)]
            assert names[0] == names[1], f"{one.__name__}.{name}"


@pytest.mark.parametrize("name", ["f110", "f110_race", "textgames/kuhn", "gymnax/CartPole-v1"])
def test_no_change_of_settings_gives_the_default_parameters(name):
    env = je.make(name)
    for changed, default in zip(
        *map(jax.tree.leaves, (env.task_params(settings={}), env.default_params())), strict=True
    ):
        np.testing.assert_array_equal(changed, default)


def test_an_environment_without_such_settings_refuses_them_in_one_line():
    with pytest.raises(ValueError, match="^{'cards': 4}: kuhn has no settings that a curriculum can change$"):
        je.make("textgames/kuhn").task_params(settings={"cards": 4})


def test_without_plain_runs_a_hidden_state_is_seen_in_the_traces():
    with pytest.raises(AssertionError, match="step gives another program when it is traced again"):
        check_env(Broken(step=counter_step()), steps=8, plain=False)
    check_env(probes.TimeLimit(9), steps=4, plain=False)


def numpy_start():
    return lambda key, state, time: (state.replace(level=state.level + np.float32(np.random.rand())), time)


def leaking_step():
    """A step that keeps the last state outside of it."""
    kept = []

    def spoil(key, state, time):
        level = state.level + (kept.pop() if kept else 0.0)
        kept.append(state.level)
        return state.replace(level=level), time

    return spoil


def numpy_step(key, state, time):
    return state.replace(level=np.asarray(state.level)), time


HIDDEN = {
    "counter": (dict(step=counter_step()), "step gives another program when it is traced again"),
    "numpy's chance": (dict(reset=numpy_start()), "reset gives another program when it is traced again"),
    "state outside": (dict(step=leaking_step()), "step gives another program|UnexpectedTracerError"),
    "numpy's arrays": (dict(step=numpy_step), r"TracerArrayConversionError: .* \(test_checks.py, line \d+\)"),
    "layout": BROKEN["what gym returns"],
    "params": BROKEN["params not arrays"],
}


@pytest.mark.parametrize("fault", HIDDEN)
def test_a_run_requires_what_can_be_checked_without_playing(fault):
    arguments, message = HIDDEN[fault]
    env = Broken(**arguments)
    with pytest.raises(ValueError, match=message) as error:
        contract.require_traces(env)
    assert "\n" not in str(error.value) and str(error.value).startswith(f"env={__name__}.Broken: ")


@pytest.mark.parametrize("env", probes.CONFORMING, ids=lambda env: env.spec.name)
def test_a_run_accepts_sound_environments(env):
    contract.require_traces(env)
    contract.require_spec(env)


def test_environments_of_others_are_recognised_by_the_module_of_their_class(monkeypatch):
    monkeypatch.setattr(Broken, "__module__", "jaxmarl_echelon.envs.broken")
    contract.require_traces(Broken(**BROKEN["params not arrays"][0]))
    with pytest.raises(ValueError, match="expected finite bounds"):
        contract.require_spec(Broken(**BROKEN["action without bounds"][0]))


def test_a_deterministic_reset_only_warns():
    class Fixed(Broken):
        def reset(self, key, params):
            return self.env.reset(jax.random.key(0), params)

    with pytest.warns(UserWarning, match="same start"):
        check_env(Fixed(), steps=8)


def test_play_continues_until_an_episode_has_ended():
    check_env(probes.TimeLimit(9), steps=4)
    with pytest.raises(AssertionError, match="spec.episode_limit=8"):
        check_env(Broken(env=probes.TimeLimit(9), spec={"episode_limit": 8}), steps=4)


def test_random_actions_are_legal():
    env = probes.MaskOnly()
    _, time = jax.jit(env.reset)(jax.random.key(1), env.default_params())
    draw, allowed = jax.jit(partial(random_actions, env.spec)), np.asarray(time.action_mask[ROLE])
    for seed in range(20):
        action = np.asarray(draw(jax.random.key(seed), time)[ROLE])
        assert allowed[0, action[0]]
