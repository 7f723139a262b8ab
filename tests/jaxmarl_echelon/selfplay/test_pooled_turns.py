"""Turn games against a pool: who decides when, what is learnt, and who has won."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from played_runs import History, played

from algos import collectives
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from algos.optim.small_batches import traced_for_options
from algos.types import Agent
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.curricula.phased import phased_curriculum
from jaxmarl_echelon.envs.episodes import Finished
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.analysis import exploitability
from jaxmarl_echelon.envs.textgames.env import ROLE, TextGame
from jaxmarl_echelon.envs.textgames.games import kuhn, liarsdice, tictactoe
from jaxmarl_echelon.envs.textgames.rules import GameRules, winner_scores
from jaxmarl_echelon.envs.textgames.scripts import make_scripted_policy
from jaxmarl_echelon.selfplay import ratings
from jaxmarl_echelon.selfplay.pool import LEARNER
from jaxmarl_echelon.selfplay.ratings import rating_system
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.acting.episode_statistics import SCORED
from jaxmarl_echelon.training.acting.random_streams import split_update
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.opponents import pool_role, seat_rounds
from jaxmarl_echelon.training.program import agents as agents_lib
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.program.update import BALANCED
from jaxmarl_echelon.training.rollouts import turn_based_pool

NUM_ENVS = 16
SHARES = {"mirror": 0.5, "exploration": 0.5}
POOL = PoolSettings(capacity=3, groups=4, snapshot_every=1, fixed=("random",), hold=2, shares=SHARES)
ALGO = A2CConfig(horizon=8, widths=(8,))


def configured(**changes) -> RunConfig:
    given = {
        "env": tictactoe.make(),
        "algo": ALGO,
        "curriculum": constant_curriculum,
        "total_env_steps": 10_000,
        "num_envs": NUM_ENVS,
        "controllers": {"player": "pool:player"},
        "pool": POOL,
    }
    return RunConfig(**given | changes)


@pytest.mark.parametrize("phases", [2, 3])
def test_each_environment_decides_once_per_phase(phases):
    rows = turn_based_pool.compute_deciding_rows(8, 8 + 4 * phases, 2, phases)
    for phase in range(phases):
        both = np.concatenate([rows.learner[phase], rows.others[phase]])
        assert sorted(both.tolist()) == list(range(8 + 4 * phases))
        assert set(rows.classes[rows.learner[phase]]) == {-1, phase}
        groups = (rows.others[phase].reshape(2, -1) - 8) // (2 * phases)
        assert (groups == np.arange(2)[:, None]).all()
    assert (np.bincount(rows.classes[8:]) == 4).all()


@pytest.fixture(scope="module")
def run() -> History:
    """A pool in tic-tac-toe, whose learner hands out what it learns from."""
    config = configured()
    (agent,) = agents_lib.make_agents(config).values()

    def update(state, key, rollout):
        state, metrics = agent.update(state, key, rollout)
        return state, metrics | {"rollout": rollout}

    return played(config, 5, {"player": agent._replace(update=update)})


def test_columns_and_rewards(run):
    """The learner is paid what its own seats have scored in the games that ended, and nothing else."""
    assert configured().columns("player") == 2 * 8 + 8
    rollout, table = run.reports[0].metrics["losses/rollout"], games_of(run.reports[0])
    assert rollout.reward.shape == (8, 24, 1)
    scores = np.stack([table["score/0"], table["score/1"]], axis=-1)
    own = np.take_along_axis(scores, np.maximum(table["seat"], 0)[:, None], axis=-1)[:, 0]
    others = table["env"] >= 8
    assert others.sum() > 4 and (table["opponent"][others] > 0).all()
    # In mirror groups both seats learn, whose scores sum to 0. The first other group changes its opponent
    # after this update: its last games, which might have been cut, are not listed.
    mine, stays = [*range(8), 10, 11, *range(12, 20), 22, 23], table["env"] >= 12
    np.testing.assert_allclose(rollout.reward[:, mine].sum(), own[stays].sum(), atol=1e-5)
    assert (table["opponent"][~others] == 0).all()
    assert set(table["seat"][others]) == {0, 1}


def games_of(report) -> dict[str, np.ndarray]:
    """The rows of a report's table of games."""
    number = int(report.episodes["number"])
    return {name: np.asarray(column)[:number] for name, column in report.episodes.items() if name != "number"}


def test_training_reports_the_learners_own_seat_against_its_own_opponents(run):
    """In the table of games and in the rolling values; the mean of both seats is a half whoever plays."""
    points, lengths = [], []
    for report in run.reports:
        table = games_of(report)
        met, seat = table["opponent"] > 0, table["seat"]
        scores = np.stack([table["score/0"], table["score/1"]], axis=-1)
        own = np.take_along_axis(scores, np.maximum(seat, 0)[:, None], axis=-1)[:, 0]
        np.testing.assert_array_equal(table["return/player"], np.where(met, own, 0.0))
        np.testing.assert_array_equal(table["points"], np.where(met, 0.5 + 0.5 * own, 0.5))
        np.testing.assert_array_equal(table["win"][met], own[met] > 0)
        assert (seat[~met] == -1).all() and (seat[met] >= 0).all()
        points += table["points"][met].tolist()
        lengths += table["length"][met].tolist()
        found = report.metrics
        np.testing.assert_allclose(found["train/points_rate"], np.mean(points), rtol=1e-5)
        np.testing.assert_allclose(found["train/return"], 2 * np.mean(points) - 1, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["train/episode_length"], np.mean(lengths), rtol=1e-5)
        assert int(found["train/window_episodes"]) == len(points) < 256
        assert int(found[SCORED]) == met.sum() < met.size
    assert abs(np.mean(points) - 0.5) > 0.005


def counted(state, table, entries: int, seats: int) -> np.ndarray:
    """The games `[n]` of a table that count in the update of a state: as many from every seat."""
    place, mask = (table["step"], table["env"]), np.zeros((8 * seats, state.reset.shape[0]), bool)
    mask[place] = True
    tags = {name: np.zeros(mask.shape, np.int32) for name in ("opponent", "seat")}
    for name, tag in tags.items():
        tag[place] = table[name]
    key = jax.random.fold_in(split_update(state.key).opponents, BALANCED)
    finished = Finished(mask, {}, {}, np.zeros(mask.shape), {}, tags)
    return np.asarray(seat_rounds.balance_seats(key, finished, entries, seats).mask)[place]


def test_as_many_games_count_from_every_seat_on_any_number_of_shards():
    chances, key = np.random.default_rng(3), jax.random.key(0)
    tags = {"opponent": chances.integers(0, 4, (40, 12)), "seat": chances.integers(0, 3, (40, 12))}
    finished = Finished(chances.random((40, 12)) < 0.5, {}, {}, np.zeros((40, 12)), {}, tags)
    parts = jax.tree.map(lambda x: np.stack(np.split(x, 2, axis=1)), finished)

    def keep(one):
        return seat_rounds.balance_seats(key, one, 4, 3).mask

    kept = np.asarray(jax.jit(keep)(finished))
    halves = jax.jit(jax.vmap(keep, axis_name=collectives.HERE))(parts)
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), kept)

    def count(mask):
        cells = 3 * tags["opponent"] + tags["seat"]
        return np.bincount(cells[mask], minlength=12).reshape(4, 3)

    fewest = count(finished.mask).min(axis=1) * (np.arange(4) > 0)
    np.testing.assert_array_equal(count(kept), np.repeat(fewest[:, None], 3, axis=1))
    assert not (kept & ~finished.mask).any() and 0 < kept.sum() < finished.mask.sum()


def test_short_games_do_not_count_more_than_long_ones():
    """Where games begin together, the first ones to end are those of who wins in less time."""
    finish, seat = np.meshgrid([3, 15], np.repeat([0, 1], [200, 100]), indexing="ij")
    mask = np.zeros((16, 600), bool)
    mask[finish.ravel(), np.arange(600)] = True
    tags = {"opponent": np.ones((16, 600), int), "seat": np.broadcast_to(seat.ravel(), (16, 600))}
    finished = Finished(mask, {}, {}, np.zeros((16, 600)), {}, tags)
    kept = np.asarray(seat_rounds.balance_seats(jax.random.key(0), finished, 2, 2).mask)
    assert kept.sum() == 400
    # A standard deviation of .0144; .75 if the first games of the first seat count.
    assert abs(kept[3].sum() / kept.sum() - 0.5) < 0.06


def test_games_are_counted_by_the_learners_seat(run):
    """As many from every seat, so that scores are means over seats."""
    _, states, reports, _ = run
    total = 0
    for before, after, report in zip(states, states[1:], reports, strict=False):
        table = games_of(report)
        entries = np.concatenate([np.zeros(8, int), np.repeat(np.asarray(before.pool.slots), 4)])
        np.testing.assert_array_equal(table["opponent"], entries[table["env"]])
        rated = counted(before, table, 5, 2)
        wins = np.bincount(table["opponent"][rated & (table["outcome"] == table["seat"])], minlength=5)
        kept = np.array(before.pool.iteration == after.pool.iteration)
        np.testing.assert_array_equal((after.pool.wins - before.pool.wins)[0][kept], wins[kept])
        total += rated.sum()
    assert total > 20 and int(states[-1].pool.taken) == 6


def test_a_run_keeps_whole_games_of_each_opponent(run):
    """Legal games only; all that were counted; a slot that is taken anew begins afresh."""
    before, forgotten = np.zeros(5, int), 0
    for earlier, state, report in zip(run.states, run.states[1:], run.reports, strict=False):
        number = int(report.episodes["number"])
        met = np.bincount(report.episodes["opponent"][:number], minlength=5)
        met[0] = 0
        written = np.asarray(state.plays.written)
        anew = np.asarray(state.pool.iteration != earlier.pool.iteration)
        assert (written[anew] == 0).all() and (written[~anew] >= (before + met)[~anew]).all()
        forgotten += before[anew].sum()
        before = written
        for games in np.asarray(state.plays.kept):
            for game in games[games[:, 0] >= 0]:
                moves = game[game >= 0]
                assert len(moves) >= 5 and len(set(moves.tolist())) == len(moves)
        assert 0 < report.metrics["pool/exploration/unique_2_grams"] <= 1
    assert forgotten > 0 and before.sum() >= 8
    assert (np.asarray(run.states[-1].pool.distinct)[4] < 1).all()


@pytest.mark.thorough
def test_kuhn_is_learnt_against_a_pool():
    """Its exact NashConv, .917 for uniform play, falls below a third of that."""
    small_steps = {"learning_rate": 5e-3, "adam_beta1": 0.0, "entropy_coefficient": 0.2}
    exact = {"gamma": 1.0, "gae_lambda": 1.0, "normalize_observation": False}
    once = {"num_minibatches": 1, "epochs": 1}
    algo = PPOConfig(horizon=8, widths=(32,), **once, **small_steps, **exact)
    pool = replace(POOL, shares={"mirror": 0.5, "pfsp": 0.5})
    many = {"num_envs": 64, "total_env_steps": 1_000_000}
    program = make_program(configured(env=kuhn.make(), algo=algo, pool=pool, **many))
    tree, agent = exploitability.build_tree(program.env.rules), program.agents["player"]

    @jax.jit
    def trained(key):
        run, _ = jax.lax.scan(lambda run, _: (program.update(run)[0], None), program.init(key), None, 100)
        return run.pool.taken, exploitability.learner_probabilities(tree, agent, run.policies["player"])

    taken, chances = trained(jax.random.key(0))
    assert int(taken) == 101
    policy = exploitability.renormalise_legal(tree, chances)
    assert exploitability.nash_conv(tree, policy) < 0.3


def test_games_of_three_seats_are_rated_by_ranks():
    """The learner has its own seat, its opponent both others; games that mirror are left out."""
    config = configured(env=liarsdice.make(seats=3), num_envs=24)
    seat, spec = agents_lib.make_pool_role(config, {}, {}), config.env.spec
    points = np.array(
        [[[1, 0.5, 0], [0.25, 0.25, 1], [0, 0, 0]], [[0, 1, 0.5], [1, 0, 0.5], [0.5, 0.5, 0.5]]]
    )
    finished = Finished(
        mask=np.array([[True, True, False], [True, True, True]]),
        present={},
        episode_return={},
        length=np.zeros((2, 3), np.int32),
        results={"points": np.float32(points)},
        tags={"opponent": np.int32([[3, 2, 1], [0, 4, 2]]), "seat": np.int32([[0, 2, 1], [1, 1, 0]])},
    )
    ranked = jax.jit(lambda finished: pool_role.select_ranked_games(jax.random.key(0), spec, seat, finished))
    games = jax.device_get(ranked(finished))
    assert games.mask.tolist() == [True] * 4 + [False] * 2
    assert games.entries[:4].tolist() == [[0, 3, 3], [2, 2, 0], [4, 0, 4], [0, 2, 2]]
    assert games.ranks[:4].tolist() == [[0, 1, 2], [1, 1, 0], [0, 2, 1], [0, 0, 0]]
    many = jax.tree.map(lambda x: np.tile(x, (80, 1) + (1,) * (x.ndim - 2)), finished)
    some = jax.device_get(ranked(many))
    assert some.mask.sum() == 64
    _, number = np.unique(some.entries, axis=0, return_counts=True)
    assert number.size == 4 and number.min() > 4
    # Not the first ones, which go on in this order.
    assert not np.array_equal(some.entries, np.tile(games.entries[:4], (16, 1)))
    assert pool_role.select_ranked_games(jax.random.key(0), configured().env.spec, seat, finished) is None


def test_rated_games_are_drawn_evenly_from_all_opponents():
    """Also those whose environments come last, and whose games end late."""
    mask = np.ones((6, 100), bool)
    mask[0, :10] = False
    draw = jax.jit(jax.vmap(lambda key: pool_role.draw_subset(key, mask, 64)))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(0), 200)))
    assert (drawn.sum(axis=(1, 2)) == 64).all() and not drawn[:, ~mask].any()
    share = drawn.mean(axis=0)[mask]
    np.testing.assert_allclose(share.mean(), 64 / 590)
    assert share.std() < 1.3 * np.sqrt(64 / 590 * (1 - 64 / 590) / 200)
    parts = jax.vmap(
        lambda part: pool_role.draw_subset(jax.random.key(0), part, 64), 1, 1, axis_name=collectives.HERE
    )
    whole = pool_role.draw_subset(jax.random.key(0), mask, 64)
    np.testing.assert_array_equal(parts(mask.reshape(6, 2, 50)).reshape(6, 100), whole)
    few = jax.jit(pool_role.draw_subset, static_argnums=2)(jax.random.key(0), mask & (np.arange(100) < 9), 64)
    np.testing.assert_array_equal(few, mask & (np.arange(100) < 9))


@pytest.mark.thorough
def test_a_learner_with_three_seats_is_rated():
    """Against a random player and its own past; who wins more of the rated games is rated higher."""
    pool = replace(POOL, shares={"pfsp": 0.5, "fixed": 0.5}, groups=2, capacity=2)
    program = make_program(configured(env=liarsdice.make(seats=3), num_envs=24, pool=pool))

    @jax.jit
    def first(key):
        state = program.init(key)
        return state, *program.update(state)

    start, after, report = jax.device_get(first(jax.random.key(0)))
    before = start.pool
    table = games_of(report)
    number = table["seat"].size
    games = ratings.RankedGames(
        entries=np.where(np.arange(3) == table["seat"][:, None], 0, table["opponent"][:, None]),
        ranks=-np.stack([table[f"score/{seat}"] for seat in range(3)], axis=1).astype(int),
        mask=counted(start, table, pool.entries, 3),
    )
    system, moves = rating_system("trueskill"), before.kind == LEARNER
    expected = np.asarray(jax.jit(system.rank)(before.rating, games, moves))
    old = np.asarray(after.pool.iteration == before.iteration)
    assert 10 < games.mask.sum() <= min(number, 64) and np.abs(expected - before.rating).max() > 1.0
    np.testing.assert_allclose(np.asarray(after.pool.rating)[old], expected[old], atol=1e-3)


@pytest.mark.parametrize("own", [True, False])
def test_frozen_policy_has_the_same_place_in_evaluation_as_in_training(own):
    """Training is traced for small minibatches, readers of its checkpoints are not."""
    algo = PPOConfig(horizon=8, widths=(64, 64))
    config = configured(algo=algo, pool=replace(POOL, fixed=("frozen:RUN",)))
    theirs = agents_lib.make_learner(
        config if own else configured(algo=replace(algo, activation="relu")), ROLE
    )
    state = jax.eval_shape(lambda key: theirs.policy_state(theirs.init(key)), jax.random.key(0))
    frozen = {agents_lib.fixed_policy_name(0): agents_lib.FrozenPolicy(theirs, state)}
    agents = agents_lib.make_agents(config)
    assert agents[ROLE].compiler_options
    found = [agents_lib.make_pool_role(config, agents, frozen)]
    with traced_for_options():
        found.append(agents_lib.make_pool_role(config, agents, frozen))
    assert [seat.pool.pinned for seat in found] == [(0,) if own else ()] * 2


def test_segment_learners_play_a_pool():
    """Where a part of the environments mirrors, columns are no multiple of the environments."""
    algo = PPOConfig(horizon=8, sampling="sequential", core={"kind": "gru", "width": 8})
    plan = build.update_sizes_of_learners(configured(algo=algo))[ROLE]
    assert (plan.environments, plan.agents, plan.minibatch_segments) == (16, 24, 3)


def test_wrong_pools_of_turn_games():
    with pytest.raises(ValueError, match="num_envs=20: must be a multiple of pool.groups=4 times 2 seats"):
        configured(num_envs=20)
    with pytest.raises(ValueError, match="pool.hold=episode: not allowed in .*, which is turn-based"):
        configured(pool=replace(POOL, hold="episode", acting="sorted"))
    assert configured(pool=replace(POOL, shares={"pfsp": 1})).columns("player") == NUM_ENVS


@struct.dataclass
class Opening:
    clock: jax.Array
    short: jax.Array


class Head(GameRules):
    """The first seat wins; the game is over after its first move if that is 1, else after six plies."""

    name = "head"
    space = Discrete(2)
    features = 1
    plies = 6

    def __init__(self, seats):
        self.seats = seats

    def init(self, key):
        return Opening(jnp.int32(0), jnp.bool_(False))

    def turn(self, state):
        return state.clock % self.seats

    def over(self, state):
        return state.short | (state.clock >= self.plies)

    def scores(self, state):
        return winner_scores(0, self.seats)

    def legal(self, state):
        return jnp.ones(2, bool)

    def apply(self, key, state, action):
        return Opening(state.clock + 1, state.short | ((state.clock == 0) & (action == 1)))

    def observe(self, state, seat):
        return jnp.zeros(1)


def hasty_agent() -> Agent:
    """Always chooses 1, and learns nothing."""
    return Agent(
        init=lambda key: {"none": jnp.zeros(1)},
        initial_carry=lambda shape: (),
        act=lambda state, key, obs, carry, reset, mask: (jnp.ones_like(obs[..., :1], int), carry, {}),
        greedy=None,
        value=None,
        update=lambda state, key, rollout: (state, {"alive": rollout.alive, "reward": rollout.reward}),
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("seats", "hold", "rows"), [(2, 2, 4), (2, 1, 2), (3, 2, 4)])
def test_scores_are_means_over_seats(seats, hold, rows):
    """Its games as first last one ply, the others one or six; it wins exactly one of N that count."""
    pool = replace(POOL, shares={"mirror": 0.25, "pfsp": 0.75}, hold=hold, snapshot_every=3)
    env = TextGame(Head(seats))
    program = make_program(configured(env=env, num_envs=4 * seats * rows, pool=pool), {ROLE: hasty_agent()})

    @jax.jit
    def some(key):
        return jax.lax.scan(lambda run, _: program.update(run), program.init(key), None, 6)

    run, report = jax.device_get(some(jax.random.key(0)))
    had = np.zeros(seats, int)
    for update in range(6):
        table = {name: column[update] for name, column in report.episodes.items()}
        met = table["opponent"][: table["number"]] > 0
        had += np.bincount(table["seat"][: table["number"]][met], minlength=seats)
    assert had.sum() > 12 * seats * rows and np.ptp(had) <= 0.05 * had.sum()
    won, lost = run.pool.wins[0, 1:], run.pool.wins[1:, 0]
    assert (won > 0).sum() >= 2 and not run.pool.draws.any()
    np.testing.assert_array_equal(lost, (seats - 1) * won)


class Bids(GameRules):
    """Each seat chooses once, and the higher choice wins."""

    name = "bids"
    space = Discrete(2)
    features = 1
    plies = 2

    def init(self, key):
        return jnp.full(2, -1, jnp.int32)

    def turn(self, state):
        return jnp.argmin(state).astype(jnp.int32)

    def over(self, state):
        return jnp.all(state >= 0)

    def scores(self, state):
        return jnp.sign(jnp.stack([state[0] - state[1], state[1] - state[0]])).astype(jnp.float32)

    def legal(self, state):
        return jnp.ones(2, bool)

    def apply(self, key, state, action):
        return state.at[self.turn(state)].set(action)

    def observe(self, state, seat):
        return jnp.zeros(1)


class StagedBids(TextGame):
    """A game whose stages differ in name only."""

    def __init__(self):
        super().__init__(Bids())
        self.scripts = {"low": make_scripted_policy(self.rules, lambda key, game: jnp.int32(0))}
        self.opponents = {}

    def task_params(self, settings):
        return self.default_params()


def test_stages_are_passed_by_games_against_opponents():
    """The learner beats the script in each game. All games that it plays against itself are draws."""
    phases = [{"name": name, "settings": {}} for name in ("first", "last")]
    common = {"criteria": {"min_episodes": 16, "window_size": 16, "success_rate": 0.9, "patience": None}}
    pool = replace(POOL, shares={"mirror": 0.5, "fixed": 0.5}, fixed=("low",))
    given = {"curriculum": lambda env: phased_curriculum(env, phases, common), "pool": pool}
    program = make_program(configured(env=StagedBids(), **given), {ROLE: hasty_agent()})

    @jax.jit
    def first(key):
        return program.update(program.init(key))

    run, report = jax.device_get(first(jax.random.key(0)))
    table = games_of(report)
    assert set(table["points"][table["opponent"] > 0]) == {1.0}
    assert set(table["points"][table["opponent"] == 0]) == {0.5}
    assert int(run.curriculum.course.stage) == int(run.curriculum.course.advances) == 1
