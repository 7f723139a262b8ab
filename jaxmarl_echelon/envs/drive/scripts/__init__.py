"""Scripted drivers."""
