"""How different games are: what is kept of them, and what is counted, against a recount in Python."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from duels import Duel

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.spaces import Discrete, MultiDiscrete
from jaxmarl_echelon.selfplay import diversity
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.config.build import RunConfig

ENTRIES, LONGEST, ENVS = 3, 5, 6


def test_the_ring_holds_the_last_games_as_they_were_played(monkeypatch):
    """Random games with forced plies, some broken off: the same moves as in lists of Python."""
    monkeypatch.setattr(diversity, "GAMES_KEPT", 4)
    rng, plays = np.random.default_rng(0), diversity.init(ENVS, ENTRIES, LONGEST)
    note, running = jax.jit(diversity.record_ply), [[] for _ in range(ENVS)]
    distinct = jax.jit(diversity.distinct_ngram_share, static_argnums=(1, 2))
    kept = [deque(maxlen=4) for _ in range(ENTRIES)]
    entry = np.array([0, 1, 1, 2, 1, 1])
    for _ in range(60):
        move = np.where(rng.random(ENVS) < 0.2, -1, rng.integers(0, 3, ENVS))
        for one, own in zip(running, move, strict=True):
            one += [int(own)] if own >= 0 else []
        ended = np.array([len(one) == LONGEST or rng.random() < 0.2 for one in running]) & (move >= 0)
        over = ended | (rng.random(ENVS) < 0.05)
        plays = note(plays, move, ended, entry, over)
        for env in np.flatnonzero(over):
            if ended[env] and entry[env]:
                kept[entry[env]].append(running[env])
            running[env] = []
    shares = {n: np.asarray(distinct(plays, 3, n)) for n in diversity.GRAMS}
    for one in range(ENTRIES):
        found = [[int(x) for x in row if x >= 0] for row in np.asarray(plays.kept[one])]
        assert sorted(found) == sorted([*kept[one], *[[]] * (4 - len(kept[one]))])
        for n in diversity.GRAMS:
            grams = [tuple(game[i : i + n]) for game in kept[one] for i in range(len(game) - n + 1)]
            share = len(set(grams)) / len(grams) if grams else 1.0
            np.testing.assert_allclose(shares[n][one], share, rtol=1e-6)
    assert int(plays.written[1]) > 8
    clean = jax.device_get(jax.jit(diversity.clear_entries)(plays, np.array([False, True, False])))
    assert int(clean.written[1]) == 0 and (clean.kept[1] < 0).all() and (clean.kept[2] >= 0).any()


def test_many_moves_are_hashed():
    """6075 different moves: pairs do not fit their buckets, yet few of some hundred fall together."""
    space = MultiDiscrete((3, 5, 9, 5, 9))
    assert diversity.action_count(space) == 6075 and diversity.action_count(Discrete(7)) == 7
    assert int(diversity.encode_actions(space, jnp.array([2, 4, 8, 4, 8]))) == 6074
    refused = jnp.array([[-1] * 5, [0, 0, 0, 0, -1], [0] * 5])
    np.testing.assert_array_equal(
        diversity.encode_actions(space, refused), [diversity.NO_MOVE, diversity.NO_MOVE, 0]
    )
    moves = jax.random.randint(jax.random.key(0), (1, 1, 400), 0, 6075)
    plays = diversity.init(1, 1, 400).replace(kept=moves)
    distinct = jax.jit(diversity.distinct_ngram_share, static_argnums=(1, 2))
    assert 0.95 < float(distinct(plays, 6075, 2)[0]) < 1.0


def test_only_games_can_be_compared():
    with pytest.raises(ValueError, match="^pool.mode=exploration: duel is not turn-based"):
        RunConfig(
            Duel(),
            PPOConfig(),
            constant_curriculum,
            100,
            8,
            controllers={"red": "pool:blue"},
            pool=PoolSettings(mode="exploration"),
        )
