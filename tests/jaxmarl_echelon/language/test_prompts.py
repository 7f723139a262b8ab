"""Prompts: the gather against the joined text, symbols of unequal lengths, text of chats."""

import jax
import numpy as np
import pytest
from word_tokenizer import WordTokenizer

from jaxmarl_echelon.language.prompts import (
    BLANK,
    CHATS,
    PromptPlace,
    assemble_prompt,
    encode_template,
    wrap_in_chat,
)
from jaxmarl_echelon.language.tokenizers import AsciiTokenizer

PIECES = (
    "Card ",
    PromptPlace("card", 1, ("J", "Q", "K")),
    ": ",
    PromptPlace("option", 0, (BLANK, "[check]")),
    "\n",
)


@pytest.mark.parametrize(
    ("tokenizer", "blank"), [(AsciiTokenizer(), "-------"), (WordTokenizer(), "---")], ids=["ascii", "words"]
)
def test_prompts_are_the_pieces_with_their_symbols(tokenizer, blank):
    prompt = encode_template(PIECES, tokenizer)
    values = np.array([[0, 2], [1, 0]])
    ids = jax.jit(lambda values: assemble_prompt(prompt, values))(values)
    assert ids.dtype == np.int32 and ids.shape == (2, prompt.length)
    assert [tokenizer.decode(row) for row in np.asarray(ids)] == [f"Card K: {blank}\n", "Card J: [check]\n"]


def test_symbols_with_unequal_numbers_of_tokens_are_refused():
    place = PromptPlace("card", 0, ("check", "hold"))
    assert encode_template((PromptPlace("card", 0, ("check", "K")),), WordTokenizer()).length == 1
    message = r"env\.template: place 'card': the tokenizer encodes 'hold' as 4 tokens, 'check' as 1"
    with pytest.raises(ValueError, match=message):
        encode_template((place,), WordTokenizer())


def test_chats_surround_the_prompt():
    pieces = wrap_in_chat(("Hello\n",), "chatml")
    text = "<|im_start|>user\nHello\n<|im_end|>\n<|im_start|>assistant\n"
    assert "".join(pieces) == text
    tokenizer = WordTokenizer()
    prompt = encode_template(pieces, tokenizer)
    ids = assemble_prompt(prompt, np.zeros(1, np.int32))
    assert tokenizer.decode(ids) == text
    assert prompt.length == len(text) - len("<|im_start|>user<|im_end|><|im_start|>assistant") + 5
    assert wrap_in_chat(("Hello\n",), "none") == ["Hello\n"]
    assert all(not after or after.endswith("\n") for _, after in CHATS.values())
