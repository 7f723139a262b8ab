"""Pictures, GIFs and replay pages of races."""
