"""Tokenizers: ASCII, and what a `tokenizer.json` says."""

import json
import sys

import numpy as np
import pytest
from small_tokenizer import FIELDS, TOKENS

from jaxmarl_echelon.language.gguf import make_tokenizer
from jaxmarl_echelon.language.tokenizers import (
    AsciiTokenizer,
    JsonTokenizer,
    fit_bytes,
    load_tokenizer,
    make_byte_table,
    token_bytes,
)


def test_ascii_ids():
    tokenizer = AsciiTokenizer()
    assert tokenizer.encode("K1:Qb.>") == [47, 21, 30, 53, 70, 18, 34]
    assert tokenizer.encode("\n ~") == [3, 4, 98]
    assert (tokenizer.pad_id, tokenizer.eos_ids, tokenizer.vocab, tokenizer.num_ids) == (0, (2,), 128, 99)
    text = "".join(map(chr, range(32, 127))) + "\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(np.array([1, 47, 0, 2], np.int32)) == "K"
    assert tokenizer.byte_table.shape == (128, 16) and tokenizer.byte_lengths.sum() == 96
    assert bytes(tokenizer.byte_table[47]) == b"K" + bytes(15)
    for wrong in ("\t", "é"):
        with pytest.raises(ValueError, match="is not printable ASCII"):
            tokenizer.encode(wrong)


def test_ascii_is_named_by_its_folder(tmp_path):
    AsciiTokenizer().save(tmp_path)
    assert isinstance(load_tokenizer(tmp_path, {}), AsciiTokenizer)


def test_bytes_of_tokens():
    assert token_bytes(make_tokenizer(FIELDS)) == [
        *(b"", b"<|start|>", b"a", b"b", b"c", b"1", b"2", b" ", b"\n", b"[", b"]", b"\xc3", b"\xa9"),
        *(b"ab", b"abc", b"12", b" a"),
    ]
    pieces = {"vocab": {"▁a": 0, "<0x0A>": 1, "<bos>": 3}}
    added = [{"id": 3, "content": "<bos>", "special": True}, {"id": 4, "content": "▁▁", "special": False}]
    assert token_bytes({"model": pieces, "added_tokens": added}) == [b" a", b"\n", b"", b"", b"  "]


def test_tokens_longer_than_the_table():
    assert fit_bytes(b"x" * 16) == b"x" * 16
    assert fit_bytes(b"-" * 20 + b"x") == b"-" * 16
    assert fit_bytes(b" " * 20 + b"[k") == b" " * 14 + b"[k"
    table, lengths = make_byte_table([b"", b" " * 40], 3)
    assert lengths.tolist() == [0, 16, 0] and not table[2].any()


def test_a_tokenizer_of_another_kind():
    with pytest.raises(ValueError, match="tokenizer=gpt2 qwen2: unknown, give a tokenizer.json; known: "):
        make_tokenizer(FIELDS | {"tokenizer.ggml.pre": "qwen2"})


def test_folders_without_what_is_needed(tmp_path):
    with pytest.raises(ValueError, match="no tokenizer.json$"):
        load_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="no eos_token_id in config.json or generation_config.json$"):
        load_tokenizer(tmp_path, {})


def test_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError) as error:
        JsonTokenizer("{}", [0])
    expected = (
        "tokenizer.json: needs the package tokenizers; install it with pip install 'jaxmarl_echelon[lm]'"
    )
    assert str(error.value) == expected


@pytest.mark.needs("tokenizers")
def test_a_tokenizer_of_smollms_kind(tmp_path):
    tokenizer = JsonTokenizer(json.dumps(make_tokenizer(FIELDS)), [0])
    ids = {token: number for number, token in enumerate(TOKENS)}
    assert tokenizer.encode("abc12\n2 a") == [ids[token] for token in ("abc", "1", "2", "Ċ", "2", "Ġa")]
    assert tokenizer.encode("<|start|>[") == [1, ids["["]]
    assert tokenizer.decode([1, ids["Ġa"], ids["12"], 0]) == "<|start|> a12<|end|>"
    assert (tokenizer.num_ids, tokenizer.pad_id) == (len(TOKENS), 0)
    for number in range(1, len(TOKENS)):
        text = bytes(tokenizer.byte_table[number, : tokenizer.byte_lengths[number]])
        assert tokenizer.decode([number]) == text.decode(errors="replace")
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path, {"eos_token_id": 5})
    assert again.encode("abc") == tokenizer.encode("abc") and again.eos_ids == (0,)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path, {"eos_token_id": [5, 6], "pad_token_id": 1}).eos_ids == (5, 6)


@pytest.mark.needs("tokenizers")
def test_rows_of_the_embedding():
    # A special token beyond the rows is left out; one of text is not.
    special = FIELDS | {"tokenizer.ggml.token_type": [3, 4] + [1] * (len(TOKENS) - 3) + [3]}
    rows = len(TOKENS) - 1
    tokenizer = JsonTokenizer(json.dumps(make_tokenizer(special)), [0], rows=rows)
    assert tokenizer.num_ids == tokenizer.vocab == len(tokenizer.byte_table) == rows
    with pytest.raises(ValueError, match=r"^tokenizer\.json: 17 tokens, the embedding has 16 rows$"):
        JsonTokenizer(json.dumps(make_tokenizer(FIELDS)), [0], rows=rows)
    assert JsonTokenizer(json.dumps(make_tokenizer(FIELDS)), [0], rows=rows + 5).num_ids == len(TOKENS)


@pytest.mark.needs("tokenizers")
def test_a_damaged_file():
    with pytest.raises(ValueError, match=r"^tokenizer\.json: [^\n]*$"):
        JsonTokenizer("{}", [0])
