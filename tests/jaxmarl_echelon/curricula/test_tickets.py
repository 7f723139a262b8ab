"""Selection of episodes: a queue in plain Python, and synthetic learners with varying episode lengths."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import staged_runs as runs
from marked import thorough

from jaxmarl_echelon.curricula import episode_queue
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.curricula.spawn import spawn_curriculum
from jaxmarl_echelon.envs.episodes import EpisodeEvents

WON, CRASHED = 0, 1


class Line:
    """The line in plain Python: `[ended, result]` of each episode, in the order of their beginnings."""

    def __init__(self, num_envs, size):
        self.size, self.line, self.running = size, [], [None] * num_envs

    def decide(self, env, begins, over, result):
        """One decision of one environment; `result` is None unless the episode finished."""
        if begins and len(self.line) < self.size:
            self.running[env] = [False, None]
            self.line.append(self.running[env])
        if over and self.running[env] is not None:
            self.running[env][:] = [True, result]
        if over:
            self.running[env] = None

    def settled(self):
        """Results of those whose turn it is; they leave."""
        results = []
        while self.line and self.line[0][0]:
            results.append(self.line.pop(0)[1])
        return [result for result in results if result is not None]

    def held(self):
        """Each environment's place in the line."""
        places = {id(entry): place for place, entry in enumerate(self.line)}
        return [places.get(id(entry), episode_queue.NOT_QUEUED) for entry in self.running]

    def clear(self):
        """Empties the queue."""
        self.line, self.running = [], [None] * len(self.running)


def random_flow(rng, begins, steps):
    """Random episodes `[T, E]`, some not one's own, some thrown away; `begins [E]` for the first decision."""
    num_envs = begins.size
    over = rng.random((steps, num_envs)) < rng.choice([0.05, 0.3, 0.8])
    starts = np.concatenate([begins[None], over[:-1]])
    own = rng.random((steps, num_envs)) < 0.7
    mask = over & (rng.random((steps, num_envs)) < 0.8)
    results = rng.integers(1, 1000, (steps, num_envs))
    return starts, over, own, mask, results


@jax.jit
def turn(tickets, starts, over, own, mask, results):
    done = runs.finished(np.zeros(mask.shape, bool), 0, 0, 0.0).replace(mask=mask)
    flow = EpisodeEvents(starts, {"stage": jnp.zeros_like(results)}, over, done)
    tickets = episode_queue.enqueue_and_record(tickets, flow, own, results)
    values, number, places = episode_queue.completed_prefix(tickets)
    return episode_queue.dequeue_episodes(tickets, places), values, number


@pytest.mark.parametrize(("seed", "size"), [(0, 5), (1, 16), (2, 64)])
def test_episodes_are_processed_after_all_earlier_ones_have_ended(seed, size):
    rng, num_envs, steps = np.random.default_rng(seed), 7, 4
    line, tickets = Line(num_envs, size), episode_queue.make_episode_queue(num_envs, size, np.int32(0))
    begins, seen, full = np.ones(num_envs, bool), 0, 0
    for _ in range(120):
        starts, over, own, mask, results = random_flow(rng, begins, steps)
        begins = over[-1]
        tickets, values, number = turn(tickets, starts, over, own, mask, results)
        for t in range(steps):
            for e in range(num_envs):
                result = int(results[t, e]) if mask[t, e] else None
                line.decide(e, starts[t, e] and own[t, e], over[t, e], result)
        full += len(line.line) == size
        expected = line.settled()
        assert np.asarray(values)[: int(number)].tolist() == expected
        assert np.asarray(tickets.held).tolist() == line.held()
        assert int(tickets.length) == len(line.line)
        seen += len(expected)
        if rng.random() < 0.1:
            line.clear()
            tickets = episode_queue.dequeue_episodes(tickets, jnp.int32(size))
            assert int(tickets.length) == 0 and (np.asarray(tickets.held) == episode_queue.NOT_QUEUED).all()
    assert seen > 200 and (full > 0) == (size < 64)


HORIZON, UPDATES = 16, 200


def simulate(curriculum, num_envs, rate, success_length, failure_length, key):
    """A run in which an episode succeeds with probability `rate`, whatever its stage, and takes as
    long as that takes; all environments begin together. Returns the curriculum's last state.
    """

    def begin(key):
        won = jax.random.bernoulli(key, rate, (num_envs,))
        return won, jnp.where(won, success_length, failure_length)

    def decide(stage, carry, key):
        begins, own, won, left = carry
        over = left == 1
        outcome = jnp.where(won, WON, CRASHED)
        done = runs.finished(np.zeros(num_envs, bool), 0, 0, 0.0)
        done = done.replace(mask=over, results={"outcome": jnp.where(over, outcome, -1)}, tags={"stage": own})
        again = begin(key)
        following = (over, jnp.where(over, stage, own), jnp.where(over, again[0], won))
        return (*following, jnp.where(over, again[1], left - 1)), EpisodeEvents(
            begins, {"stage": own}, over, done
        )

    def update(carry, key):
        state, tickets, running = carry
        decision = partial(decide, curriculum.stage(state))
        running, flow = jax.lax.scan(decision, running, jax.random.split(key, HORIZON))
        return (*curriculum.update(state, tickets, flow), running), None

    key_first, key_run = jax.random.split(key)
    first = (jnp.ones(num_envs, bool), jnp.zeros(num_envs, jnp.int32), *begin(key_first))
    carry = (curriculum.init(), curriculum.tickets(num_envs), first)
    return jax.lax.scan(update, carry, jax.random.split(key_run, UPDATES))[0][0]


CURRICULA = {
    "phased": phased_curriculum(
        runs.Settings(),
        runs.table(26, criteria={"success_rate": 0.7, "regress_success_rate": 0.5}),
    ),
    "spawn": spawn_curriculum(
        runs.Settings(),
        runs.table(26, enable_rate=0.7, disable_rate=0.5),
        window=100,
        disable_patience=20,
        ema_alpha=0.0,
        cooldown=0,
        blend_previous_prob=0.0,
    ),
}
# Success rate, decisions of a success and of a failure.
CASES = {
    "half, slow failures": (0.5, 48, 75),
    "half, equal": (0.5, 75, 75),
    "third, slow failures": (0.3, 48, 75),
    "good, short crashes": (0.9, 48, 5),
    "good, equal": (0.9, 48, 48),
}


@pytest.mark.parametrize(
    ("name", "num_envs"), [("phased", 16), thorough("phased", 4096), thorough("spawn", 1024)]
)
def test_progress_depends_neither_on_episode_lengths_nor_on_the_number_of_environments(name, num_envs):
    cases = [jnp.array(column) for column in zip(*CASES.values(), strict=True)]
    keys = jax.random.split(jax.random.key(num_envs), len(CASES))
    # With thousands of environments it runs for longer than it compiles, unlike most of what tests compile.
    options = {"xla_backend_optimization_level": 2} if num_envs > 1000 else {}
    play = jax.jit(jax.vmap(partial(simulate, CURRICULA[name], num_envs)), compiler_options=options)
    course = play(*cases, keys).course
    stage = dict(zip(CASES, course.stage.tolist(), strict=True))
    back = dict(zip(CASES, course.regressions.tolist(), strict=True))
    assert stage["third, slow failures"] == 0
    assert stage["half, slow failures"] <= 1 and stage["half, equal"] <= 1
    climbed = 5 if num_envs == 16 else 25
    for case in ("good, short crashes", "good, equal"):
        assert stage[case] >= climbed, (case, stage)
        assert back[case] == 0, (case, back)
