"""Rolling statistics of finished episodes and the table of episodes, inside the program."""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.envs.episodes import Finished, masked_mean
from jaxmarl_echelon.training.types import Recent


def recent_init(spec: EnvSpec, window: int) -> Recent:
    """An empty ring for `window` episodes."""
    zeros = jnp.zeros(window, jnp.float32)
    return Recent(
        episode_return={role.name: zeros for role in spec.roles},
        length=jnp.zeros(window, jnp.int32),
        outcome=jnp.full(window, -1, jnp.int32),
        components={name: zeros for name in spec.components},
        count=jnp.int32(0),
        cursor=jnp.int32(0),
    )


def recent_add(recent: Recent, finished: Finished) -> Recent:
    """Writes finished episodes, given with any leading axes, into the ring in their order.

    Only the last W of them are written, so that no two go to the same place.
    """
    mask = finished.mask.reshape(-1)
    window = recent.length.shape[0]
    total = jnp.sum(mask, dtype=jnp.int32)
    rank = jnp.cumsum(mask.astype(jnp.int32)) - 1
    keep = mask & (total - rank <= window)
    place = jnp.where(keep, (recent.cursor + rank) % window, window)

    def write(ring, values):
        return ring.at[place].set(values.reshape(mask.shape).astype(ring.dtype), mode="drop")

    returns = {
        role: write(ring, masked_mean(finished.episode_return[role], finished.present[role]))
        for role, ring in recent.episode_return.items()
    }
    components = {name: write(ring, finished.components[name]) for name, ring in recent.components.items()}
    return Recent(
        episode_return=returns,
        length=write(recent.length, finished.length),
        outcome=write(recent.outcome, finished.outcome),
        components=components,
        count=jnp.minimum(recent.count + total, jnp.int32(2**30)),
        cursor=(recent.cursor + total) % window,
    )


def recent_metrics(recent: Recent, spec: EnvSpec, learners: tuple[str, ...]) -> dict[str, jax.Array]:
    """Means over the ring, as `train/...` scalars; NaN while no episode has ended.

    Returns are those of the episodes in which somebody of the role took part.
    """
    window = recent.length.shape[0]
    filled = jnp.arange(window) < recent.count

    def mean(values):
        return masked_mean(values, filled & ~jnp.isnan(values))

    metrics = {"train/episode_length": mean(recent.length)}
    for role in learners:
        name = "train/return" if len(learners) == 1 else f"train/return/{role}"
        metrics[name] = mean(recent.episode_return[role])
    for index, name in enumerate(spec.outcomes):
        metrics[f"train/outcome/{name}"] = mean(recent.outcome == index)
    if spec.success is not None:
        metrics["train/success_rate"] = metrics[f"train/outcome/{spec.success}"]
    for name, values in recent.components.items():
        metrics[f"train/reward_components/{name}"] = mean(values)
    return metrics


def episode_rows(finished: Finished, learners: tuple[str, ...], rows: int) -> dict[str, jax.Array]:
    """The first `rows` finished episodes of a rollout `[T, E]`, for a table on the host.

    Returns:
      `number` (int32, how many ended, whether or not they fit) and columns `[rows]`: `step`
      and `env` (place in the rollout), `length`, `outcome`, `task`, `return/ROLE`,
      `reward/COMPONENT`; NaN for a role that nobody took part for. Rows from `number` on are padding.
    """
    mask = finished.mask
    index = jnp.nonzero(mask.reshape(-1), size=min(rows, mask.size), fill_value=0)[0]

    def pick(values):
        return values.reshape(-1)[index]

    table = {
        "number": jnp.sum(mask, dtype=jnp.int32),
        "step": (index // mask.shape[1]).astype(jnp.int32),
        "env": (index % mask.shape[1]).astype(jnp.int32),
        "length": pick(finished.length),
        "outcome": pick(finished.outcome),
        "task": pick(finished.task),
    }
    for role in learners:
        table[f"return/{role}"] = pick(masked_mean(finished.episode_return[role], finished.present[role]))
    for name, values in finished.components.items():
        table[f"reward/{name}"] = pick(values)
    return table
