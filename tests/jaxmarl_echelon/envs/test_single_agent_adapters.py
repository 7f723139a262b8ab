"""Our environments for users of Gymnasium and Stable-Baselines3: one agent, all others inside."""

import re
from dataclasses import replace
from functools import cache
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from adapter_cases import Direct, assert_close, f110
from duels import Duel

import jaxmarl_echelon as je
from jaxmarl_echelon.envs.base import Environment, ScriptedPolicy

gymnasium = pytest.mark.needs("gymnasium")
sb3 = pytest.mark.needs("stable_baselines3")


@cache
def fickle():
    """Episodes of 1 to 20 decisions."""
    return probes.Fickle()


def random_actions(space, steps, seed=0):
    space.seed(seed)
    return [space.sample() for _ in range(steps)]


@gymnasium
@pytest.mark.parametrize(
    "env",
    [fickle(), probes.MaskOnly(), probes.ContinuousTarget(), probes.MultiDiscreteTarget(), probes.Pictures()],
    ids=lambda env: env.spec.name,
)
def test_gymnasiums_checker_accepts_an_environment(env):
    from gymnasium.utils.env_checker import check_env

    check_env(je.to_gymnasium(env), skip_render_check=True)


@sb3
def test_sb3s_checker_accepts_an_environment():
    from stable_baselines3.common.env_checker import check_env

    check_env(je.to_gymnasium(fickle()))


@gymnasium
def test_single_environment_plays_the_episodes_of_its_seed():
    env = je.to_gymnasium(fickle())
    direct, ends = Direct(fickle(), 7), 0
    obs, info = env.reset(seed=7)
    assert info == {}
    np.testing.assert_array_equal(obs, direct.time.obs[probes.ROLE][0])
    for action in random_actions(env.action_space, 200):
        time = direct.step({probes.ROLE: np.array([action])})
        obs, reward, terminated, truncated, info = env.step(action)
        np.testing.assert_array_equal(obs, time.obs[probes.ROLE][0])
        assert reward == time.reward[probes.ROLE][0]
        assert (terminated, truncated) == (time.terminated[probes.ROLE][0], time.truncated[probes.ROLE][0])
        if not time.over:
            assert info == {}
            continue
        ends += 1
        assert info["outcome"] == time.info["outcome"] and info["success"] == 1.0
        direct.begin()
        np.testing.assert_array_equal(env.reset()[0], direct.time.obs[probes.ROLE][0])
    assert ends > 10


@pytest.mark.thorough
@gymnasium
def test_vector_of_f110_plays_what_the_environment_plays():
    env = je.to_gymnasium(f110(), 3)
    direct, ends, wins = Direct(f110(), 5, {"defender": "ftg"}), 0, []
    obs, _ = env.reset(seed=4)
    assert_close(obs[1], direct.time.obs["attacker"][0])
    for actions in random_actions(env.action_space, 200):
        time = direct.step({"attacker": actions[1:2]})
        obs, rewards, terminated, truncated, infos = env.step(actions)
        assert_close(rewards[1], time.reward["attacker"][0])
        flags = time.terminated["attacker"][0], time.truncated["attacker"][0]
        assert (terminated[1], truncated[1]) == flags
        if time.over:
            ends += 1
            assert infos["_final_obs"][1] and infos["_final_info"][1]
            assert_close(infos["final_obs"][1], time.obs["attacker"][0])
            outcome = infos["final_info"]["outcome"]
            assert outcome[1] == time.info["outcome"] and infos["final_info"]["_outcome"][1]
            wins.append(outcome[1])
            direct.begin()
        assert_close(obs[1], direct.time.obs["attacker"][0])
    assert ends >= 5 and set(wins) <= set(range(len(f110().spec.outcomes)))


@gymnasium
def test_next_step_begins_episodes_one_step_later():
    env = je.to_gymnasium(fickle(), 2, autoreset="next_step")
    direct, ends, waits = Direct(fickle(), 12), 0, False
    env.reset(seed=11)
    for actions in random_actions(env.action_space, 60):
        obs, rewards, terminated, _, infos = env.step(actions)
        if waits:
            direct.begin()
            assert rewards[1] == 0.0 and not terminated[1]
            np.testing.assert_array_equal(obs[1], direct.time.obs[probes.ROLE][0])
            waits = False
            continue
        time = direct.step({probes.ROLE: actions[1:2]})
        np.testing.assert_array_equal(obs[1], time.obs[probes.ROLE][0])
        assert rewards[1] == time.reward[probes.ROLE][0]
        waits = bool(time.over)
        assert terminated[1] == waits == infos.get("_success", np.zeros(2, bool))[1]
        assert "final_obs" not in infos
        ends += waits
    assert ends > 3


@gymnasium
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_recorded_statistics_are_those_of_the_episodes(mode):
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    # Before 1.4 the wrapper leaves out the first step of later episodes that begin in the same step.
    version = tuple(int(part) for part in metadata.version("gymnasium").split(".")[:2])
    exact = mode == "next_step" or version >= (1, 4)
    env = RecordEpisodeStatistics(je.to_gymnasium(fickle(), 2, autoreset=mode))
    env.reset(seed=3)
    direct, total, length, waits, found = Direct(fickle(), 4), 0.0, 0, False, 0
    for actions in random_actions(env.action_space, 60):
        infos = env.step(actions)[4]
        if waits and mode == "next_step":
            waits = False
            continue
        time = direct.step({probes.ROLE: actions[1:2]})
        total, length = total + time.reward[probes.ROLE][0], length + 1
        if time.over:
            if exact or not found:
                assert infos["episode"]["r"][1] == total and infos["episode"]["l"][1] == length
            direct.begin()
            total, length, waits, found = 0.0, 0, True, found + 1
    assert found > 3


@gymnasium
def test_some_environments_can_be_reset_alone():
    env = je.to_gymnasium(fickle(), 2, autoreset="disabled")
    env.reset(seed=0)
    for actions in random_actions(env.action_space, 30):
        obs, _, ended, _, _ = env.step(actions)
        if ended.any():
            break
    assert ended.sum() == 1
    row, other = int(np.argmax(ended)), int(np.argmin(ended))
    with pytest.raises(Exception, match="call reset first"):
        env.step(actions)
    begun, _ = env.reset(seed=[5, 6], options={"reset_mask": ended})
    np.testing.assert_array_equal(begun[other], obs[other])
    np.testing.assert_array_equal(begun[row], Direct(fickle(), 5 + row).time.obs[probes.ROLE][0])
    env.step(actions)


@gymnasium
def test_outputs_are_copies_that_can_be_written():
    env = je.to_gymnasium(fickle(), 2)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    second = env.step(np.array([0, 1]))
    third = env.step(np.array([0, 1]))
    np.testing.assert_array_equal(first, kept)
    for one, other in zip(second[:4], third[:4], strict=True):
        assert not np.shares_memory(one, other) and one.flags.writeable


@gymnasium
def test_masks_are_shown_and_illegal_actions_become_legal_ones():
    env = je.to_gymnasium(probes.MaskOnly())
    _, info = env.reset(seed=0)
    for _ in range(20):
        mask = info["action_mask"]
        assert mask.dtype == np.int8 and mask.sum() == 2
        np.testing.assert_array_equal(env.action_masks(), mask.astype(bool))
        _, reward, terminated, _, info = env.step(int(np.flatnonzero(mask == 0)[0]))
        assert reward == 0.0  # the first legal action is even; an illegal one would pay 10
        if terminated:
            _, info = env.reset()


@gymnasium
def test_time_limits_truncate_and_do_not_terminate():
    env = je.to_gymnasium(probes.TimeLimit(3))
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


@gymnasium
def test_broken_numbers_end_an_episode_and_are_not_shown():
    env = probes.Poison()
    env = je.to_gymnasium(env, params=env.default_params() | {"poison": np.int32(2)})
    env.reset(seed=0)
    env.step(0)
    obs, reward, terminated, truncated, _ = env.step(0)
    assert np.isfinite(obs).all() and (reward, terminated, truncated) == (0.0, False, True)


@gymnasium
@pytest.mark.parametrize("mode", [None, "same_step", "next_step"])
def test_broken_numbers_of_a_reset_are_not_shown_and_cost_a_step(mode):
    env = probes.Poison("obs")
    params = env.default_params() | {"poison": np.int32(0)}
    if mode is None:
        env = je.to_gymnasium(env, params=params)
    else:
        env = je.to_gymnasium(env, 2, autoreset=mode, params=params)
    action, flags = env.action_space.sample(), []
    assert not np.any(env.reset(seed=0)[0])
    for _ in range(4):
        obs, reward, terminated, truncated, _ = env.step(action)
        assert not np.any(obs) and not np.any(reward) and not np.any(terminated)
        flags.append(bool(np.all(truncated)))
        if mode is None:
            env.reset()
    assert flags == ([True, False] * 2 if mode == "next_step" else [True] * 4)


@gymnasium
def test_team_mates_and_opponents_play_inside():
    env = je.to_gymnasium(Duel(), controllers={"blue": "coin", "red": "other"}, agent="blue_0")
    env.reset(seed=1)
    pays = []
    for action in (1, 0, 1, 1):
        pays.append((action, env.step(action)[1]))
        env.reset()
    assert all(reward == (1.0 if action == 1 else -1.0) for action, reward in pays)


class Frozen:
    """A policy that remembers how often it acted, and plays 1 from the second decision of an episode on."""

    def __init__(self, role):
        self.role = role

    def initial_memory(self, batch_shape):
        return jnp.zeros(batch_shape, jnp.int32)

    def __call__(self, obs, memory, reset=None, mask=None):
        assert obs.shape == (*memory.shape, *self.role.observation.shape)
        return (memory > 0).astype(jnp.int32), memory + 1


@gymnasium
def test_frozen_policies_play_with_their_memory():
    duel = Duel()
    env = je.to_gymnasium(
        duel, 4, agent="blue_0", controllers={"blue": "still", "red": Frozen(duel.spec.role("red"))}
    )
    env.reset(seed=0)
    ended, length = np.ones(4, bool), np.zeros(4, int)
    for _ in range(40):
        length = np.where(ended, 0, length)
        _, rewards, terminated, _, _ = env.step(np.ones(4, int))
        np.testing.assert_array_equal(rewards, np.where(length > 0, 1.0, -1.0))
        length, ended = length + 1, terminated
    assert ended.any() or length.max() > 1


@gymnasium
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_agents_of_new_episodes_are_alive(mode):
    env = probes.Fallen()
    idle = Frozen(env.spec.role(probes.ROLE))
    envs = je.to_gymnasium(env, 2, agent="player_1", controllers={probes.ROLE: idle}, autoreset=mode)
    _, infos = envs.reset(seed=0)
    shown = [infos["alive"]] + [envs.step(np.ones(2, int))[4]["alive"] for _ in range(9)]
    # The second agent acts once in every episode of four steps.
    period = 4 if mode == "same_step" else 5
    np.testing.assert_array_equal(shown, [[step % period == 0] * 2 for step in range(10)])


@gymnasium
def test_infos_tell_whether_the_slot_of_an_agent_is_filled():
    """The first is there throughout, the second from the third step of four on, the third never."""
    env = probes.Comings()
    idle = ScriptedPolicy(tuple, lambda _key, memory, _state, _params: (memory, jnp.zeros(3, jnp.int32)))
    for agent, there in enumerate(([True] * 4, [False, False, True, True], [False] * 4)):
        seat = {"agent": f"{probes.ROLE}_{agent}", "controllers": {probes.ROLE: idle}}
        one, both = je.to_gymnasium(env, **seat), je.to_gymnasium(env, 2, autoreset="next_step", **seat)
        shown = [(one.reset(seed=0)[1]["alive"], *both.reset(seed=0)[1]["alive"])]
        for _ in range(3):
            shown.append((one.step(0)[4]["alive"], *both.step(np.zeros(2, int))[4]["alive"]))
        assert shown == [(now,) * 3 for now in there]


@gymnasium
@pytest.mark.parametrize("mode", [None, "same_step", "next_step", "disabled"])
def test_the_episode_of_an_agent_that_nobody_can_become_ends_at_once(mode):
    """Of two agents the first takes part; the second never does, and gets nothing."""
    env = probes.Absent()
    idle = ScriptedPolicy(tuple, lambda _key, memory, _state, _params: (memory, jnp.zeros(2, jnp.int32)))
    kind = {} if mode is None else {"num_envs": 1, "autoreset": mode}
    for agent, ends in (("player_0", False), ("player_1", True)):
        env_of_agent = je.to_gymnasium(env, agent=agent, controllers={probes.ROLE: idle}, **kind)
        env_of_agent.reset(seed=0)
        action = 0 if mode is None else np.zeros(1, int)
        _, reward, terminated, truncated, infos = env_of_agent.step(action)
        assert (np.ravel(terminated), np.ravel(truncated)) == (ends, False)
        assert np.ravel(reward) == (0.0 if ends else 1.0)
        assert ("success" in infos or "final_info" in infos) == ends


@gymnasium
@pytest.mark.parametrize(
    ("space", "given", "fault"),
    [
        (probes.Discrete(4), 1.7, "1.7"),
        (probes.Discrete(4), np.float32("nan"), "nan"),
        (probes.MultiDiscrete((3, 2)), [1.0, 0.5], "0.5"),
    ],
)
def test_choices_must_be_whole_numbers(space, given, fault):
    from jaxmarl_echelon.envs.adapters.gymnasium_spaces import read_actions

    with pytest.raises(
        ValueError, match=f"^action={fault}: must be whole numbers, in {re.escape(str(space))}$"
    ):
        read_actions("action", given, space.shape, space)
    np.testing.assert_array_equal(read_actions("action", np.ones(space.shape), space.shape, space), 1)


class Turns(Environment):
    """The facts of a game with turns, which is all that is read before it is refused."""

    spec = replace(fickle().spec, turns=2)


@gymnasium
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: je.to_gymnasium(Turns()), "has turns"),
        (lambda: je.to_gymnasium(fickle(), agent="player_9"), "agent=player_9: unknown; allowed: player_0"),
        (lambda: je.to_gymnasium(fickle(), 2, autoreset="late"), "allowed: next_step, same_step, disabled"),
        (lambda: je.to_gymnasium(fickle(), 0), "num_envs=0: must be at least 1"),
        (lambda: je.to_gymnasium(Duel()), "controllers.blue=learner: must play 1 agents beside blue_0"),
        (lambda: je.to_gymnasium(Duel(), controllers={"green": "still"}), "allowed: blue, red"),
        (
            lambda: je.to_gymnasium(Duel(), controllers={"red": "best"}),
            "allowed: learner, still, other, coin",
        ),
        (lambda: je.to_gymnasium(Duel(), controllers={"red": object()}), "controllers.red=object: cannot be"),
        (lambda: je.to_gymnasium(fickle()).reset() and je.to_gymnasium(fickle()).step(0), "call reset first"),
    ],
)
def test_errors_are_one_line_with_the_allowed_values(make, message):
    with pytest.raises(Exception, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@sb3
def test_sb3_sees_what_gymnasium_sees():
    ours, theirs = je.to_sb3(f110(), 3), je.to_gymnasium(f110(), 3)
    ours.seed(4)
    np.testing.assert_array_equal(ours.reset(), theirs.reset(seed=4)[0])
    low, high = theirs.single_action_space.low, theirs.single_action_space.high
    ends = 0
    for actions in random_actions(theirs.action_space, 60):
        shown = 2 * (actions - low) / (high - low) - 1
        obs, rewards, ended, infos = ours.step(shown)
        other, paid, terminated, truncated, given = theirs.step(actions)
        assert_close(obs, other)
        assert_close(rewards, paid)
        np.testing.assert_array_equal(ended, terminated | truncated)
        for row in np.flatnonzero(ended):
            ends += 1
            assert_close(infos[row]["terminal_observation"], given["final_obs"][row])
            assert infos[row]["TimeLimit.truncated"] == truncated[row]
            assert infos[row]["is_success"] == (given["final_info"]["success"][row] == 1.0)
        assert all(not infos[row] for row in np.flatnonzero(~ended))
    assert ends > 3


@sb3
def test_sb3s_ppo_takes_a_thousand_steps():
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor

    env = VecMonitor(je.to_sb3(f110(), 3), info_keywords=("success",))
    model = PPO("MlpPolicy", env, n_steps=84, batch_size=63, n_epochs=2, seed=0, device="cpu")
    before = model.policy.action_net.weight.detach().numpy().copy()
    model.learn(1_000)
    assert model.num_timesteps == 1_008
    assert len(model.ep_info_buffer) > 10 and {info["l"] for info in model.ep_info_buffer} <= set(
        range(1, 26)
    )
    after = model.policy.action_net.weight.detach().numpy()
    assert np.isfinite(after).all() and not np.array_equal(before, after)


@sb3
def test_sb3_gets_masks_by_the_method_of_its_contributions():
    env = je.to_sb3(probes.MaskOnly(), 2)
    env.reset()
    masks = np.stack(env.env_method("action_masks"))
    assert env.has_attr("action_masks") and masks.shape == (2, 4) and (masks.sum(1) == 2).all()
    plain = je.to_sb3(fickle(), 2)
    plain.reset()
    assert not plain.has_attr("action_masks")


@sb3
def test_sb3_knows_before_the_first_reset_whether_there_are_masks():
    """Its contributions ask an environment for evaluations before they reset it."""
    env = je.to_sb3(probes.MaskOnly(), 2)
    assert env.has_attr("action_masks") and not je.to_sb3(fickle(), 2).has_attr("action_masks")
    masks = env.get_attr("action_masks")
    env.seed(0)
    env.reset()
    for _ in range(3):
        np.testing.assert_array_equal([mask() for mask in masks], env.action_masks())
        env.step(np.zeros(2, int))


def test_seeds_give_the_keys_of_jax():
    from jaxmarl_echelon.envs.adapters.play import make_keys

    keys = jax.random.key_data(make_keys([3, 2**32 + 3]))
    np.testing.assert_array_equal(keys[0], jax.random.key_data(jax.random.key(3)))
    np.testing.assert_array_equal(keys[0], keys[1])
