"""Text face of a game: observations are prompts, and answers in brackets stand for actions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.envs.textgames.rules import FULL, STYLES, TERSE, GameRules
from jaxmarl_echelon.language.language import Language, make_language
from jaxmarl_echelon.language.prompts import CHATS, assemble_prompt, encode_template, wrap_in_chat
from jaxmarl_echelon.language.tokenizers import AsciiTokenizer, Tokenizer, load_tokenizer

AUTO, ASCII = "auto", "ascii"
# Names of the tokenizer of characters.
CHARACTERS = (AUTO, ASCII, "fresh", "warm")
FACES = MOVES, TEXT = ("moves", "text")


class GameFace(NamedTuple):
    """A game as its seats see it.

    Attributes:
      observe: `(state, seat) -> observation`.
      observation: space of an observation.
      language: prompts and answers; None for observations that are no text.
    """

    observe: Callable
    observation: Box
    language: Language | None = None


def make_face(rules: GameRules, face: str, **wording: Any) -> GameFace:
    """Returns one of `FACES`: the numbers of `GameRules.observe`, or prompts, with settings `wording`."""
    if settings.read_choice("face", face, FACES) == TEXT:
        return make_text_face(rules, **wording)
    return GameFace(rules.observe, rules.observation)


def make_text_face(
    rules: GameRules,
    *,
    template: str = AUTO,
    tokenizer: str | Tokenizer = AUTO,
    chat: str = "none",
    show_legal: bool = True,
) -> GameFace:
    """Returns the face whose observations are prompts `[P]` of token ids, int32.

    Args:
      rules: the game.
      template: one of `STYLES`; `auto`: terse for the tokenizer of characters, else full.
      tokenizer: a tokenizer, or the folder of a model that has one, or `ascii`, that of characters, which is
        also that of bases that a run makes itself, `fresh` and `warm`.
      chat: one of `CHATS`, the text around prompts.
      show_legal: whether full prompts list the legal options.

    Raises:
      ValueError: one line, for an invalid setting or symbols with unequal numbers of tokens.
    """
    tokenizer = _read_tokenizer(tokenizer)
    if settings.read_choice("template", template, (AUTO, *STYLES)) == AUTO:
        template = TERSE if isinstance(tokenizer, AsciiTokenizer) else FULL
    chat = settings.read_choice("chat", chat, tuple(CHATS))
    pieces = rules.template(template, settings.read_switch("show_legal", show_legal))
    prompt = encode_template(wrap_in_chat(pieces, chat), tokenizer)
    names = rules.name, template, chat
    language = make_language(names, tokenizer, prompt.length, rules.sizes, rules.answers(template))

    def observe(state, seat: jax.Array) -> jax.Array:
        return assemble_prompt(prompt, rules.values(state, seat))

    space = Box((prompt.length,), 0, language.vocabulary - 1, jnp.int32)
    return GameFace(observe, space, language)


def _read_tokenizer(tokenizer: str | Tokenizer) -> Tokenizer:
    if not isinstance(tokenizer, str):
        return tokenizer
    if tokenizer in CHARACTERS:
        return AsciiTokenizer()
    config = Path(tokenizer) / "config.json"
    if not config.is_file():
        raise ValueError(f"env.tokenizer={tokenizer}: must be {ASCII} or a folder with a model's config.json")
    return load_tokenizer(config.parent, json.loads(config.read_text()))
