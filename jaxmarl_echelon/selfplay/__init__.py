"""Pools of past policies: matchmaking, ratings, leagues and reward transforms."""
