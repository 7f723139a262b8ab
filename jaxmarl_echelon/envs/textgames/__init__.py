"""Turn games: rules, scripts, transcripts, and their environment."""
