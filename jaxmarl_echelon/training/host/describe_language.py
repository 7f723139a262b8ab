"""Sizes of language learners, and a first prompt, shown before the first compilation."""

import jax
import numpy as np

from algos.language.adapters import count_parameters
from algos.language.settings import FRESH, LanguageSettings
from algos.types import Agent
from jaxmarl_echelon.training.config.answer_tasks import make_answer_task
from jaxmarl_echelon.training.config.base_models import load_base
from jaxmarl_echelon.training.config.run_config import RunConfig

MB = 1e6
UNTRAINED = (
    "warning: algo.answer=free with random weights: about one answer in a thousand is legal; algo.base=warm "
    "begins with legal ones"
)


def describe_language(config: RunConfig, agents: dict[str, Agent]) -> list[str]:
    """Returns lines with the sizes of language learners, and a first prompt with a legal answer."""
    lines = []
    for name, algo in config.algos.items():
        if isinstance(algo, LanguageSettings):
            lines += _describe_learner(config, name, algo, agents[name])
    return lines


def _describe_learner(config: RunConfig, name: str, algo: LanguageSettings, agent: Agent) -> list[str]:
    language, base = config.env.language[name], load_base(config, name)
    task = make_answer_task(language)
    state = jax.eval_shape(lambda key: agent.policy_state(agent.init(key)), jax.random.key(0))
    adapter, width = count_parameters(state.params), agent.initial_carry((1,))["said"].shape[-1]
    settings = base.settings
    rows = config.columns(name) // max(config.env.spec.turns, 1)
    places = language.prompt_length + width
    item = 2 if algo.compute_dtype == "bf16" else 4
    cache = 2 * settings.layers * rows * places * settings.kv_heads * settings.head_dim * item
    bank = (
        0
        if config.pooled is None
        else config.pool.capacity * adapter * (2 if config.pool.store == "bf16" else 4)
    )
    prompt, answer = first_prompt(config, name)
    warning = [UNTRAINED] if algo.answer == "free" and algo.base == FRESH else []
    return [
        *warning,
        f"base {algo.base}: {count_parameters(base.parameters):,} parameters, {base.bytes / MB:,.2f} MB, "
        f"digest {base.digest[:12]}; adapters {adapter:,} numbers, {4 * adapter / MB:,.2f} MB",
        f"prompts of {language.prompt_length} tokens, {len(language.texts):,} answers of up to {width}, "
        f"vocabulary {language.vocabulary:,}, trie of {len(task.trie.lo) - 1:,} nodes; "
        f"cache {cache / MB:,.2f} MB, bank {bank / MB:,.2f} MB",
        f"first prompt {prompt!r}, a legal answer {answer!r}",
    ]


def first_prompt(config: RunConfig, name: str) -> tuple[str, str]:
    """Returns the prompt of the first decision of a game, and one of its legal answers, as text."""
    env, language = config.env, config.env.language[name]
    _, time = env.reset(jax.random.key(config.seed), env.default_params())
    seat = int(np.argmax(np.asarray(time.alive[name])))
    prompt = language.tokenizer.decode(np.asarray(time.obs[name][seat]))
    legal = np.flatnonzero(np.asarray(language.legal_answers(time.action_mask[name][seat])))
    return prompt, language.texts[int(legal[0])]
