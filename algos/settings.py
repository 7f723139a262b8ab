"""What the settings of every algorithm offer, whatever it learns from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from algos.types import ActionSpec

AUTO = "auto"


class LearnerSettings:
    """Base of all algorithms' settings; `make` builds the agent, see `algos.types.Agent`.

    `make(observation_shape, action, *, samples, updates, episode_limit, goal, blocks, observation_dtype,
    tuned)` is for `samples` agents side by side (E * A), a run of `updates` updates and episodes of at most
    `episode_limit` decisions; `goal` is the role's `algos.types.Goal` or None, `blocks` are the
    `algos.types.Block`s of its observations. See `critics_apart`, and `tuned` in `algos.optim.small_batches`.

    Attributes:
      horizon: decisions per segment of a rollout.
      replays: whether it learns after every decision, from a replay, instead of from rollouts.
      critics_apart: whether `make` takes `critic_shape`, the shape of what only critics see.
      teacher: path of the run whose policy is imitated; None where an algorithm imitates nobody.
    """

    replays: ClassVar[bool] = False
    critics_apart: ClassVar[bool] = False
    # Not a field: settings that can imitate declare one of this name.
    teacher: ClassVar[str | None] = None
    horizon: int

    @property
    def segments(self) -> int:
        """Segments of each agent per rollout."""
        return 1

    def plan(self, samples: int, environments: int | None = None) -> Any:
        """The sizes of an update, to be shown before a run; None where there is nothing to say."""
        del samples, environments
        return None

    def memory(self, observation_shape: tuple[int, ...], action: ActionSpec, **run) -> int:
        """Bytes that the learner keeps on the device from the start besides its parameters."""
        del observation_shape, action, run
        return 0

    @classmethod
    def sized(cls, settings: Mapping[str, Any], num_envs: int, agents: int) -> dict[str, Any]:
        """The settings with numbers for those that follow from the run's sizes.

        Args:
          settings: as configured, before the class is built.
          num_envs: environments.
          agents: per environment, of this learner.

        Raises:
          ValueError: one line, where one does not follow from the other.
        """
        del num_envs, agents
        return dict(settings)
