"""Frames of missions: the recording of a battle, with orders, facts and reports, at every decision."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs.echelon.missions.measures import squads, staging
from jaxmarl_echelon.envs.echelon.missions.types import (
    CALIBRATION,
    CONFIRMATION,
    CREDIT,
    TERMINAL,
    MissionParams,
    MissionState,
)
from jaxmarl_echelon.envs.echelon.missions.weights import OBJECTIVE, SHAPING
from jaxmarl_echelon.envs.echelon.view import snapshot as battle_frames
from jaxmarl_echelon.envs.echelon.view.snapshot import Frame
from jaxmarl_echelon.envs.results import COMPONENT

PERCENT = 100.0
# What the reward is made of, as people are shown it.
FAMILIES = {
    "shaping": SHAPING,
    "objective": OBJECTIVE,
    "success": (TERMINAL,),
    "credit": (CREDIT,),
    "reports": (CALIBRATION,),
}
_BYTE = 8


@struct.dataclass
class MissionFrame(Frame):
    """One moment of a mission; scores are the missions' success so far.

    Attributes:
      verb: `[K]` uint8 of the present order.
      parameters: `[K, 4]` uint8 percent.
      zone: `[K, 3]` float32 x, y and radius of the present objective.
      covered: `[K, C / 8]` uint8 bits of the coverage cells that the team has entered, lowest first.
      tracks: `[M, M / 8]` uint8 bits of the enemies of whom a mech has a confirmed track.
      report: `[M]` uint8 percent, what it reported of its status.
      present: `[M]` uint8, 1 for slots that are filled.
      paid: `[F]` float32, what each of `FAMILIES` paid for the last decision, mean over blue's mechs; of
        differences of potentials how much the potential grew.
    """

    verb: jax.Array
    parameters: jax.Array
    zone: jax.Array
    covered: jax.Array
    tracks: jax.Array
    report: jax.Array
    present: jax.Array
    paid: jax.Array


def snapshot(teams: squads.Teams, battle_params: Callable) -> Callable:
    """Returns `(state, params, time) -> MissionFrame`; pure, for use inside jit.

    Args:
      teams: mechs of blue and of red.
      battle_params: `(scenario, params)` to parameters of the battle.
    """

    def record(state: MissionState, params: MissionParams, time=None) -> MissionFrame:
        info = {} if time is None else time.info
        order = staging.current(state.scenario.orders, state.echelon.decision)
        frame = battle_frames.snapshot(state.echelon, battle_params(state.scenario, params))
        words, _ = squads.unite(state.by_mech.visited, teams)
        return MissionFrame(
            **vars(frame),
            verb=order.verb.astype(jnp.uint8),
            parameters=_percent(order.parameters),
            zone=order.zone.astype(jnp.float32),
            covered=_bytes(words),
            tracks=_packed(state.by_mech.timer >= CONFIRMATION),
            report=_percent(state.report.status[:, -1]),
            present=state.scenario.present.astype(jnp.uint8),
            paid=_paid(info),
        )

    return record


def _paid(info: Mapping[str, jax.Array]) -> jax.Array:
    """Sums of the reward components of each of `FAMILIES`; 0 for those that the reward lacks."""
    sums = [sum(info.get(COMPONENT + name, 0.0) for name in names) for names in FAMILIES.values()]
    return jnp.stack([jnp.asarray(value, jnp.float32) for value in sums])


def _percent(share: jax.Array) -> jax.Array:
    return jnp.clip(jnp.round(PERCENT * share), 0, PERCENT).astype(jnp.uint8)


def _bytes(words: jax.Array) -> jax.Array:
    """Words `[..., W]` as bytes `[..., 4 W]`, the lowest first."""
    parts = (words[..., None] >> np.arange(0, 32, _BYTE, dtype=np.uint32)) & np.uint32(0xFF)
    return parts.astype(jnp.uint8).reshape(*words.shape[:-1], -1)


def _packed(flags: jax.Array) -> jax.Array:
    """Flags `[..., N]` as bits of bytes `[..., ceil(N / 8)]`, the lowest first."""
    count = flags.shape[-1]
    padded = jnp.pad(flags, ((0, 0), (0, -count % _BYTE))).reshape(flags.shape[0], -1, _BYTE)
    return jnp.sum(padded << np.arange(_BYTE, dtype=np.uint8), axis=-1).astype(jnp.uint8)
