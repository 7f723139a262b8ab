"""Values of discrete actions: their networks, the best legal action, and epsilon-greedy exploration."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from algos.masks import select_rows
from algos.nets.actor_critic import PolicyFunctions, make_feed_forward, make_recurrent
from algos.nets.cores import Core, CoreConfig
from algos.nets.distributions import MultiCategorical, split_choices
from algos.nets.encoders import apply_encoder
from algos.nets.networks import MLP, VALUE_GAIN, Layers, Linear
from algos.types import Hyper, PyTree


class ActionValues(struct.PyTreeNode):
    """Values of the options of one or more choices; the value of an action is the sum over its choices.

    With several choices the best action is therefore that of each choice for itself (Tavakoli, Pardo and
    Kormushev 2018), and its value is regressed on like any other.

    Attributes:
      values: `[..., sum(sizes)]`, the choices concatenated.
      mask: bool `[..., sum(sizes)]`, legal options; None if all are.
      sizes: number of options of each choice.
    """

    values: jax.Array
    mask: jax.Array | None
    sizes: tuple[int, ...] = struct.field(pytree_node=False)

    def mode(self) -> jax.Array:
        """Returns the best legal action, int32 `[..., choices]`; option 0 where none is legal."""
        values = self.values
        if self.mask is not None:
            values = jnp.where(self.mask, values, jnp.finfo(values.dtype).min)
        best = [jnp.argmax(part, -1) for part in split_choices(values, self.sizes)]
        return jnp.stack(best, -1).astype(jnp.int32)

    def of(self, action: jax.Array) -> jax.Array:
        """Value `[...]` of an action `[..., len(sizes)]`."""
        total = jnp.zeros(self.values.shape[:-1])
        for i, part in enumerate(split_choices(self.values, self.sizes)):
            chosen = jnp.arange(part.shape[-1]) == action[..., i : i + 1]
            total = total + jnp.where(chosen, part, 0.0).sum(-1)
        return total

    def best(self) -> jax.Array:
        """Value `[...]` of the best legal action."""
        return self.of(self.mode())

    def explore(self, key: jax.Array, epsilon: jax.Array | float) -> jax.Array:
        """Draws the best action, or a random legal one with probability `epsilon`; int32 `[..., choices]`."""
        key_whether, key_which = jax.random.split(key)
        random = draw_legal(key_which, self.values.shape[:-1], self.sizes, self.mask)
        whether = jax.random.uniform(key_whether, self.values.shape[:-1]) < epsilon
        return select_rows(whether, random, self.mode())


def draw_legal(
    key: jax.Array, shape: tuple[int, ...], sizes: tuple[int, ...], mask: jax.Array | None
) -> jax.Array:
    """Draws actions uniformly from the legal ones, int32 `[*shape, len(sizes)]`; see `ActionValues`."""
    return MultiCategorical.masked(jnp.zeros((*shape, sum(sizes))), sizes, mask).sample(key)


class ValueLayer(nn.Module):
    """Output layer of action values near 0 initially: `[..., F]` to `[..., sum(sizes)]`.

    Attributes:
      sizes: number of options of each choice.
      dueling: whether the values of a choice are a state's value plus advantages with mean 0 (Wang et al.
        2016, eq. 9).
    """

    sizes: tuple[int, ...]
    dueling: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the values."""
        out = Linear(sum(self.sizes), VALUE_GAIN, name="out")(x)
        if not self.dueling:
            return out
        state = Linear(len(self.sizes), VALUE_GAIN, name="state")(x)
        parts = [
            state[..., i : i + 1] + part - part.mean(-1, keepdims=True)
            for i, part in enumerate(split_choices(out, self.sizes))
        ]
        return jnp.concatenate(parts, -1)


class ActionValueNetwork(nn.Module):
    """Values of all options from one observation: hidden layers and a `ValueLayer`.

    Attributes:
      head: the output layer.
      widths: widths of the hidden layers.
      layers: configuration of the hidden layers.
    """

    head: ValueLayer
    widths: tuple[int, ...]
    layers: Layers = Layers()

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[tuple[jax.Array], None]:
        """Maps observations `[..., F]` to `((values [..., sum(sizes)],), None)`."""
        x = apply_encoder(self.layers.encoder, "encoder", obs)
        return (self.head(MLP(self.widths, self.layers, name="trunk")(x)),), None


class RecurrentActionValueNetwork(nn.Module):
    """Values of all options from a history of observations: a recurrent core before the `ValueLayer`.

    Attributes:
      head, widths, layers: as in `ActionValueNetwork`.
      core: settings of the core.
    """

    head: ValueLayer
    widths: tuple[int, ...]
    core: CoreConfig
    layers: Layers = Layers()

    @nn.compact
    def __call__(self, carry: PyTree, obs: jax.Array, reset: jax.Array, *, sequence: bool):
        """Returns `(carry, (values,), None)`; arguments as for `RecurrentActorCritic`."""
        core = Core(self.core, self.layers.dtype, name="core")
        x = apply_encoder(self.layers.encoder, "encoder", obs)
        x = MLP(self.widths, self.layers, name="trunk")(x)
        carry, x = (core.sequence if sequence else core)(carry, x, reset)
        return carry, (self.head(x),), None


def make_action_values(
    head: ValueLayer, widths: tuple[int, ...], layers: Layers, size: int, core: CoreConfig | None = None
) -> PolicyFunctions:
    """Builds a network whose distribution is `ActionValues`, and whose value is that of the best action.

    Args:
      head: the output layer.
      widths: widths of the hidden layers.
      layers: configuration of the hidden layers.
      size: features F of an observation.
      core: the recurrent core; None for a feed-forward network.
    """

    def found(values, mask):
        return ActionValues(values, mask, head.sizes)

    def with_best(fn: Callable) -> Callable:
        def call(*inputs):
            *carry, values, _ = fn(*inputs)
            return (*carry, values, values.best())

        return call

    example = jnp.zeros((size,))
    if core is None or core.kind == "none":
        policy = make_feed_forward(ActionValueNetwork(head, widths, layers), found, example)
    else:
        network = RecurrentActionValueNetwork(head, widths, core, layers)
        policy = make_recurrent(network, Core(core).initial_carry, found, example)
    names = ("apply", "step", "sequence")
    return policy._replace(**{name: with_best(getattr(policy, name)) for name in names})


def anneal_epsilon(hyper: Hyper, progress: jax.Array) -> jax.Array:
    """Probability of a random action at this part of the way from `epsilon` to `epsilon_end`."""
    return hyper["epsilon"] + jnp.minimum(progress, 1.0) * (hyper["epsilon_end"] - hyper["epsilon"])
