"""A tokenizer whose tokens are whole words, for tests of texts with several characters per token."""

import re

from jaxmarl_echelon.language.tokenizers import make_byte_table

WORDS = (
    *("check", "bet", "call", "fold", "raise", "rock", "paper", "scissors", "offer", "accept", "deny", "bid"),
    *("wheat", "wood", "sheep", "brick", "ore", "col", "->", "abl", "acid", "tiger", " a", "ee"),
    *("<|im_start|>", "<|im_end|>", "user", "assistant"),
)


class WordTokenizer:
    """Printable ASCII and newline, one token each, and `WORDS`, of which the longest at a place is read."""

    pad_id, eos_ids = 0, (0,)

    def __init__(self):
        self.texts = ["", "\n", *map(chr, range(32, 127)), *WORDS]
        self.vocab = self.num_ids = len(self.texts)
        longest = sorted(self.texts[1:], key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)))
        self._ids = {text: number for number, text in enumerate(self.texts)}
        self.byte_table, self.byte_lengths = make_byte_table([t.encode() for t in self.texts], self.vocab)

    def encode(self, text):
        """Returns the ids of a text, which has to be printable ASCII."""
        return [self._ids[part] for part in self._pattern.findall(text)]

    def decode(self, ids):
        """Returns the text of ids."""
        return "".join(self.texts[int(number)] for number in ids)

    def save(self, folder):
        """Writes nothing: the tokenizer is made by its class."""
