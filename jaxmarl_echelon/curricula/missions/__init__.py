"""The curriculum of missions: difficulty, reward weights and verbs by phase and success."""
