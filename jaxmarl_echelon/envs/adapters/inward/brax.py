"""Builds environments of brax (Freeman et al. 2021; version 0.14), see `simulators`."""

from collections.abc import Mapping

from jaxmarl_echelon.envs import settings
from jaxmarl_echelon.envs.adapters.inward.conversions import require_known_name
from jaxmarl_echelon.envs.adapters.inward.simulators import Simulator, read_length

# That of brax's own training.
EPISODE_LENGTH = 1000


def make(
    name: str,
    backend: str | None = None,
    episode_length: int | None = None,
    action_repeat: int = 1,
    options: Mapping[str, object] | None = None,
) -> Simulator:
    """Builds a brax environment.

    Args:
      name: brax's name, e.g. "ant".
      backend: physics, "generalized", "positional", "spring" or "mjx"; None for brax's default.
      episode_length: steps after which an episode is cut; None for 1,000.
      action_repeat: steps per decision.
      options: further arguments of brax's constructor.

    Raises:
      ValueError: one line, for an invalid setting.
    """
    # Imported here because it takes seconds and most runs do not need it.
    from brax import envs

    require_known_name("brax", name, tuple(envs._envs))
    length = read_length(episode_length, EPISODE_LENGTH)
    repeat = settings.read_whole("action_repeat", action_repeat, 1)
    chosen = dict(options or {}) | ({} if backend is None else {"backend": backend})
    try:
        return Simulator(name, envs.get_environment(name, **chosen), length, repeat)
    except (TypeError, ValueError, AssertionError, NotImplementedError, KeyError) as error:
        raise ValueError(f"env.options={chosen}: brax cannot make {name}: {error}") from error
