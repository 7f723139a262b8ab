"""Games as text: prompts, answers and their legality, over random states of every game."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked import mark_others
from word_tokenizer import WordTokenizer

import jaxmarl_echelon as je
from algos.language.answer_trie import build_answer_trie
from jaxmarl_echelon.command_line import compose_config
from jaxmarl_echelon.envs.check_env import check_env
from jaxmarl_echelon.envs.textgames import text_face
from jaxmarl_echelon.envs.textgames.analysis.exploitability import build_tree
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
from jaxmarl_echelon.envs.textgames.rules import FULL, STYLES, TERSE
from jaxmarl_echelon.language.prompts import BLANK, FILLER, PromptPlace
from jaxmarl_echelon.language.tokenizers import AsciiTokenizer

GAMES = {
    "connect4": connect4.ConnectFour(),
    "kuhn": kuhn.Kuhn(),
    "leduc": leduc.Leduc(),
    "liarsdice": liarsdice.LiarsDice(),
    "liarsdice_of_three": liarsdice.LiarsDice(2, 3, 3),
    "negotiation": negotiation.Negotiation(),
    "nim": nim.Nim(),
    "othello": othello.Othello(4),
    "rps": rps.RockPaperScissors(3, (2, 1, 4)),
    "simpletak": simpletak.SimpleTak(),
    "tictactoe": tictactoe.TicTacToe(),
    "words": words.Words(),
    "words_of_three": words.Words(3),
}
# What one seat hides from seat 0, changed.
HIDDEN = {
    "kuhn": lambda s: s.replace(cards=s.cards.at[1].set((s.cards[1] + 1) % 3)),
    "leduc": lambda s: s.replace(cards=s.cards.at[1].set((s.cards[1] + 1) % 3)),
    "liarsdice": lambda s: s.replace(dice=s.dice.at[1].set((s.dice[1] + 1) % 6)),
    "liarsdice_of_three": lambda s: s.replace(dice=s.dice.at[1:].set((s.dice[1:] + 1) % 3)),
    "negotiation": lambda s: s.replace(values=s.values.at[1].add(1), owned=s.owned.at[1].add(1)),
    "rps": lambda s: s.replace(picked=jnp.where(s.picked < 0, -1, (s.picked + 1) % 3)),
    "words": lambda s: s.replace(secrets=s.secrets.at[1].add(1) % 64),
    "words_of_three": lambda s: s.replace(secrets=s.secrets.at[1:].add(1) % 64),
}
STATES = 800
# Hidden cards, a public card, a division of amounts, a board.
SOME = ("kuhn", "leduc", "negotiation", "tictactoe")


@cache
def face(name, style):
    return text_face.make_text_face(GAMES[name], template=style)


@cache
def explored(name):
    """Facts of `STATES` states of random legal play, the ends of games among them."""
    rules = GAMES[name]
    plies = min(rules.plies, 24)

    def play(key):
        def ply(state, key):
            sample, chance = jax.random.split(key)
            after = rules.apply(chance, state, rules.space.sample(sample, rules.legal(state)))
            over = rules.over(state)
            return jax.tree.map(lambda old, new: jnp.where(over, old, new), state, after), state

        start, *keys = jax.random.split(key, plies + 1)
        return jax.lax.scan(ply, rules.init(start), jnp.stack(keys))[1]

    def facts(state):
        seats, mine, mask = jnp.arange(rules.seats), rules.turn(state), rules.legal(state)
        found = {
            "seat": mine,
            "runs": ~rules.over(state),
            "observed": rules.observe(state, mine),
            "values": jax.vmap(rules.values, (None, 0))(state, seats),
        }
        if name in HIDDEN:
            found["changed"] = rules.values(HIDDEN[name](state), 0)
        for style in STYLES:
            language = face(name, style).language
            answers = jnp.arange(len(language.texts))
            action = jax.vmap(language.complete_action, (0, None))(answers, mask)
            action = action.reshape(-1, *rules.space.shape)
            found[style] = {
                "prompt": face(name, style).observe(state, mine),
                "ok": language.legal_answers(mask),
                "allowed": jax.vmap(rules.allows, (None, 0))(state, action),
            }
        return found

    def everything(keys):
        states = jax.vmap(play)(keys)
        return jax.vmap(facts)(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:STATES], states))

    return jax.device_get(jax.jit(everything)(jax.random.split(jax.random.key(0), -(-STATES // plies))))


@pytest.mark.parametrize("name", mark_others(GAMES, "kuhn", "leduc", "tictactoe"))
def test_answers_are_legal_exactly_if_the_rules_allow_their_actions(name):
    found = explored(name)
    for style in STYLES:
        ok, allowed = (found[style][key][found["runs"]] for key in ("ok", "allowed"))
        np.testing.assert_array_equal(ok, allowed)
        assert ok.any(1).all()


@pytest.mark.parametrize("name", mark_others(GAMES, *SOME))
def test_prompts_agree_exactly_if_observations_do(name):
    found = explored(name)
    runs = np.flatnonzero(found["runs"])
    observed = [(int(found["seat"][i]), found["observed"][i].tobytes()) for i in runs]
    assert len(set(observed)) > 5
    for style in STYLES:
        prompts = [found[style]["prompt"][i].tobytes() for i in runs]
        assert len(set(zip(observed, prompts, strict=True))) == len(set(observed)) == len(set(prompts))


@pytest.mark.parametrize("name", mark_others(GAMES, *SOME))
def test_prompts_decode_to_their_pieces_with_every_value_in_range(name):
    found = explored(name)
    for style in STYLES:
        pieces, language = GAMES[name].template(style), face(name, style).language
        for place in (piece for piece in pieces if isinstance(piece, PromptPlace)):
            chosen = found["values"][..., place.value]
            assert chosen.min() >= 0 and chosen.max() < len(place.symbols), place.name
        for state in range(0, STATES, 97):
            values = found["values"][state, found["seat"][state]]
            text = language.tokenizer.decode(found[style]["prompt"][state])
            assert text == "".join(written(piece, values) for piece in pieces)
        assert text.endswith(">" if style == TERSE else "\n")
        assert language.prompt_length == len(text)


def written(piece, values):
    """The text of a piece; blanks are as long as the other symbols."""
    if not isinstance(piece, PromptPlace):
        return piece
    symbol = piece.symbols[values[piece.value]]
    return FILLER * max(map(len, piece.symbols)) if symbol == BLANK else symbol


@pytest.mark.parametrize("name", mark_others(HIDDEN, *SOME[:3]))
def test_prompts_do_not_depend_on_what_others_hide(name):
    """Prompts are functions of these values."""
    found = explored(name)
    np.testing.assert_array_equal(found["values"][:, 0], found["changed"])


def test_prompts_name_all_information_sets():
    for rules, number in ((kuhn.Kuhn(), 12), (leduc.Leduc(), 288), (liarsdice.LiarsDice(faces=3), None)):
        tree = build_tree(rules)
        states = jax.tree.map(lambda *parts: np.concatenate(parts), *(level.state for level in tree.levels))
        turns, sets = np.concatenate([level.turn for level in tree.levels]), np.concatenate(tree.sets)
        assert number in (None, len(tree.seat))
        for style in STYLES:
            observe = jax.jit(jax.vmap(text_face.make_text_face(rules, template=style).observe))
            prompts = np.asarray(observe(states, turns))[sets >= 0]
            pairs = {(one, row.tobytes()) for one, row in zip(sets[sets >= 0], prompts, strict=True)}
            assert len(pairs) == len(tree.seat) == len({row for _, row in pairs})


def told(rules, state, seat=0):
    """The terse prompt of a state, and its ids."""
    chosen = text_face.make_text_face(rules, template=TERSE)
    ids = np.asarray(jax.jit(chosen.observe)(state, seat))
    return chosen.language.tokenizer.decode(ids), ids


def start_of(rules):
    return jax.jit(rules.init)(jax.random.key(0))


def test_terse_prompts_match_the_known_ones():
    board = tictactoe.TicTacToe()
    start = start_of(board)
    assert told(board, start)[0] == "TO:.........>"
    assert told(board, start.replace(cells=start.cells.at[4].set(0)), 1)[0] == "TX:....O....>"
    text, ids = told(kuhn.Kuhn(), kuhn.State(jnp.array([0, 1]), jnp.array([kuhn.BET, -1, -1])), 1)
    assert text == "K1:Qb.>" and ids.tolist() == [47, 21, 30, 53, 70, 18, 34]
    acts = jnp.array([[1, 2, 1, -1], [-1] * 4])
    assert told(leduc.Leduc(), leduc.State(jnp.array([2, 1, 0]), acts, jnp.int32(1), jnp.ones(2)))[0] == (
        "L0:KJcrc/....>"
    )
    dice = liarsdice.LiarsDice()
    bid = start_of(dice).replace(dice=jnp.array([[0], [3]]), bids=jnp.arange(12) == 1)
    assert told(dice, bid, 1)[0] == "D1:41112............>"
    assert told(nim.Nim(), nim.State(jnp.array([1, 4, 5]), jnp.int32(1)), 1)[0] == "N1:145>"
    assert told(rps.RockPaperScissors(), start_of(rps.RockPaperScissors()))[0] == "P0:000..>"
    goods = negotiation.Negotiation()
    state = start_of(goods).replace(
        owned=jnp.array([[5, 12, 17, 19, 25]] * 2), values=jnp.array([[6, 10, 15, 24, 38]] * 2)
    )
    assert told(goods, state)[0] == "G0:05121719250610152438....00>"
    offer = state.replace(offer=jnp.array([0, 3, 1, 5]), open=jnp.array(True), clock=jnp.int32(1))
    assert told(goods, offer, 1)[0] == "G1:051217192506101524383a5b01>"
    say = {word: number for number, word in enumerate(words.BANK)}
    last = {"last": jnp.int32(say["table"]), "used": jnp.arange(64) == say["table"]}
    secrets = jnp.full(2, say["tiger"])
    assert told(words.Words(), start_of(words.Words()).replace(**last, secrets=secrets))[0] == (
        "W0:tabletiger0000000000008000>"
    )
    three = start_of(words.Words(3)).replace(
        **last, secrets=jnp.full(3, say["acid"]), out=jnp.array([0, 1, 0])
    )
    assert told(words.Words(3), three, 2)[0] == "W2:tableacid.0000000000008000010>"


def test_terse_prompts_have_the_known_widths():
    sizes = {name: face(name, TERSE).language.prompt_length for name in GAMES}
    assert sizes == {
        "connect4": 46,
        "kuhn": 7,
        "leduc": 14,
        "liarsdice": 21,
        "liarsdice_of_three": 25,
        "negotiation": 30,
        "nim": 7,
        "othello": 20,
        "rps": 11,
        "simpletak": 20,
        "tictactoe": 13,
        "words": 30,
        "words_of_three": 33,
    }
    assert text_face.make_text_face(othello.Othello(), template=TERSE).language.prompt_length == 68


def test_terse_answers_need_few_choices():
    """One where the first token behind the bracket decides: no decoding step after the prompt."""
    tries = {name: build_answer_trie(face(name, TERSE).language.sequences) for name in GAMES}
    one = {name for name, trie in tries.items() if trie.choices == 1}
    assert one == {"tictactoe", "connect4", "kuhn", "leduc", "rps"}
    assert all(trie.prefix == (ord("[") - 28,) for trie in tries.values())
    assert max(trie.choices for trie in tries.values()) == tries["negotiation"].choices == 4
    assert max(trie.token.shape[1] for trie in tries.values()) <= 64


@pytest.mark.parametrize(
    ("name", "terse", "full"),
    [
        ("connect4", {(3,): "[3]"}, {(3,): "[3]"}),
        ("othello", {(9,): "[21]"}, {(9,): "[2,1]"}),
        ("simpletak", {(7,): "[07]"}, {(7,): "[7]"}),
        ("nim", {(1,): "[02]"}, {(1,): "[0 2]"}),
        ("kuhn", {(0,): "[k]", (3,): "[f]"}, {(0,): "[check]", (3,): "[fold]"}),
        ("leduc", {(1,): "[c]", (2,): "[r]"}, {(1,): "[call]", (2,): "[raise]"}),
        ("liarsdice", {(8,): "[23]", (12,): "[!!]"}, {(8,): "[bid: 2, 3]", (12,): "[call]"}),
        (
            "negotiation",
            {(0, 0, 2, 1, 4): "[3a5b]", (1, -1, -1, -1, -1): "[yyyy]"},
            {(0, 0, 2, 1, 4): "[offer: 3 wheat -> 5 wood]", (2, -1, -1, -1, -1): "[deny]"},
        ),
        ("rps", {(1,): "[p]"}, {(1,): "[paper]"}),
        ("words", {(1,): "[acid.]", (52,): "[tiger]"}, {(1,): "[acid]", (52,): "[tiger]"}),
    ],
)
def test_answers_have_the_known_forms(name, terse, full):
    for style, wanted in ((TERSE, terse), (FULL, full)):
        language = face(name, style).language
        known = {
            tuple(action): text
            for action, text in zip(language.actions.tolist(), language.texts, strict=True)
        }
        assert {action: known[action] for action in wanted} == wanted


@pytest.mark.parametrize("name", GAMES)
def test_every_answer_parses_to_itself_for_tokens_of_characters_and_of_words(name):
    for tokenizer, style in ((None, TERSE), (None, FULL), (WordTokenizer(), FULL)):
        kind = {} if tokenizer is None else {"tokenizer": tokenizer}
        language = text_face.make_text_face(GAMES[name], template=style, **kind).language
        parsed = [language.parse_answer(f"So I say {text} .") for text in language.texts]
        assert parsed == list(range(len(parsed)))
        assert [language.tokenizer.decode(ids) for ids in language.sequences] == list(language.texts)


def test_full_answers_have_synonyms():
    for name, said, meant in (
        ("connect4", "[Col 3]", "[3]"),
        ("leduc", "[bet]", "[raise]"),
        ("leduc", "[CHECK]", "[call]"),
    ):
        language = face(name, FULL).language
        assert language.texts[language.parse_answer(said)] == meant
        assert face(name, TERSE).language.parse_answer(said) < 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (partial(rps.make, 10), r"env\.rounds=10: terse prompts need at most 9 rounds"),
        (partial(rps.make, 2, (0.5, 1, 1)), r"env\.worth=\[0\.5, 1\.0, 1\.0\]: prompts need whole numbers"),
        (partial(liarsdice.make, 5, 2), r"env\.dice=5: terse prompts need at most 9 dice in play, not 10"),
        (partial(kuhn.make, chat="chat"), r"env\.chat=chat: unknown; allowed: none, chatml"),
        (partial(kuhn.make, template="long"), r"env\.template=long: unknown; allowed: auto, terse, full"),
    ],
)
def test_what_prompts_cannot_express_is_refused_in_one_line(build, message):
    with pytest.raises(ValueError, match=message):
        build(face="text")


def test_the_algorithm_chooses_the_face_unless_the_environment_does():
    chosen = ["env=textgames/nim", "algo=ppo"]
    for overrides, face in (
        ([], "moves"),
        (["+algo.face=text"], "text"),
        (["+algo.face=text", "env.face=moves"], "moves"),
    ):
        assert compose_config([*chosen, *overrides])[0].env.face == face


def test_settings_choose_face_template_and_chat():
    assert not je.make("textgames/rps", rounds=10).language
    env = je.make("textgames/rps", face="text", template="full", rounds=10, chat="chatml", show_legal=False)
    language = env.language[ROLE]
    assert (language.game, language.template, language.chat) == ("rps", "full", "chatml")
    assert env.spec.roles[0].observation.shape == (language.prompt_length,)
    shown = je.make("textgames/rps", face="text", template="full", rounds=10, chat="chatml")
    line = "Legal answers: [rock] [paper] [scissors]\n"
    assert shown.language[ROLE].prompt_length == language.prompt_length + len(line)
    assert je.make("textgames/kuhn", face="text").language[ROLE].template == "terse"


def test_tokenizers_are_read_from_a_models_folder(tmp_path):
    AsciiTokenizer().save(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    language = kuhn.make(face="text", tokenizer=str(tmp_path)).language[ROLE]
    assert isinstance(language.tokenizer, AsciiTokenizer) and language.template == "terse"
    with pytest.raises(ValueError, match=r"env\.tokenizer=nowhere: must be ascii or a folder"):
        kuhn.make(face="text", tokenizer="nowhere")


def test_text_games_keep_the_contract_and_count_wins_by_forfeit():
    env = TextGame(kuhn.Kuhn(), face="text")
    check_env(env, plain=False)
    params = env.default_params()
    state, time = jax.jit(env.reset)(jax.random.key(0), params)
    assert time.obs[ROLE].dtype == env.spec.roles[0].observation.dtype == np.int32
    step = jax.jit(env.step)
    _, time = step(jax.random.key(0), state, {ROLE: jnp.full(2, -1, jnp.int32)}, params)
    np.testing.assert_array_equal(time.info["won_by_invalid"], [0, 1])
    np.testing.assert_array_equal(time.reward[ROLE], [-1, 1])
    _, time = step(jax.random.key(0), state, {ROLE: jnp.full(2, kuhn.BET, jnp.int32)}, params)
    np.testing.assert_array_equal(time.info["won_by_invalid"], 0)
