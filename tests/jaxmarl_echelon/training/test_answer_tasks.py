"""Free text of a model from a folder: which tokens it may consist of, and what ends it."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_cases import QWEN3, sine_parameters
from small_tokenizer import FIELDS, TOKENS
from word_tokenizer import WordTokenizer

from algos.language.answering import make_free_mode
from algos.language.reading import bind_reader
from algos.language.sampling import SamplingSettings
from jaxmarl_echelon.language.gguf import make_tokenizer
from jaxmarl_echelon.language.language import Answer, make_language
from jaxmarl_echelon.language.tokenizers import JsonTokenizer
from jaxmarl_echelon.training.config.answer_tasks import make_answer_task

ANSWERS = (Answer("[a]", (0,)), Answer("[b]", (1,)))
ROWS, WIDTH = 512, 4


def say_anything(tokenizer, vocab):
    """Tokens and log-probabilities of free text by a model with `vocab` rows, all of equal probability."""
    task = make_answer_task(make_language(("game", "terse", "none"), tokenizer, 1, (2,), ANSWERS))
    settings = replace(QWEN3, vocab=vocab)
    # Hidden states are 0, and with them all logits.
    parameters = sine_parameters(settings) | {"norm": jnp.zeros(settings.width)}
    mode = make_free_mode(task.vocabulary, task.automaton, WIDTH, SamplingSettings())
    reader, prompt = bind_reader(settings, parameters, None), jnp.full((ROWS, 1), 3)
    said = jax.jit(lambda: mode.generate(reader, prompt, jnp.ones((ROWS, 2), bool), jax.random.key(0)))()
    return task, said


def test_a_text_can_end_where_its_end_also_fills_places():
    tokenizer = WordTokenizer()
    assert tokenizer.pad_id in tokenizer.eos_ids
    task, said = say_anything(tokenizer, tokenizer.vocab)
    lengths = np.asarray(said.chosen.sum(1))
    stopped = (lengths < WIDTH) & ~np.asarray(said.formed)
    assert stopped.any()
    last = np.take_along_axis(np.asarray(said.tokens), lengths[:, None] - 1, axis=1)[:, 0]
    assert np.isin(last[stopped], tokenizer.eos_ids).all()
    assert task.thoughts.allowed[list(tokenizer.eos_ids)].all()


@pytest.mark.needs("tokenizers")
def test_rows_of_the_embedding_without_a_token_are_not_said():
    rows = len(TOKENS) + 5
    _, said = say_anything(JsonTokenizer(json.dumps(make_tokenizer(FIELDS)), [0], rows=rows), rows)
    assert set(np.asarray(said.tokens)[np.asarray(said.chosen)]) == set(range(len(TOKENS)))
    np.testing.assert_allclose(said.log_prob[:, 0], -np.log(len(TOKENS)), atol=1e-5)
