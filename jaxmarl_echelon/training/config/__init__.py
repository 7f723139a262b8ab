"""Configuration of runs: from a composed configuration to objects, and the files that a run reads."""
