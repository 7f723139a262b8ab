"""Measures of missions: who covers, holds, scouts or suppresses what."""
