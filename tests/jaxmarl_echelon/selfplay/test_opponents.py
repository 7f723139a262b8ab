"""A role played by a pool in training: groups, counts, checkpoints, shards."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from duels import LIMIT, Duel, DuelState
from played_runs import History, loose, played, same

from algos.off_policy.sac import SACConfig
from algos.off_policy.td3 import TD3Config
from algos.on_policy.a2c import A2CConfig
from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import checkpoints
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.episodes import EpisodeEvents, Finished
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay.credit import TransformSettings
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.acting.controllers import Controller
from jaxmarl_echelon.training.acting.state import ControllerView, RunState
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.host import describe_pool
from jaxmarl_echelon.training.opponents import pool_role
from jaxmarl_echelon.training.program import agents
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.rollouts import collect as rollout
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec
from physics.sparse_batch import compute_where

POOL = PoolSettings(capacity=3, groups=4, snapshot_every=1, fixed=("still", "coin"), hold=2)
# Evaluations play another policy than rollouts: a mean.
ALGO = A2CConfig(horizon=4, widths=(8,), learning_rate=0.01, policy_average=0.5)
REPLAYED = {
    "widths": (4,),
    "horizon": 4,
    "batch_size": 16,
    "learning_starts": 32,
    "replay": {"capacity": 4800},
}
NUM_ENVS = 16
MIRRORED = 8


def configured(pool: PoolSettings = POOL, **changes) -> RunConfig:
    given = {
        "env": Duel(),
        "algo": ALGO,
        "curriculum": constant_curriculum,
        "total_env_steps": 10_000,
        "num_envs": NUM_ENVS,
        "controllers": {"red": "pool:blue"},
        "pool": pool,
        "stagger": False,
        "transforms": TransformSettings(final=["RoleAdvantage"], sampling=["Normalize"]),
    }
    return RunConfig(**given | changes)


@pytest.fixture(scope="module")
def history() -> History:
    return played(configured(), 12)


def rows_of(slots) -> np.ndarray:
    """The entry that plays in each environment."""
    return np.concatenate([np.zeros(MIRRORED, int), np.repeat(np.asarray(slots), NUM_ENVS // 4)])


def finished_episodes(report) -> dict[str, np.ndarray]:
    """The rows of a report's table of episodes."""
    number = int(report.episodes["number"])
    return {name: column[:number] for name, column in report.episodes.items() if name != "number"}


def counted(before: RunState, after: RunState) -> np.ndarray:
    """`[n, n]` games won between two states, by whom against whom."""
    return np.asarray(after.pool.wins) - np.asarray(before.pool.wins)


def test_games_belong_to_one_opponent(history):
    """Every finished game is counted for the entry of its group, and none is under way when it changes."""
    total, seat = 0, agents.make_pool_role(configured(), {}, {})
    for before, after, report in zip(history.states, history.states[1:], history.reports, strict=False):
        entries, table = rows_of(before.pool.slots), finished_episodes(report)
        np.testing.assert_array_equal(table["opponent"], entries[table["env"]])
        wins, losses = np.zeros(6, int), np.zeros(6, int)
        np.add.at(wins, table["opponent"][table["outcome"] == 0], 1)
        np.add.at(losses, table["opponent"][table["outcome"] == 1], 1)
        kept = np.array(before.pool.iteration == after.pool.iteration)
        kept[0] = False
        np.testing.assert_array_equal(counted(before, after)[0][kept], wins[kept])
        np.testing.assert_array_equal(counted(before, after)[:, 0][kept], losses[kept])
        changes = np.repeat(
            np.asarray(pool_lib.groups_due_for_change(seat.pool, before.pool.updates)), NUM_ENVS // 4
        )
        assert np.asarray(after.reset)[MIRRORED:][changes].all()
        total += wins[1:].sum() + losses[1:].sum()
    assert total > 20
    assert not all(np.asarray(run.reset)[MIRRORED:].all() for run in history.states[1:])


def test_a_full_pool_changes_no_program(history):
    last = history.states[-1].pool
    assert int(jnp.sum(last.kind == pool_lib.SNAPSHOT)) == 3 and int(last.taken) > 6
    assert len({tuple(np.asarray(run.pool.slots).tolist()) for run in history.states}) > 2
    assert history.update._cache_size() == 1


def test_the_bank_is_frozen(history):
    require_frozen(history, "blue")


def require_frozen(history: History, role: str) -> None:
    """A slot holds the learner of the update in which it was taken, bit for bit, until it goes.

    That is the policy that played the rated games.
    """
    agent = history.program.agents[role]
    for before, after in zip(history.states, history.states[1:], strict=False):
        policy = agent.rollout_policy(after.policies[role])
        for slot in range(3):
            entry = slot + 1
            source = before.pool.bank if after.pool.iteration[entry] == before.pool.iteration[entry] else None
            for found, held, new in zip(
                jax.tree.leaves(after.pool.bank),
                jax.tree.leaves(before.pool.bank),
                jax.tree.leaves(policy),
                strict=True,
            ):
                np.testing.assert_array_equal(found[slot], new if source is None else held[slot])


def test_learner_learns_from_all_its_seats():
    """Columns: its own agents everywhere, the pool's only where it mirrors."""
    assert configured().columns("blue") == NUM_ENVS * 2 + MIRRORED * 2
    both = configured(controllers={"red": "pool:red"})
    assert (both.columns("blue"), both.columns("red")) == (NUM_ENVS * 2, MIRRORED * 2)
    assert list(both.algos) == ["blue", "red"] and both.rival == "blue"


def test_checkpoint_of_a_full_pool_continues_bit_for_bit(history, tmp_path):
    run = history.states[-2]
    checkpoints.save_checkpoint(tmp_path, ("latest",), run, {"step": 0})
    like = jax.eval_shape(lambda: run)
    restored = loose(checkpoints.restore_state(checkpoints.find_checkpoint(tmp_path, "latest"), like))
    again, _ = history.update(restored)
    assert history.update._cache_size() == 1
    assert same(again, history.states[-1])


@pytest.fixture(scope="module")
def divided() -> History:
    """Two shards; red has a learner of its own, one with a replay, of whose past blue meets commanders."""
    shares = {"mirror": 0.5, "commanders": 0.5}
    pool = replace(POOL, fixed=(), shares=shares, promote_after=1, evict="idle", rating="glicko2")
    learners = {"controllers": {"red": "pool:red"}, "algos": {"red": TD3Config(**REPLAYED)}}
    return played(configured(pool, env=Pushes(), shards=2, transforms=TransformSettings(), **learners), 5)


@pytest.mark.thorough
def test_both_roles_learn_and_one_plays_the_past_of_the_other(divided):
    """`pool:red` for red: the bank holds red's past, blue is rated, red learns where it mirrors."""
    run, updates = divided, 5
    start, end = run.states[0], run.states[-1]
    for name in ("blue", "red"):
        before, after = (jax.tree.leaves(x.policies[name].params) for x in (start, end))
        assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert int(end.pool.taken) == 1 + updates
    red = jax.tree.leaves(run.program.agents["red"].policy_state(end.policies["red"]))
    newest = int(pool_lib.newest_snapshot(end.pool)) - 1
    for held, own in zip(jax.tree.leaves(end.pool.bank), red, strict=True):
        np.testing.assert_array_equal(held[newest], own)


@pytest.mark.thorough
def test_shards_have_groups_of_their_own(divided):
    """Two shards: one pool, whose groups are dealt out to them; each mirrors in its first half."""
    run = divided
    pool = run.states[-1].pool
    assert pool.slots.shape == (2,) and run.states[-1].reset.shape == (2, NUM_ENVS // 2)
    for before, report in zip(run.states, run.reports, strict=False):
        slots, number = np.asarray(before.pool.slots), int(report.episodes["number"])
        entries = np.concatenate([[0] * 4, [slots[0]] * 4, [0] * 4, [slots[1]] * 4])
        env, opponent = report.episodes["env"][:number], report.episodes["opponent"][:number]
        np.testing.assert_array_equal(opponent, entries[env])
    assert int(pool.wins.sum()) > 0


RECURRENT = PPOConfig(
    horizon=4, widths=(8,), core={"kind": "gru", "width": 4}, sampling="sequential", minibatch_size=4
)


def test_ways_to_act_agree():
    """Greedy actions and carries of groups, of sorted rows and of all policies on all rows are the same."""
    options = {"capacity": 4, "groups": 6, "fixed": (), "shares": {"pfsp": 1}, "greedy": True}
    config = configured(replace(POOL, **options), num_envs=24, algo=RECURRENT)
    agent = agents.make_agents(config)["blue"]
    bank = jax.jit(jax.vmap(lambda key: agent.policy_state(agent.init(key))))(keys(4))
    one = jax.tree.map(lambda x: x[0], bank)
    actions = {}
    for acting in ("groups", "dense", "sorted"):
        config = replace(config, pool=replace(config.pool, acting=acting))
        seat = agents.make_pool_role(config, {}, {})
        controller = agents.make_pool_controller(config, config.env, {"blue": agent}, {})

        @jax.jit
        def acted(bank, one, seat=seat, controller=controller, env=config.env):
            state = pool_lib.init_pool(seat.pool, jax.random.key(1), one)
            state = state.replace(bank=bank, slots=jnp.array([3, 1, 1, 4, 2, 1], jnp.int32))
            met = pool_role.select_opponents(seat, agent, state, {"blue": one})
            time = jax.vmap(lambda key: env.reset(key, env.default_params()))(keys(24))[1]
            obs = jax.random.normal(jax.random.key(3), time.obs["red"].shape)
            view = ControllerView(None, None, time.replace(obs=time.obs | {"red": obs}))
            memory = controller.init(24)
            memory = jax.tree.map(lambda x: x + jnp.arange(x.size).reshape(x.shape) % 7 / 7.0, memory)
            return controller.act(jax.random.key(4), met, memory, view, jnp.arange(24) % 5 == 0)

        memory, action, choice = acted(bank, one)
        assert choice is None and action.shape == (24, 2)
        actions[acting] = (np.asarray(action), *map(np.asarray, jax.tree.leaves(memory.bank)))
    for other in ("dense", "sorted"):
        for ours, theirs in zip(actions["groups"], actions[other], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert len(actions["groups"]) > 1
    assert len({part.tobytes() for part in np.split(actions["groups"][0], 6)}) > 1


EPISODIC = replace(POOL, hold="episode", acting="sorted", shares={"mirror": 1, "random": 1})


def test_episodes_have_opponents_of_their_own():
    """Who is told to play is who acts, from the first decision of an episode to its last, beside others."""
    config = configured(replace(EPISODIC, mode="fixed", fixed=("still", "other")), num_envs=24)
    program, seat = make_program(config), agents.make_pool_role(config, {}, {})
    acting = agents.make_controllers(config, config.env, program.agents, {}, greedy=False)
    collector = RolloutSpec(config.env, program.agents, acting, config.horizon, 1, seat)

    def collect(run, key):
        run, collected = rollout.collect_rollout(
            collector, run, key, lambda key: constant_curriculum(config.env).draw(key, run.curriculum)
        )
        return run, (collected.flow, collected.rollouts["blue"], run.pool.slots)

    @jax.jit
    def collected(key):
        keys = jax.vmap(jax.random.key)(jnp.arange(5))
        return jax.lax.scan(collect, program.init(key), keys)[1]

    found, entries, begins = jax.device_get(collected(jax.random.key(0))), [], []
    for number in range(5):
        flow, own, slots = jax.tree.map(lambda x, number=number: x[number], found)
        met = flow.tags[pool_role.TAG]
        # Blue is paid for playing what red plays: 0 if it stands still, entry 4, else 1, entry 5.
        equal, mine = own.reward[:, :, 0] > 0, own.action[:, :, 0, 0]
        np.testing.assert_array_equal(np.where(equal, mine, 1 - mine), met - 4)
        ended = flow.finished.mask
        np.testing.assert_array_equal(flow.finished.tags[pool_role.TAG][ended], met[ended])
        np.testing.assert_array_equal(slots, met[-1])
        entries.append(met)
        begins.append(own.reset[:, :, 0])
    entries, begins = np.concatenate(entries), np.concatenate(begins)
    changes = entries[1:] != entries[:-1]
    assert begins[0].all() and not (changes & ~begins[1:]).any()
    # Half of the new episodes meet another opponent than the last one.
    assert 0.3 < changes.sum() / begins[1:].sum() < 0.7
    assert not begins[4::4].all(axis=1).any()


@pytest.fixture(scope="module")
def episodic() -> History:
    """Two shards, each of which mirrors in its first half and plays its part of one list of opponents."""
    return played(configured(EPISODIC, shards=2), 10)


@pytest.mark.thorough
def test_opponents_of_episodes_leave_the_pool(episodic):
    """Snapshots go on in a full pool: only episodes against the slot that goes are broken off."""
    broken, differ = 0, False
    for before, after, report in zip(episodic.states, episodic.states[1:], episodic.reports, strict=False):
        new = np.flatnonzero(np.asarray(after.pool.iteration != before.pool.iteration))
        assert new.size == 1 and int(new[0]) in (int(before.pool.leaving), 2 if broken == 0 else -1)
        table = finished_episodes(report)
        for outcome, grown in enumerate((counted(before, after)[0], counted(before, after)[:, 0])):
            won = table["opponent"][table["outcome"] == outcome]
            kept = np.arange(6)[(np.arange(6) > 0) & (np.arange(6) != new[0])]
            np.testing.assert_array_equal(grown[kept], np.bincount(won, minlength=6)[kept])
        assert ((table["opponent"] > 0) == (table["env"] % MIRRORED >= MIRRORED // 2)).all()
        slots, ended = np.asarray(after.pool.slots), np.asarray(after.reset)[:, MIRRORED // 2 :].ravel()
        assert slots.shape == (MIRRORED,) and ((slots != new[0]) | ended).all()
        differ |= (slots[: MIRRORED // 2] != slots[MIRRORED // 2 :]).any()
        broken += ended.sum()
    last = episodic.states[-1].pool
    assert int(last.taken) == 11 and int(last.iteration[1]) == 0 and int(last.wins.sum()) > 40
    assert differ and 0 < broken < 10 * MIRRORED * 0.8


@pytest.mark.thorough
def test_the_bank_is_frozen_for_episodes(episodic):
    require_frozen(episodic, "blue")


def keys(number):
    return jax.random.split(jax.random.key(0), number)


def test_fixed_opponents_act_only_in_their_groups():
    """A script's memory counts its decisions in the rows that play it; others play the bank."""
    config = configured(replace(POOL, shares={"pfsp": 1}, groups=4))
    agent = agents.make_agents(config)["blue"]
    seat = agents.make_pool_role(config, {}, {})
    controller = agents.make_pool_controller(config, config.env, {"blue": agent}, {})
    params = jax.tree.map(lambda x: jnp.full(NUM_ENVS, x), config.env.default_params())

    @jax.jit
    def act(memory, begins):
        owner = agent.init(jax.random.key(0))
        state = pool_lib.init_pool(seat.pool, jax.random.key(1), agent.policy_state(owner))
        state = state.replace(slots=jnp.array([4, 1, 4, 5], jnp.int32))
        met = pool_role.select_opponents(seat, agent, state, {"blue": owner})
        env_state, time = jax.vmap(config.env.reset)(keys(NUM_ENVS), params)
        view = ControllerView(env_state, params, time)
        return controller.act(jax.random.key(3), met, memory, view, jnp.full(NUM_ENVS, begins))

    memory = controller.init(NUM_ENVS)
    for step in range(2):
        memory, action, _ = act(memory, step == 0)
    assert (np.asarray(action)[:4] == 0).all() and (np.asarray(action)[8:12] == 0).all()
    np.testing.assert_array_equal(memory.fixed[1], 2)


def test_fixed_opponents_act_in_a_group_of_runs_as_in_each():
    """In one run of the group a script is met; it computes with constants in a batching rule of its own."""
    config = configured(replace(POOL, shares={"pfsp": 1}, groups=4))
    agent = agents.make_agents(config)["blue"]
    seat = agents.make_pool_role(config, {}, {})
    rest, role = NUM_ENVS - seat.mirrored(NUM_ENVS), config.env.spec.role("red")

    def add(total):
        return total + jnp.asarray(np.arange(3)).sum(dtype=jnp.int32)

    def count(_key, _policy, memory, _view, reset):
        memory = jax.vmap(lambda x: compute_where(add, x >= 0, x, x, share=0.5))(memory)
        return memory, jnp.ones((reset.shape[0], role.size), jnp.int32), None

    scripted = Controller(lambda number: jnp.zeros(number, jnp.int32), count, None)
    controller = pool_role.simultaneous_pool_controller(seat, agent, role, {0: scripted})
    params = jax.tree.map(lambda x: jnp.full(NUM_ENVS, x), config.env.default_params())
    begun = jax.vmap(config.env.reset)(keys(NUM_ENVS), params)
    view = ControllerView(begun[0], params, begun[1])

    def act(slots):
        owner = agent.init(jax.random.key(0))
        state = pool_lib.init_pool(seat.pool, jax.random.key(1), agent.policy_state(owner))
        met = pool_role.select_opponents(seat, agent, state.replace(slots=slots), {"blue": owner})
        memory = controller.init(NUM_ENVS)
        return controller.act(jax.random.key(3), met, memory, view, jnp.ones(NUM_ENVS, bool))[:2]

    runs = jnp.array([[4, 1, 4, 1], [1, 1, 1, 1]], jnp.int32)
    together = jax.jit(jax.vmap(act))(runs)
    for one, slots in enumerate(runs):
        assert same(jax.tree.map(lambda x, one=one: x[one], together), jax.jit(act)(slots))
    np.testing.assert_array_equal(together[0].fixed[0], [[3] * rest, [0] * rest])


class Pushes(Duel):
    """The duel with choices by the sign of a number, for learners with continuous actions."""

    @property
    def spec(self):
        spec = super().spec
        roles = tuple(replace(role, action=Box((1,), -1.0, 1.0)) for role in spec.roles)
        return replace(spec, roles=roles)

    def step(self, key, state, actions, params):
        choices = {team: (action[:, 0] > 0).astype(jnp.int32) for team, action in actions.items()}
        return super().step(key, state, choices, params)


LEAGUE = PoolSettings(groups=4, league={"main": 2})


def staged(env):
    """A curriculum whose stages are evaluated."""
    return constant_curriculum(env)._replace(stages=("first", "last"))


WRONG = [
    (
        {"controllers": {"red": "pool:green"}},
        "controllers.red=pool:green: unknown learner; allowed: pool:",
    ),
    (
        {"controllers": {"red": "pool:red", "blue": "still"}},
        "controllers.red=pool:red: needs another role",
    ),
    ({"controllers": {"blue": "pool:red", "red": "pool:blue"}}, "controllers={"),
    ({"num_envs": 18}, "num_envs=18: must be a multiple of pool.groups=4, such as 16 or 20"),
    ({"shards": 8}, "pool.groups=4: must be a multiple of shards=8"),
    (
        {"controllers": {"red": "pool:red"}, "pool": PoolSettings(mode="pfsp")},
        "controllers.red=pool:red: pool.shares.mirror must be above 0, as red learns only there",
    ),
    (
        {"pool": replace(POOL, fixed=("nobody",))},
        "pool.fixed=nobody: unknown script of red; allowed: frozen:PATH, still, other, coin",
    ),
    ({"pool": LEAGUE, "curriculum": staged}, "pool.league={'main': 2}: needs a curriculum without stages"),
    (
        {"pool": LEAGUE, "env": Pushes(), "algo": SACConfig(horizon=4), "transforms": TransformSettings()},
        "pool.league={'main': 2}: blue learns from a replay; leagues need on-policy learners",
    ),
    (
        {"pool": LEAGUE, "controllers": {"red": "pool:red"}},
        "controllers.red=pool:red: a league needs the past of blue, pool:blue",
    ),
]


@pytest.mark.parametrize("changes,message", WRONG)
def test_wrong_pools(changes, message):
    with pytest.raises(ValueError) as error:
        make_program(configured(**changes))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_episodes_can_be_longer_than_a_rollout():
    seat = agents.make_pool_role(configured(replace(POOL, hold="auto")), {}, {})
    assert seat.pool.hold == -(-4 * LIMIT // 4)


@pytest.mark.thorough
class Fate(Duel):
    """A fair coin decides: blue wins after one decision, or red after `LIMIT`."""

    def reset(self, key, params):
        won = jax.random.bernoulli(key)
        state = DuelState(jnp.where(won, 1, LIMIT), jnp.where(won, 1.0, -1.0))
        return state, self._time(state, jnp.float32(0.0))

    def step(self, key, state, actions, params):
        state = state.replace(left=state.left - 1)
        return state, self._time(state, jnp.float32(0.0))


def test_short_games_do_not_count_more():
    """Opponents change after eight decisions: all games that are cut would have been won by red."""
    pool = replace(POOL, mode="fixed", snapshot_every=10_000)
    program = make_program(configured(pool, env=Fate(), num_envs=64, window=4096))

    @jax.jit
    def some(key):
        return jax.lax.scan(lambda run, _: program.update(run), program.init(key), None, 40)

    run, report = some(jax.random.key(0))
    won, lost = int(run.pool.wins[0].sum()), int(run.pool.wins[:, 0].sum())
    # If all that end counted, blue would have won .64 of them.
    assert won + lost > 1000 and abs(won / (won + lost) - 0.5) < 0.05
    assert abs(float(report.metrics["train/success_rate"][-1]) - 0.5) < 0.05


@pytest.mark.parametrize("hold", [2, 1, "episode"])
def test_episodes_count_by_the_decision_in_which_they_began(hold):
    """At least the limit of six before a change of opponents; all where changes come sooner than that."""
    pool = replace(POOL, hold=hold, acting="sorted" if hold == "episode" else "groups")
    seat, chances = agents.make_pool_role(configured(pool), {}, {}), np.random.default_rng(0)
    shape, length = (ALGO.horizon, NUM_ENVS), chances.integers(1, LIMIT + 1, (ALGO.horizon, NUM_ENVS))
    tags, every = {"opponent": chances.integers(0, 4, shape)}, np.ones(shape, bool)
    flow = EpisodeEvents(every, tags, every, Finished(every, {}, {}, length, {}, {}))
    state = SimpleNamespace(updates=jnp.int32(0), leaving=jnp.int32(2))
    kept = pool_role.leave_out_episodes_near_cuts(Duel().spec, seat, state, flow, whole_games=False)
    never = np.full(NUM_ENVS, 100)
    # The first group's opponent changes after this update, the second one's after the next.
    cut = {2: np.repeat([100, 4, 8], [8, 4, 4]), 1: never, "episode": never}[hold]
    cut = np.where(tags["opponent"] == 2, 4, 100) if hold == "episode" else np.broadcast_to(cut, shape)
    now = np.arange(ALGO.horizon)[:, None]
    np.testing.assert_array_equal(kept.begins, cut - now >= LIMIT)
    np.testing.assert_array_equal(kept.finished.mask, cut - (now - length + 1) >= LIMIT)


@pytest.mark.parametrize(
    ("changes", "warned"), [({}, 0), ({"hold": 1}, 1), ({"hold": 1, "mode": "mirror"}, 0)]
)
def test_a_line_warns_of_opponents_that_change_before_episodes_end(changes, warned):
    lines = describe_pool.describe_short_hold(configured(replace(POOL, **changes)))
    assert [line.partition("; ")[0] for line in lines] == warned * [
        "warning: pool.hold=1: opponents change after 4 decisions, episodes have up to 6"
    ]


def test_off_policy_learner_plays_its_past():
    """It remembers its own decisions, its mirrored ones included, and no opponent's; the past is frozen."""
    pool = replace(POOL, fixed=())
    config = configured(pool, env=Pushes(), algo=SACConfig(**REPLAYED), transforms=TransformSettings())
    assert config.columns("blue") == NUM_ENVS * 2 + MIRRORED * 2
    found = played(config, 5)
    require_replayed(found, "blue", np.full(config.columns("blue"), 4))
    assert int(found.states[-1].pool.taken) == 6 and int(found.states[-1].pool.wins.sum()) > 10


@pytest.mark.thorough
def test_past_of_an_off_policy_learner_is_played_by_another(divided):
    """It remembers what it has decided where it mirrors, in each shard its own; its past is frozen, too."""
    require_replayed(divided, "red", np.full((2, MIRRORED), 4))
    assert int(divided.states[-1].pool.taken) == 6 and int(divided.states[-1].pool.wins.sum()) > 10


def require_replayed(found: History, role: str, decided: np.ndarray) -> None:
    """The bank is frozen, the policy learns, and every update adds what was decided."""
    require_frozen(found, role)
    agent = found.program.agents[role]
    for number, run in enumerate(found.states):
        np.testing.assert_array_equal(run.policies[role].replay.ring.count, decided * number)
    first, last = (jax.tree.leaves(agent.policy_state(run.policies[role])) for run in found.states[::5])
    assert any(bool(jnp.any(x != y)) for x, y in zip(first, last, strict=True))
