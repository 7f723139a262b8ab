"""Builds environments of MuJoCo Playground (Zakka et al. 2025; version 0.2), see `simulators`."""

from collections.abc import Mapping

from jaxmarl_echelon.envs.adapters.inward.conversions import require_known_name
from jaxmarl_echelon.envs.adapters.inward.simulators import Simulator, read_length


def make(
    name: str,
    impl: str = "jax",
    episode_length: int | None = None,
    options: Mapping[str, object] | None = None,
) -> Simulator:
    """Builds an environment of MuJoCo Playground.

    Args:
      name: its name, e.g. "CartpoleBalance". Robots beyond the control suite are downloaded by Playground
        when they are first made.
      impl: implementation of MJX: "jax" for any device, "warp" for NVIDIA's GPUs.
      episode_length: steps after which an episode is cut; None for that of its configuration.
      options: overrides of Playground's configuration of the environment, by dotted key.

    Raises:
      ValueError: one line, for an invalid setting.
    """
    # Imported here because it takes seconds and most runs do not need it.
    from mujoco_playground import registry

    require_known_name("MuJoCo Playground", name, registry.ALL_ENVS)
    config = registry.get_default_config(name)
    chosen = dict(options or {}) | ({"impl": impl} if "impl" in config else {})
    try:
        require_known_options(config, chosen)
        config.update_from_flattened_dict(chosen)
        env = registry.load(name, config=config)
        length = read_length(episode_length, int(config.episode_length))
        return Simulator(name, env, length, int(config.get("action_repeat", 1)))
    except (TypeError, ValueError, AssertionError, NotImplementedError, KeyError) as error:
        raise ValueError(f"env.options={chosen}: MuJoCo Playground cannot make {name}: {error}") from error


def require_known_options(config: Mapping, options: Mapping[str, object]) -> None:
    """Raises ValueError for a dotted key that a configuration lacks; Playground would ignore it."""
    for key in options:
        node = config
        for part in key.split("."):
            if part not in node:
                raise ValueError(f"unknown option {key}; allowed: {', '.join(sorted(node))}")
            node = node[part]
