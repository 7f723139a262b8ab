"""Verbs of orders, such as assault, hold and scout: facts, success and terms of each."""
