"""Orders, facts, weights, parameters and state of missions.

Arrays with a leading axis K have one row per team, blue then red; those with M one per mech. Distances are
voxels, times seconds unless counted in decisions of 0.25 s. Reference: docs/reference/echelon.md 15 and 16.
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
    "coverage",
)
# Reward components in addition to shaping.
TERMINAL, CREDIT, CALIBRATION = "mission_success", "credit", "calibration"
PAID = (*COMPONENTS, TERMINAL, CREDIT, CALIBRATION)

# Verbs of a squad in the order of the embedding's one-hot (docs/reference/echelon.md 15.7).
VERBS = ("assault", "hold", "overwatch", "flank", "suppress", "scout", "stage")
PARAMETERS = ("risk", "loss_appetite", "time_pressure", "grouping")
CONFIRMATION = 8
NEVER = 2**30


class MissionWeights(struct.PyTreeNode):
    """Reward weights and difficulty of an episode, set by a curriculum; scalars are float32.

    Attributes:
      components: `[len(COMPONENTS)]` weights before gates, already scaled by the schedules.
      terminal: weight of `mission_success`, the terminal reward 2 S - 1.
      early: share of `mission_success` that is also shown as it is earned, as a difference of potentials.
      credit: weight of the difference reward.
      calibration: weight of the status reports' bonus over a whole episode.
      progress: training progress, in [0, 1].
      phase: int32 from 1 to 4.
      difficulty_low: smallest difficulty of a scenario, in [0, 1].
      difficulty_high: largest difficulty.
      fire_low: probability per decision that a scripted enemy may fire, at difficulty 0.
      fire_high: the same at difficulty 1.
    """

    components: jax.Array
    terminal: jax.Array
    early: jax.Array
    credit: jax.Array
    calibration: jax.Array
    progress: jax.Array
    phase: jax.Array
    difficulty_low: jax.Array
    difficulty_high: jax.Array
    fire_low: jax.Array
    fire_high: jax.Array


class Orders(struct.PyTreeNode):
    """Orders of both teams. Axis 1 of some fields is the stage: the order, and its follow-on.

    Attributes:
      verb: `[K, 2]` int32 index into the registry's verbs.
      parameters: `[K, 4]` in [0, 1], in the order of `PARAMETERS`.
      objective: `[K, 2, 2]` x and y.
      radius: `[K, 2]` of the objective.
      complexity: `[K, 2]` density of opaque columns around the objective, in [0, 1].
      go: `[K]` int32 decision at which the follow-on begins; NEVER for orders without one.
      budget: `[K]` time budget of the order, seconds.
    """

    verb: jax.Array
    parameters: jax.Array
    objective: jax.Array
    radius: jax.Array
    complexity: jax.Array
    go: jax.Array
    budget: jax.Array


class Order(struct.PyTreeNode):
    """Present order of each team, `[K, ...]`: one stage of `Orders`.

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


class Scenario(struct.PyTreeNode):
    """Tactical problem, constant during an episode; only `orders` are observable.

    Attributes:
      orders: orders of both teams.
      classes: `[M]` int32 index into `unit_tables.CLASSES`.
      present: `[M]` bool; the slot is filled.
      strength: `[K]` int32 mechs at the start.
      hp: `[K]` their hit points at the start.
      start: `[M, 2]` start positions, x and y.
      disposition: `[K]` int32 index into `DISPOSITIONS`, of a scripted team.
      awareness: `[K]` int32 index into `AWARENESS`.
      stealth: `[K]` tier in [0, 1], shortens the range at which the team is detected.
      fire: `[K]` probability per decision that a scripted mech may fire.
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


class MechFacts(struct.PyTreeNode):
    """Facts by mech, of the present stage unless noted otherwise.

    Attributes:
      timer: `[M, M]` int8 consecutive decisions for which the viewer has seen the target, up to
        CONFIRMATION.
      confirmed: `[M, M]` bool; a viewer has ever had a confirmed track of a target (whole episode).
      visited: `[M, W]` uint32 bits of the coverage cells that the mech has entered (whole episode).
      cell: `[M]` int32 present coverage cell.
      dealt: `[M]` damage dealt to enemies.
      rear: `[M]` damage dealt, times the enfilade index of each hit.
      pinned: `[M]` seconds of being suppressed or fallen, weighted by the missing stability.
      pinning: `[M]` the same, summed over the enemies that this mech's autocannon hit last.
      hitter: `[M]` int32 enemy whose autocannon hit it last, or -1.
      hurt: `[M]` int32 remaining decisions for which an enemy's last hit counts as recent.
      held: `[M]` ton-seconds in its team's objective.
      shots: `[M]` int32 autocannon shots.
      hits: `[M]` int32 autocannon hits.
      seen_cover: `[M]` int32 samples of the objective that this mech saw.
      lone_cover: `[M]` int32 samples of the objective that only this mech saw.
      gap: `[M]` distance to the objective at the start of the stage.
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
    seen_cover: jax.Array
    lone_cover: jax.Array
    gap: jax.Array


class TeamFacts(struct.PyTreeNode):
    """Facts by team, `[K]` each, of the present stage unless noted otherwise; counts are decisions.

    Attributes:
      elapsed: int32 decisions.
      capture: int32; grows while only the own team is in the objective, shrinks while only the enemy is.
      captured: bool; the capture was complete at some time.
      alone: int32 decisions in which only the own team was in the objective.
      contested: int32 decisions in which both teams were.
      covered: int32 samples of the objective in sight of a mech.
      exposure: int32 sum over decisions of the number of enemies near the objective.
      supported: int32 part of `exposure` in which the enemy was suppressed, fallen or recently hit.
      engaged: bool; enemies were damaged.
      waited: int32 decisions before the first engagement.
      tracked: int32 part of `waited` in which an enemy had a confirmed track of a mech.
      met: bool; an enemy was confirmed or damaged.
      entered: bool; a coverage cell in the area of operations was entered for the first time.
      arrived: proximity of the squad to its staging point at GO, in [0, 1].
      ready: its readiness at GO.
      form: its formation at GO.
      transit: int32 decisions from GO to the follow-on's first act; NEVER before it.
      reference: expected seconds for that.
      latched: int32 decision at which the mission first counted as done; NEVER before (whole episode).
      best: largest potential so far (whole episode).
      opening: the potential at the start of the episode.
      stalled: int32 decisions since the potential last grew (whole episode).
      attempted: bool; the potential grew clearly or the squad entered the area (whole episode).
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


class MissionParams(struct.PyTreeNode):
    """Parameters of an episode; may change between episodes without recompiling.

    Attributes:
      echelon: parameters of the battle; the scenario replaces classes and fire probabilities.
      weights: reward weights and difficulty, set by a curriculum.
      gates: `[V, len(COMPONENTS)]` factors of the shaping components, by verb.
      levers: distribution of scenarios (`scenarios.levers.Levers`).
      sensor_range: detection range of a medium mech, voxels.
      cover_target: share of the reachable coverage cells that a scout must enter.
      gamma: discount of a decision, in differences of potentials.
      evaluation_maps: `[N]` relative probability of each terrain in evaluations; training's is in `echelon`.
    """

    echelon: EchelonParams
    weights: MissionWeights
    gates: jax.Array
    levers: Any
    sensor_range: jax.Array
    cover_target: jax.Array
    gamma: jax.Array
    evaluation_maps: jax.Array


class MissionState(struct.PyTreeNode):
    """State of one episode.

    Attributes:
      echelon: state of the battle.
      scenario: the drawn scenario.
      by_mech: facts by mech.
      by_team: facts by team.
      potential: `[K]` progress of the missions in [0, 1].
      success: `[K]` success if the episode ended now.
      report: history of status reports (`calibration`).
      navigation: memory of the navigation aid (`navigation.NavigationState`); empty without it.
    """

    echelon: EchelonState
    scenario: Scenario
    by_mech: MechFacts
    by_team: TeamFacts
    potential: jax.Array
    success: jax.Array
    report: Any
    navigation: Any = ()
