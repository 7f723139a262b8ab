"""Interface of the settings of every algorithm, on-policy or off-policy."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from algos.types import ActionSpec

AUTO = "auto"
# Prefix of a teacher that is a script of the environment.
SCRIPT = "script:"


def teacher_script(teacher: str | None) -> str | None:
    """Returns the script that `script:NAME` names; None for the path of a run, and without a teacher."""
    return teacher.removeprefix(SCRIPT) if teacher is not None and teacher.startswith(SCRIPT) else None


class LearnerSettings:
    """Base class of all algorithms' settings; `make` builds the agent, see `algos.types.Agent`.

    `make(observation_shape, action, *, samples, updates, episode_limit, goal, blocks, observation_dtype)` is
    for `samples` parallel agents (E * A), a run of `updates` updates and episodes of at most `episode_limit`
    decisions; `goal` is the role's `algos.types.Goal` or None, `blocks` are the
    `algos.types.Block`s of its observations. See `privileged_critics`.

    Attributes:
      horizon: decisions per segment of a rollout.
      reads_text: whether observations are prompts of token ids, so that `make` takes `language` and `base`.
      uses_advantages: whether a policy is learnt from advantages, which reward transforms may replace.
      teams: whether all agents of an environment are learnt from together, so that `make` takes `team`, their
        number.
      replays: whether the algorithm learns from a replay after every decision, instead of from rollouts.
      privileged_critics: whether `make` takes `critic_shape`, the shape of privileged critic observations.
      ACTIONS: kind of the actions that the algorithm needs, see `algos.types.ActionSpec`; None for any.
      teacher: path of the run whose policy is imitated, or `script:NAME` for a script of the environment;
        None without a teacher.
    """

    replays: ClassVar[bool] = False
    reads_text: ClassVar[bool] = False
    uses_advantages: ClassVar[bool] = True
    teams: ClassVar[bool] = False
    privileged_critics: ClassVar[bool] = False
    ACTIONS: ClassVar[str | None] = None
    # Not a field: settings of algorithms that can imitate a teacher declare a field of this name.
    teacher: str | None = None
    horizon: int

    @property
    def files(self) -> Mapping[str, Iterable[Path]]:
        """Files that acting needs, by the path that the settings name, such as a base model's folder."""
        return {}

    @property
    def segments(self) -> int:
        """Segments of each agent per rollout."""
        return 1

    def require_task(self, action: ActionSpec, *, late: bool = False) -> None:
        """Checks that the algorithm can learn actions of this kind, with delayed rewards if `late`.

        Raises:
          ValueError: one line, if it cannot.
        """
        name = getattr(self, "NAME", type(self).__name__)
        if self.ACTIONS not in (None, action.kind):
            raise ValueError(f"algo={name}: needs {self.ACTIONS} actions; these are {action.kind}")
        if self.teams and late:
            raise ValueError(
                f"algo={name}: teams cannot learn from rewards after the end of all their agents; "
                "needs algo=dqn"
            )

    def traced(self) -> dict[str, tuple[float, float]]:
        """Returns names and bounds of the numbers that live in the learner's state."""
        return {}

    def adjustable(self) -> tuple[str, ...]:
        """Returns the names of the settings that live in the state and may change when a run resumes."""
        return tuple(self.traced())

    def plan(self, samples: int, environments: int | None = None) -> Any:
        """Returns the sizes of an update, shown before a run; None for algorithms without such a plan."""
        del samples, environments
        return None

    def memory(self, observation_shape: tuple[int, ...], action: ActionSpec, **run) -> int:
        """Bytes that the learner allocates on the device from the start, in addition to its parameters."""
        del observation_shape, action, run
        return 0

    @classmethod
    def derive_sizes(cls, settings: Mapping[str, Any], num_envs: int, agents: int) -> dict[str, Any]:
        """Returns the settings with numbers for those that are derived from the run's sizes.

        Args:
          settings: as configured, before an instance is built.
          num_envs: parallel environments.
          agents: agents of this learner per environment.

        Raises:
          ValueError: one line, where a size cannot be derived.
        """
        del num_envs, agents
        return dict(settings)
