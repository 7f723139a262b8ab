"""Reports of runs and comparisons between runs: statistics over seeds, charts and self-contained pages."""
