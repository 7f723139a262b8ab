"""Golden vectors of an exported policy: 64 inputs with their outputs."""

import jax
import jax.numpy as jnp
import numpy as np

from algos.nets.observations import BlockMoments, Moments, Statistics
from algos.types import Asymmetric, Block
from jaxmarl_echelon.envs.base import Role
from jaxmarl_echelon.envs.spaces import Box, MultiDiscrete
from jaxmarl_echelon.exporting.formats import ExportedFunction

# Decisions of each of ROWS agents.
STEPS = 8
ROWS = 8
# Share of decisions before which memories are cleared, of actions that are illegal, of set rows left empty.
SHARE = 0.25
# Standard deviation of observations, in those that the normaliser has seen: some are clipped.
SPREAD = 2.0


def record_golden(
    function: ExportedFunction, role: Role, statistics: Statistics, blocks: tuple[Block, ...], seed: int = 0
) -> dict[str, np.ndarray]:
    """Runs a policy on random inputs.

    Args:
      function: the policy.
      role: its role.
      statistics: what its normaliser has seen, around which observations are drawn; None without one.
      blocks: blocks of the observations; some rows of their sets are left empty.
      seed: of the random inputs.

    Returns:
      arrays `[STEPS, ROWS, ...]`: obs, reset, mask for choices, action, and next_carry_i, the memory after
      each step; it is cleared before the first.
    """
    rng = np.random.default_rng(seed)
    obs = sample_observations(rng, role, statistics, blocks)
    reset = rng.random((STEPS, ROWS)) < SHARE
    golden = {"obs": obs, "reset": reset}
    if size := role.action.mask_size:
        golden["mask"] = sample_masks(
            rng, role.action.sizes if isinstance(role.action, MultiDiscrete) else (size,)
        )
    step = jax.jit(function.closed)
    carries = [layout for layout in function.inputs if layout.name.startswith("carry_")]
    memory = [np.zeros((ROWS, *layout.shape), layout.dtype) for layout in carries]
    rows = []
    with jax.default_device(jax.devices("cpu")[0]):
        for i in range(STEPS):
            mask = [golden["mask"][i]] if "mask" in golden else []
            outputs = [np.asarray(x) for x in step(obs[i], *memory, reset[i], *mask)]
            memory = outputs[1:]
            rows.append(outputs)
    names = [layout.name for layout in function.outputs]
    return golden | {name: np.stack([row[k] for row in rows]) for k, name in enumerate(names)}


def sample_observations(
    rng: np.random.Generator, role: Role, statistics: Statistics, blocks: tuple[Block, ...]
) -> np.ndarray:
    """Draws observations `[STEPS, ROWS, *shape]` of the space, around the statistics if there are any."""
    space = role.observation
    key = jax.random.key(int(rng.integers(2**31)))
    keys = jax.random.split(key, STEPS * ROWS)
    flat = np.array(jax.vmap(space.sample)(keys)).reshape(STEPS, ROWS, -1)
    if not isinstance(space, Box) or not jnp.issubdtype(space.dtype, jnp.floating):
        return flat.reshape(STEPS, ROWS, *space.shape)
    own = statistics.actor if isinstance(statistics, Asymmetric) else statistics
    if own is not None:
        mean, deviation = _describe_statistics(own, flat.shape[-1])
        flat = mean + SPREAD * deviation * rng.standard_normal(flat.shape)
    low, high = (bound.reshape(-1) for bound in space.bounds())
    flat = np.clip(flat, low, high).astype(space.dtype)
    for block in blocks:
        if block.kind == "set":
            empty = rng.random((STEPS, ROWS, block.shape[0])) < SHARE
            part = flat[..., block.slice].reshape(STEPS, ROWS, *block.shape)
            flat[..., block.slice] = np.where(empty[..., None], 0.0, part).reshape(STEPS, ROWS, -1)
    return flat.reshape(STEPS, ROWS, *space.shape)


def _describe_statistics(statistics: Moments | BlockMoments, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation `[F]` of every number."""
    if isinstance(statistics, Moments):
        return np.asarray(statistics.mean), np.sqrt(np.asarray(statistics.var))
    mean, variance = np.zeros(size), np.ones(size)
    for block in statistics.blocks:
        own = statistics.moments[block.name]
        mean[block.slice] = np.broadcast_to(own.mean, block.shape).reshape(-1)
        variance[block.slice] = np.broadcast_to(own.var, block.shape).reshape(-1)
    return mean, np.sqrt(variance)


def sample_masks(rng: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
    """Draws masks `[STEPS, ROWS, sum(sizes)]` with at least one legal option per choice."""
    parts = []
    for size in sizes:
        legal = rng.random((STEPS, ROWS, size)) >= SHARE
        sure = rng.integers(size, size=(STEPS, ROWS, 1))
        np.put_along_axis(legal, sure, True, axis=-1)
        parts.append(legal)
    return np.concatenate(parts, -1)
