"""Games of PGX as turn games: its numbers, our seats."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from played_library import play_at_random

from jaxmarl_echelon.envs.adapters.inward import pgx as inward
from jaxmarl_echelon.envs.check_env import check_env

pgx = pytest.importorskip("pgx")
ROLE = "player"


@functools.cache
def made(name):
    return inward.make(name)


@functools.cache
def games(name, number):
    """Random games to their ends, `[games, plies]`; also the states before the plies."""
    env = made(name)
    keys = jax.random.split(jax.random.key(2), number)
    play = jax.jit(
        lambda keys: jax.vmap(
            lambda key: play_at_random(key, env, env.spec.episode_limit, env.default_params())[1]
        )(keys)
    )
    states, _, times, actions, _ = play(keys)
    return states, jax.device_get(times), actions


def where_rows(mask, new, old):
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)


@pytest.mark.parametrize("name", ["tic_tac_toe", "leduc_holdem"])
def test_the_contract_is_kept(name):
    check_env(made(name), plain=False)


@pytest.mark.parametrize("name", ["tic_tac_toe", "kuhn_poker", "leduc_holdem"])
def test_rewards_turns_and_masks_are_those_of_pgx(name):
    """Replays our games in PGX: seats are players from the one that began."""
    env, own = made(name), pgx.make(name)
    states, times, actions = games(name, 40)
    step = jax.jit(jax.vmap(own.step))
    plies = times.over.shape[1]
    state = jax.tree.map(lambda x: x[:, 0], states.game.own)
    first = np.asarray(state.current_player)
    paid, seats = np.zeros((40, 2)), np.arange(40)
    for ply in range(plies):
        due = np.arange(2)[(ply % 2)]
        player = (first + due) % 2
        over = np.asarray(state.terminated)
        acts = (np.asarray(state.current_player) == player) & ~over
        played = step(state, actions[ROLE][:, ply, due])
        assert np.asarray(state.legal_action_mask)[seats, np.asarray(actions[ROLE])[:, ply, due]][acts].all()
        state = where_rows(acts, played, state)
        paid += np.where(acts[:, None], np.asarray(state.rewards), 0)
        ends = np.asarray(state.terminated) & ~over
        np.testing.assert_array_equal(times.terminated[ROLE][:, ply, 0], np.asarray(state.terminated))
        for seat in range(2):
            final = paid[seats, (first + seat) % 2]
            np.testing.assert_allclose(times.reward[ROLE][ends, ply, seat], final[ends])
    assert np.asarray(state.terminated).all() and set(first) == {0, 1}
    assert env.spec.turns == 2 and np.ptp(paid) > 0


def test_values_known_by_hand():
    """Kuhn poker is played for one or two chips, tic-tac-toe lasts five to nine plies."""
    _, times, _ = games("kuhn_poker", 40)
    final = times.info["payoff"][:, -1]
    assert set(np.abs(final).ravel()) == {1.0, 2.0} and (final.sum(-1) == 0).all()
    _, times, _ = games("tic_tac_toe", 40)
    lengths = np.argmax(times.over, axis=1) + 1
    assert lengths.min() >= 5 and lengths.max() == 9


def test_a_seat_that_is_asked_twice_waits_a_ply():
    """In Leduc hold'em the same seat begins both rounds: after three decisions it is asked out of turn."""
    _, times, _ = games("leduc_holdem", 40)
    forced = ~times.alive[ROLE].any(-1) & ~times.over
    assert forced.any() and not forced.all()


def test_seats_see_only_their_own_cards():
    env = made("kuhn_poker")
    state, time = env.reset(jax.random.key(3), env.default_params())
    cards = np.asarray(state.game.own._cards)
    for seat in range(2):
        player = (int(state.game.first) + seat) % 2
        np.testing.assert_array_equal(time.obs[ROLE][seat, :3], np.eye(3)[cards[player]])
    assert env.spec.hidden and env.spec.stakes == 2.0


def test_observations_keep_their_shape():
    env = made("connect_four")
    assert env.spec.roles[0].observation.shape == (6, 7, 2) and env.spec.episode_limit == 42
    assert env.spec.roles[0].action.n == 7 and "random" in env.scripts


def test_a_game_can_be_a_draw_by_its_moves():
    env = inward.make("tic_tac_toe", moves=4)
    _, (_, _, time, _, _) = play_at_random(jax.random.key(0), env, 4, env.default_params())
    assert time.over[3] and not time.over[:3].any()
    assert env.spec.outcomes[int(time.info["outcome"][3])] == "draw"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "conect_four"}, "env.name=conect_four: unknown to PGX; allowed: animal_shogi, backgammon"),
        ({"name": "tic_tac_toe", "moves": 10}, "env.moves=10: must be"),
        ({"name": "tic_tac_toe", "opponent": "best"}, "env.opponent=best: unknown; allowed: random"),
    ],
)
def test_wrong_settings_say_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        inward.make(**arguments)


def test_every_game_has_a_file(repository):
    files = (repository / "conf" / "env" / "pgx").glob("*.yaml")
    settings = [yaml.safe_load(file.read_text()) for file in files]
    assert {one["name"]: one["moves"] for one in settings} == {
        name: facts.moves for name, facts in inward.FACTS.items()
    }
    assert set(inward.FACTS) < set(pgx.available_envs())
