"""A warning of a pool whose opponents change too often, shown before the first compilation."""

from jaxmarl_echelon.training.config.run_config import RunConfig


def describe_short_hold(config: RunConfig) -> tuple[str, ...]:
    """Returns a line if a pool's opponents change before the longest episodes can end, else `()`."""
    pool, spec = config.pool, config.env.spec
    if config.pooled is None or pool.episodic or pool.mirrored == pool.groups:
        return ()
    rollout = config.horizon * max(spec.turns, 1)
    held = rollout * pool.held(spec.episode_limit, rollout)
    if held >= spec.episode_limit:
        return ()
    return (
        f"warning: pool.hold={pool.hold}: opponents change after {held} decisions, episodes have up to "
        f"{spec.episode_limit}; long ones are cut and not rated, which favours who wins in less time",
    )
