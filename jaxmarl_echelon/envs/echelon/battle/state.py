"""State and parameters of the mech battles.

M mechs: all of blue, then all of red. Lengths are voxels, x, y, z with z up; yaw 0 looks along
+x and grows counter-clockwise. Timers are whole substeps that are left; 0 is over.
"""

import jax
from flax import struct

from physics.voxels import Overlay

BLUE, RED = 0, 1
TEAMS = ("blue", "red")
PROJECTILES_PER_MECH = 4
CLOUDS_PER_MECH = 3
MESSAGE = 8
NOBODY = -1


@struct.dataclass
class Mechs:
    """The mechs' bodies.

    Attributes:
      position: `[M, 3]` centres.
      velocity: `[M, 3]` voxels/s.
      yaw: `[M]` rad.
      hp: `[M]` hit points of the body.
      leg_hp: `[M]` hit points of the legs; at 0 or below a mech is legged for good.
      heat: `[M]`; above the chassis' capacity a mech is shut down.
      stability: `[M]` in [0, 100].
      fallen: `[M]` int32 substeps.
      suppressed: `[M]` int32 substeps.
      painted: `[M]` int32 substeps.
      painter: `[M]` int32 mech that painted last, or NOBODY.
      cooldown: `[M, 5]` int32 substeps, in the order of `tables.COOLDOWNS`.
      focus: `[M]` int32 mech to aim at, or NOBODY.
      ecm: `[M]` bool, jamming.
      eccm: `[M]` bool, countering jammers.
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


@struct.dataclass
class Projectiles:
    """Projectiles in flight: four places per shooter, of which at most three are ever in use.

    Attributes:
      position: `[M, 4, 3]`.
      velocity: `[M, 4, 3]` voxels/s.
      age: `[M, 4]` int32 substeps flown.
      kind: `[M, 4]` int32 index into `tables.WEAPONS`, or NOBODY for an empty place.
      target: `[M, 4]` int32 mech that a missile follows, or NOBODY.
    """

    position: jax.Array
    velocity: jax.Array
    age: jax.Array
    kind: jax.Array
    target: jax.Array


@struct.dataclass
class Smoke:
    """Clouds of smoke, three places per mech that fired them.

    Attributes:
      position: `[M, 3, 3]` centres.
      left: `[M, 3]` int32 substeps.
    """

    position: jax.Array
    left: jax.Array


@struct.dataclass
class HitLog:
    """Who did what to whom during one decision, for missions; enemies only.

    Attributes:
      rear: `[M]` damage done, times the enfilade index of each hit: 0 into the target's face, 1 from dead
        astern (spec section 7.5).
      struck: `[M]` bool, damaged by an enemy.
      suppressor: `[M]` int32 mech whose autocannon hit this one last, or NOBODY.
    """

    rear: jax.Array
    struck: jax.Array
    suppressor: jax.Array


@struct.dataclass
class Tally:
    """Counts of one decision; cleared before the next.

    Attributes:
      dealt: `[M]` damage done to enemies.
      dealt_to_friends: `[M]` damage done to one's own side; never rewarded.
      taken: `[M]` damage received.
      kills: `[M]` int32 enemies killed.
      assists: `[M]` int32 hits by others on targets that this mech had painted.
      died: `[M]` bool.
      hit: `[M]` bool, damaged by a weapon.
      hit_direction: `[M, 3]` unit vector towards the last attacker, world frame; zeros without one.
      shots: `[M, 7]` int32 shots per weapon.
      hits: `[M, 7]` int32 enemies hit per weapon, explosions not counted.
      intercepted: `[M]` int32 missiles shot down.
      log: what missions want to know besides; None where nobody asks.
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


@struct.dataclass
class Battle:
    """The physical world of one episode.

    Attributes:
      mechs: the mechs.
      projectiles: what is in the air.
      smoke: clouds.
      overlay: what of the terrain has changed since the episode began.
      map_index: int32, terrain in the bank.
      tally: what happened during the last decision.
    """

    mechs: Mechs
    projectiles: Projectiles
    smoke: Smoke
    overlay: Overlay
    map_index: jax.Array
    tally: Tally


@struct.dataclass
class EchelonState:
    """One episode.

    Attributes:
      battle: the physical world.
      decision: int32 decisions taken.
      score: `[2]` seconds that blue and red have held the zone.
      messages: `[M, 8]` what each mech said last.
      contacts: `[M, K]` int32 mechs in the slots of the last observation, or NOBODY.
      sort: `[M]` int32 order of contacts: 0 closest, 1 biggest, 2 most damaged.
      hostile_only: `[M]` bool; contacts are enemies only.
      waypoint: `[M, 2]` x and y that navigation assistance leads to, or `assistance.NOWHERE`.
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


@struct.dataclass
class EchelonParams:
    """What may change between episodes without recompiling.

    Attributes:
      classes: `[M]` int32 index into `tables.CLASSES`.
      pack: `[M]` int32 pack; packs are numbered within a team.
      map_weights: `[N]`, how often each terrain is drawn.
      reward: weights, component to weight name to scalar.
      fire_probability: `[2]` chance per decision that the heuristic policy of blue and of red
        fires at all.
      assist: `[2]` share of the way to the zone in the throttles of blue and of red.
      full_observation: bool; every living mech is seen. Otherwise sensors decide.
      gravity: voxels/s^2.
      max_decisions: int32, time limit, at most the environment's.
      zone_seconds: seconds of holding the zone that win; infinite for never.
      spawn_jitter: largest random shift of a start in x and y, voxels.
      yaw_jitter: largest random turn of a start, rad.
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
