"""Environments of other libraries behind the interface of `envs.base`."""
