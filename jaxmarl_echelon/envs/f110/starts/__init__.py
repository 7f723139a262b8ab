"""Starts of episodes: poses, speeds and who is where."""
