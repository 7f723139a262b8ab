"""Settings of PPO, and the sizes of its updates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from algos.checks import require_choice, require_count, require_minibatches, require_range, require_whole
from algos.defaults import FROM_FILE, read_defaults
from algos.nets.cores import CoreConfig
from algos.nets.networks import require_widths
from algos.on_policy.distillation import LOSSES
from algos.on_policy.segment_sampling import MODES
from algos.on_policy.settings import OnPolicySettings
from algos.on_policy.update_sizes import UpdateSizes, make_update_sizes, plan_horizon
from algos.optim.optimizers import MUON_REST, OPTIMIZERS, Optimizer, make_optimizer
from algos.settings import AUTO, teacher_script

SAMPLES = "samples"


@dataclass(frozen=True)
class PPOSettings(OnPolicySettings):
    """Settings of PPO, in addition to those of `OnPolicySettings`.

    Every agent contributes `segments_per_agent` segments of `horizon` decisions to a rollout. Training on
    single samples shuffles all decisions. Training on segments draws minibatches of whole segments, and
    evaluates the networks over each segment from the recurrent state before it. Sources of the defaults:
    docs/reference/trainer.md 17.

    Attributes:
      epochs: passes over a rollout.
      num_minibatches: minibatches per pass; must divide T * E * A, or the number of segments.
      accumulation: minibatches whose gradients make one step; must divide `num_minibatches`.
      clip: clipping range of the probability ratios, with its schedule.
      value_clip: clipping range of the new value around the rollout's; None for no clipping.
      target_kl: KL divergence above which the rest of an update is skipped; None for no stop.
      kl_stop: "minibatch" to compare the divergence of every minibatch, "epoch" to compare its mean over an
        epoch.
      normalize_advantage: "minibatch", "batch" or "none".
      optimizer: a key of `algos.optim.optimizers.OPTIMIZERS`.
      weight_decay: decoupled decay of "adamw", "muon" and "schedule_free".
      muon_momentum: momentum of "muon".
      muon_rest: optimiser of the parameters that are not matrices with "muon", "adam" or "sgd".
      warmup_steps: gradient steps over which the learning rate of "schedule_free" rises from 0.
      core: recurrent core between trunk and heads; a mapping is accepted.
      head_widths: hidden layers between the core and each head.
      critic_core: whether a critic with observations of its own has a core of its own.
      separate_clipping: whether `max_grad_norm` bounds the gradients of actor and critic apart.
      sampling: "samples", or a mode of drawing segments from `algos.on_policy.segment_sampling.MODES`.
      segments_per_agent: segments k of each agent per rollout.
      minibatch_size: decisions per gradient step; None to use `num_minibatches`.
      batch_size: expected decisions of all agents per rollout, checked before the run; None for no check.
      burn_in: first decisions of each segment, which only warm up the recurrent state.
      priority_alpha, priority_beta, priority_beta_rate: exponents of the priorities and of the importance
        weights, and the slope of the annealing of the latter to 1.
      vtrace_rho, vtrace_c: bounds on the importance ratios in advantages.
      recompute_advantage: recomputation of advantages and targets from the latest values and ratios:
        "once" (none), per "epoch" or per "minibatch".
      policy_advantage: "fixed", or "vtrace" for advantages with the minibatch's own fresh ratios.
      value_clip_center: "rollout", or "refreshed" for the value at the last visit.
      bootstrap_last: whether the last decision of a segment has an advantage, from the value after it.
      teacher: run (or checkpoint) whose policy is imitated, loaded by the caller of `make`, on segments only;
        or `script:NAME` for a script, whose actions are in `Rollout.taught`; or None.
      teacher_loss: a key of `algos.on_policy.distillation.LOSSES`; "cross_entropy" for a script.
      teacher_coefficient: weight of the imitation loss, with its schedule.
      teacher_value_weight: weight of the values within the imitation loss; 0 if the rewards differ. Scripts
        teach no values.
    """

    LISTS: ClassVar[tuple[str, ...]] = (*OnPolicySettings.LISTS, "head_widths")
    TRACED: ClassVar[dict[str, tuple[float, float]]] = OnPolicySettings.TRACED | {
        "clip": (1e-6, math.inf),
        "clip_end": (0.0, math.inf),
        "value_clip": (1e-6, math.inf),
        "target_kl": (1e-9, math.inf),
    }
    SEGMENT_TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "priority_alpha": (0.0, math.inf),
        "priority_beta": (0.0, 1.0),
        "priority_beta_rate": (0.0, 1.0),
        "vtrace_rho": (0.0, math.inf),
        "vtrace_c": (0.0, math.inf),
    }
    TEACHER_TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "teacher_coefficient": (0.0, math.inf),
        "teacher_coefficient_end": (0.0, math.inf),
    }
    TEACHER_VALUE_TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "teacher_value_weight": (0.0, math.inf),
    }
    OPTIMIZER_TRACED: ClassVar[dict[str, dict[str, tuple[float, float]]]] = {
        "adamw": {"weight_decay": (0.0, math.inf)},
        "muon": {"weight_decay": (0.0, math.inf), "muon_momentum": (0.0, 1.0 - 1e-7)},
        # The average is divided by its weight in the points at which gradients are taken.
        "schedule_free": {"weight_decay": (0.0, math.inf), "adam_beta1": (1e-3, 1.0 - 1e-7)},
    }
    ANNEALED: ClassVar[tuple[str, ...]] = (*OnPolicySettings.ANNEALED, "clip")
    OPTIONAL: ClassVar[tuple[str, ...]] = (*OnPolicySettings.OPTIONAL, "value_clip", "target_kl")
    COUNTS: ClassVar[tuple[str, ...]] = (
        "horizon",
        "epochs",
        "num_minibatches",
        "accumulation",
        "segments_per_agent",
    )
    ADVANTAGES: ClassVar[tuple[str, ...]] = ("minibatch", "batch", "none")
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "kl_stop": ("minibatch", "epoch"),
        "optimizer": tuple(OPTIMIZERS),
        "muon_rest": tuple(MUON_REST),
        "sampling": (SAMPLES, *MODES),
        "recompute_advantage": ("once", "epoch", "minibatch"),
        "policy_advantage": ("fixed", "vtrace"),
        "value_clip_center": ("rollout", "refreshed"),
        "teacher_loss": tuple(LOSSES),
    }
    SEGMENTS_ONLY: ClassVar[tuple[str, ...]] = (
        "segments_per_agent",
        "minibatch_size",
        "batch_size",
        "burn_in",
        "recompute_advantage",
        "policy_advantage",
        "value_clip_center",
        "bootstrap_last",
        "teacher",
    )

    epochs: int = FROM_FILE
    num_minibatches: int = FROM_FILE
    accumulation: int = FROM_FILE
    clip: float = FROM_FILE
    clip_end: float = FROM_FILE
    clip_schedule: str = FROM_FILE
    value_clip: float | None = FROM_FILE
    target_kl: float | None = FROM_FILE
    kl_stop: str = FROM_FILE
    optimizer: str = FROM_FILE
    weight_decay: float = FROM_FILE
    muon_momentum: float = FROM_FILE
    muon_rest: str = FROM_FILE
    warmup_steps: int = FROM_FILE
    core: CoreConfig = FROM_FILE
    head_widths: tuple[int, ...] = FROM_FILE
    critic_core: bool = FROM_FILE
    separate_clipping: bool = FROM_FILE
    sampling: str = FROM_FILE
    segments_per_agent: int = FROM_FILE
    minibatch_size: int | None = FROM_FILE
    batch_size: int | None = FROM_FILE
    burn_in: int = FROM_FILE
    priority_alpha: float = FROM_FILE
    priority_beta: float = FROM_FILE
    priority_beta_rate: float = FROM_FILE
    vtrace_rho: float = FROM_FILE
    vtrace_c: float = FROM_FILE
    recompute_advantage: str = FROM_FILE
    policy_advantage: str = FROM_FILE
    value_clip_center: str = FROM_FILE
    bootstrap_last: bool = FROM_FILE
    teacher: str | None = FROM_FILE
    teacher_loss: str = FROM_FILE
    teacher_coefficient: float = FROM_FILE
    teacher_coefficient_end: float = FROM_FILE
    teacher_coefficient_schedule: str = FROM_FILE
    teacher_value_weight: float = FROM_FILE

    def __post_init__(self):
        if isinstance(self.core, Mapping):
            object.__setattr__(self, "core", CoreConfig(**self.core))
        for key, allowed in self.CHOICES.items():
            require_choice(key, getattr(self, key), allowed)
        super().__post_init__()
        teacher = self.TEACHER_TRACED, self.TEACHER_VALUE_TRACED
        for ranges in (self.SEGMENT_TRACED, *teacher, *self.OPTIMIZER_TRACED.values()):
            for key in (key for key in ranges if key not in self.TRACED):
                require_range(key, getattr(self, key), *ranges[key])
        for key in ("minibatch_size", "batch_size"):
            if getattr(self, key) is not None:
                require_count(key, getattr(self, key))
        require_whole("warmup_steps", self.warmup_steps)
        require_whole("burn_in", self.burn_in, 0, self.horizon - 1)
        if self.minibatch_size is None:
            require_minibatches(self.accumulation, self.num_minibatches, "of num_minibatches", "accumulation")
        self._require_segments()
        if self.scripted and self.teacher_loss != (only := next(iter(LOSSES))):
            raise ValueError(
                f"teacher_loss={self.teacher_loss}: must be {only} with teacher={self.teacher}, "
                "which has actions, not a distribution of them"
            )

    def _require_segments(self) -> None:
        """Checks the combination of sampling, recurrent core and the settings that need segments."""
        if self.sampling != SAMPLES:
            if self.policy_advantage == "vtrace" and self.normalize_advantage == "batch":
                raise ValueError(
                    "normalize_advantage=batch: must be minibatch or none with policy_advantage=vtrace"
                )
        elif self.core.kind != "none":
            modes = ", ".join(MODES)
            raise ValueError(f"sampling={SAMPLES}: must be one of {modes} with core.kind={self.core.kind}")
        defaults = read_defaults("algo/ppo")
        exempt = ("teacher",) if self.scripted else ()
        require_widths("head_widths", self.head_widths)
        for key, off in (("head_widths", ()), ("critic_core", False)):
            if self.core.kind == "none" and getattr(self, key) != off:
                raise ValueError(f"{key}={getattr(self, key)}: must be {off} with core.kind=none")
        for key in self.SEGMENTS_ONLY if self.sampling == SAMPLES else ():
            if key not in exempt and getattr(self, key) != defaults[key]:
                raise ValueError(
                    f"{key}={getattr(self, key)}: must be {defaults[key]} with sampling={SAMPLES}; "
                    f"it needs segments, such as sampling={MODES[0]}"
                )
        if self.core.kind != "none" and self.value_widths is not None:
            raise ValueError(
                f"value_widths={self.value_widths}: must be null with core.kind={self.core.kind}; "
                "both heads read the core"
            )

    @property
    def scripted(self) -> bool:
        """Whether the teacher is a script of the environment."""
        return teacher_script(self.teacher) is not None

    @property
    def refreshes(self) -> bool:
        """Whether values and ratios of a minibatch are stored for later minibatches."""
        return self.recompute_advantage != "once" or self.value_clip_center == "refreshed"

    def traced(self) -> dict[str, tuple[float, float]]:
        """Traced numbers that the chosen sampling and optimiser use; see `OnPolicySettings.traced`."""
        segments = {} if self.sampling == SAMPLES else self.SEGMENT_TRACED
        teacher = {} if self.teacher is None else self.TEACHER_TRACED
        # Scripts teach no values.
        teacher = teacher if self.teacher is None or self.scripted else teacher | self.TEACHER_VALUE_TRACED
        return self.TRACED | segments | teacher | self.OPTIMIZER_TRACED.get(self.optimizer, {})

    def scheduled_names(self) -> tuple[str, ...]:
        """Numbers with a schedule, the teacher's weight only with a teacher."""
        return self.ANNEALED if self.teacher is None else (*self.ANNEALED, "teacher_coefficient")

    def make_optimizer(self) -> Optimizer:
        """Builds the optimiser with its options."""
        options = {"muon": {"rest": self.muon_rest}, "schedule_free": {"warmup_steps": self.warmup_steps}}
        return make_optimizer(self.optimizer, **options.get(self.optimizer, {}))

    @property
    def segments(self) -> int:
        """Segments of each agent per rollout."""
        return self.segments_per_agent

    @classmethod
    def derive_sizes(cls, settings: Mapping[str, Any], num_envs: int, agents: int) -> dict[str, Any]:
        """Derives `horizon` and `batch_size` on segments if they are "auto"; see the base class."""
        settings = dict(settings)
        sizes = {key: settings.get(key) for key in ("horizon", "batch_size")}
        if settings.get("sampling", SAMPLES) == SAMPLES or AUTO not in sizes.values():
            return settings
        batch_size = AUTO if sizes["batch_size"] is None else sizes["batch_size"]
        segments = settings["segments_per_agent"]
        counts = {"num_envs": num_envs, "segments_per_agent": segments}
        counts |= {"batch_size": batch_size} if batch_size != AUTO else {}
        for key, value in counts.items():
            require_count(key, value)
        if sizes["horizon"] == AUTO:
            sizes["horizon"] = plan_horizon(int(num_envs * agents), segments, batch_size, AUTO)
        return settings | {
            "horizon": sizes["horizon"],
            "batch_size": None if batch_size == AUTO else batch_size,
        }

    def plan(self, samples: int, environments: int | None = None) -> UpdateSizes | None:
        """Returns the sizes of an update on segments; None when training on single samples.

        Args:
          samples: parallel agents, E * A.
          environments: E, for the table.

        Raises:
          ValueError: for incompatible sizes, with the nearest compatible ones.
        """
        if self.sampling == SAMPLES:
            return None
        segments = self.segments_per_agent * samples
        if self.minibatch_size is None:
            unit = "segments of a rollout (segments_per_agent * environments * agents)"
            require_minibatches(self.num_minibatches, segments, unit)
            size = segments // self.num_minibatches * self.horizon * self.accumulation
        else:
            size = self.minibatch_size
            require_minibatches(
                self.accumulation, max(1, size // self.horizon), "segments of a minibatch", "accumulation"
            )
        return make_update_sizes(
            samples,
            minibatch_size=size,
            batch_size="auto" if self.batch_size is None else self.batch_size,
            horizon=self.horizon,
            segments_per_agent=self.segments_per_agent,
            epochs=self.epochs,
            max_minibatch_size=size // self.accumulation,
            environments=environments,
        )

    def require_parts(self, samples: int, shards: int) -> None:
        """Checks that every shard contributes the same number of samples or segments to a minibatch.

        Args:
          samples: parallel agents, E * A.
          shards: S.

        Raises:
          ValueError: for incompatible sizes, with the nearest compatible ones.
        """
        plan, each = self.plan(samples), "" if shards == 1 else f" on each of {shards} shards"
        if plan is None:
            unit = f"samples of a rollout (horizon * environments * agents){each}"
            require_minibatches(self.num_minibatches, samples * self.horizon // shards, unit)
        elif plan.minibatch_segments % shards:
            raise ValueError(
                f"shards={shards}: must divide the {plan.minibatch_segments} segments of a minibatch"
            )

    def rows(self, samples: int) -> int:
        """Samples of a minibatch; see `OnPolicySettings.rows`."""
        plan = self.plan(samples)
        if plan is None:
            return samples * self.horizon // self.num_minibatches
        return plan.minibatch_segments * plan.horizon
