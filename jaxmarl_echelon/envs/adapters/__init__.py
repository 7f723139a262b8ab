"""Environments of other libraries behind the interface of `envs.base`, and ours behind theirs."""
