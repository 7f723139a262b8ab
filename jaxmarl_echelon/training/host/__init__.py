"""The host of a run: compilation, the loop over chunks, records, checkpoints and resuming."""
