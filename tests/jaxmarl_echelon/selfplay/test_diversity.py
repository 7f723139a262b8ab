"""How different games are: what is kept of them, and what is counted, against a recount in Python."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from duels import Duel

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon.curricula.base import fixed
from jaxmarl_echelon.envs.spaces import Discrete, MultiDiscrete
from jaxmarl_echelon.envs.textgames.games import tictactoe
from jaxmarl_echelon.selfplay import diversity
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.program import make_program

ENTRIES, LONGEST, ENVS = 3, 5, 6


def test_the_ring_holds_the_last_games_as_they_were_played(monkeypatch):
    """Random games with forced plies, some broken off: the same moves as in lists of Python."""
    monkeypatch.setattr(diversity, "GAMES", 4)
    rng, plays = np.random.default_rng(0), diversity.init(ENVS, ENTRIES, LONGEST)
    note, running = jax.jit(diversity.noted), [[] for _ in range(ENVS)]
    kept = [deque(maxlen=4) for _ in range(ENTRIES)]
    entry = np.array([0, 1, 1, 2, 1, 1])
    for _ in range(60):
        move = np.where(rng.random(ENVS) < 0.2, -1, rng.integers(0, 3, ENVS))
        for one, own in zip(running, move, strict=True):
            one += [int(own)] if own >= 0 else []
        ended = np.array([len(one) == LONGEST or rng.random() < 0.2 for one in running]) & (move >= 0)
        over = ended | (rng.random(ENVS) < 0.05)
        plays = note(plays, jnp.asarray(move), jnp.asarray(ended), jnp.asarray(entry), jnp.asarray(over))
        for env in np.flatnonzero(over):
            if ended[env] and entry[env]:
                kept[entry[env]].append(running[env])
            running[env] = []
    for one in range(ENTRIES):
        found = [[int(x) for x in row if x >= 0] for row in plays.kept[one]]
        assert sorted(found) == sorted([*kept[one], *[[]] * (4 - len(kept[one]))])
        for n in diversity.GRAMS:
            grams = [tuple(game[i : i + n]) for game in kept[one] for i in range(len(game) - n + 1)]
            share = len(set(grams)) / len(grams) if grams else 1.0
            np.testing.assert_allclose(diversity.distinct(plays, 3, n)[one], share, rtol=1e-6)
    assert int(plays.written[1]) > 8
    clean = diversity.forgotten(plays, jnp.array([False, True, False]))
    assert int(clean.written[1]) == 0 and (clean.kept[1] < 0).all() and (clean.kept[2] >= 0).any()


def test_many_moves_are_hashed():
    """6075 different moves: pairs do not fit their buckets, yet few of some hundred fall together."""
    space = MultiDiscrete((3, 5, 9, 5, 9))
    assert diversity.number_of(space) == 6075 and diversity.number_of(Discrete(7)) == 7
    assert int(diversity.as_number(space, jnp.array([2, 4, 8, 4, 8]))) == 6074
    moves = jax.random.randint(jax.random.key(0), (1, 1, 400), 0, 6075)
    plays = diversity.init(1, 1, 400).replace(kept=moves)
    assert 0.95 < float(diversity.distinct(plays, 6075, 2)[0]) < 1.0


@pytest.fixture(scope="module")
def run():
    pool = PoolSettings(capacity=2, groups=4, snapshot_every=1, fixed=("random",), mode="exploration", hold=1)
    algo = PPOConfig(horizon=8, widths=(4,), num_minibatches=1, epochs=1)
    config = RunConfig(
        tictactoe.make(), algo, fixed, 10_000, 8, controllers={"player": "pool:player"}, pool=pool
    )
    program = make_program(config)
    update, run = jax.jit(program.update), jax.jit(program.init)(jax.random.key(0))
    found = []
    for _ in range(3):
        run, report = update(run)
        found.append(jax.device_get((run, report)))
    return found


def test_a_run_keeps_whole_games_of_each_opponent(run):
    """Legal games only; as many as were counted; a slot that is taken anew begins afresh."""
    before = np.zeros(4, int)
    for state, report in run:
        number = int(report.episodes["number"])
        met = np.bincount(report.episodes["opponent"][:number], minlength=4)
        met[0] = 0
        fresh = np.asarray(state.plays.written) == 0
        np.testing.assert_array_equal(state.plays.written[~fresh], (before + met)[~fresh])
        before = np.asarray(state.plays.written)
        for games in np.asarray(state.plays.kept):
            for game in games[games[:, 0] >= 0]:
                moves = game[game >= 0]
                assert len(moves) >= 5 and len(set(moves.tolist())) == len(moves)
        assert 0 < report.metrics["pool/exploration/unique_2_grams"] <= 1
    assert before.sum() >= 8 and (np.asarray(run[-1][0].pool.distinct)[3] < 1).all()


def test_only_games_can_be_compared():
    with pytest.raises(ValueError, match="^pool.mode=exploration: duel is no game in which seats take turns"):
        RunConfig(
            Duel(),
            PPOConfig(),
            fixed,
            100,
            8,
            controllers={"red": "pool:blue"},
            pool=PoolSettings(mode="exploration"),
        )
