"""The games as environments: the contract, statistics of random play, scripts, rules in single moves."""

import shutil
import warnings
from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_others, thorough
from replay_pages import check_self_contained, embedded, play_page

from jaxmarl_echelon.envs.check_env import check_env, check_traces
from jaxmarl_echelon.envs.textgames.boards import in_line
from jaxmarl_echelon.envs.textgames.env import ROLE, TextGame
from jaxmarl_echelon.envs.textgames.games import (
    connect4,
    kuhn,
    leduc,
    liarsdice,
    negotiation,
    nim,
    othello,
    rps,
    simpletak,
    tictactoe,
    words,
)
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.program import evaluation

GAMES = {
    "connect4": connect4.make(),
    "kuhn": kuhn.make(),
    "leduc": leduc.make(),
    "liarsdice": liarsdice.make(dice=2, seats=3, faces=3),
    "negotiation": negotiation.make(),
    "nim": nim.make(),
    "othello": othello.make(4),
    "rps": rps.make(3),
    "simpletak": simpletak.make(),
    "tictactoe": tictactoe.make(),
    "words": words.make(),
    "words_of_three": words.make(3),
}


@pytest.mark.parametrize("name", mark_others(GAMES, "kuhn"))
def test_games_keep_the_contract(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most games begin alike
        check_env(GAMES[name], plain=False)


@pytest.mark.parametrize("name", GAMES)
def test_games_are_traced_as_the_contract_says(name):
    check_traces(GAMES[name])


def everybody_alive(time):
    return time.replace(alive=jax.tree.map(jnp.ones_like, time.alive))


def scores_from_the_start(time):
    return time.replace(info=time.info | {"score/0": jnp.float32(1)})


def truncated_at_the_end(time):
    return time.replace(terminated=time.truncated, truncated=time.terminated)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncated_at_the_end, r"terminated\['player'\] must be set for all seats if and only if over is"),
        (everybody_alive, r"alive\['player'\] is set for a seat that is not in turn"),
        (scores_from_the_start, r"info\['score/0'\] is not 0 while the episode runs"),
    ],
)
def test_checks_find_violations_of_the_turn_order(spoil, message):
    class Spoilt(TextGame):
        def _show(self, state, params):
            return spoil(super()._show(state, params))

    with pytest.raises(AssertionError, match=message):
        check_env(Spoilt(kuhn.Kuhn()), plain=False)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def played(env, first, other, games, key):
    """An evaluation of script `first` in alternating seats, `other` in the rest."""
    scripts = [controllers.make_script_controller(env.scripts[name]) for name in (first, other)]
    seats = {ROLE: controllers.play_one_seat_against(*scripts, env.spec.turns)}
    params = jax.tree.map(lambda x: jnp.broadcast_to(x, (games, *jnp.shape(x))), env.default_params())
    return evaluation.play_episodes(env, seats, {}, key, params)


def shares(result):
    """Shares of games won by the first seat, by the second, and drawn; and mean plies."""
    outcome = np.asarray(result.results["outcome"])
    return [np.mean(outcome == code) for code in range(3)], np.mean(result.length)


@pytest.mark.parametrize(
    ("name", "wanted", "plies"),
    [
        thorough("connect4", (0.565, 0.432, 0.003), 21.2),
        thorough("simpletak", (0.386, 0.292, 0.323), 14.3),
        ("tictactoe", (737 / 1260, 121 / 420, 8 / 63), None),
        thorough("words", (0.494, 0.506, 0), 16.4),
    ],
)
def test_random_play_has_the_known_results(name, wanted, plies):
    found, length = shares(played(GAMES[name], "random", "random", 1024, jax.random.key(0)))
    np.testing.assert_allclose(found, wanted, atol=0.05)  # three standard errors
    if plies is not None:
        np.testing.assert_allclose(length, plies, atol=0.8)


def score_of(name, first, other, games=256):
    result = played(GAMES[name], first, other, games, jax.random.key(1))
    assert np.asarray(result.present[ROLE]).sum() == games
    return float(result.score(GAMES[name].spec)), result


def test_perfect_play_never_loses_tictactoe_and_wins_nim():
    points, result = score_of("tictactoe", "perfect", "random")
    assert points > 0.85
    assert float(result.sums(GAMES["tictactoe"].spec, "loss")[0].sum()) == 0
    points, _ = score_of("nim", "perfect", "random")
    assert points > 0.9
    # Whoever begins wins 3, 4, 5 by perfect play.
    _, result = score_of("nim", "perfect", "perfect")
    np.testing.assert_array_equal(result.results["outcome"], 0)


def test_lines_are_found_across_down_and_in_both_diagonals():
    """Shifted boards against a list of the 69 lines, which alone and on random boards are found."""
    alone, some = connect4.LINES.T > 0, np.random.default_rng(0).random((2000, 42)) < 0.4
    boards = np.concatenate([alone, some])
    found = np.asarray(jax.jit(jax.vmap(lambda own: in_line(own.reshape(6, 7), 4)))(boards))
    assert len(alone) == 69 and not found.all()
    np.testing.assert_array_equal(found, (boards @ connect4.LINES == 4).any(1))


@pytest.mark.thorough
def test_looking_further_ahead_is_stronger_in_connect_four():
    assert score_of("connect4", "greedy_win", "random", 64)[0] > 0.85
    assert score_of("connect4", "lookahead_2", "greedy_win", 64)[0] > 0.6


def test_kuhn_equilibrium_wins_a_nineth_of_a_chip_per_two_seats_against_random():
    """1/18 as first; as second at least 1/18."""
    _, result = score_of("kuhn", "perfect", "random", 4096)
    payoff = np.asarray(result.results["payoff"])
    seat = np.asarray(result.present[ROLE])[:, 0]
    np.testing.assert_allclose(payoff[seat, 0].mean(), 1 / 18, atol=0.09)
    assert payoff[~seat, 1].mean() > 0.05


@cache
def program(rules, name="apply"):
    return jax.jit(getattr(rules, name))


def ask(rules, name, state):
    """The answer of one of the rules' functions of a state."""
    return np.asarray(program(rules, name)(state))


def play(rules, state, actions):
    for action in actions:
        state = program(rules)(jax.random.key(0), state, np.asarray(action, np.int32))
    return state


def test_leduc_raises_match_first_and_the_second_round_opens_with_the_first_seat():
    rules = leduc.Leduc()
    start = program(rules, "init")(jax.random.key(0)).replace(cards=np.array([0, 2, 0], np.int32))
    raised = play(rules, start, [1, 2, 2])
    np.testing.assert_array_equal(raised.chips, [5, 3])
    np.testing.assert_array_equal(ask(rules, "legal", raised), [True, True, False])
    second = play(rules, raised, [1])
    assert int(second.round) == 1 and int(ask(rules, "turn", second)) == 0
    np.testing.assert_array_equal(second.chips, [5, 5])
    np.testing.assert_array_equal(ask(rules, "legal", second), [False, True, True])
    shown = play(rules, second, [2, 1])
    assert ask(rules, "over", shown)
    np.testing.assert_array_equal(ask(rules, "scores", shown), [9, -9])  # the pair of jacks beats the king
    folded = play(rules, second, [2, 0])
    np.testing.assert_array_equal(ask(rules, "scores", folded), [5, -5])


def test_seat_that_is_wrong_at_a_call_loses_a_die_and_begins():
    rules = liarsdice.LiarsDice(dice=2, seats=3, faces=6)
    dice = np.array([[0, 1], [1, 1], [5, 5]], np.int32)
    start = program(rules, "init")(jax.random.key(0)).replace(dice=dice)
    two_twos, four_twos = 1 * 6 + 1, 3 * 6 + 1
    legal = ask(rules, "legal", play(rules, start, [two_twos]))
    assert not bool(legal[1 * 6 + 0]) and not bool(legal[0 * 6 + 2]) and bool(legal[1 * 6 + 2])
    right = play(rules, start, [two_twos, rules.bids])
    np.testing.assert_array_equal(right.left, [2, 1, 2])
    assert int(right.turn) == 1 and not np.asarray(right.bids).any()
    wrong = play(rules, start, [two_twos, four_twos, rules.bids])
    np.testing.assert_array_equal(wrong.left, [2, 1, 2])
    out = wrong.replace(left=np.array([2, 0, 1], np.int32))
    assert int(play(rules, out.replace(turn=np.int32(0)), [0]).turn) == 2


def test_saying_a_secret_eliminates_and_the_last_seat_with_a_word_wins():
    rules = words.Words(3)
    say = {word: number for number, word in enumerate(words.BANK)}
    start = program(rules, "init")(jax.random.key(0)).replace(
        last=np.int32(say["seal"]),
        used=np.arange(words.WORDS) == say["seal"],
        secrets=np.array([say["label"], say["level"], say["ember"]], np.int32),
    )
    wrong = play(rules, start, [say["level"]])
    np.testing.assert_array_equal(wrong.out, [True, False, False])
    assert int(wrong.turn) == 1 and not ask(rules, "over", wrong)
    own = play(rules, start, [say["label"]])
    np.testing.assert_array_equal(own.out, False)
    # Only one word with l is left: after it nobody has one, and the seat that said it wins.
    few = start.replace(used=np.array([word[0] == "l" and word != "label" for word in words.BANK]))
    ended = play(rules, few, [say["label"]])
    np.testing.assert_array_equal(ask(rules, "scores", ended), [1, -0.5, -0.5])


def test_negotiations_move_goods_and_keep_their_totals():
    rules = negotiation.Negotiation()
    start = program(rules, "init")(jax.random.key(4))
    assert (abs(np.asarray(start.values) - negotiation.BASE) <= negotiation.SPREAD).all()
    offered = play(rules, start, [[negotiation.OFFER, 0, 2, 4, 0]])
    assert bool(offered.open) and ask(rules, "legal", offered)[negotiation.YES]
    agreed = play(rules, offered, [[negotiation.YES, 0, 0, 0, 0]])
    change = np.asarray(agreed.owned) - np.asarray(start.owned)
    np.testing.assert_array_equal(change, [[-3, 0, 0, 0, 1], [3, 0, 0, 0, -1]])
    assert not bool(agreed.open)
    refused = play(rules, offered, [[negotiation.NO, 0, 0, 0, 0]])
    assert not bool(refused.open) and not ask(rules, "legal", refused)[negotiation.YES]
    poor = start.replace(owned=start.owned.at[0, 0].set(2))
    assert not bool(play(rules, poor, [[negotiation.OFFER, 0, 2, 4, 0]]).open)
    assert rules.answer([0, 0, 2, 4, 0]) == "[3a1e]"


def test_only_offers_name_goods_that_a_seat_must_own():
    """Without good a, "yes" and "no" are legal whatever stands in the open choices, offers of a are not."""
    rules = negotiation.Negotiation()
    start = program(rules, "init")(jax.random.key(4))
    offered = play(rules, start, [[negotiation.OFFER, 1, 2, 4, 0]])
    poor = offered.replace(owned=offered.owned.at[1, 0].set(0))
    allows = jax.jit(rules.allows)
    for action, legal in (
        ([negotiation.YES, 0, 0, 0, 0], True),
        ([negotiation.NO, 0, 0, 0, 0], True),
        ([negotiation.OFFER, 0, 0, 1, 0], False),
        ([negotiation.OFFER, 1, 0, 0, 0], True),
        ([negotiation.OFFER, 1, 9, 0, 0], False),
        ([-1, -1, -1, -1, -1], False),
    ):
        assert bool(allows(poor, np.array(action))) == legal, action
    assert not bool(allows(poor.replace(open=jnp.array(False)), np.array([negotiation.YES, 1, 0, 0, 0])))


def test_observations_do_not_reveal_hidden_information():
    """What a seat sees does not depend on the other's card, dice, pick or values."""
    for rules, change in (
        (kuhn.Kuhn(), lambda s: s.replace(cards=s.cards.at[1].set((s.cards[1] + 1) % 3))),
        (leduc.Leduc(), lambda s: s.replace(cards=(s.cards + jnp.array([0, 1, 1])) % 3)),
        (liarsdice.LiarsDice(2), lambda s: s.replace(dice=s.dice.at[1].set((s.dice[1] + 1) % 6))),
        (words.Words(), lambda s: s.replace(secrets=s.secrets.at[1].add(1) % 64)),
        (rps.RockPaperScissors(), lambda s: s.replace(picked=jnp.int32(2))),
        (
            negotiation.Negotiation(),
            lambda s: s.replace(values=s.values.at[1].add(1), owned=s.owned.at[1].add(1)),
        ),
    ):

        @jax.jit
        def seen(rules=rules, change=change):
            state = rules.init(jax.random.key(2))
            return rules.observe(state, 0), rules.observe(change(state), 0)

        np.testing.assert_array_equal(*seen(), rules.name)


def test_an_illegal_action_forfeits():
    env = GAMES["tictactoe"]
    params = env.default_params()
    step, reset = jax.jit(env.step), jax.jit(env.reset)
    state, _ = reset(jax.random.key(0), params)
    for action in (4, 4):
        state, time = step(jax.random.key(0), state, {ROLE: jnp.full(2, action, jnp.int32)}, params)
    assert bool(time.over) and time.info["outcome"] == env.spec.outcomes.index("invalid")
    np.testing.assert_array_equal(time.reward[ROLE], [1, -1])


@pytest.mark.parametrize(("move", "told"), [(4, "plays [4]"), (-1, "plays [?]"), (12, "plays [?]")])
def test_refused_moves_are_told_as_illegal_and_not_as_passes(move, told):
    env = GAMES["tictactoe"]
    params, step = env.default_params(), jax.jit(env.step)
    state, time = jax.jit(env.reset)(jax.random.key(0), params)
    frames = [env.viewer.snapshot(state, params, time)]
    for action in (4, move):
        state, time = step(jax.random.key(0), state, {ROLE: jnp.full(2, action, jnp.int32)}, params)
        frames.append(env.viewer.snapshot(state, params, time))
    recorded = jax.tree.map(lambda *steps: np.stack(steps)[:, None], *frames)
    game = SimpleNamespace(frames=recorded, length=np.array([2]), present={ROLE: np.array([[True, False]])})
    lines = env.viewer.text(game, 0).splitlines()
    assert "1. seat 0 plays [4]" in lines and f"2. seat 1 {told}, which is illegal" in lines
    assert env.viewer.row(game, 0)["moves"] == f"[4] {told.removeprefix('plays ')}"


def test_recorded_game_is_printed_and_replayed_move_by_move(tmp_path):
    env = GAMES["tictactoe"]
    script = controllers.make_script_controller(env.scripts["perfect"])
    seats = {ROLE: controllers.play_one_seat_against(script, script, 2)}
    params = jax.tree.map(lambda x: jnp.broadcast_to(x, (2,)), env.default_params())
    play = jax.jit(lambda key: evaluation.play_episodes(env, seats, {}, key, params, env.viewer.snapshot))
    recorded = jax.device_get(play(jax.random.key(0)))
    lines = env.viewer.text(recorded, 1).splitlines()
    assert lines[:4] == ["evaluated: seat 1", "...", "...", "..."]
    assert lines[4].startswith("1. seat 0 plays [")
    assert sum(line.startswith(("1.", "2.", "9.")) for line in lines) == 3
    assert lines[-1] == "scores: seat 0 +0, seat 1 +0"
    env.viewer.replay(tmp_path / "replay.html", recorded, 1)
    page = (tmp_path / "replay.html").read_text()
    check_self_contained(page)
    recording = embedded(page)
    assert recording["positions"][0].splitlines() == lines[1:4]
    assert recording["moves"][1:] == [line for line in lines if line[0].isdigit()]
    if shutil.which("node"):
        texts = play_page(page, tmp_path)
        assert (texts["clock"], texts["message"]) == ("ply 0", "")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nim.make(piles=[3, 12]), r"env\.piles=12: must be a whole number from 1 to 9"),
        (lambda: othello.make(size=5), "env.size=5: must be 4, 6 or 8"),
        (
            lambda: tictactoe.make(opponent="pro"),
            "env.opponent=pro: unknown; allowed: random, greedy_win, perfect",
        ),
        (lambda: liarsdice.make(seats=1), r"env\.seats=1: must be a whole number from 2 to 6"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(build, message):
    with pytest.raises(ValueError, match=message):
        build()
