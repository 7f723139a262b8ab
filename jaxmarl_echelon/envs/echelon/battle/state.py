"""State and parameters of the mech battles.

M mechs: all of blue, then all of red. Lengths are voxels, x, y, z with z up; yaw 0 looks along
+x and grows counter-clockwise. Timers count the remaining substeps; 0 means expired. Index -1
stands for "no mech". Reference: docs/reference/echelon.md 1 and 2.
"""

import jax
from flax import struct

from physics.voxels import Overlay

BLUE, RED = 0, 1
TEAMS = ("blue", "red")
PROJECTILES_PER_MECH = 4
CLOUDS_PER_MECH = 3
MESSAGE = 8
NO_MECH = -1


class Mechs(struct.PyTreeNode):
    """Physical state of all mechs.

    Attributes:
      position: `[M, 3]` centres.
      velocity: `[M, 3]` voxels/s.
      yaw: `[M]` rad.
      hp: `[M]` hit points of the body.
      leg_hp: `[M]` hit points of the legs; at 0 or below the mech stays legged until the episode ends.
      heat: `[M]`; a mech with heat above its capacity is shut down.
      stability: `[M]` in [0, 100].
      fallen: `[M]` int32 substeps until it gets up.
      suppressed: `[M]` int32 substeps of suppression left.
      painted: `[M]` int32 substeps for which it stays painted.
      painter: `[M]` int32 mech that painted it last, or -1.
      cooldown: `[M, 5]` int32 substeps, in the order of `unit_tables.COOLDOWNS`.
      focus: `[M]` int32 preferred target, or -1.
      ecm: `[M]` bool; jams enemy sensors.
      eccm: `[M]` bool; counters jammers.
      alive: `[M]` bool.
      noise: `[M]` loudness.
    """

    position: jax.Array
    velocity: jax.Array
    yaw: jax.Array
    hp: jax.Array
    leg_hp: jax.Array
    heat: jax.Array
    stability: jax.Array
    fallen: jax.Array
    suppressed: jax.Array
    painted: jax.Array
    painter: jax.Array
    cooldown: jax.Array
    focus: jax.Array
    ecm: jax.Array
    eccm: jax.Array
    alive: jax.Array
    noise: jax.Array


class Projectiles(struct.PyTreeNode):
    """Projectiles in flight, four slots per shooter; at most three are ever in use.

    Attributes:
      position: `[M, 4, 3]`.
      velocity: `[M, 4, 3]` voxels/s.
      age: `[M, 4]` int32 substeps flown.
      kind: `[M, 4]` int32 index into `unit_tables.WEAPONS`, or -1 for an empty slot.
      target: `[M, 4]` int32 mech that a missile follows, or -1.
    """

    position: jax.Array
    velocity: jax.Array
    age: jax.Array
    kind: jax.Array
    target: jax.Array


class Smoke(struct.PyTreeNode):
    """Smoke clouds, three slots per mech that fired them.

    Attributes:
      position: `[M, 3, 3]` centres.
      left: `[M, 3]` int32 substeps until the cloud vanishes.
    """

    position: jax.Array
    left: jax.Array


class HitLog(struct.PyTreeNode):
    """Per-mech log of hits between enemies during one decision; needed by missions only.

    Attributes:
      rear: `[M]` damage dealt, times the enfilade index of each hit: 0 from straight ahead of the
        target, 1 from straight behind it (docs/reference/echelon.md 15.3).
      struck: `[M]` bool; damaged by an enemy.
      suppressor: `[M]` int32 mech whose autocannon hit this one last, or -1.
    """

    rear: jax.Array
    struck: jax.Array
    suppressor: jax.Array


class Tally(struct.PyTreeNode):
    """Combat statistics of one decision; cleared before the next.

    Attributes:
      dealt: `[M]` damage dealt to enemies.
      dealt_to_friends: `[M]` damage dealt to the own team; never rewarded.
      taken: `[M]` damage received.
      kills: `[M]` int32 enemies killed.
      assists: `[M]` int32 hits by others on targets that this mech had painted.
      died: `[M]` bool; died during the decision.
      hit: `[M]` bool; damaged by a weapon.
      hit_direction: `[M, 3]` unit vector towards the last attacker, world frame; zeros without one.
      shots: `[M, 7]` int32 shots per weapon.
      hits: `[M, 7]` int32 enemies hit per weapon, explosions not counted.
      intercepted: `[M]` int32 missiles shot down.
      log: additional statistics for missions; None in plain battles.
    """

    dealt: jax.Array
    dealt_to_friends: jax.Array
    taken: jax.Array
    kills: jax.Array
    assists: jax.Array
    died: jax.Array
    hit: jax.Array
    hit_direction: jax.Array
    shots: jax.Array
    hits: jax.Array
    intercepted: jax.Array
    log: HitLog | None = None


class Battle(struct.PyTreeNode):
    """Physical state of one episode.

    Attributes:
      mechs: the mechs.
      projectiles: projectiles in flight.
      smoke: smoke clouds.
      overlay: terrain changes since the episode began.
      map_index: int32, terrain in the bank.
      tally: statistics of the last decision.
    """

    mechs: Mechs
    projectiles: Projectiles
    smoke: Smoke
    overlay: Overlay
    map_index: jax.Array
    tally: Tally


class EchelonState(struct.PyTreeNode):
    """State of one episode.

    Attributes:
      battle: the physical state.
      decision: int32 decisions taken.
      score: `[2]` seconds that blue and red have held the zone.
      messages: `[M, 8]` last message of each mech.
      contacts: `[M, K]` int32 mechs in the contact slots of the last observation, or -1.
      sort: `[M]` int32 order of contacts: 0 closest, 1 biggest, 2 most damaged.
      hostile_only: `[M]` bool; contacts are enemies only.
      waypoint: `[M, 2]` target x and y of navigation assistance, or `assistance.NOWHERE`.
      outcome: int32 index into the outcomes, -1 while the episode runs.
      ending: int32 index into the endings, -1 while the episode runs.
    """

    battle: Battle
    decision: jax.Array
    score: jax.Array
    messages: jax.Array
    contacts: jax.Array
    sort: jax.Array
    hostile_only: jax.Array
    waypoint: jax.Array
    outcome: jax.Array
    ending: jax.Array


class EchelonParams(struct.PyTreeNode):
    """Parameters of an episode; may change between episodes without recompiling.

    Attributes:
      classes: `[M]` int32 index into `unit_tables.CLASSES`.
      pack: `[M]` int32 pack; packs are numbered within a team.
      map_weights: `[N]` relative probability of each terrain.
      reward: weights, component to weight name to scalar.
      fire_probability: `[2]` probability per decision that a mech of blue's and of red's heuristic
        policy is allowed to fire.
      assist: `[2]` share of navigation assistance in the throttles of blue and of red.
      full_observation: bool; every living mech is visible. Otherwise sensors decide.
      gravity: voxels/s^2.
      max_decisions: int32, time limit, at most the environment's.
      zone_seconds: score (seconds of holding the zone) that wins; infinite for never.
      spawn_jitter: largest random shift of a start position in x and y, voxels.
      yaw_jitter: largest random rotation of a start heading, rad.
    """

    classes: jax.Array
    pack: jax.Array
    map_weights: jax.Array
    reward: dict[str, dict[str, jax.Array]]
    fire_probability: jax.Array
    assist: jax.Array
    full_observation: jax.Array
    gravity: jax.Array
    max_decisions: jax.Array
    zone_seconds: jax.Array
    spawn_jitter: jax.Array
    yaw_jitter: jax.Array
