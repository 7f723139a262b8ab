"""Supervised training of a new base model on answers of random legal play."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from algos.language.model import DecoderSettings, apply_decoder, project_logits
from algos.language.settings import WarmSettings
from algos.optim.optimizers import make_adam
from algos.types import PyTree
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.training.config.answer_tasks import make_answer_task


def train_on_legal_play(
    env: Environment, role: str, settings: DecoderSettings, parameters: PyTree, warm: WarmSettings
) -> PyTree:
    """Trains a base to answer as random legal play does, and returns its parameters.

    The loss is the next token's, on answers and the token that ends them alone; `make_example_sampler` draws
    the decisions.

    Args:
      env: a turn-based game with prompts.
      role: the role that reads them.
      settings, parameters: the new base.
      warm: steps, learning rate and batch.
    """
    draw_example = make_example_sampler(env, role)
    task, optimizer = make_answer_task(env.language[role]), make_adam()
    sequences = jnp.asarray(
        [tuple(task.trie.prefix) + tuple(row) for row in task.trie.tokens.tolist()], jnp.int32
    )
    lengths = jnp.asarray(task.trie.lengths) + len(task.trie.prefix)

    def loss(parameters, prompts, answers):
        said, length = sequences[answers], lengths[answers]
        whole = jnp.concatenate([prompts, said], axis=1)
        hidden = apply_decoder(settings, parameters, whole[:, :-1])[:, prompts.shape[1] - 1 :]
        log_probs = jax.nn.log_softmax(project_logits(parameters, hidden))
        taken = jnp.take_along_axis(log_probs, said[..., None], axis=-1)[..., 0]
        counts = jnp.arange(said.shape[1]) < length[:, None]
        return -jnp.sum(jnp.where(counts, taken, 0.0)) / counts.sum()

    def step(carry, given):
        parameters, moments = carry
        key, number = given
        prompts, answers = jax.vmap(draw_example)(jax.random.split(key, warm.batch))
        value, grads = jax.value_and_grad(loss)(parameters, prompts, answers)
        rate = warm.learning_rate * (1.0 - number / warm.steps)
        parameters, moments = optimizer.step(grads, moments, parameters, {"learning_rate": rate})
        return (parameters, moments), value

    @partial(jax.jit, donate_argnums=0)
    def train(carry, keys):
        return lax.scan(step, carry, (keys, jnp.arange(warm.steps)))

    keys = jax.random.split(jax.random.key(1), warm.steps)
    parameters = jax.tree.map(jnp.array, parameters)
    return train((parameters, optimizer.init(parameters)), keys)[0][0]


def make_example_sampler(env: Environment, role: str) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Builds `(key) -> (prompt [P], answer)`, which draws a decision of random legal play.

    A game is played from its beginning by uniformly random legal answers and left at a ply that is drawn
    uniformly from its own, so that late positions are as frequent as early ones.

    Args:
      env: a turn-based game with prompts.
      role: the role that reads them.
    """
    task, params = make_answer_task(env.language[role]), env.default_params()

    def draw_example(key):
        """Prompt and answer of a random decision."""
        key_reset, key_play, key_ply = jax.random.split(key, 3)
        state, time = env.reset(key_reset, params)

        def play(carry, key):
            state, time, over = carry
            key_answer, key_step = jax.random.split(key)
            seat = jnp.argmax(time.alive[role])
            mask = time.action_mask[role][seat]
            legal = task.legal_answers(mask)
            answer = jax.random.categorical(key_answer, jnp.where(legal, 0.0, -jnp.inf))
            action = task.complete_action(answer, mask)
            own = action if task.actions.shape[1] > 1 else action[0]
            every = jnp.broadcast_to(own, (env.spec.turns, *own.shape))
            row = time.obs[role][seat], answer, time.alive[role].any() & ~over
            after, seen = env.step(key_step, state, {role: every}, params)
            over = over | seen.over
            return (after, seen, over), row

        _, rows = lax.scan(
            play, (state, time, jnp.bool_(False)), jax.random.split(key_play, env.spec.episode_limit)
        )
        decided = rows[2]
        chance = jnp.where(decided, 0.0, -jnp.inf)
        place = jax.random.categorical(key_ply, chance)
        return rows[0][place], rows[1][place]

    return draw_example
