"""The rules of a mission curriculum in plain Python, and a small curriculum to compare them with."""

from collections import deque
from functools import cache

import jax
import mission_runs as runs
import numpy as np
from mission_runs import PHASES
from scipy import stats

from jaxmarl_echelon.curricula.missions.curriculum import mission_curriculum
from jaxmarl_echelon.envs.echelon.missions.state import VERBS

WINDOW, DWELL = 60, 80
SMALL = {"phases": PHASES, "window": WINDOW, "dwell": DWELL, "nominal_episodes": 200, "blend_episodes": 20}
SHAPE = (6, 10)


class Reference:
    """The rules for one episode after the other, in plain Python."""

    def __init__(self, window, dwell):
        self.window, self.dwell = window, dwell
        self.phase, self.moves = 0, [0, 0]
        self.clear()

    def clear(self):
        self.episodes, self.rows = 0, deque(maxlen=self.window)

    def bounds(self, name):
        values = [row[name] for row in self.rows if name != "win" or row["full_fire"]]
        if len(values) < 2:
            return np.nan, np.nan, np.nan, -np.inf, np.inf
        mean, std = np.mean(values), np.std(values, ddof=1)
        margin = stats.t.ppf(0.975, len(values) - 1) * std / np.sqrt(len(values))
        return len(values), mean, std, mean - margin, mean + margin

    def variance(self):
        by_verb = [[row["mission"] for row in self.rows if row["task"] == v] for v in range(len(VERBS))]
        return np.var([np.mean(values) for values in by_verb if values])

    def asked(self, phase):
        criteria = dict(PHASES[phase].get("criteria", {}))
        return criteria.pop("variance", np.inf), criteria

    def passes(self):
        most, criteria = self.asked(self.phase)
        for name, threshold in criteria.items():
            _, mean, std, low, _ = self.bounds(name)
            target = threshold + 0.1
            if not (low > target and mean - target >= 0.1 * std):
                return False
        return self.phase < 3 and self.variance() <= most

    def fails(self):
        if self.phase == 0:
            return False
        return any(
            self.bounds(name)[4] < least - 0.3 for name, least in self.asked(self.phase - 1)[1].items()
        )

    def episode(self, row):
        self.episodes += 1
        self.rows.append(row)
        if self.episodes < self.dwell or len(self.rows) < self.window:
            return
        step = 1 if self.passes() else -1 if self.fails() else 0
        if step:
            self.decided = np.mean([row["mission"] for row in self.rows])
            self.phase += step
            self.moves[step < 0] += 1
            self.clear()

    def play(self, mask, tags, results):
        """Episodes of a rollout; those of another phase, or after a transition, are ignored."""
        begun = self.phase
        for place in zip(*np.nonzero(mask), strict=True):
            if self.phase == begun and tags["stage"][place] == begun:
                self.episode({name: values[place] for name, values in (tags | results).items()})


@cache
def made(gate="training"):
    """A small curriculum with its functions compiled: `(curriculum, update, metrics)`."""
    curriculum = mission_curriculum(runs.Missions(), gate=gate, **SMALL)

    @jax.jit
    def update(state, flow):
        return curriculum.update(state, curriculum.tickets(flow.begins.shape[1]), flow)[0]

    return curriculum, update, jax.jit(curriculum.metrics)


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def agree(reference, course):
    assert int(course.phase) == reference.phase
    assert int(course.episodes) == reference.episodes
    assert [int(course.advances), int(course.regressions)] == reference.moves
