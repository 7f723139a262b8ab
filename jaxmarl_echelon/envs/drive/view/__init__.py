"""Pictures, GIFs and replay pages of driving."""
