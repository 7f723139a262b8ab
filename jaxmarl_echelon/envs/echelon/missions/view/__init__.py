"""Pictures, reports and replay pages of missions."""
