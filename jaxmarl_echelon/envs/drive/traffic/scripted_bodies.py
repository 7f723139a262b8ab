"""Bodies that no learner drives: along their recording or their routes. Source: spec drive 0.2, 0.4."""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.state import Traffic
from jaxmarl_echelon.envs.drive.traffic.routes import Group, follow
from physics.bicycle import Motion

REPLAY, IDM, STATIC = "replay", "idm", "static"
KINDS = (REPLAY, IDM, STATIC)


def recorded(bank: SceneBank, scene: jax.Array, sample: jax.Array) -> tuple[Motion, jax.Array]:
    """Motion of all bodies at a sample of the recording, leaves `[N]`, and whether each is recorded there."""
    last = bank.recording.shape[1] - 1
    row = bank.recording[scene, jnp.clip(sample, 0, last)]
    there = bank.recorded[scene, jnp.clip(sample, 0, last)] & (sample <= last)
    return Motion(*jnp.moveaxis(row, -1, 0)), there


def recorded_of(
    bank: SceneBank, scene: jax.Array, sample: jax.Array, agents: int
) -> tuple[Motion, jax.Array]:
    """`recorded` of the first `agents` bodies, at a sample `[A]` of each one's own."""
    last = bank.recording.shape[1] - 1
    slots, at = jnp.arange(agents), jnp.clip(sample, 0, last)
    rows = bank.recording[scene, at, slots]
    return Motion(*jnp.moveaxis(rows, -1, 0)), bank.recorded[scene, at, slots] & (sample <= last)


def advance(
    kind: str,
    bank: SceneBank,
    scene: jax.Array,
    sample: jax.Array,
    group: Group,
    motion: Motion,
    present: jax.Array,
    solid: jax.Array,
    traffic: Traffic,
) -> tuple[Motion, jax.Array, Traffic]:
    """Moves the scripted bodies from one sample to the next.

    Bodies appear, vanish and appear again with their recording. A driven one starts along its route with the
    recorded speed, and goes on from where it vanished.

    Args:
      kind: what drives those that may be driven, one of `KINDS`; static.
      bank: the scenes.
      scene: int32.
      sample: int32 sample before the step.
      group: the scripted bodies.
      motion: of all bodies before the step, leaves `[N]`.
      present: `[N]` bool before the step.
      solid: `[N]` bool; is seen by drivers.
      traffic: of all bodies, leaves `[N]`.

    Returns:
      motion `[N]`, presence `[N]` and traffic `[N]`, changed for the group only.
    """
    if group.slots.shape[0] == 0:
        return motion, present, traffic
    replayed, there = recorded(bank, scene, sample + 1)
    own, there = group.of(replayed), group.of(there)
    progress = group.of(traffic)
    if kind != REPLAY:
        seen, were = progress.seen, group.of(present)
        driven = group.of(bank.driven[scene]) & seen
        if kind == STATIC:
            moved = group.of(motion)
        else:
            moved, after = follow(bank, scene, sample, group, motion, solid, traffic)
            keep = driven & were & there
            progress = jax.tree.map(lambda new, old: jnp.where(keep, new, old), after, progress)
        moved = jax.tree.map(lambda new, old: jnp.where(were, new, old), moved, group.of(motion))
        own = jax.tree.map(lambda new, old: jnp.where(driven, new, old), moved, own)
    progress = progress.replace(seen=progress.seen | there)
    return group.put(motion, own), group.put(present, there), group.put(traffic, progress)
