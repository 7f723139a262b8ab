"""Curricula as pure functions of finished episodes: `base` has the interface, `stages` what most share."""
