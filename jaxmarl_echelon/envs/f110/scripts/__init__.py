"""Scripted drivers, such as follow-the-gap."""
