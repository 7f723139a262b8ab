"""Settings of language learners: REINFORCE and PPO over tokens, of low-rank adapters."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from algos.checks import require_choice, require_count, require_range, require_whole
from algos.defaults import FROM_FILE, take_defaults_from
from algos.language.adapters import LoraSettings
from algos.language.agent import make_language_agent
from algos.language.buffer import BufferSettings
from algos.language.state import ANSWERS, CRITICS, LOSSES
from algos.language.task import AnswerTask, Base
from algos.on_policy.traced_settings import TracedSettings
from algos.types import ActionSpec, Agent


@take_defaults_from("algo/reinforce_lm:fresh")
@dataclass(frozen=True)
class FreshSettings:
    """Architecture of a new base, in the family of Qwen 3 with tied embeddings.

    Attributes:
      width, layers, heads, kv_heads, head_dim, mlp_width, theta: as in
        `algos.language.model.DecoderSettings`.
    """

    width: int = FROM_FILE
    layers: int = FROM_FILE
    heads: int = FROM_FILE
    kv_heads: int = FROM_FILE
    head_dim: int = FROM_FILE
    mlp_width: int = FROM_FILE
    theta: float = FROM_FILE

    def __post_init__(self):
        for key in ("width", "layers", "heads", "kv_heads", "head_dim", "mlp_width"):
            require_count(f"fresh.{key}", getattr(self, key))
        require_range("fresh.theta", self.theta, 1.0, math.inf)
        if self.heads % self.kv_heads:
            raise ValueError(f"fresh.kv_heads={self.kv_heads}: must divide fresh.heads={self.heads}")


@take_defaults_from("algo/reinforce_lm:warm")
@dataclass(frozen=True)
class WarmSettings:
    """Supervised training of a new base on answers of random legal play.

    Attributes:
      steps: gradient steps.
      learning_rate: of Adam.
      batch: answers per step.
    """

    steps: int = FROM_FILE
    learning_rate: float = FROM_FILE
    batch: int = FROM_FILE

    def __post_init__(self):
        require_count("warm.steps", self.steps)
        require_count("warm.batch", self.batch)
        require_range("warm.learning_rate", self.learning_rate, 0.0, 1.0)


# Bases that a run makes itself.
MADE = FRESH, WARM = ("fresh", "warm")
NODES = {"fresh": FreshSettings, "warm": WarmSettings, "lora": LoraSettings, "buffer": BufferSettings}


@take_defaults_from("algo/reinforce_lm")
@dataclass(frozen=True)
class LanguageSettings(TracedSettings):
    """Settings of a language learner; see docs/language.md.

    Attributes:
      base: "fresh" for random weights, "warm" for weights trained on random legal play, or the folder of a
        model in Hugging Face's format.
      fresh, warm: settings of bases that the run makes itself; mappings are accepted.
      lora: sizes of the adapters; a mapping is accepted.
      answer: "legal" (answers that are legal now), "grammar" (all answers of the game) or "free" (any text
        that ends with an answer in brackets).
      think: free tokens before a constrained answer; 0 for none.
      max_tokens: tokens of a free answer.
      temperature, top_p: change of the distribution that tokens are drawn from, in learning too.
      horizon: decisions of every seat per rollout.
      loss: "reinforce", "clip" (PPO with a ratio per token) or "gspo" (a ratio per answer).
      critic: "none", or "head" for a linear value of the prompt's last state.
      epochs: passes over a rollout.
      micro_batch: rows per forward and backward pass; null for all of a rollout.
      accumulation: micro-batches per gradient step; null for all.
      adapter: folder of adapters in PEFT's layout to start from, with their rank, alpha and targets; null for
        new ones.
      buffer: sizes of a buffer between rollouts and gradient steps, a mapping is accepted; null for none.
      correct: whether old log-probabilities are those of the learner's own forward pass, with truncated
        importance weights for what was sampled: "auto" (in bf16), "always" or "never".
      kl_coefficient: weight of the divergence from the policy at the start of the run; 0 computes none.
      learning_rate, entropy_coefficient: initial values of schedules.
      clip, clip_high: clipping of ratios to [1 - clip, 1 + clip_high]; `clip_high` null for the same.
      gamma, gae_lambda, value_coefficient: of the critic.
      max_grad_norm, adam_beta1, adam_beta2, adam_eps, weight_decay: of the optimiser, AdamW.
      transforms: the game's reward transforms, for runs that choose none of their own; null for advantages of
        the critic.
      total_updates: length of the schedules; null for the run's.
      compute_dtype: "float32" or "bf16", of the base and of hidden states.
      remat: whether layers are computed again in the backward pass.
    """

    TRACED: ClassVar[dict[str, tuple[float, float]]] = {
        "learning_rate": (0.0, 1.0),
        "learning_rate_end": (0.0, 1.0),
        "entropy_coefficient": (0.0, math.inf),
        "entropy_coefficient_end": (0.0, math.inf),
        "kl_coefficient": (0.0, math.inf),
        "clip": (1e-6, math.inf),
        "clip_high": (1e-6, math.inf),
        "gamma": (0.0, 1.0),
        "gae_lambda": (0.0, 1.0),
        "value_coefficient": (0.0, math.inf),
        "max_grad_norm": (1e-6, math.inf),
        "adam_eps": (1e-12, 1.0),
        "adam_beta1": (0.0, 1.0 - 1e-7),
        "adam_beta2": (0.0, 1.0 - 1e-7),
        "weight_decay": (0.0, math.inf),
    }
    ANNEALED: ClassVar[tuple[str, ...]] = ("learning_rate", "entropy_coefficient")
    OPTIONAL: ClassVar[tuple[str, ...]] = ("max_grad_norm", "clip_high")
    COUNTS: ClassVar[tuple[str, ...]] = ("horizon", "epochs", "max_tokens")
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "answer": ANSWERS,
        "loss": LOSSES,
        "critic": CRITICS,
        "correct": ("auto", "always", "never"),
        "compute_dtype": ("float32", "bf16"),
    }
    reads_text: ClassVar[bool] = True

    base: str = FROM_FILE
    face: str = FROM_FILE
    fresh: FreshSettings = FROM_FILE
    warm: WarmSettings = FROM_FILE
    lora: LoraSettings = FROM_FILE
    adapter: str | None = FROM_FILE
    answer: str = FROM_FILE
    think: int = FROM_FILE
    max_tokens: int = FROM_FILE
    temperature: float = FROM_FILE
    top_p: float = FROM_FILE
    horizon: int = FROM_FILE
    loss: str = FROM_FILE
    critic: str = FROM_FILE
    epochs: int = FROM_FILE
    micro_batch: int | None = FROM_FILE
    accumulation: int | None = FROM_FILE
    buffer: BufferSettings | None = FROM_FILE
    correct: str = FROM_FILE
    kl_coefficient: float = FROM_FILE
    learning_rate: float = FROM_FILE
    learning_rate_end: float = FROM_FILE
    learning_rate_schedule: str = FROM_FILE
    entropy_coefficient: float = FROM_FILE
    entropy_coefficient_end: float = FROM_FILE
    entropy_coefficient_schedule: str = FROM_FILE
    clip: float = FROM_FILE
    clip_high: float | None = FROM_FILE
    gamma: float = FROM_FILE
    gae_lambda: float = FROM_FILE
    value_coefficient: float = FROM_FILE
    max_grad_norm: float | None = FROM_FILE
    adam_eps: float = FROM_FILE
    adam_beta1: float = FROM_FILE
    adam_beta2: float = FROM_FILE
    weight_decay: float = FROM_FILE
    transforms: Any = None
    total_updates: int | None = FROM_FILE
    compute_dtype: str = FROM_FILE
    remat: bool = FROM_FILE

    def __post_init__(self):
        for key, kind in NODES.items():
            if isinstance(getattr(self, key), Mapping):
                object.__setattr__(self, key, kind(**getattr(self, key)))
        for key, allowed in self.CHOICES.items():
            require_choice(key, getattr(self, key), allowed)
        require_choice("face", self.face, ("text",))
        self.require_traced()
        require_whole("think", self.think)
        require_range("temperature", self.temperature, 1e-6, math.inf)
        require_range("top_p", self.top_p, 1e-6, 1.0)
        for key in ("micro_batch", "accumulation"):
            if getattr(self, key) is not None:
                require_count(key, getattr(self, key))
        if self.answer == "free" and self.think:
            raise ValueError(f"think={self.think}: must be 0 with answer=free")

    @property
    def files(self) -> Mapping[str, Iterable[Path]]:
        """Files of a base that is not made by the run; see `LearnerSettings`."""
        named = [
            *(() if self.base in MADE else (self.base,)),
            *(() if self.adapter is None else (self.adapter,)),
        ]
        return {name: sorted(Path(name).glob("*.*")) for name in named}

    @property
    def corrects(self) -> bool:
        """Whether the learner computes old log-probabilities itself: in bf16, and of what a buffer holds."""
        stale = self.buffer is not None or self.compute_dtype == "bf16"
        return self.correct == "always" or (self.correct == "auto" and stale)

    def learnt_rows(self, rows: int, shards: int) -> int:
        """Returns the rows of an update's gradient steps on one shard, of the `rows` of its rollout.

        Raises:
          ValueError: if the shards cannot share the buffer.
        """
        if self.buffer is None:
            return rows
        for key in ("capacity", "batch"):
            if getattr(self.buffer, key) % shards:
                raise ValueError(
                    f"buffer.{key}={getattr(self.buffer, key)}: must be a multiple of shards={shards}"
                )
        return self.buffer.batch // shards

    def step_sizes(self, rows: int) -> tuple[int, int]:
        """Returns the rows of a micro-batch and the micro-batches of a gradient step.

        Args:
          rows: of a rollout, on one shard.

        Raises:
          ValueError: if they do not divide each other.
        """
        size = rows if self.micro_batch is None else self.micro_batch
        if rows % size:
            raise ValueError(f"micro_batch={size}: must divide the {rows} rows of a rollout")
        number = rows // size
        together = number if self.accumulation is None else self.accumulation
        if number % together:
            raise ValueError(f"accumulation={together}: must divide the {number} micro-batches of a rollout")
        return size, together

    def make(
        self,
        observation_shape: tuple[int, ...],
        action: ActionSpec,
        *,
        language: AnswerTask | None = None,
        base: Base | None = None,
        samples: int | None = None,
        shards: int = 1,
        updates: int | None = None,
        **run: Any,
    ) -> Agent:
        """Builds the agent.

        Args:
          observation_shape: `(P,)`, the length of prompts.
          action: the game's action space.
          language: the game's answers.
          base: the base model.
          samples: parallel agents, E * A, on all shards.
          shards: number of shards.
          updates: updates of the run, the default length of the schedules.
          run: other facts of the run, which are not used.

        Raises:
          ValueError: for an environment without text, and for sizes that do not fit.
        """
        del action, run
        if language is None or base is None:
            raise ValueError("algo.base: a language learner needs a game's answers and a base model")
        total_updates = self.total_updates or updates
        self.require_total_updates(total_updates)
        rows = None if samples is None else samples * self.horizon // shards
        if rows is not None:
            self.step_sizes(self.learnt_rows(rows, shards))
        return make_language_agent(self, language, base, observation_shape[0], total_updates, shards)
