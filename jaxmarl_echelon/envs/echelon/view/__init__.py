"""Pictures, GIFs and replay pages of battles."""
