"""Learners of whole rollouts: PPO and A2C."""
