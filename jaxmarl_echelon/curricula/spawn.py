"""Spawn curriculum: stages of increasing difficulty with hysteresis thresholds on a running success rate.

Reference: docs/reference/curricula.md 5.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from algos import checks
from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.curricula import stages as stages_lib
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.curricula.stages import LONGEST_WINDOW, RATE_TOLERANCE, EpisodeResult, Stage, StageRules

STAGE_RULE_KEYS = ("enable_rate", "disable_rate", "enable_patience", "disable_patience")


class SpawnRules(NamedTuple):
    """Parameters of the rules; per-stage ones are `[S]`.

    Attributes:
      enable_rate, enable_patience: for advancing into a stage.
      disable_rate, disable_patience: for regressing from a stage.
      window: episodes in the windowed mean.
      activation_samples: episodes in a stage before it may advance.
      min_episode: episodes in the run before any stage may advance.
      cooldown: episodes after a transition without another one.
      ema_alpha: weight of the newest episode in the success rate; 0 for a windowed mean.
      blend_previous_prob, blend_decay_episodes: initial probability of the stage before the last
        transition, and episodes of its linear decay to 0.
    """

    enable_rate: np.ndarray
    enable_patience: np.ndarray
    disable_rate: np.ndarray
    disable_patience: np.ndarray
    window: int
    activation_samples: int
    min_episode: int
    cooldown: int
    ema_alpha: float
    blend_previous_prob: float
    blend_decay_episodes: int


class SpawnProgress(struct.PyTreeNode):
    """State of a spawn curriculum.

    Attributes:
      stage: int32, the current stage.
      came_from: int32, the stage before the last transition; initially the first one.
      total: int32, counted episodes of the run.
      episodes: int32, counted episodes since the stage was entered.
      success: `[W]` float32, scores of the newest, newest last.
      rate: float32, the stage's success rate.
      above, below: int32, consecutive episodes with a rate high enough for the next stage, or too low for
        this one.
      cooldown: int32, remaining episodes without a transition.
      advances, regressions: int32 counts of transitions.
    """

    stage: jax.Array
    came_from: jax.Array
    total: jax.Array
    episodes: jax.Array
    success: jax.Array
    rate: jax.Array
    above: jax.Array
    below: jax.Array
    cooldown: jax.Array
    advances: jax.Array
    regressions: jax.Array


@take_defaults_from("curriculum/spawn")
def spawn_curriculum(
    env,
    stages: Sequence[Mapping],
    common: Mapping | None = None,
    evaluation: Mapping | None = None,
    window: int = FROM_FILE,
    activation_samples: int | None = FROM_FILE,
    min_episode: int = FROM_FILE,
    enable_patience: int = FROM_FILE,
    disable_patience: int = FROM_FILE,
    cooldown: int = FROM_FILE,
    ema_alpha: float = FROM_FILE,
    blend_previous_prob: float = FROM_FILE,
    blend_decay_episodes: int = FROM_FILE,
) -> Curriculum:
    """Builds a curriculum of stages with success-rate thresholds for advancing and regressing.

    A stage is a mapping `{name, settings, enable_rate, disable_rate}`, optionally with its own
    `enable_patience` and `disable_patience`. `settings` are those of the environment's `task_params`:
    spawn points, speeds, speed lock, gains of the other driver. Only episodes of the current stage count,
    and all counts except the one for `min_episode` are reset at every transition. After each episode,
    ordered by start time:

    * Advance after `min_episode` episodes in the run and `activation_samples` in the stage, if the
      success rate was at least the next stage's `enable_rate` for `enable_patience` consecutive episodes.
    * Regress if it was below the stage's own `disable_rate` for `disable_patience` consecutive episodes.
    * Neither within `cooldown` episodes after a transition.

    The success rate is an exponential moving average, initialised with the stage's first result, or
    (`ema_alpha = 0`) the mean over `window` episodes. After a transition the stage left is still drawn,
    with a probability that decays linearly from `blend_previous_prob` to 0 over `blend_decay_episodes`
    episodes of the new one.

    Args:
      env: the environment.
      stages: the stages in order.
      common: defaults of all stages, with the keys of a stage.
      evaluation: settings of the task that scores the run, overriding the environment's own.
      activation_samples: None for `window`.
      window, min_episode, enable_patience, disable_patience, cooldown, ema_alpha: see above.
      blend_previous_prob, blend_decay_episodes: see above.

    Raises:
      ValueError: one line, with the stage's name if it applies to one, for unknown, out-of-range or
        contradictory values.
    """
    table = stages_lib.read_stages(env, "curriculum.stages", stages, common, STAGE_RULE_KEYS)
    window = _count("window", window, 1, LONGEST_WINDOW)
    activation_samples = window if activation_samples is None else activation_samples
    counts = {
        "window": window,
        "activation_samples": _count("activation_samples", activation_samples, 1, window),
        "min_episode": _count("min_episode", min_episode, 0),
        "cooldown": _count("cooldown", cooldown, 0),
        "blend_decay_episodes": _count("blend_decay_episodes", blend_decay_episodes, 0),
    }
    shares = {"ema_alpha": ema_alpha, "blend_previous_prob": blend_previous_prob}
    for name, value in shares.items():
        checks.require_range(f"curriculum.{name}", value, 0.0, 1.0)
    defaults = {
        "enable_rate": 0.7,
        "disable_rate": 0.0,
        "enable_patience": enable_patience,
        "disable_patience": disable_patience,
    }
    rates = SpawnRules(**_read_rates(table, defaults), **counts, **shares)
    rules = StageRules(
        init=partial(_init, rates),
        probabilities=partial(_probabilities, rates),
        advance=partial(_advance, rates),
        metrics=partial(_metrics, rates),
        window=window,
        restarted=_restarted,
    )
    return stages_lib.build_staged_curriculum(env, table, rules, evaluation)


def _init(rates: SpawnRules) -> SpawnProgress:
    zero = jnp.int32(0)
    return SpawnProgress(
        stage=zero,
        came_from=zero,
        total=zero,
        episodes=zero,
        success=jnp.zeros(rates.window, jnp.float32),
        rate=jnp.float32(0.0),
        above=zero,
        below=zero,
        cooldown=zero,
        advances=zero,
        regressions=zero,
    )


def _restarted(course: SpawnProgress) -> SpawnProgress:
    """Returns the state without the counted episodes of the current stage; all new ones are of this stage."""
    zero = jnp.int32(0)
    return course.replace(
        came_from=course.stage, episodes=zero, rate=jnp.float32(jnp.nan), above=zero, below=zero
    )


def _blend(rates: SpawnRules, course: SpawnProgress) -> jax.Array:
    """Returns the probability of drawing the stage before the last transition; 0 without one."""
    left = 1.0 - course.episodes / max(rates.blend_decay_episodes, 1)
    blends = (rates.blend_decay_episodes > 0) & (course.came_from != course.stage)
    return jnp.where(blends, rates.blend_previous_prob * jnp.maximum(left, 0.0), 0.0)


def _probabilities(rates: SpawnRules, course: SpawnProgress) -> jax.Array:
    blend = _blend(rates, course)
    one = partial(jax.nn.one_hot, num_classes=len(rates.enable_rate))
    return blend * one(course.came_from) + (1.0 - blend) * one(course.stage)


def _advance(
    rates: SpawnRules, course: SpawnProgress, episode: EpisodeResult, number: jax.Array
) -> SpawnProgress:
    stage, before = course.stage, jnp.arange(episode.success.size)
    episodes, total = course.episodes + 1 + before, course.total + 1 + before
    rate = _success_rate(rates, course, episode.success)
    enable_rate, enable_patience = _next(rates, stage)
    above = stages_lib.streak_lengths(rate >= enable_rate - RATE_TOLERANCE, course.above)
    low = rate < jnp.asarray(rates.disable_rate)[stage] - RATE_TOLERANCE
    below = stages_lib.streak_lengths(low, course.below)
    free = course.cooldown <= before
    ripe = (total >= rates.min_episode) & (episodes >= rates.activation_samples)
    passed = free & ripe & (above >= enable_patience)
    failed = ~passed & free & (stage > 0) & (below >= jnp.asarray(rates.disable_patience)[stage])
    seen, moved = stages_lib.find_first_true(passed | failed, number)
    passed, failed = (moved & stages_lib.select_last(x, seen, False) for x in (passed, failed))
    return SpawnProgress(
        stage=stage + passed - failed,
        came_from=jnp.where(moved, stage, course.came_from),
        total=course.total + seen,
        episodes=jnp.where(moved, 0, course.episodes + seen),
        success=stages_lib.append_newest(course.success, episode.success, seen),
        rate=stages_lib.select_last(rate, seen, course.rate),
        above=jnp.where(moved, 0, stages_lib.select_last(above, seen, course.above)),
        below=jnp.where(moved, 0, stages_lib.select_last(below, seen, course.below)),
        cooldown=jnp.where(moved, rates.cooldown, jnp.maximum(course.cooldown - seen, 0)),
        advances=course.advances + passed,
        regressions=course.regressions + failed,
    )


def _success_rate(rates: SpawnRules, course: SpawnProgress, success: jax.Array) -> jax.Array:
    """Returns the stage's success rate after each of its next episodes `[N]`."""
    if rates.ema_alpha == 0.0:
        return stages_lib.sliding_mean(course.success, course.episodes, success, jnp.int32(rates.window))
    begins = (course.episodes == 0) & (jnp.arange(success.size) == 0)
    kept = jnp.where(begins, 0.0, 1.0 - rates.ema_alpha)
    gained = jnp.where(begins, 1.0, rates.ema_alpha) * success.astype(jnp.float32)

    def then(one, other):
        return one[0] * other[0], one[1] * other[0] + other[1]

    kept, gained = stages_lib.scan_by_doubling(then, (kept, gained), (1.0, 0.0))
    return kept * jnp.where(course.episodes == 0, 0.0, course.rate) + gained


def _next(rates: SpawnRules, stage: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns `enable_rate` and `enable_patience` of the next stage; an infinite rate for the last stage."""
    rate = np.append(rates.enable_rate[1:], np.float32(np.inf))
    patience = np.append(rates.enable_patience[1:], np.int32(1))
    return jnp.asarray(rate)[stage], jnp.asarray(patience)[stage]


def _metrics(rates: SpawnRules, course: SpawnProgress) -> dict[str, jax.Array]:
    stages = len(rates.enable_rate)
    known = course.episodes > 0
    rate = jnp.where(known, course.rate, jnp.nan)
    enable_rate = _next(rates, course.stage)[0]
    values = {
        "current_stage": course.stage,
        "stage": course.stage,
        "total_stages": jnp.int32(stages),
        "progress": course.stage / max(stages - 1, 1),
        "episodes_in_stage": course.episodes,
        "rolling_success": rate,
        "stage_success_rate": rate,
        # The rate is kept until the stage's first episode begins it anew.
        "decided_success": stages_lib.of_last_move(course, course.advances + course.regressions, course.rate),
        "enable_rate": jnp.where(jnp.isfinite(enable_rate), enable_rate, jnp.nan),
        "disable_rate": jnp.asarray(rates.disable_rate)[course.stage],
        "cooldown": course.cooldown,
        "blend_probability": _blend(rates, course),
        "advances": course.advances,
        "regressions": course.regressions,
    }
    return {f"curriculum/{name}": value for name, value in values.items()}


def _count(name: str, value, low: int, high: int = 2**31 - 1) -> int:
    return checks.require_whole(f"curriculum.{name}", value, low, high)


def _read_rates(table: Sequence[Stage], defaults: Mapping) -> dict[str, np.ndarray]:
    """Parses the per-stage parameters, `[S]` each."""
    rows = []
    for stage in table:
        given = defaults | {key: value for key, value in stage.rules.items() if value is not None}
        for key in ("enable_rate", "disable_rate"):
            checks.require_range(f"{stage.where}: {key}", given[key], 0.0, 1.0)
        for key in ("enable_patience", "disable_patience"):
            checks.require_whole(f"{stage.where}: {key}", given[key], 1)
        rows.append(given)
    for stage, row, following in zip(table, rows, rows[1:], strict=False):
        if row["disable_rate"] >= following["enable_rate"]:
            above = f"must be below the next stage's enable_rate={following['enable_rate']}"
            raise ValueError(f"{stage.where}: disable_rate={row['disable_rate']}: {above}")
    kinds = {"enable_rate": np.float32, "disable_rate": np.float32}
    return {key: np.array([row[key] for row in rows], kinds.get(key, np.int32)) for key in STAGE_RULE_KEYS}
