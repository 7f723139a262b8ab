"""Exported policies: their folder, its formats, and the check of its golden vectors."""
