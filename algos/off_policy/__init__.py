"""Off-policy learners with a replay: SAC, TD3 and TQC."""
