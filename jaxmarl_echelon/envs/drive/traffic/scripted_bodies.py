"""Motion of scripted bodies, along their recordings or their routes.

Reference: docs/reference/drive.md 5.3.
"""

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.state import RouteProgress
from jaxmarl_echelon.envs.drive.traffic.routes import BodyGroup, follow_routes
from physics.bicycle import Motion

REPLAY, IDM, STATIC = "replay", "idm", "static"
KINDS = (REPLAY, IDM, STATIC)


def recorded_motion(bank: SceneBank, scene: jax.Array, sample: jax.Array) -> tuple[Motion, jax.Array]:
    """Recorded motion of all bodies at a sample, leaves `[N]`, and whether each is recorded, bool `[N]`."""
    last = bank.recording.shape[1] - 1
    row = bank.recording[scene, jnp.clip(sample, 0, last)]
    there = bank.recorded[scene, jnp.clip(sample, 0, last)] & (sample <= last)
    return Motion(*jnp.moveaxis(row, -1, 0)), there


def recorded_motion_per_body(
    bank: SceneBank, scene: jax.Array, sample: jax.Array, agents: int
) -> tuple[Motion, jax.Array]:
    """Recorded motion of the first `agents` bodies, each at its own sample `[A]`; see `recorded_motion`."""
    last = bank.recording.shape[1] - 1
    slots, at = jnp.arange(agents), jnp.clip(sample, 0, last)
    rows = bank.recording[scene, at, slots]
    return Motion(*jnp.moveaxis(rows, -1, 0)), bank.recorded[scene, at, slots] & (sample <= last)


def stop_static_bodies(kind: str, driven: jax.Array, motion: Motion) -> Motion:
    """Returns the motion with a speed of 0 for `driven` bodies `[N]` if they stand (`static`)."""
    if kind != STATIC:
        return motion
    return motion._replace(speed=jnp.where(driven, 0.0, motion.speed))


def move_scripted_bodies(
    kind: str,
    bank: SceneBank,
    scene: jax.Array,
    sample: jax.Array,
    group: BodyGroup,
    motion: Motion,
    present: jax.Array,
    solid: jax.Array,
    traffic: RouteProgress,
) -> tuple[Motion, jax.Array, RouteProgress]:
    """Moves the scripted bodies from one sample to the next.

    Bodies appear and disappear as in their recording. A driven body starts along its route with the recorded
    speed, at the arc that `traffic` has for it, and continues from where it disappeared.

    Args:
      kind: motion of the bodies that may be driven, one of `KINDS`; static.
      bank: the scenes.
      scene: int32.
      sample: int32 sample before the step.
      group: the scripted bodies.
      motion: of all bodies before the step, leaves `[N]`.
      present: `[N]` bool before the step.
      solid: `[N]` bool; visible to drivers.
      traffic: route progress of all bodies, leaves `[N]`.

    Returns:
      motion `[N]`, presence `[N]` and traffic `[N]`, changed for the group only.
    """
    if group.slots.shape[0] == 0:
        return motion, present, traffic
    replayed, there = recorded_motion(bank, scene, sample + 1)
    own, there = group.of(replayed), group.of(there)
    progress = group.of(traffic)
    if kind != REPLAY:
        seen, were = progress.seen, group.of(present)
        driven = group.of(bank.driven[scene]) & seen
        if kind == STATIC:
            moved = group.of(motion)
        else:
            moved, after = follow_routes(bank, scene, sample, group, motion, solid, traffic)
            keep = driven & were & there
            progress = jax.tree.map(lambda new, old: jnp.where(keep, new, old), after, progress)
        moved = jax.tree.map(lambda new, old: jnp.where(were, new, old), moved, group.of(motion))
        own = jax.tree.map(lambda new, old: jnp.where(driven, new, old), moved, own)
        own = stop_static_bodies(kind, group.of(bank.driven[scene]), own)
    progress = progress.replace(seen=progress.seen | there)
    return group.put(motion, own), group.put(present, there), group.put(traffic, progress)
