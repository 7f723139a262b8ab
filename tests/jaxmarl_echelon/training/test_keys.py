"""The random streams of a run never meet: what chooses a policy is not what scores it."""

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon import exploit
from jaxmarl_echelon.training.acting.random_streams import (
    Stream,
    run_key,
    split_initial,
    split_update,
    stream_key,
)
from jaxmarl_echelon.training.program import state as state_lib
from jaxmarl_echelon.training.program import update
from jaxmarl_echelon.training.program.world import World

SEEDS = 64


def bits(keys):
    """Keys of any shape as rows of their words."""
    return np.asarray(jax.random.key_data(keys)).reshape(-1, 2)


def test_no_stream_of_any_seed_is_another_or_a_key_of_a_run():
    """Of a run: its own key, those that `initial_run_state` splits it into, and those of the learners."""

    @jax.jit
    @jax.vmap
    def of_runs(key):
        first = jax.random.split(key, 256)
        return jax.numpy.concatenate([key[None], first, jax.random.split(first[1], 64)])

    roots = jax.numpy.stack([run_key(seed) for seed in range(SEEDS)])
    streams = [bits(stream_key(seed, stream)) for seed in range(SEEDS) for stream in Stream]
    found = np.concatenate([bits(of_runs(roots)), *streams])
    assert len(np.unique(found, axis=0)) == len(found) == SEEDS * (1 + 256 + 64 + len(Stream))


def test_no_episode_of_a_stream_has_the_key_of_one_of_another():
    """For any number of episodes: the first of many have the keys of a few."""
    starts = {stream: jax.random.split(stream_key(0, stream))[0] for stream in Stream}
    few = bits(jax.random.split(starts[Stream.EVALUATION], 64))
    many = bits(jax.random.split(starts[Stream.FINAL], 256))
    found = np.concatenate([few, many])
    assert len(np.unique(found, axis=0)) == len(found)


def require_apart(*keys):
    """No two of these keys are equal, nor any two of those that each of them may be split into."""
    found = jnp.stack(keys)
    every = np.concatenate([bits(found), bits(jax.vmap(lambda key: jax.random.split(key, 64))(found))])
    assert len(np.unique(every, axis=0)) == len(every) == 65 * len(keys)


def test_keys_of_different_uses_are_all_different_over_the_first_updates():
    first = split_initial(run_key(0))
    uses, now = [*first[1:], *(stream_key(0, stream) for stream in Stream)], first.run
    for _ in range(6):
        following, *others = split_update(now)
        uses, now = [*uses, *others], following
    require_apart(*uses)


class Reached(Exception):
    """The last key was handed out."""


def reach(*_):
    raise Reached


def test_an_update_draws_opponents_by_no_key_of_its_rollout_or_its_learners(monkeypatch):
    """In the first updates of a run, and as it begins."""
    drawn, role = [], "player"

    def note(key):
        drawn.append(key)
        return SimpleNamespace(hyper={})

    agent = SimpleNamespace(
        init=note,
        update=lambda state, key, _: (note(key), {}),
        rollout_policy=lambda state: state,
        hyper=None,
        learns="rollout",
    )
    seat = SimpleNamespace(owner=role, pool=SimpleNamespace(pinned=()))
    env = SimpleNamespace(spec=SimpleNamespace(turns=0))
    learning = {"learning": lambda when: {}, "whole_games": False}
    collector = SimpleNamespace(agents={role: agent}, env=env, seat=seat, **learning)
    collected = SimpleNamespace(metrics={}, rollouts={}, flow=SimpleNamespace(finished=None))
    monkeypatch.setattr(
        update.rollout, "collect_rollout", lambda _, run, key, draw: (run, note(key) and collected)
    )
    monkeypatch.setattr(update, "apply_reward_transforms", lambda *_: (None, {role: None}))
    monkeypatch.setattr(update.pool_role, "leave_out_episodes_near_cuts", lambda *given, **_: given[3])
    monkeypatch.setattr(update.pool_role, "count_outcomes", lambda *_: None)
    monkeypatch.setattr(update.pool_role, "select_ranked_games", lambda *_: None)
    monkeypatch.setattr(update.pool_role, "sum_rival_scores", lambda *_: None)
    monkeypatch.setattr(
        update.pool_lib, "update_pool_state", lambda pool, state, key, *_: note(key) and reach()
    )
    monkeypatch.setattr(update.pool_lib, "init_pool", lambda pool, key, *_: note(key) and reach())
    world = World((), {}, {})
    with pytest.raises(Reached):
        state_lib.initial_run_state(None, collector, None, world, run_key(0), None)
    for number in range(4):
        state = {"policies": {role: None}, "plays": None, "pool": SimpleNamespace(league=None)}
        run = SimpleNamespace(key=run_key(1 + number), updates=jnp.int32(number), **state)
        with pytest.raises(Reached):
            update.update_once(None, collector, None, run)
    assert len(drawn) == 2 + 4 * 3
    require_apart(*drawn)


class Acting(NamedTuple):
    """A run reduced to acting."""

    policies: dict


def test_games_of_finished_policies_have_a_stream_of_their_own(monkeypatch):
    """Those that score an exploiter: of teams that act at once, and of seats that take turns."""

    def played(seats, policies, state, key, **_):
        return SimpleNamespace(finished=jax.random.key_data(key))

    stub = SimpleNamespace(
        evaluate_with_controllers=played, world=(), env=SimpleNamespace(spec=None), controllers=dict
    )
    loaded = (None, None, None, stub, Acting({}))
    monkeypatch.setattr(exploit.run_loading, "load_run", lambda *_: loaded)
    monkeypatch.setattr(exploit, "exploit_scores", lambda spec, chosen, finished: finished)
    entrants = exploit.tournament.Entrants({"a policy": jnp.zeros(1)}, stub, *[None] * 3)
    monkeypatch.setattr(exploit.tournament, "load_entrants", lambda *_: entrants)
    monkeypatch.setattr(
        exploit, "play_round_robin", lambda _, sides, __, key, *___: jnp.tile(key_words(key), (2, 2, 1))
    )
    expected = key_words(stream_key(3, Stream.MATCHES))
    for chosen in (exploit.ExploitRoles("red", "blue"), exploit.ExploitRoles("player", "player")):
        found = exploit.play_exploit_games(chosen, "", Path(), 4, 3)
        np.testing.assert_array_equal(found, expected)


def key_words(key):
    return jax.random.key_data(key)
