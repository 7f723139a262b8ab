"""A tokenizer of seventeen tokens, as GGUF files describe them."""

# Fields of a GGUF file with the tokenizer of SmolLM's kind: digits are apart, `ab` and `abc` are tokens.
BYTES = ["a", "b", "c", "1", "2", "Ġ", "Ċ", "[", "]", "Ã", "©"]
TOKENS = ["<|end|>", "<|start|>", *BYTES, "ab", "abc", "12", "Ġa"]
FIELDS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 4] + [1] * (len(TOKENS) - 2),
    "tokenizer.ggml.merges": ["a b", "ab c", "1 2", "Ġ a"],
}
