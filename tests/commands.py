"""What tests type on the command line."""

# F110 as small as it trains. Where several tests type the same, XLA compiles once per cache.
TINY = [
    "num_envs=8",
    "total_env_steps=128",
    "algo.horizon=8",
    "algo.num_minibatches=2",
    "algo.epochs=1",
    "algo.widths=[16]",
    "eval_every=1",
    "eval_episodes=4",
    "env.lidar_beams=12",
    "env.max_steps=60",
    "tracking=quiet",
]
