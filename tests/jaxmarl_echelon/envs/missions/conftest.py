"""Fixtures shared by the tests of missions."""

import pytest
from mission_games import Game, built


@pytest.fixture(scope="session")
def game() -> Game:
    """One environment with its functions compiled once."""
    return Game(built())
