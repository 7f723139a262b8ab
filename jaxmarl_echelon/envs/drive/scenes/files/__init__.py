"""Scene files: reading, checks of fields, and export."""
