"""Orders, hardened facts, weights and the state of missions.

Arrays with a leading axis K have one row per team, blue then red; those with M one per mech. Distances are
voxels, times seconds unless they are counted in decisions of 0.25 s. Source: spec sections 7 and 9.
"""

from typing import Any

import jax
from flax import struct

from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams, EchelonState

# Shaping components, in the order of every array over them.
COMPONENTS = (
    "survival",
    "damage_dealt",
    "heat_management",
    "pack_cohesion",
    "zone_progress",
    "zone_control",
    "mission_progress",
    "stealth",
    "detection",
    "suppression_effect",
    "resource_preservation",
)
# What is paid besides the shaping components.
TERMINAL, CREDIT, CALIBRATION = "mission_success", "credit", "calibration"
PAID = (*COMPONENTS, TERMINAL, CREDIT, CALIBRATION)

# Verbs of a squad in the order of the embedding's one-hot (spec section 7.1).
VERBS = ("assault", "hold", "overwatch", "flank", "suppress", "scout", "stage")
PARAMETERS = ("risk", "loss_appetite", "time_pressure", "grouping")
CONFIRMATION = 8
NEVER = 2**30


@struct.dataclass
class MissionWeights:
    """What a curriculum sets for an episode; scalars are float32.

    Attributes:
      components: `[len(COMPONENTS)]` weights before gates, already scaled by the schedules.
      terminal: of `mission_success`, the terminal reward 2 S - 1.
      credit: of the difference reward.
      calibration: of the status report's bonus, for the whole episode (it is divided by the time limit).
      progress: of the training, in [0, 1].
      phase: int32 from 1 to 4.
      difficulty_low: least difficulty of a drawn scenario, in [0, 1].
      difficulty_high: largest difficulty.
      fire_low: chance per decision that a scripted enemy fires at all, at difficulty 0.
      fire_high: the same at difficulty 1.
    """

    components: jax.Array
    terminal: jax.Array
    credit: jax.Array
    calibration: jax.Array
    progress: jax.Array
    phase: jax.Array
    difficulty_low: jax.Array
    difficulty_high: jax.Array
    fire_low: jax.Array
    fire_high: jax.Array


@struct.dataclass
class Orders:
    """The orders of both teams. Axis 2 of some fields is the stage: the order, and what follows on it.

    Attributes:
      verb: `[K, 2]` int32 index into the registry's verbs.
      parameters: `[K, 4]` in [0, 1], in the order of `PARAMETERS`.
      objective: `[K, 2, 2]` x and y.
      radius: `[K, 2]` of the objective.
      complexity: `[K, 2]` density of what blocks sight around the objective, in [0, 1].
      go: `[K]` int32 decision at which the follow-on begins; NEVER for orders without one.
      budget: `[K]` seconds in which the order should be carried out.
    """

    verb: jax.Array
    parameters: jax.Array
    objective: jax.Array
    radius: jax.Array
    complexity: jax.Array
    go: jax.Array
    budget: jax.Array


@struct.dataclass
class Order:
    """What a team is told at a moment, `[K, ...]`: one stage of `Orders`.

    Attributes:
      verb: int32.
      parameters: `[4]`.
      zone: `[3]` x, y and radius of the objective.
      complexity: in [0, 1].
      went: bool; the follow-on has begun.
    """

    verb: jax.Array
    parameters: jax.Array
    zone: jax.Array
    complexity: jax.Array
    went: jax.Array


@struct.dataclass
class Scenario:
    """A tactical problem: constant during an episode. What is not in `orders` is known to nobody.

    Attributes:
      orders: of both teams.
      classes: `[M]` int32 index into `tables.CLASSES`.
      present: `[M]` bool; the slot is filled.
      strength: `[K]` int32 mechs at the start.
      hp: `[K]` their hit points at the start.
      start: `[M, 2]` x and y of the start.
      disposition: `[K]` int32 index into `DISPOSITIONS`, of a scripted team.
      awareness: `[K]` int32 index into `AWARENESS`.
      stealth: `[K]` tier in [0, 1]: shortens the range at which the team is detected.
      fire: `[K]` chance per decision that a scripted mech fires at all.
      route: `[K, 4, 2]` points of a patrol.
      difficulty: in [0, 1].
    """

    orders: Orders
    classes: jax.Array
    present: jax.Array
    strength: jax.Array
    hp: jax.Array
    start: jax.Array
    disposition: jax.Array
    awareness: jax.Array
    stealth: jax.Array
    fire: jax.Array
    route: jax.Array
    difficulty: jax.Array


@struct.dataclass
class MechFacts:
    """Hardened facts by mech, of the present stage where not said otherwise.

    Attributes:
      timer: `[M, M]` int8 decisions for which a viewer has seen a target without a break, up to
        CONFIRMATION.
      confirmed: `[M, M]` bool; a viewer has ever had a confirmed track of a target (whole episode).
      visited: `[M, W]` uint32 bits of the coverage cells that the mech has entered (whole episode).
      cell: `[M]` int32 coverage cell in which it stands.
      dealt: `[M]` damage done to enemies.
      rear: `[M]` the same, times the enfilade index of each hit.
      pinned: `[M]` seconds for which it was suppressed or fallen, weighted by the stability it lacked.
      pinning: `[M]` the same of its victims, where its autocannon hit them last.
      hitter: `[M]` int32 enemy whose autocannon hit it last, or NOBODY.
      hurt: `[M]` int32 decisions left in which an enemy's last hit counts as recent.
      held: `[M]` ton-seconds in its team's objective.
      shots: `[M]` int32 autocannon shots.
      hits: `[M]` int32 autocannon hits.
      lone_cover: `[M]` int32 samples of the objective that it alone covered.
      gap: `[M]` distance to the objective as the stage began.
    """

    timer: jax.Array
    confirmed: jax.Array
    visited: jax.Array
    cell: jax.Array
    dealt: jax.Array
    rear: jax.Array
    pinned: jax.Array
    pinning: jax.Array
    hitter: jax.Array
    hurt: jax.Array
    held: jax.Array
    shots: jax.Array
    hits: jax.Array
    lone_cover: jax.Array
    gap: jax.Array


@struct.dataclass
class TeamFacts:
    """Hardened facts by team, `[K]` each, of the present stage where not said otherwise; in decisions.

    Attributes:
      elapsed: int32 decisions.
      capture: int32; grows while only the own side is in the objective, shrinks while only the enemy is.
      captured: bool; the capture has ever been full.
      alone: int32 decisions in which only the own side was in the objective.
      contested: int32 decisions in which both were.
      covered: int32 samples of the objective in sight of a mech.
      exposure: int32 sum over decisions of enemies near the objective.
      supported: int32 of these, those that were suppressed, fallen or recently hit.
      engaged: bool; damage was done to enemies.
      waited: int32 decisions before that.
      tracked: int32 of these, those in which an enemy had a confirmed track of a mech.
      met: bool; an enemy has been confirmed or damaged.
      entered: bool; a coverage cell in the area of operations has been entered anew.
      arrived: how near the squad was to its staging point at GO, in [0, 1].
      ready: its readiness at GO.
      form: its formation at GO.
      transit: int32 decisions from GO to the follow-on's first act; NEVER before it.
      reference: seconds that this should take.
      latched: int32 decision at which the mission first counted as done; NEVER before (whole episode).
      best: largest potential so far (whole episode).
      opening: the potential at the start of the episode.
      stalled: int32 decisions since the potential last grew (whole episode).
      attempted: bool; the potential ever grew clearly, or the squad went into the area (whole episode).
    """

    elapsed: jax.Array
    capture: jax.Array
    captured: jax.Array
    alone: jax.Array
    contested: jax.Array
    covered: jax.Array
    exposure: jax.Array
    supported: jax.Array
    engaged: jax.Array
    waited: jax.Array
    tracked: jax.Array
    met: jax.Array
    entered: jax.Array
    arrived: jax.Array
    ready: jax.Array
    form: jax.Array
    transit: jax.Array
    reference: jax.Array
    latched: jax.Array
    best: jax.Array
    opening: jax.Array
    stalled: jax.Array
    attempted: jax.Array


@struct.dataclass
class MissionParams:
    """What may change between episodes without recompiling.

    Attributes:
      echelon: of the battle; classes, and who fires how often, are the scenario's.
      weights: what a curriculum sets.
      gates: `[V, len(COMPONENTS)]` factors of the shaping components, by verb.
      levers: of scenarios (`scenarios.levers.Levers`).
      sensor_range: voxels at which a medium mech detects others.
      cover_target: share of the reachable coverage cells that a scout is asked to enter.
      gamma: discount of a decision, in differences of potentials.
      evaluation_maps: `[N]`, how often each terrain is drawn in evaluations; `echelon` has training's.
    """

    echelon: EchelonParams
    weights: MissionWeights
    gates: jax.Array
    levers: Any
    sensor_range: jax.Array
    cover_target: jax.Array
    gamma: jax.Array
    evaluation_maps: jax.Array


@struct.dataclass
class MissionState:
    """One episode.

    Attributes:
      echelon: the battle and what mechs see of it.
      scenario: the problem.
      by_mech: hardened facts.
      by_team: hardened facts.
      potential: `[K]` progress of the missions in [0, 1].
      success: `[K]` success as it stands.
      report: the status reports' memory (`calibration`).
    """

    echelon: EchelonState
    scenario: Scenario
    by_mech: MechFacts
    by_team: TeamFacts
    potential: jax.Array
    success: jax.Array
    report: Any
