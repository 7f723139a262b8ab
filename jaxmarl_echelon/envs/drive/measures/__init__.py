"""Measures of driving: results of episodes, comfort, and realism against recordings."""
