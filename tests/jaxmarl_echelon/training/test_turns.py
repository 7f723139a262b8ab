"""The turn driver: rows of own decisions, against one row per ply and against rows worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from marked import mark_others

from algos.off_policy.sac import SACConfig
from algos.off_policy.teams import VDNConfig
from algos.on_policy import sample_epochs
from algos.on_policy.ppo import PPOConfig
from algos.on_policy.pqn_vdn import PQNVDNConfig
from algos.on_policy.returns import gae
from algos.types import Agent
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.base import ScriptedPolicy
from jaxmarl_echelon.envs.check_env import check_env
from jaxmarl_echelon.envs.episodes import EpisodeTask
from jaxmarl_echelon.envs.spaces import Discrete
from jaxmarl_echelon.envs.textgames.env import ROLE, TextGame
from jaxmarl_echelon.envs.textgames.games import liarsdice, tictactoe
from jaxmarl_echelon.envs.textgames.rules import GameRules, winner_scores
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.acting import controllers
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.program import evaluation
from jaxmarl_echelon.training.program.agents import make_agents
from jaxmarl_echelon.training.program.program import make_program
from jaxmarl_echelon.training.rollouts import collect, turn_based
from jaxmarl_echelon.training.rollouts.spec import RolloutSpec

GAMMA, LAMBDA, ENVS, SUPER_STEPS = 0.9, 0.8, 6, 8


@struct.dataclass
class State:
    clock: jax.Array
    turn: jax.Array
    total: jax.Array


class Hops(GameRules):
    """Three seats; the turn goes on by one or two, or stays; the game ends when a total is reached."""

    name = "hops"
    seats = 3
    space = Discrete(3)
    features = 3 + 3 + 2
    plies = 30

    def init(self, key):
        return State(jnp.int32(0), jnp.int32(0), jax.random.randint(key, (), 0, 3))

    def turn(self, state):
        return state.turn

    def over(self, state):
        return state.total >= 12

    def scores(self, state):
        return winner_scores(state.clock % 3, 3)

    def legal(self, state):
        return jnp.arange(3) != state.total % 3

    def apply(self, key, state, action):
        hop = 1 + jax.random.randint(key, (), 0, 3) * (action > 0)
        return State(state.clock + 1, (state.turn + hop) % 3, state.total + 1 + action)

    def observe(self, state, seat):
        shown = [jnp.arange(3) == seat, jnp.arange(3) == state.turn]
        numbers = jnp.stack([state.total / 16, state.clock / 32])
        return jnp.concatenate([*shown, numbers]).astype(jnp.float32)


def fake_value(obs):
    return jnp.sin(7.0 * obs @ jnp.arange(1.0, 9.0))


def deterministic_agent() -> Agent:
    """Acts and values by a function of what it sees, so that both forms play the same games."""

    def act(state, key, obs, carry, reset, mask):
        liking = jnp.sin(obs @ jnp.arange(2.0, 10.0))[..., None] * jnp.arange(1.0, 4.0)
        action = jnp.argmax(jnp.where(mask, jnp.sin(9 * liking), -jnp.inf), axis=-1)[..., None]
        return action, carry, {"value": fake_value(obs)}

    return Agent(
        init=lambda key: (),
        initial_carry=lambda shape: (),
        act=act,
        greedy=None,
        value=lambda state, obs, carry, reset, mask: fake_value(obs),
        update=None,
    )


@pytest.fixture(scope="module")
def both():
    """The same games by the plain form and by the driver: collectors' results."""
    env, agent = TextGame(Hops()), deterministic_agent()
    config = RunConfig(env, PPOConfig(horizon=SUPER_STEPS), constant_curriculum, 1, num_envs=ENVS)
    program = make_program(config, {ROLE: agent})
    run = jax.jit(program.init)(jax.random.key(3))
    seats = {ROLE: controllers.make_learner_controller(agent, env.spec.role(ROLE), ROLE, greedy=False)}

    def draw(key):
        return EpisodeTask(env.default_params())

    plain = RolloutSpec(env, {ROLE: agent}, seats, SUPER_STEPS * 3)
    driven = plain._replace(horizon=SUPER_STEPS)
    play = jax.jit(
        lambda run, key: (
            collect.collect_rollout(plain, run, key, draw),
            turn_based.collect_turn_based(driven, run, key, draw),
        )
    )
    return jax.device_get(play(run, jax.random.key(1)))


def estimates(played):
    return gae(
        played.reward,
        played.extras["value"],
        played.last_value,
        played.discount,
        played.boundary,
        played.bootstrap,
        GAMMA,
        LAMBDA,
        alive=played.alive,
        skip=played.skip,
        last_skip=played.last_skip,
    )


def test_rows_of_own_decisions_agree_with_one_row_per_ply(both):
    (run, plain), (other, driven) = both
    np.testing.assert_array_equal(run.episodes.env.game.total, other.episodes.env.game.total)
    np.testing.assert_array_equal(plain.flow.over, driven.flow.over)
    plain, driven = plain.rollouts[ROLE], driven.rollouts[ROLE]
    seat = np.argmax(plain.alive, axis=2)
    decides = plain.alive.any(2)
    assert np.mean(~decides) > 0.2, "the game has too few forced plies for this test"

    def in_columns(x):
        """Values of `x [T * N, E, A]` for the acting seat, in the columns `[T, N * E]` of a rollout."""
        own = np.take_along_axis(x, seat[..., None], axis=2)[..., 0]
        return own.reshape(SUPER_STEPS, 3 * ENVS)

    alive = decides.reshape(SUPER_STEPS, 3 * ENVS)
    np.testing.assert_array_equal(driven.alive[..., 0], alive)
    np.testing.assert_array_equal(driven.skip[..., 0], ~alive)
    np.testing.assert_array_equal(
        driven.extras["value"][..., 0][alive], in_columns(plain.extras["value"])[alive]
    )
    # Up to the last end of a game in a column everything is known to both.
    ends = driven.boundary[..., 0]
    known = alive & (np.cumsum(ends[::-1], axis=0)[::-1] > 0)
    assert known.mean() > 0.3
    for ours, theirs in zip(estimates(driven), estimates(plain), strict=True):
        np.testing.assert_allclose(ours[..., 0][known], in_columns(theirs)[known], rtol=1e-5, atol=1e-6)


def test_the_last_row_has_advantage_zero_unless_its_game_ended(both):
    _, (_, driven) = both
    driven = driven.rollouts[ROLE]
    advantage, target = estimates(driven)
    last = driven.alive[-1] & ~driven.boundary[-1]
    assert last.any()
    np.testing.assert_array_equal(advantage[-1][last], 0)
    np.testing.assert_array_equal(target[-1][last], driven.extras["value"][-1][last])


def test_the_loser_gets_its_reward_for_its_last_move():
    """Plies A B A B A with values .1 -.2 .3 -.4 .6, A wins on the fifth (docs/reference/trainer.md 12.3)."""
    value = np.zeros((8, 1, 1), np.float32)
    value[:5, 0, 0] = 0.1, -0.2, 0.3, -0.4, 0.6
    reward = np.zeros((8, 1, 2), np.float32)
    ended = np.zeros((8, 1), bool)
    ended[4] = True
    reward[4] = [[1.0, -1.0]]
    told = turn_based.PlyOutcome(jnp.asarray(reward), jnp.asarray(ended), jnp.zeros((8, 1), bool))
    record = {
        "obs": value,
        "action": value,
        "extras": {"value": value},
        "reset": value > 9,
        "alive": value < 9,
        "skip": value > 9,
        "mask": None,
    }
    record = jax.tree.map(
        lambda x: turn_based.merge_phases(jnp.asarray(x).reshape((4, 2) + x.shape[1:])), record
    )
    paid = jax.tree.map(lambda x: turn_based.merge_phases(x)[..., None], turn_based.accumulate_outcomes(told))
    played = turn_based.assemble_rollout(record, paid, ())
    np.testing.assert_array_equal(played.discount[:, :, 0], [[1, 1], [1, 0], [0, 1], [1, 1]])
    advantage, _ = estimates(played)
    np.testing.assert_allclose(advantage[:3, 0, 0], [0.55016, 0.528, 0.4], atol=1e-5)
    np.testing.assert_allclose(advantage[:2, 1, 0], [-0.592, -0.6], atol=1e-5)


def test_a_decision_is_not_learnt_from_if_its_game_is_discarded_while_its_seat_waits():
    """Rows: two decisions, two passes of which the second is cut, and the next game, which ends."""
    column = np.array([0.1, 0.2, 0.7, 0.9, 0.3], np.float32)[:, None, None]
    waits = np.array([False, False, True, True, False])[:, None, None]
    record = {
        "obs": column,
        "action": column,
        "extras": {"value": column},
        "reset": column == 0.3,
        "alive": ~waits,
        "skip": waits,
        "mask": None,
    }
    broken = np.array([False, False, False, True, False])[:, None, None]
    paid = turn_based.DecisionOutcome(jnp.zeros((5, 1, 1)), jnp.asarray(column == 0.3), jnp.asarray(broken))
    played = turn_based.assemble_rollout(record, paid, ())
    np.testing.assert_array_equal(played.alive[:, 0, 0], [True, False, False, False, True])
    # The first decision is followed by the value of the second, not by that of a pass.
    _, target = estimates(played)
    assert float(target[0, 0, 0]) == pytest.approx(GAMMA * 0.2)


def test_an_invalid_answer_is_won_by_the_other_seats_last_decision():
    """Plies A B A B, A offends on the third: B's only decision won by it, A's two did not."""
    ended = np.zeros((6, 1), bool)
    ended[2] = True
    given = np.zeros((6, 1, 2), np.float32)
    given[2] = [[0.0, 1.0]]
    nothing = jnp.zeros((6, 1, 2))
    told = turn_based.PlyOutcome(
        nothing, jnp.asarray(ended), jnp.zeros((6, 1), bool), nothing, jnp.asarray(given)
    )
    paid = turn_based.accumulate_outcomes(told)
    np.testing.assert_array_equal(paid.ended[:, :, 0], [[False, True], [True, False], [False, False]])
    np.testing.assert_array_equal(
        paid.won_by_invalid[:, :, 0], [[False, True], [False, False], [False, False]]
    )


@pytest.mark.parametrize(
    ("algo", "changes", "message"),
    [
        (
            PPOConfig(),
            {"controllers": {ROLE: "learner:per_agent"}},
            "turn-based games need one shared learner",
        ),
        (SACConfig(), {}, "algo=sac: needs continuous actions; these are discrete"),
        (VDNConfig(), {}, "algo=vdn: teams cannot learn from rewards after the end of all their agents"),
        (PQNVDNConfig(), {}, "algo=pqn_vdn: teams cannot learn from rewards after the end of all"),
        (PPOConfig(horizon=1), {}, "algo.horizon=1: nothing would be learnt"),
    ],
)
def test_unsupported_learners_are_refused_in_one_line(algo, changes, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(tictactoe.make(), algo, constant_curriculum, 1, num_envs=4, **changes)


def test_the_probe_game_keeps_the_contract_of_turns():
    check_env(TextGame(Hops()), plain=False)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{}, {"sampling": "sequential", "core": {"kind": "gru", "width": 8}}])
def test_ppo_learns_by_self_play_in_turns(settings):
    algo = PPOConfig(horizon=8, epochs=1, num_minibatches=2, widths=(16,), **settings)
    config = RunConfig(tictactoe.make(), algo, constant_curriculum, 8 * 8 * 2, num_envs=8, eval_episodes=4)
    assert config.steps_per_update == 8 * 8 * 2
    program = make_program(config)

    @jax.jit
    def two(key):
        return jax.lax.scan(lambda run, _: program.update(run), program.init(key), None, 2)

    run, report = two(jax.random.key(0))
    assert int(run.updates) == 2 and np.isfinite(report.metrics["losses/policy_loss"]).all()
    np.testing.assert_allclose(report.metrics["train/return"], 0.0, atol=1e-6)
    # Old and new policy are equal at the first gradient.
    assert float(report.metrics["losses/approx_kl"][0]) < 1.0


@struct.dataclass
class Told:
    clock: jax.Array
    bit: jax.Array
    before: jax.Array
    wrong: jax.Array


class Echo(GameRules):
    """A bit is shown at every ply; a seat answers that of its own previous one, or the game ends."""

    name = "echo"
    seats = 2
    space = Discrete(2)
    features = 1
    plies = 12

    def init(self, key):
        return Told(jnp.int32(0), jax.random.bernoulli(key), jnp.zeros(2, bool), jnp.bool_(False))

    def turn(self, state):
        return state.clock % 2

    def over(self, state):
        return state.wrong | (state.clock >= self.plies)

    def scores(self, state):
        return jnp.zeros(2)

    def legal(self, state):
        return jnp.ones(2, bool)

    def apply(self, key, state, action):
        seat = state.clock % 2
        wrong = (state.clock >= 2) & (action != state.before[seat])
        return Told(
            state.clock + 1,
            jax.random.bernoulli(key),
            state.before.at[seat].set(state.bit),
            state.wrong | wrong,
        )

    def observe(self, state, seat):
        return state.bit.astype(jnp.float32)[None]


def unchanged_losses(**settings) -> dict[str, np.ndarray]:
    """Losses `[updates]` of a policy with pronounced choices and values that does not learn."""
    sizes = {"horizon": SUPER_STEPS, "num_minibatches": 1, "widths": (8,), "sampling": "sequential"}
    still = {"learning_rate": 0.0, "learning_rate_end": 0.0, "normalize_advantage": "none"}
    algo = PPOConfig(**sizes, **still, normalize_observation=False, **settings)
    run = {"total_env_steps": 10_000, "num_envs": ENVS, "eval_episodes": 6}
    program = make_program(RunConfig(TextGame(Hops()), algo, constant_curriculum, **run))

    def update(run, _):
        run, report = program.update(run)
        return run, {name: report.metrics[f"losses/{name}"] for name in LOSSES}

    def spread(path, x):
        shift = "value" in jax.tree_util.keystr(path)
        return 100.0 * x if "policy" in jax.tree_util.keystr(path) else 3.0 * x + shift

    @jax.jit
    def losses(key):
        run = program.init(key)
        state = run.policies[ROLE]
        params = jax.tree_util.tree_map_with_path(spread, state.params)
        run = run.replace(policies={ROLE: state.replace(params=params)})
        return jax.lax.scan(update, run, None, 3)[1]

    return jax.device_get(losses(jax.random.key(0)))


LOSSES = ("approx_kl", "clip_fraction", "value_loss", "policy_loss", "entropy")


def test_memories_read_in_training_what_they_read_while_a_seat_waited():
    losses = unchanged_losses(epochs=1, core={"kind": "lstm", "width": 8})
    np.testing.assert_allclose(losses["approx_kl"], 0.0, atol=1e-7)
    assert (losses["clip_fraction"] == 0).all() and (losses["entropy"] < 1.0).all()


def test_values_of_open_decisions_stay_when_others_are_refreshed():
    """Without learning nothing changes from epoch to epoch, however advantages are computed."""
    once, again = (unchanged_losses(epochs=2, recompute_advantage=when) for when in ("once", "minibatch"))
    for name in ("value_loss", "policy_loss"):
        np.testing.assert_allclose(again[name], once[name], rtol=1e-5)


@struct.dataclass
class Tossed:
    clock: jax.Array
    won: jax.Array


class Toss(GameRules):
    """A coin after the second ply: the first seat has won, or loses with its next one."""

    name = "toss"
    seats = 2
    space = Discrete(2)
    features = 1
    plies = 3

    def init(self, key):
        return Tossed(jnp.int32(0), jnp.bool_(False))

    def turn(self, state):
        return state.clock % 2

    def over(self, state):
        return state.won | (state.clock >= 3)

    def scores(self, state):
        return jnp.where(state.won, 1.0, -1.0) * jnp.float32([1, -1])

    def legal(self, state):
        return jnp.ones(2, bool)

    def apply(self, key, state, action):
        return Tossed(state.clock + 1, (state.clock == 1) & jax.random.bernoulli(key))

    def observe(self, state, seat):
        return state.clock[None] / 4.0


def test_a_rollout_that_ends_within_games_does_not_favour_short_ones():
    """The first seat wins in two plies as often as it loses in three: its first decision is worth nothing."""
    algo = PPOConfig(horizon=4, widths=(4,), num_minibatches=1, gamma=1.0, gae_lambda=1.0)
    config = RunConfig(TextGame(Toss()), algo, constant_curriculum, 1, num_envs=512, eval_episodes=2)
    (agent,) = make_agents(config).values()

    def act(*given):
        action, carry, extras = agent.act(*given)
        return action, carry, extras | {"value": jnp.where(given[2][..., 0] == 0.5, -1.0, 0.0)}

    def learn(state, key, rollout):
        seen = sample_epochs.hide_unseen_observations(rollout).without_open_decisions()
        batch = sample_epochs.samples_from_rollout(algo, state, seen, state.hyper)
        first = batch.alive & (rollout.obs.ravel() == 0)
        return state, {"sum": batch.target.sum(where=first), "number": first.sum()}

    program = make_program(config, {ROLE: agent._replace(act=act, update=learn)})
    update = jax.jit(lambda run: jax.lax.scan(lambda run, _: program.update(run), run, None, 8)[1].metrics)
    metrics = update(jax.jit(program.init)(jax.random.key(0)))
    number = np.sum(metrics["losses/number"])
    assert number > 8000
    assert abs(np.sum(metrics["losses/sum"]) / number) < 0.03


def remembering_agent() -> Agent:
    """Answers the bit that it was shown at its previous decision, and learns nothing."""

    def greedy(state, obs, carry, reset, mask):
        return jnp.where(reset, 0, carry)[..., None], obs[..., 0].astype(jnp.int32)

    def act(state, key, obs, carry, reset, mask):
        return *greedy(state, obs, carry, reset, mask), {}

    return Agent(
        init=lambda key: (),
        initial_carry=lambda shape: jnp.zeros(shape, jnp.int32),
        act=act,
        greedy=greedy,
        value=None,
        update=lambda state, key, rollout: (state, {}),
    )


def test_memory_follows_own_decisions_in_training_and_in_evaluation():
    """So that a game ends only after its last ply, in both."""
    env = TextGame(Echo(), opponent=None)
    config = RunConfig(env, PPOConfig(horizon=12), constant_curriculum, 1, num_envs=4)
    program = make_program(config, {ROLE: remembering_agent()})

    @jax.jit
    def both(key):
        run = program.init(key)
        return program.update(run)[1].episodes, program.evaluate(run, key, episodes=16).length

    games, lengths = jax.device_get(both(jax.random.key(5)))
    assert games["number"] == 8 and (games["length"][:8] == 12).all()
    np.testing.assert_array_equal(lengths, 12)


@pytest.mark.parametrize(("opponent", "seats", "played"), [("random", 2, 8), ("random", 3, 9), (None, 3, 7)])
def test_evaluations_give_a_policy_every_seat_equally_often(opponent, seats, played):
    """Seven episodes that are asked for become whole rounds of the seats; who has all of them needs none."""
    env = liarsdice.make(seats=seats, dice=1, faces=2, opponent=opponent)
    algo = PPOConfig(horizon=2, widths=(4,), num_minibatches=1, epochs=1)
    program = make_program(RunConfig(env, algo, constant_curriculum, 64, num_envs=4, eval_episodes=7))

    def play(key):
        return program.evaluate(program.init(key), key).present[ROLE]

    assert jax.eval_shape(play, jax.random.key(0)).shape == (played, seats)
    assert evaluation.whole_seat_rounds(env, 18) == 18


def count_plies(key, memory, state, params):
    """Says how many decisions it has been asked for."""
    return memory + 1, jnp.full(2, memory)


@pytest.mark.parametrize("controller", mark_others(["learner", "pool:player"], "pool:player"))
def test_a_scripted_teacher_remembers_one_seat_at_a_time(controller):
    """What it says in every row of a decision is the number of the seat's earlier ones: its own stones."""
    env = tictactoe.make()
    env.scripts = env.scripts | {"count": ScriptedPolicy(lambda: jnp.int32(0), count_plies)}
    config = RunConfig(
        env,
        PPOConfig(horizon=6, widths=(8,), num_minibatches=1, teacher="script:count"),
        constant_curriculum,
        total_env_steps=1000,
        num_envs=8,
        controllers={ROLE: controller},
        pool=PoolSettings(
            capacity=2, groups=2, snapshot_every=1, fixed=("random",), shares={"mirror": 0.5}, hold=1
        ),
    )

    def compare(state, key, rollout):
        stones = rollout.obs[..., :9].sum(-1)
        right = rollout.taught[..., 0] == stones
        return state, {
            "right": (right & rollout.alive).sum(),
            "rows": rollout.alive.sum(),
            "most": stones.max(),
        }

    agents = {role: agent._replace(update=compare) for role, agent in make_agents(config).items()}
    program = make_program(config, agents)

    @jax.jit
    def play(key):
        update = jax.lax.scan(lambda run, _: program.update(run), program.init(key), None, 3)
        return update[1].metrics

    found = jax.device_get(play(jax.random.key(0)))
    np.testing.assert_array_equal(found["losses/right"], found["losses/rows"])
    assert (found["losses/rows"] > 20).all() and found["losses/most"].max() == 4
