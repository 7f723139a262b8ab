"""Rules of single games, one module each."""
