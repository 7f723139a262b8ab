"""Goal-directed driving in generated or recorded traffic."""
