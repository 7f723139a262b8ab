"""Observations of mechs: contacts, and the layout of all features."""
