"""Acting: controllers of roles, random streams, and statistics of finished episodes."""
