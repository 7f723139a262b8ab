"""Frames of missions: snapshots of a battle with orders, facts and reports, at every decision."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.missions.measures import squads, staging
from jaxmarl_echelon.envs.echelon.missions.state import (
    CALIBRATION,
    CONFIRMATION,
    CREDIT,
    TERMINAL,
    MissionParams,
    MissionState,
)
from jaxmarl_echelon.envs.echelon.missions.weights import OBJECTIVE, SHAPING
from jaxmarl_echelon.envs.echelon.view import snapshot as battle_frames
from jaxmarl_echelon.envs.echelon.view.snapshot import BattleFrame
from jaxmarl_echelon.envs.results import COMPONENT

PERCENT = 100.0
# Groups of reward components, for display.
REWARD_GROUPS = {
    "shaping": SHAPING,
    "objective": OBJECTIVE,
    "success": (TERMINAL,),
    "credit": (CREDIT,),
    "reports": (CALIBRATION,),
}
_BYTE = 8


class MissionFrame(BattleFrame):
    """Snapshot of a mission; scores are the missions' success so far.

    Attributes:
      verb: `[K]` uint8 of the present order.
      parameters: `[K, 4]` uint8 percent.
      zone: `[K, 3]` float32 x, y and radius of the present objective.
      covered: `[K, C / 8]` uint8 bits of the coverage cells that the team has entered, lowest first.
      tracks: `[M, M / 8]` uint8 bits of the enemies with a confirmed track by the mech.
      report: `[M]` uint8 percent, status report.
      present: `[M]` uint8, 1 for filled slots.
      paid: `[F]` float32 reward from each of `REWARD_GROUPS` for the last decision, mean over blue's mechs;
        for differences of potentials the growth of the potential.
    """

    verb: jax.Array
    parameters: jax.Array
    zone: jax.Array
    covered: jax.Array
    tracks: jax.Array
    report: jax.Array
    present: jax.Array
    paid: jax.Array


def make_mission_snapshot(teams: squads.TeamSizes, battle_params: Callable) -> Callable:
    """Returns the function `(state, params, time) -> MissionFrame`; pure, for use inside jit.

    Args:
      teams: mechs of blue and of red.
      battle_params: `(scenario, params)` to parameters of the battle.
    """

    def record(state: MissionState, params: MissionParams, time=None) -> MissionFrame:
        info = {} if time is None else time.info
        order = staging.present_orders(state.scenario.orders, state.echelon.decision)
        frame = battle_frames.take_battle_snapshot(state.echelon, battle_params(state.scenario, params))
        words, _ = squads.unite_bits(state.by_mech.visited, teams)
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
    """Returns sums of the reward components of each of `REWARD_GROUPS`; missing components count as 0."""
    sums = [sum(info.get(COMPONENT + name, 0.0) for name in names) for names in REWARD_GROUPS.values()]
    return jnp.stack([jnp.asarray(value, jnp.float32) for value in sums])


def _percent(share: jax.Array) -> jax.Array:
    return jnp.clip(jnp.round(PERCENT * share), 0, PERCENT).astype(jnp.uint8)


def _bytes(words: jax.Array) -> jax.Array:
    """Splits words `[..., W]` into bytes `[..., 4 W]`, the lowest first."""
    parts = (words[..., None] >> np.arange(0, 32, _BYTE, dtype=np.uint32)) & np.uint32(0xFF)
    return parts.astype(jnp.uint8).reshape(*words.shape[:-1], -1)


def _packed(flags: jax.Array) -> jax.Array:
    """Packs flags `[..., N]` into bytes `[..., ceil(N / 8)]`, lowest bit first."""
    count = flags.shape[-1]
    padded = jnp.pad(flags, ((0, 0), (0, -count % _BYTE))).reshape(flags.shape[0], -1, _BYTE)
    return jnp.sum(padded << np.arange(_BYTE, dtype=np.uint8), axis=-1).astype(jnp.uint8)
