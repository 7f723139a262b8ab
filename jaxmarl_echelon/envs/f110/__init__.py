"""Adversarial racing: an attacker learns to make a defender crash."""
