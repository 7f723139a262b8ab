"""gymnax's environments behind the environment contract: its numbers, our flags."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from evaluation_starts import check_starts_differ
from marked import mark_others

from jaxmarl_echelon import command_line
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.adapters.inward.conversions import PLAYER as ROLE
from jaxmarl_echelon.envs.adapters.inward.gymnax import make
from jaxmarl_echelon.envs.check_env import check_env, random_actions
from jaxmarl_echelon.envs.spaces import Box, Discrete

gymnax = pytest.importorskip("gymnax")

DOWNLOADED = "MNISTBandit-bsuite"


POLE = make("CartPole-v1")


@partial(jax.jit, static_argnames=("env", "steps", "policy"))
def played(key, params, env, steps, policy):
    def act(key, time):
        return {ROLE: policy(time.obs[ROLE])} if policy else random_actions(env.spec, key, time)

    def step(carry, key):
        state, time = carry
        key_act, key_step = jax.random.split(key)
        actions = act(key_act, time)
        state, after = env.step(key_step, state, actions, params)
        return (state, after), after

    key_reset, key_steps = jax.random.split(key)
    return jax.lax.scan(step, env.reset(key_reset, params), jax.random.split(key_steps, steps))[1]


def rollout(env, key, steps, params=None, policy=None):
    """Time steps `[steps]` of one environment without any reset, and the states before them."""
    params = env.default_params() if params is None else params
    return jax.device_get(played(key, params, env, steps, policy))


def test_no_two_evaluation_episodes_start_alike():
    check_starts_differ(POLE, POLE.default_params())


def balance(obs):
    """Keeps the pole up for ever."""
    weights = jnp.array([0.1, 0.3, 1.0, 0.5])
    return (obs @ weights > 0).astype(jnp.int32)


def left(obs):
    """Lets it fall."""
    return jnp.zeros(1, jnp.int32)


@pytest.mark.filterwarnings("ignore:.*reset gives the same start")
@pytest.mark.parametrize(
    "name",
    mark_others(
        [
            "CartPole-v1",
            "Pendulum-v1",
            "Breakout-MinAtar",
            "MemoryChain-bsuite",
            "DeepSea-bsuite",
            "FrozenLake-misc",
        ],
        "CartPole-v1",
        "Pendulum-v1",
    ),
)
def test_the_contract_is_kept(name):
    check_env(make(name))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Catch-bsuite", "UmbrellaChain-bsuite"])
def test_every_step_equals_that_of_gymnax(name):
    """gymnax's `step` resets by itself, but returns the final observation: the reference."""
    env, (reference, own) = make(name, params={"max_steps_in_episode": 12}), gymnax.make(name)
    own, params = own.replace(max_steps_in_episode=12), env.default_params()
    reset, step, act = jax.jit(env.reset), jax.jit(env.step), jax.jit(partial(random_actions, env.spec))
    key_start, key = jax.random.split(jax.random.key(3))
    (state, time), (obs, expected) = reset(key_start, params), reference.reset(key_start, own)
    np.testing.assert_allclose(time.obs[ROLE][0], obs)
    ends = 0
    for key_step in jax.random.split(key, 60):
        actions = act(key_step, time)
        _, following, reward, terminated, truncated, info = reference.step(
            key_step, expected, actions[ROLE][0], own
        )
        state, time = step(jax.random.split(key_step)[0], state, actions, params)
        np.testing.assert_allclose(time.obs[ROLE][0], info["final_observation"], rtol=1e-6)
        np.testing.assert_allclose(time.reward[ROLE][0], reward, rtol=1e-6)
        assert time.terminated[ROLE][0] == terminated and time.over == (terminated | truncated)
        assert time.truncated[ROLE][0] == (truncated & ~terminated) and time.alive[ROLE][0] == ~time.over
        ends += bool(time.over)
        expected = following
        if time.over:
            (state, time), (_, expected) = reset(key_step, params), reference.reset(key_step, own)
    assert ends > 3


def test_pendulum_is_cut_and_never_terminates():
    time = rollout(make("Pendulum-v1"), jax.random.key(0), 200)
    assert not time.terminated[ROLE].any()
    np.testing.assert_array_equal(time.truncated[ROLE][:, 0], np.arange(200) == 199)
    np.testing.assert_array_equal(time.over, np.arange(200) == 199)


def test_cartpole_terminates_when_the_pole_falls_and_is_cut_after_500_steps():
    up = rollout(POLE, jax.random.key(0), 500, policy=balance)
    assert not up.terminated[ROLE].any() and np.argmax(up.truncated[ROLE]) == 499
    down = rollout(POLE, jax.random.key(0), 40, policy=left)
    end = int(np.argmax(down.over))
    assert 5 < end < 15 and down.terminated[ROLE][end, 0] and not down.truncated[ROLE][end, 0]
    assert abs(down.obs[ROLE][end, 0, 2]) > 0.2095 > abs(down.obs[ROLE][end - 1, 0, 2])


@pytest.mark.parametrize(("later", "terminated"), [(0, True), (-1, False)])
def test_termination_takes_precedence_over_a_limit_in_the_same_step(later, terminated):
    def fall(params):
        return rollout(POLE, jax.random.key(1), 40, params, left)

    end = int(np.argmax(fall(POLE.default_params()).over))
    limit = np.int32(end + 1 + later)
    params = {"gymnax": POLE.default_params()["gymnax"].replace(max_steps_in_episode=limit)}
    time = fall(params)
    assert np.argmax(time.over) == limit - 1
    assert time.terminated[ROLE][limit - 1, 0] == terminated
    assert time.truncated[ROLE][limit - 1, 0] != terminated


def test_automatic_resets_report_the_true_final_observation():
    env = make("Pendulum-v1", params={"max_steps_in_episode": 3})
    actions = {ROLE: jnp.full((4, 1, 1), 0.5)}

    def draw(key):
        return episodes.EpisodeTask(env.default_params())

    @jax.jit
    def play(key):
        running = episodes.start_episodes(env, key, draw, 4)
        state = running.env
        for _ in range(3):
            state, alone = jax.vmap(env.step, (None, 0, 0, None))(key, state, actions, env.default_params())
            running, transition = episodes.step_episodes(env, key, running, actions, draw)
        return running, transition, alone

    running, transition, alone = play(jax.random.key(5))
    np.testing.assert_allclose(transition.time.obs[ROLE], alone.obs[ROLE], rtol=1e-6)
    assert transition.time.truncated[ROLE].all() and transition.reset_next.all()
    assert transition.finished.length.tolist() == [3] * 4
    assert not np.isclose(running.time.obs[ROLE], transition.time.obs[ROLE]).all(-1).any()


def test_parameters_and_options_reach_gymnax():
    env = make("CartPole-v1", params={"max_steps_in_episode": 7, "gravity": 5, "tau": None})
    params = env.default_params()["gymnax"]
    assert env.spec.episode_limit == 7 and params.gravity == 5.0 and np.isclose(params.tau, 0.02)
    assert params.gravity.dtype == jnp.float32 and params.max_steps_in_episode.dtype == jnp.int32
    deep = make("DeepSea-bsuite", options={"size": 5})
    assert deep.spec.episode_limit == 5 and deep.spec.roles[0].observation.shape == (5, 5)


def test_gravity_may_differ_between_environments_of_one_program():
    env = make("Pendulum-v1")
    own = env.default_params()["gymnax"]
    state, _ = env.reset(jax.random.key(0), {"gymnax": own})
    actions = {ROLE: jnp.zeros((1, 1))}

    def speed(gravity):
        after, _ = env.step(jax.random.key(0), state, actions, {"gymnax": own.replace(g=gravity)})
        return after.theta_dot - state.theta_dot

    gained = jax.jit(jax.vmap(speed))(jnp.array([0.0, 5.0, 10.0]))
    np.testing.assert_allclose(gained / gained[2], [0.0, 0.5, 1.0], atol=1e-5)


def test_spaces():
    pole, pendulum, pixels, lake = (
        make(name).spec.roles[0]
        for name in ("CartPole-v1", "Pendulum-v1", "Seaquest-MinAtar", "FrozenLake-misc")
    )
    assert pole.action == Discrete(2) and pole.observation.shape == (4,)
    assert pendulum.action == Box((1,), [-2.0], [2.0])
    assert pixels.observation.shape == (10, 10, 10)
    assert lake.observation == Box((16,), 0.0, 1.0)
    time = rollout(make("FrozenLake-misc"), jax.random.key(0), 20)
    np.testing.assert_array_equal(time.obs[ROLE].sum(-1), 1.0)


def test_features_can_be_hidden():
    whole, part = POLE, make("CartPole-v1", observe=[2, 0])
    assert part.spec.roles[0].observation.shape == (2,)
    full, shown = (rollout(env, jax.random.key(2), 8) for env in (whole, part))
    np.testing.assert_array_equal(shown.obs[ROLE], full.obs[ROLE][..., [2, 0]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "CartPol-v1"}, "env.name=CartPol-v1: unknown to gymnax; did you mean CartPole-v1"),
        ({"name": "Xyz"}, "env.name=Xyz: unknown to gymnax; allowed: CartPole-v1, Pendulum-v1"),
        ({"params": {"mass": 1.0}}, "env.params.mass=1.0: unknown; allowed: .*gravity"),
        ({"params": {"gravity": "high"}}, "env.params.gravity=high: must be float32"),
        ({"params": {"gravity": [1.0, 2.0]}}, "env.params.gravity=.1.0, 2.0.: must be float32"),
        ({"params": {"gravity": True}}, "env.params.gravity=True: must be float32"),
        ({"params": {"gravity": float("nan")}}, "env.params.gravity=nan: must be float32"),
        ({"params": {"max_steps_in_episode": 2.5}}, "env.params.max_steps_in_episode=2.5: must be int32"),
        ({"params": {"max_steps_in_episode": 0}}, "env.params.max_steps_in_episode=0: must be at least 1"),
        ({"params": {"masscart": 5.0}}, "env.params.masscart=5.0: must be 1.0, as .* not read it; set total"),
        ({"name": "Acrobot-v1", "params": {"link_length_2": 2.0}}, "env.params.link_length_2=2.0: must be 1"),
        ({"name": "Asterix-MinAtar", "params": {"shot_cool_down": 9}}, "shot_cool_down=9: must be 5"),
        ({"name": "Seaquest-MinAtar", "params": {"ramp_interval": 9}}, "ramp_interval=9: must be 100"),
        ({"name": "Seaquest-MinAtar", "params": {"enemy_move_interval": 9}}, "set init_move_interval"),
        ({"options": {"wheels": 3}}, "env.options=.'wheels': 3.: gymnax cannot make CartPole-v1"),
        ({"observe": [0, 4]}, "env.observe=.0, 4.: must be distinct whole numbers from 0 to 3"),
        ({"observe": [0, 0]}, "env.observe=.0, 0.: must be distinct"),
        ({"observe": []}, "env.observe=..: must be distinct"),
        ({"name": "Catch-bsuite", "observe": [0]}, "env.observe=.0.: must be null"),
    ],
)
def test_wrong_settings_say_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        make(**{"name": "CartPole-v1"} | arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", gymnax.registered_envs)
def test_every_environment_file_lists_the_defaults_of_gymnax(name, repository):
    settings = yaml.safe_load((repository / "conf" / "env" / "gymnax" / f"{name}.yaml").read_text())
    assert settings["name"] == name
    if name == DOWNLOADED:
        return
    arguments = {key: value for key, value in settings.items() if not key.startswith("_")}
    ours, (_, own) = make(**arguments).default_params()["gymnax"], gymnax.make(name)
    assert set(settings["params"]) == set(vars(own))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, own)


def test_a_run_can_be_composed():
    config, choices = command_line.compose_config(
        ["env=gymnax/Pendulum-v1", "env.params.g=9.8", "env.observe=[0,1]"]
    )
    assert config.get("reward") is None and choices["env"] == "gymnax/Pendulum-v1"
    assert config.env.params.g == 9.8 and config.env.observe == [0, 1]


def test_gymnax_is_imported_only_when_asked_for():
    command = "import sys, jaxmarl_echelon.envs.adapters.inward.gymnax; print('gymnax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
