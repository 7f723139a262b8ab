"""Training: configuration, acting, opponents, rollouts, the program and the host.

`config` builds a run, `acting` decides, `opponents` and `rollouts` play, `program` joins all into pure
functions, `host` runs them.
"""
