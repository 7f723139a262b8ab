"""Environments as pure functions; `base` has the interface, `check_env` checks it."""
