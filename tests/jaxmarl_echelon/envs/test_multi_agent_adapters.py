"""Our environments for users of PettingZoo and JaxMARL: all agents of the roles that learn."""

import sys
import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from adapter_cases import Direct, assert_close, echelon
from duels import Duel

import jaxmarl_echelon as je

pettingzoo = pytest.mark.needs("pettingzoo")
jaxmarl = pytest.mark.needs("jaxmarl")


@cache
def tictactoe():
    return je.make("textgames/tictactoe")


PLAYED = [probes.MaskOnly(), probes.DeadAgent(), probes.Fallen(), probes.MultiDiscreteTarget(), Duel()]


@pettingzoo
@pytest.mark.parametrize("env", PLAYED, ids=lambda env: env.spec.name)
def test_pettingzoos_checkers_accept_an_environment(env):
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(je.to_pettingzoo(env), 30)
    parallel_seed_test(lambda: je.to_pettingzoo(env), 30)


@pytest.mark.thorough
@pettingzoo
def test_battles_are_those_of_the_environment_with_mechs_that_die():
    env = je.to_pettingzoo(echelon())
    direct = Direct(echelon(), 1, {"red": "heuristic"})
    rng, gone, ends, steps = np.random.default_rng(1), 0, 0, 0
    obs, _ = env.reset(seed=1)
    while steps < 200:
        actions = rng.uniform(-1.0, 1.0, (2, *env.action_space("blue_0").shape)).astype(np.float32)
        time = direct.step({"blue": actions})
        running = list(env.agents)
        given = {agent: actions[int(agent[-1])] for agent in running}
        obs, rewards, terminations, truncations, infos = env.step(given)
        assert set(obs) == set(rewards) == set(terminations) == set(truncations) == set(infos) == set(running)
        for agent in running:
            index = int(agent[-1])
            assert_close(obs[agent], time.obs["blue"][index])
            assert_close(rewards[agent], time.reward["blue"][index])
            assert terminations[agent] == time.terminated["blue"][index]
            assert truncations[agent] == time.truncated["blue"][index]
        left = [agent for agent in running if terminations[agent] or truncations[agent]]
        assert env.agents == [agent for agent in running if agent not in left]
        steps, gone = steps + 1, gone + (0 < len(env.agents) < len(running))
        if time.over:
            assert not env.agents and infos[running[0]]["outcome"] == time.info["outcome"]
            ends += 1
            direct.begin()
            obs, _ = env.reset()
            assert_close(obs["blue_1"], direct.time.obs["blue"][1])
    assert ends >= 1 and gone >= 1


@pettingzoo
def test_agents_that_wait_for_delayed_rewards_stay_until_their_end():
    env = je.to_pettingzoo(probes.Fallen())
    env.reset(seed=0)
    one, other = env.agents
    _, _, _, _, infos = env.step({one: 1, other: 1})
    assert env.agents == [one, other] and infos[one]["alive"] and not infos[other]["alive"]
    for _ in range(3):
        _, rewards, terminations, _, _ = env.step({one: 0})
    assert rewards == {one: 1.0, other: 1.0} and all(terminations.values()) and not env.agents


@pettingzoo
def test_slots_that_fill_later_join_and_empty_ones_never_do():
    env = je.to_pettingzoo(probes.Comings())
    env.reset(seed=0)
    first, second = env.possible_agents[:2]
    there, total = [], {first: 0.0, second: 0.0}
    while env.agents:
        there.append(list(env.agents))
        for agent, reward in env.step(dict.fromkeys(env.agents, 0))[1].items():
            total[agent] += reward
    assert there == [[first], [first], [first, second], [first, second]]
    assert total == {first: 4.0, second: 2.0}


@pettingzoo
def test_games_with_turns_are_played_by_masks():
    env = je.to_pettingzoo(tictactoe())
    obs, infos = env.reset(seed=0)
    agents, moves = list(env.agents), []
    rng = np.random.default_rng(0)
    while env.agents:
        (acting,) = (agent for agent in env.agents if infos[agent]["alive"])
        mask = obs[acting]["action_mask"]
        assert mask.sum() == 9 - len(moves)
        move = int(rng.choice(np.flatnonzero(mask)))
        moves.append(move)
        # What the waiting seat says does not count.
        given = {agent: move if agent == acting else 0 for agent in env.agents}
        obs, rewards, terminations, _, infos = env.step(given)
    assert all(terminations.values()) and len(set(moves)) == len(moves)
    assert set(agents) == set(rewards) and abs(sum(rewards.values())) == 0.0
    scores = [infos[agents[0]][f"score/{seat}"] for seat in range(2)]
    assert scores == [rewards[agent] for agent in agents] and sum(scores) == 0.0


@pettingzoo
def test_observations_are_copies_and_the_state_has_all_of_them():
    env = je.to_pettingzoo(Duel())
    obs, _ = env.reset(seed=0)
    kept = obs["blue_0"].copy()
    after = env.step(dict.fromkeys(env.agents, 0))[0]
    np.testing.assert_array_equal(obs["blue_0"], kept)
    assert not np.shares_memory(after["blue_0"], after["blue_1"]) and after["blue_0"].flags.writeable
    np.testing.assert_array_equal(env.state(), np.concatenate([after["blue_0"], after["blue_1"]]))


@pettingzoo
@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"blue_0": 0}, "actions.blue_1: missing"),
        (
            {"blue_0": 0, "blue_1": 0, "red_0": 0},
            "actions.red_0: not a running agent; allowed: blue_0, blue_1",
        ),
        ({"blue_0": 0, "blue_1": [0, 1]}, r"actions.blue_1=\[2\]: must be numbers of shape \[\]"),
        ({"blue_0": 0, "blue_1": "left"}, "actions.blue_1=str: must be numbers"),
    ],
)
def test_wrong_actions_are_one_line(actions, message):
    env = je.to_pettingzoo(Duel())
    with pytest.raises(ValueError, match="call reset first"):
        env.step(actions)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(actions)


@pettingzoo
def test_all_scripts_and_no_learner_is_refused():
    with pytest.raises(ValueError, match="at least one role must be a learner"):
        je.to_pettingzoo(Duel(), controllers={"blue": "coin"})


@jaxmarl
def test_jaxmarl_steps_are_those_of_the_environment():
    env = je.to_jaxmarl(Duel())
    direct, ends = Direct(Duel(), 0, {"red": "still"}), 0
    params, key = direct.params, jax.random.key(3)
    obs, state = env.reset(key)
    rng = np.random.default_rng(0)
    for number in range(200):
        _, key_act, key_step = jax.random.split(jax.random.fold_in(key, number), 3)
        del key_act  # "still" draws nothing
        choices = rng.integers(0, 2, 2)
        actions = {"blue": choices, "red": np.zeros(2, np.int32)}
        inner = state.running.env
        _, time = Direct.compiled[direct.env][1](key_step, inner, actions, params)
        given = dict(zip(env.agents, choices, strict=True))
        obs, state, rewards, dones, infos = env.step_env(jax.random.fold_in(key, number), state, given)
        for place, agent in enumerate(env.agents):
            np.testing.assert_array_equal(obs[agent], time.obs["blue"][place])
            assert rewards[agent] == time.reward["blue"][place] and dones[agent] == time.over
        assert dones["__all__"] == time.over and infos["outcome"][0] == time.info["outcome"]
        np.testing.assert_array_equal(infos["terminated"], time.terminated["blue"])
        if time.over:
            ends += 1
            obs, state = env.reset(jax.random.fold_in(key, 1_000 + number))
    assert ends > 10


@pettingzoo
def test_results_per_event_are_divided_by_their_events():
    """As in tables of episodes: an agent that is paid 2 per step, over its steps."""
    env, told = je.to_pettingzoo(probes.Comings()), {}
    env.reset(seed=0)
    while env.agents:
        infos = env.step(dict.fromkeys(env.agents, 0))[-1]
        told |= {agent: info for agent, info in infos.items() if agent not in env.agents}
    found = {agent: (info["travelled"], info["pace"], info["share"]) for agent, info in told.items()}
    assert found == {"player_0": (4.0, 2.0, 1.0), "player_1": (2.0, 2.0, 0.5)}


def broken():
    """Returns an environment whose observations are never finite after a reset, and its parameters."""
    env = probes.Poison("obs")
    return env, env.default_params() | {"poison": np.int32(0)}


@pettingzoo
def test_pettingzoo_shows_no_broken_numbers_of_a_reset():
    env, params = broken()
    env = je.to_pettingzoo(env, params=params)
    for _ in range(2):
        obs, _ = env.reset(seed=0)
        (agent,) = env.agents
        after, rewards, terminations, truncations, _ = env.step({agent: 0})
        assert not obs[agent].any() and not after[agent].any()
        assert (rewards[agent], terminations[agent], truncations[agent]) == (0.0, False, True)
        assert env.agents == []


@jaxmarl
def test_jaxmarl_shows_no_broken_numbers_of_a_reset():
    env, params = broken()
    env = je.to_jaxmarl(env, params=params)
    (agent,) = env.agents
    obs, state = env.reset(jax.random.key(0))
    for number in range(2):
        after, state, rewards, dones, infos = env.step(jax.random.key(number), state, {agent: 0})
        assert not obs[agent].any() and not after[agent].any() and rewards[agent] == 0
        assert dones["__all__"] and infos["truncated"].all() and not infos["terminated"].any()


@jaxmarl
@pytest.mark.parametrize(
    "env",
    [probes.MaskOnly(), probes.DeadAgent(), probes.Fallen(), probes.Rivals()],
    ids=lambda e: e.spec.name,
)
def test_a_scan_of_random_steps_has_jaxmarls_layout(env):
    outside = je.to_jaxmarl(env)
    agents = outside.agents
    assert sorted(agent for own in outside.agent_classes.values() for agent in own) == sorted(agents)
    assert outside.num_agents == len(agents) == len(set(agents))

    def step(carry, key):
        obs, state = carry
        key_act, key_step = jax.random.split(key)
        actions = {
            agent: outside.action_space(agent).sample(jax.random.fold_in(key_act, number))
            for number, agent in enumerate(agents)
        }
        masks = outside.get_avail_actions(state)
        after, state, rewards, dones, infos = outside.step(key_step, state, actions)
        return (after, state), (obs, rewards, dones, infos, masks)

    @jax.jit
    @jax.vmap
    def play(key):
        return jax.lax.scan(step, outside.reset(key), jax.random.split(key, 12))[1]

    # Old keys as well, which JaxMARL's own scripts use.
    assert set(outside.reset(jax.random.PRNGKey(0))[0]) == set(agents)
    obs, rewards, dones, infos, masks = jax.device_get(play(jax.random.split(jax.random.key(0), 3)))
    assert dones["__all__"].sum() == 3 * (12 // env.spec.episode_limit)
    for agent in agents:
        space = outside.observation_space(agent)
        assert obs[agent].shape == (3, 12, *space.shape) and rewards[agent].shape == (3, 12)
        assert dones[agent].dtype == bool and masks[agent].dtype == bool
        assert bool(jnp.all(jax.vmap(jax.vmap(space.contains))(obs[agent])))
    assert {leaf.shape for leaf in jax.tree.leaves(infos)} == {(3, 12, outside.num_agents)}
    if env.spec.name == "MaskOnly":
        assert (masks[agents[0]].sum(-1) == 2).all()
        assert max(rewards[agents[0]].max(), 1.0) == 1.0  # an illegal action would pay 10
    if env.spec.name == "DeadAgent":
        np.testing.assert_array_equal(dones[agents[1]], np.ones((3, 12), bool))
        np.testing.assert_array_equal(dones[agents[0]], dones["__all__"])
    if env.spec.name == "Fallen":
        # Where an episode of four steps ends, the next one begins, in which the second agent acts once.
        begins = dones["__all__"][..., None]
        np.testing.assert_array_equal(infos["alive"], np.concatenate([begins | True, begins], axis=-1))


class Gap(probes.Comings):
    """The first agent is there in the first step of four, the second in the last two."""

    def there(self, clock):
        return jnp.array([clock < 1, clock >= self.comes, False])

    def step(self, key, state, actions, params):
        after, time = super().step(key, state, actions, params)
        leaves = self.there(state.clock) & ~self.there(after.clock)
        return after, time.replace(terminated={probes.ROLE: time.terminated[probes.ROLE] | leaves})


@jaxmarl
def test_episodes_go_on_while_agents_can_come():
    env = je.to_jaxmarl(Gap())
    state, actions = env.reset(jax.random.key(0))[1], dict.fromkeys(env.agents, 0)
    paid, ends = np.zeros(3), []
    for number in range(4):
        _, state, rewards, dones, infos = env.step_env(jax.random.key(number), state, actions)
        paid += [rewards[agent] for agent in env.agents]
        ends.append(bool(dones["__all__"]))
    assert ends == [False, False, False, True] and paid.tolist() == [1.0, 2.0, 0.0]
    assert (infos["outcome"] == 0).all()


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("to_gymnasium", "gymnasium", "gymnasium"),
        ("to_pettingzoo", "pettingzoo", "pettingzoo"),
        ("to_sb3", "stable_baselines3", "sb3"),
        ("to_jaxmarl", "jaxmarl", "jaxmarl"),
    ],
)
def test_a_missing_package_is_one_line_with_its_command(monkeypatch, name, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    arguments = (2,) if name == "to_sb3" else ()
    with pytest.raises(ValueError) as raised:
        getattr(je, name)(Duel(), *arguments)
    assert str(raised.value) == (
        f"{name}: needs the package {package}; install it with pip install 'jaxmarl_echelon[{extra}]'"
    )
