"""Environments of other libraries behind the contract of `jaxmarl_echelon.envs.base`."""
