"""Generates maps in a process of its own: jobs come in on stdin, each is answered on stdout."""

import pickle
import sys

from jaxmarl_echelon.envs.echelon.terrain.layout import generate


def serve() -> None:
    """Answers `(seed, size, biomes, team_size)` with a layout until there are no more jobs."""
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            seed, size, biomes, team_size = pickle.load(jobs)
        except EOFError:
            return
        pickle.dump(generate(seed, size, biomes=biomes, team_size=team_size), answers)
        answers.flush()


if __name__ == "__main__":
    serve()
