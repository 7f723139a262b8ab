"""Learning of language policies: the published gradient, and small tasks with known answers."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_cases import QWEN3, sine_adapters, sine_parameters
from marked import thorough

from algos.language.answer_trie import build_answer_trie
from algos.language.answering import make_free_mode
from algos.language.free_text import Vocabulary
from algos.language.learning import make_objective
from algos.language.reading import bind_reader
from algos.language.sampling import SamplingSettings
from algos.language.settings import LanguageSettings
from algos.language.state import AnswerRows, LanguageParams
from algos.language.task import AnswerTask, Base
from algos.types import ActionSpec, Rollout

EVERY = np.ones(QWEN3.vocab, bool)


def test_the_published_loss_and_gradient():
    mode = make_free_mode(Vocabulary(EVERY, ~EVERY), None, 4, SamplingSettings())
    parameters = sine_parameters(QWEN3)
    chosen = jnp.array([[True, True, True, False], [True, True, False, False]])
    zeros = jnp.zeros(chosen.shape)
    rows = AnswerRows(
        prompt=jnp.array([[1, 5], [4, 4]]),
        allowed=jnp.ones((2, 1), bool),
        tokens=jnp.array([[2, 9, 3, 0], [7, 10, 0, 0]]),
        chosen=chosen,
        sampled=zeros,
        old=zeros,
        advantage=jnp.array([1.0, -0.5]),
        alive=jnp.ones(2, bool),
    )
    config = LanguageSettings(entropy_coefficient_schedule="constant", learning_rate_schedule="constant")
    hyper = config.initial_hyper(None) | {"entropy_coefficient": jnp.zeros(())}

    def bind(params):
        return bind_reader(QWEN3, parameters, params.adapters, remat=True)

    objective = make_objective(config, mode, bind, None, hyper)
    (loss, (sums, _)), grads = jax.jit(jax.value_and_grad(objective, has_aux=True))(
        LanguageParams(sine_adapters(QWEN3)), rows
    )
    np.testing.assert_allclose(loss / 2, 0.567600566416, atol=1e-6)
    np.testing.assert_allclose(sums["policy"], loss)
    pairs = jax.tree.map(lambda g: g / 2, grads.adapters.pairs)
    norm = np.sqrt(sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(pairs)))
    np.testing.assert_allclose(norm, 0.235214841229, atol=1e-6)
    # The published rows are of A as [r, in] and of B as [out, r].
    np.testing.assert_allclose(pairs["q"]["a"][0, :3, 0], [-0.002836805, 0.006837488, 0.011293864], atol=1e-7)
    np.testing.assert_allclose(pairs["q"]["b"][0, :, 0], [-0.005027166, -0.000635204], atol=1e-7)
    np.testing.assert_allclose(pairs["v"]["a"][1, :3, 0], [0.006475037, -0.000548215, 0.001520465], atol=1e-7)
    np.testing.assert_allclose(pairs["v"]["b"][1, :, 0], [-0.005068687, 0.009630094], atol=1e-7)


# A game of one move with three answers, of which the second is paid.
UPDATES = 60
SEQUENCES = [(7, 2, 8), (7, 3, 8), (7, 4, 8)]


def one_move_task():
    actions = np.arange(3)[:, None]
    vocabulary = Vocabulary(EVERY, ~EVERY)
    return AnswerTask(
        trie=build_answer_trie(SEQUENCES),
        automaton=None,
        vocabulary=vocabulary,
        thoughts=vocabulary,
        actions=actions,
        legal_answers=lambda mask: mask,
        complete_action=lambda answer, mask: jnp.where(
            answer[..., None] < 0, -1, jnp.asarray(actions)[answer]
        ),
    )


def make_agent(**settings):
    parameters = jax.tree.map(np.asarray, sine_parameters(QWEN3))
    # With embeddings as small as the published ones no answer could have a probability above .78.
    base = Base(QWEN3, parameters | {"embed": 5 * parameters["embed"]}, "digest")
    usual = {"horizon": 2, "learning_rate": 0.02, "adam_beta1": 0.0, "entropy_coefficient": 0.0}
    config = LanguageSettings(**usual | settings)
    spaces = (3,), ActionSpec("discrete", (3,))
    return config, config.make(*spaces, language=one_move_task(), base=base, samples=32, updates=UPDATES)


def play(agent, state, key, sign=1.0):
    """A rollout `[2, 32, 1]` of one-move games; one answer is illegal in some, nobody decides in others."""
    obs = jnp.broadcast_to(jnp.array([1, 5, 6]), (2, 32, 1, 3))
    mask = jnp.ones((2, 32, 1, 3), bool).at[:, :8, :, 0].set(False)
    action, _, extras = agent.act(state, key, obs, agent.initial_carry((2, 32, 1)), None, mask)
    paid = jnp.where(action[..., 0] == 1, 1.0, 0.0)
    alive = jnp.ones((2, 32, 1), bool).at[:, 24:].set(False)
    advantage = sign * (paid - paid.mean())
    ends = jnp.ones((2, 32, 1), bool)
    return Rollout(
        obs=obs,
        action=action,
        extras=extras,
        reward=paid,
        reset=ends,
        discount=jnp.zeros((2, 32, 1)),
        boundary=ends,
        bootstrap=jnp.zeros((2, 32, 1)),
        alive=alive,
        mask=mask,
        carry=agent.initial_carry((1, 32, 1)),
        last_value=jnp.zeros((32, 1)),
        advantage=None if agent.value is not None else advantage,
    )


def learn(agent, updates, sign=1.0):
    def update(state, key):
        key_play, key_learn = jax.random.split(key)
        return agent.update(state, key_learn, play(agent, state, key_play, sign))

    keys = jax.random.split(jax.random.key(1), updates)
    return jax.jit(lambda key: jax.lax.scan(update, agent.init(key), keys))(jax.random.key(0))


def probability(agent, state):
    moves, invalid = agent.answers(state, jnp.array([[1, 5, 6]]), jnp.ones((1, 3), bool))
    assert invalid[0] == 0
    return float(moves[0, 1])


@cache
def first_rollout():
    """A rollout of the policy that learning starts with, which no setting of losses and batches changes."""
    _, agent = make_agent()
    return jax.jit(lambda: play(agent, agent.init(jax.random.key(0)), jax.random.key(1)))()


@pytest.mark.parametrize(
    "settings",
    [
        {"micro_batch": 16},
        thorough({"critic": "head"}),
        thorough({"loss": "clip", "epochs": 2, "micro_batch": 16, "accumulation": 2, "correct": "always"}),
        thorough({"loss": "gspo", "epochs": 2, "kl_coefficient": 0.01}),
        thorough({"buffer": {"capacity": 96, "batch": 32, "wait": 2.5}, "learning_rate": 0.04}),
    ],
    ids=["reinforce", "critic", "clip", "gspo", "buffer"],
)
def test_the_paid_answer_is_learnt(settings):
    _, agent = make_agent(**settings)
    state, metrics = learn(agent, UPDATES)
    assert probability(agent, state) > 0.95
    learnt = np.asarray(metrics["gradient_steps"]) > 0
    if "buffer" in settings:
        # The first answers wait, later ones are of older policies.
        assert not learnt[0] and learnt.mean() > 0.5
        assert np.nanmax(metrics["buffer_age"]) > 0 and metrics["buffer_answers"].max() <= 96
    else:
        assert learnt.all() and float(metrics["sampler_gap_max"].max()) < 1e-4


@pytest.mark.parametrize("loss", ["reinforce", thorough("clip"), "gspo"])
def test_answers_of_another_policy_are_weighted(loss):
    config, agent = make_agent(loss=loss, correct="always")
    state, key = agent.init(jax.random.key(0)), jax.random.key(1)
    rollout, update = first_rollout(), jax.jit(agent.update)
    told = rollout.extras["log_prob"]
    found = []
    for factor in (1.0, 4.0):
        # The policy that acted said unpaid answers `factor` times as often.
        older = told + jnp.where(rollout.extras["chosen"] & (rollout.action != 1), jnp.log(factor), 0.0)
        _, metrics = update(state, key, rollout.replace(extras=rollout.extras | {"log_prob": older}))
        found.append(float(metrics["policy_loss"]))
    assert config.corrects and abs(found[1] - found[0]) > 0.002


def test_the_largest_gap_is_that_of_all_micro_batches():
    _, agent = make_agent(micro_batch=16)
    state, key = agent.init(jax.random.key(0)), jax.random.key(1)
    rollout = first_rollout()
    # The last decision that is learnt from was sampled with another probability.
    told = rollout.extras["log_prob"].at[1, 23].add(-0.5)
    _, metrics = jax.jit(agent.update)(
        state, key, rollout.replace(extras=rollout.extras | {"log_prob": told})
    )
    np.testing.assert_allclose(metrics["sampler_gap_max"], 0.5, atol=1e-4)
    np.testing.assert_allclose(metrics["sampler_gap"], (np.exp(0.5) - 1.5) / 48, atol=1e-4)


def test_decisions_whose_games_go_on_after_the_rollout_are_not_learnt_from():
    """They have no advantage yet, which is not the same as an advantage of 0 among standardised ones."""
    _, agent = make_agent(critic="head", buffer={"capacity": 96, "batch": 32, "wait": 2.5})
    given = {"boundary": jnp.ones((2, 32, 1), bool).at[1].set(False), "last_skip": jnp.ones((32, 1), bool)}

    @jax.jit
    def learnt(key):
        state = agent.init(key)
        rollout = play(agent, state, key).replace(skip=jnp.zeros((2, 32, 1), bool), **given)
        rollout = rollout.replace(discount=jnp.where(rollout.boundary, 0.0, 1.0))
        state, metrics = agent.update(state, key, rollout)
        return rollout, state.buffer.rows, metrics

    rollout, rows, metrics = learnt(jax.random.key(0))
    assert int(rollout.alive.sum()) == 48 and int(metrics["buffer_answers"]) == 24
    np.testing.assert_array_equal(
        np.sort(rows.advantage[rows.alive]), np.sort(rollout.reward[0, :24].ravel())
    )


def test_tokens_that_leave_the_nucleus_are_learnt_from():
    settings = {"loss": "clip", "epochs": 3, "micro_batch": 16, "kl_coefficient": 0.1}
    _, agent = make_agent(**settings, top_p=0.85, temperature=6.0, learning_rate=0.05)
    state, metrics = learn(agent, 8)
    moves, _ = agent.answers(state, jnp.array([[1, 5, 6]]), jnp.ones((1, 3), bool))
    # Some answer has left the nucleus, and the exact probabilities are of the rest.
    assert moves.min() == 0 and moves.sum() == pytest.approx(1, abs=1e-5)
    for leaf in jax.tree.leaves((state.params, metrics["policy_loss"], metrics["kl_start"])):
        assert np.isfinite(leaf).all()


@pytest.mark.thorough
def test_the_wrong_sign_does_not_learn_it():
    _, agent = make_agent()
    state, _ = learn(agent, UPDATES, sign=-1.0)
    assert probability(agent, state) < 0.2


def test_micro_batches_add_up_to_one_step():
    results = []
    for micro in (64, 8):
        _, agent = make_agent(micro_batch=micro)
        state, update, losses = agent.init(jax.random.key(0)), jax.jit(agent.update), []
        for key in jax.random.split(jax.random.key(1), 3):
            state, metrics = update(state, key, first_rollout())
            losses.append(metrics["policy_loss"])
        results.append((state.params, losses))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_an_agent_over_a_given_world_is_the_agent_over_its_own():
    _, agent = make_agent()
    state, key = agent.init(jax.random.key(0)), jax.random.key(1)
    inputs = jnp.full((4, 1, 3), 5), None, None, jnp.ones((4, 1, 3), bool)
    own = jax.jit(lambda: agent.act(state, key, *inputs))()
    given = jax.jit(lambda world: agent.with_world(world).act(state, key, *inputs))(agent.world)
    np.testing.assert_array_equal(own[0], given[0])
    np.testing.assert_allclose(own[2]["log_prob"], given[2]["log_prob"], atol=1e-6)
    assert not any(leaf.shape == QWEN3.vocab for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"micro_batch": 24}, "micro_batch=24: must divide the 64 rows of a rollout"),
        ({"answer": "any"}, "answer=any: unknown; allowed: legal, grammar, free"),
        ({"think": 4, "answer": "free"}, "think=4: must be 0 with answer=free"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=message):
        make_agent(**settings)
