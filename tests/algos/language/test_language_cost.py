"""What programs of language policies contain, read from their text before they are compiled."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_cases import QWEN3
from marked import mark_others

from algos.language.answer_trie import build_answer_trie
from algos.language.free_text import Vocabulary
from algos.language.model import init_decoder
from algos.language.settings import LanguageSettings
from algos.language.task import AnswerTask, Base
from algos.stacked_agents import vectorize_over_groups
from algos.types import ActionSpec, Rollout

VOCABULARY, ROWS = 4099, 32
SEQUENCES = [(7, 2, 8), (7, 3, 5, 8), (7, 3, 6, 8), (7, 4, 8)]


def make_agent(layers=2, width=8, **settings):
    decoder = replace(QWEN3, vocab=VOCABULARY, layers=layers, width=width)
    parameters = jax.tree.map(np.asarray, init_decoder(jax.random.key(0), decoder))
    every = np.ones(VOCABULARY, bool)
    actions = np.arange(4)[:, None]
    task = AnswerTask(
        trie=build_answer_trie(SEQUENCES),
        automaton=None,
        vocabulary=Vocabulary(every, ~every),
        thoughts=Vocabulary(every, ~every),
        actions=actions,
        legal_answers=lambda mask: mask,
        complete_action=lambda answer, mask: jnp.where(
            answer[..., None] < 0, -1, jnp.asarray(actions)[answer]
        ),
    )
    config = LanguageSettings(horizon=1, lora={"rank": 2, "alpha": 4}, **settings)
    spaces = (5,), ActionSpec("discrete", (4,))
    return config.make(*spaces, language=task, base=Base(decoder, parameters, "d"), samples=ROWS, updates=2)


def observed(agent):
    obs, mask = jnp.zeros((ROWS, 1, 5), jnp.int32), jnp.ones((ROWS, 1, 4), bool)
    return obs, agent.initial_carry((ROWS, 1)), jnp.zeros((ROWS, 1), bool), mask


def lowered(agent, part):
    state, key = jax.eval_shape(agent.init, jax.random.key(0)), jax.random.key(0)
    if part == "act":
        return jax.jit(lambda world, state: agent.with_world(world).act(state, key, *observed(agent))).lower(
            agent.world, state
        )

    def update(world, state):
        mine = agent.with_world(world)
        obs, carry, reset, mask = observed(agent)
        action, _, extras = mine.act(state, key, obs, carry, reset, mask)
        zeros = jnp.zeros((1, ROWS, 1))
        rows = jax.tree.map(lambda x: x[None], (obs, action, extras, mask))
        rollout = Rollout(
            rows[0], rows[1], rows[2], zeros, reset[None], zeros, ~reset[None], zeros, ~reset[None], rows[3],
            carry, None, advantage=zeros,
        )  # fmt: skip
        return mine.update(state, key, rollout)

    return jax.jit(update).lower(agent.world, state)


def shapes(text):
    """Shapes of all arrays in a StableHLO text."""
    return {
        tuple(map(int, found.rstrip("x").split("x")))
        for found in re.findall(r"tensor<((?:\d+x)+)[a-z]", text)
    }


@pytest.mark.parametrize("part", ["act", "update"])
def test_constrained_programs_form_no_logits_over_the_vocabulary(part):
    found = [shape for shape in shapes(lowered(make_agent(), part).as_text()) if VOCABULARY in shape]
    assert found == [(VOCABULARY, 8)]  # the embedding alone


def test_free_programs_do():
    """So that the test above would see them."""
    agent = make_agent(think=2)
    assert any(VOCABULARY in shape[1:] for shape in shapes(lowered(agent, "act").as_text()))


@pytest.mark.parametrize("part", mark_others(["act", "update"], "act"))
def test_programs_do_not_grow_with_the_number_of_layers(part):
    few, many = (lowered(make_agent(layers), part).as_text().count("\n") for layers in (2, 12))
    assert many <= 1.2 * few


def test_past_policies_share_the_products_of_the_base():
    """Acting with 16 adapters takes the operations of one adapter over the same rows."""
    agent = make_agent(width=64)
    state, key = jax.eval_shape(agent.init, jax.random.key(0)), jax.random.key(0)
    operations = {}
    for groups in (1, 16):
        states = jax.tree.map(lambda x, n=groups: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), state)

        def act(world, states, groups):
            policies = vectorize_over_groups(agent.with_world(world), groups)
            return policies.act(states, key, *observed(agent))

        found = jax.jit(partial(act, groups=groups)).lower(agent.world, states).cost_analysis()
        operations[groups] = found["flops"]
    assert operations[16] == pytest.approx(operations[1], rel=0.01)
