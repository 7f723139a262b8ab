"""Language learners as `Agent`s: prompts are observations, moves are actions, and extras hold the tokens."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algos import collectives
from algos.checks import require_given
from algos.language import answering
from algos.language.adapters import init_adapters
from algos.language.answering import AnswerMode
from algos.language.buffer import AnswerBuffer, add_answers, init_buffer, take_batch
from algos.language.constrained import answer_probabilities
from algos.language.generated import Generated
from algos.language.learning import learn_from_answers
from algos.language.model import DecoderSettings, product_shapes
from algos.language.reading import Reader, bind_reader
from algos.language.sampling import SamplingSettings
from algos.language.state import AnswerRows, LanguageParams, LanguageState, LinearValue
from algos.language.task import AnswerTask, Base
from algos.nets.normalize import standardize
from algos.on_policy.returns import gae_of_rollout
from algos.on_policy.traced_settings import apply_schedules
from algos.optim.optimizers import Optimizer, make_optimizer
from algos.types import Agent, Metrics, PyTree, Rollout


def make_answer_mode(config: Any, task: AnswerTask) -> AnswerMode:
    """Builds the mode of answering that the settings choose."""
    how, legal = SamplingSettings(config.temperature, config.top_p), config.answer == "legal"
    if config.answer == "free":
        return answering.make_free_mode(task.vocabulary, task.automaton, config.max_tokens, how)
    if config.think:
        return answering.make_thinking_mode(task.thoughts, task.trie, config.think, how, legal=legal)
    return answering.make_constrained_mode(task.trie, how, legal=legal)


def make_language_agent(
    config: Any,
    task: AnswerTask,
    base: Base,
    prompt: int,
    total_updates: int | None,
    shards: int = 1,
) -> Agent:
    """Builds the agent of `LanguageSettings` over a base model.

    Args:
      config: the settings.
      task: the game's answers.
      base: the base model; it is the agent's world.
      prompt: P, tokens of a prompt.
      total_updates: length of the schedules.
      shards: number of shards.
    """
    mode, optimizer = make_answer_mode(config, task), make_optimizer("adamw")
    _require_positions(base, prompt + len(task.trie.prefix) + mode.width)
    shapes = product_shapes(base.settings)

    def init_with(_key, adapters):
        width = base.settings.width
        value = LinearValue(jnp.zeros(width), jnp.zeros(())) if config.critic == "head" else None
        params = LanguageParams(adapters, value)
        # A copy, as a state is donated whole.
        start = jax.tree.map(jnp.copy, params) if config.kl_coefficient else None
        hyper = config.initial_hyper(total_updates)
        buffer = None if config.buffer is None else empty_buffer(config, task, mode, prompt, shards)
        return LanguageState(params, optimizer.init(params), start, hyper, jnp.zeros((), jnp.int32), buffer)

    def init(key):
        adapters = init_adapters(key, config.lora, shapes) if base.adapters is None else base.adapters
        return init_with(key, jax.tree.map(jnp.asarray, adapters))

    def build(world: PyTree) -> Agent:
        policy = LanguagePolicy(config, task, mode, base.settings, world)

        def act(state, key, obs, carry, reset, mask):
            del carry, reset
            return say_moves(policy, state.params, key, obs, mask)

        def greedy(state, obs, carry, reset, mask):
            del carry, reset
            return say_moves(policy, state.params, None, obs, mask)[:2]

        def value(state, obs, carry, reset, mask):
            del carry, reset, mask
            return value_prompts(policy, state.params, obs)

        def answers(state, obs, mask):
            return move_probabilities(policy, state.params, obs, mask)

        def update(state, key, rollout):
            return update_from_answers(policy, optimizer, state, key, rollout)

        return Agent(
            init=init,
            initial_carry=lambda batch: {"said": jnp.full((*batch, mode.spelled), -1, jnp.int32)},
            act=act,
            greedy=greedy,
            value=value if config.critic == "head" else None,
            update=update,
            policy_state=lambda state: state.replace(optimizer=None, start=None, buffer=None),
            local=mark_buffer,
            frozen=base.adapters,
            init_with=None if base.adapters is None else init_with,
            hyper=lambda: config.initial_hyper(total_updates),
            world=world,
            with_world=build,
            digest=base.digest,
            answers=answers if _lists_moves(config, task) else None,
        )

    return build(base.parameters)


class LanguagePolicy(NamedTuple):
    """A language policy without its trained parameters.

    Attributes:
      config: `LanguageSettings`.
      task: the game's answers.
      mode: way to answer.
      settings: architecture of the base.
      world: parameters of the base.
    """

    config: Any
    task: AnswerTask
    mode: AnswerMode
    settings: DecoderSettings
    world: PyTree

    def bind(self, params: LanguageParams) -> Reader:
        """Returns the decoder with the adapters of `params`."""
        return bind_reader(self.settings, self.world, params.adapters, remat=self.config.remat)


def say_moves(
    policy: LanguagePolicy, params: LanguageParams, key: jax.Array | None, obs: jax.Array, mask: jax.Array
) -> tuple[jax.Array, PyTree, dict[str, jax.Array]]:
    """Answers prompts `[..., P]` under masks `[..., n]`; without a key by the most probable tokens.

    Returns:
      moves int32 `[..., D]`, -1 for answers that are not legal; what was said, as carry; and the extras.
    """
    batch, task = obs.shape[:-1], policy.task
    prompts, masks = (x.reshape(-1, x.shape[-1]) for x in (obs, mask))
    allowed = task.legal_answers(masks)
    said = policy.mode.generate(policy.bind(params), prompts, allowed, key)
    verdict = _judge(said, allowed)
    action = task.complete_action(jnp.where(verdict, said.answer, -1), masks)
    told = {"tokens": said.tokens, "log_prob": said.log_prob, "chosen": said.chosen}
    told |= {"formed": said.formed, "legal": verdict}
    if params.value is not None:
        told["value"] = params.value(said.hidden)
    split = partial(jax.tree.map, lambda x: x.reshape(batch + x.shape[1:]))
    return split(action), {"said": split(policy.mode.spell(said))}, split(told)


def value_prompts(policy: LanguagePolicy, params: LanguageParams, obs: jax.Array) -> jax.Array:
    """Returns the values `[...]` of prompts `[..., P]`; the value head must be there."""
    whole = policy.mode.begin(obs.reshape(-1, obs.shape[-1]))
    hidden, _ = policy.bind(params).prefill(whole, whole.shape[1])
    return require_given("value", params.value)(hidden).reshape(obs.shape[:-1])


def move_probabilities(
    policy: LanguagePolicy, params: LanguageParams, obs: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns exact probabilities of moves `[..., n]` and of illegal answers `[...]`; see `Agent.answers`."""
    config, task = policy.config, policy.task
    prompts, masks = (x.reshape(-1, x.shape[-1]) for x in (obs, mask))
    allowed = task.legal_answers(masks)
    how = SamplingSettings(config.temperature, config.top_p)
    found = answer_probabilities(
        policy.bind(params), task.trie, prompts, allowed | (config.answer != "legal"), how
    )
    legal = jnp.where(allowed, found, 0.0)
    moves = legal @ (task.actions == np.arange(masks.shape[-1])).astype(np.float32)
    return moves.reshape(mask.shape), (found - legal).sum(-1).reshape(mask.shape[:-1])


def update_from_answers(
    policy: LanguagePolicy, optimizer: Optimizer, state: LanguageState, key: jax.Array, rollout: Rollout
) -> tuple[LanguageState, Metrics]:
    """Runs one update on a rollout, through the buffer if there is one; returns `(state, metrics)`."""
    config, mode = policy.config, policy.mode
    hyper = apply_schedules(config, state.hyper, state.updates)
    # The value of an open decision ends the returns of those before, but is no return of its own.
    rollout = rollout.without_open_decisions()
    rows, waiting = answer_rows(policy.task, state, rollout, hyper), {}
    if state.buffer is not None:
        key, key_buffer = jax.random.split(key)
        state, rows, waiting = exchange_answers(config, state, key_buffer, rows)
    state, metrics = learn_from_answers(config, mode, policy.bind, optimizer, state, key, rows, hyper)
    metrics |= waiting | {name: hyper[name] for name in config.scheduled_names()}
    metrics["utilisation"] = used_places(rollout, mode.width)
    return state.replace(updates=state.updates + 1), metrics


def _lists_moves(config: Any, task: AnswerTask) -> bool:
    """Whether all moves are answers whose probabilities can be computed: one choice, no thoughts."""
    return config.answer != "free" and not config.think and task.actions.shape[1] == 1


def empty_buffer(config: Any, task: AnswerTask, mode: AnswerMode, prompt: int, shards: int) -> AnswerBuffer:
    """Returns a shard's part of an empty buffer."""
    place, width = (1,), (1, mode.width)
    like = AnswerRows(
        prompt=jnp.zeros((1, prompt), jnp.int32),
        allowed=jnp.zeros((1, len(task.actions)), jnp.bool_),
        tokens=jnp.zeros(width, jnp.int32),
        chosen=jnp.zeros(width, jnp.bool_),
        sampled=jnp.zeros(width, jnp.float32),
        old=jnp.zeros(width, jnp.float32),
        advantage=jnp.zeros(place, jnp.float32),
        alive=jnp.zeros(place, jnp.bool_),
        target=jnp.zeros(place, jnp.float32) if config.critic == "head" else None,
    )
    return init_buffer(like, config.buffer.capacity // shards)


def exchange_answers(config: Any, state: LanguageState, key: jax.Array, rows: AnswerRows):
    """Puts a rollout's answers into the buffer and draws a batch; returns state, rows and metrics."""
    key_add, key_take = jax.random.split(collectives.fold_shard_into_key(key))
    buffer = add_answers(state.buffer, key_add, rows)
    filled = buffer.rows.alive.sum(dtype=jnp.float32)
    size = config.buffer.batch // collectives.num_shards()
    buffer, rows, age = take_batch(buffer, key_take, size, config.buffer.wait * size)
    drawn = rows.alive.sum(dtype=jnp.float32)
    ages, drawn = collectives.sum_over_shards((jnp.where(drawn > 0, age * drawn, 0.0), drawn))
    age = jnp.where(drawn > 0, ages / jnp.maximum(drawn, 1.0), jnp.nan)
    if config.buffer.normalize:
        rows = rows.replace(advantage=standardize(rows.advantage, rows.alive))
    waiting = {"buffer_answers": collectives.sum_over_shards(filled), "buffer_age": age}
    return state.replace(buffer=buffer), rows, waiting


def mark_buffer(state: LanguageState) -> LanguageState:
    """Marks the arrays of one shard, those of the buffer; see `Agent.local`."""
    marks = jax.tree.map(lambda _x: False, state)
    return marks.replace(buffer=jax.tree.map(lambda _x: True, marks.buffer))


def _require_positions(base: Base, tokens: int) -> None:
    """Checks that prompts and answers fit the model's positions."""
    if tokens > base.settings.max_positions:
        raise ValueError(
            f"algo.base: {base.folder or 'the base'} takes {base.settings.max_positions} tokens, "
            f"a prompt and its answer have {tokens}"
        )


def _judge(said: Generated, allowed: jax.Array) -> jax.Array:
    """Whether each answer `[R]` is a legal one and was drawn with a finite probability."""
    index = jnp.maximum(said.answer, 0)[:, None]
    legal = jnp.take_along_axis(allowed, index, axis=-1)[:, 0] | ~allowed.any(-1)
    return legal & (said.answer >= 0) & jnp.isfinite(said.log_prob).all(-1)


def answer_rows(task: AnswerTask, state: LanguageState, rollout: Rollout, hyper) -> AnswerRows:
    """Flattens a rollout to rows of answers, with its transformed rewards or the critic's advantages."""
    alive, advantage, target = rollout.alive, rollout.advantage, None
    if state.params.value is not None:
        estimate, target = gae_of_rollout(rollout, rollout.reward, hyper["gamma"], hyper["gae_lambda"])
        advantage = estimate if advantage is None else advantage
    allowed = task.legal_answers(require_given("mask", rollout.mask))
    said = rollout.extras
    rows = AnswerRows(
        prompt=rollout.obs,
        allowed=allowed,
        tokens=said["tokens"],
        chosen=said["chosen"],
        sampled=said["log_prob"],
        old=said["log_prob"],
        advantage=require_given("advantage", advantage),
        alive=alive & jnp.isfinite(said["log_prob"]).all(-1),
        target=target,
    )
    return jax.tree.map(lambda x: x.reshape((alive.size,) + x.shape[alive.ndim :]), rows)


def used_places(rollout: Rollout, width: int) -> jax.Array:
    """Share of the computed places of answers that hold a token that was chosen and is learnt from."""
    used = jnp.where(rollout.alive, rollout.extras["chosen"].sum(-1), 0).sum(dtype=jnp.float32)
    return collectives.mean_over_shards(used / (rollout.alive.size * width))
