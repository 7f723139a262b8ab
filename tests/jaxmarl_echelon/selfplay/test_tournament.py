"""Round robins: who beats whom."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from duels import Duel

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon import tournament as cli
from jaxmarl_echelon.curricula.base import constant_curriculum
from jaxmarl_echelon.envs.textgames.games import kuhn
from jaxmarl_echelon.selfplay.ratings import SYSTEMS, rating_system
from jaxmarl_echelon.tournament import run_label
from jaxmarl_echelon.training.config.build import RunConfig
from jaxmarl_echelon.training.program import round_robin
from jaxmarl_echelon.training.program.program import make_program


class Fickle(Duel):
    """Blue wins equal choices or different ones, by what an episode's number and two draws say together."""

    def evaluation_params(self, params, index):
        return params | {"pay": jnp.where(index % 3 == 0, -params["pay"], params["pay"])}

    def reset(self, key, params):
        state, time = super().reset(key, params)
        return state.replace(lead=jax.random.choice(key, jnp.array([-0.5, 0.5]))), time

    def step(self, key, state, actions, params):
        """Only the last choices count."""
        side = jnp.sign(state.lead) * jax.random.choice(key, jnp.array([-1.0, 1.0]))
        return super().step(key, state, actions, params | {"pay": params["pay"] * side * (state.left == 1)})


def test_policies_and_scripts_meet_in_both_roles():
    """One that always chooses 0, one that always chooses 1, and a script, in the same games.

    Blue wins equal choices in some games, which are the same for every pair, different ones in others.
    """
    algo = PPOConfig(horizon=4, widths=(4,), num_minibatches=1, epochs=1)
    run = {"total_env_steps": 1000, "num_envs": 4, "controllers": {"red": "shared:blue"}}
    program = make_program(RunConfig(env=Fickle(), algo=algo, curriculum=constant_curriculum, **run))
    agent = program.agents["blue"]
    policy = agent.policy_state(agent.init(jax.random.key(0)))

    def always(choice):
        """The policy with a bias of its output layer towards one choice."""
        wanted = jnp.where(jnp.arange(2) == choice, 50.0, -50.0)
        outputs = [path for path, x in leaves(policy.params) if x.shape == (2,)]
        assert len(outputs) == 1
        return policy.replace(
            params=jax.tree_util.tree_map_with_path(
                lambda path, x: wanted if jax.tree_util.keystr(path) == outputs[0] else x, policy.params
            )
        )

    together = jax.tree.map(lambda *x: jnp.stack(x), always(0), always(1))
    sides = round_robin.MatchRoles("blue", "red", agent)
    play = jax.jit(
        lambda key: round_robin.play_round_robin(program, sides, together, key, 8, scripts=("other",))
    )
    found = np.asarray(play(jax.random.key(1)))
    agree = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 1]])
    equal = found[0, 0]
    assert set(equal) == {0.0, 1.0}
    np.testing.assert_array_equal(found, np.where(agree[..., None], equal, 1 - equal))
    won = np.where(agree, equal.sum(), 8 - equal.sum())
    np.testing.assert_array_equal(round_robin.count_results(found)[..., 2], 8 - won)
    np.testing.assert_array_equal(round_robin.mean_scores(found), won / 8)


def leaves(tree):
    return [(jax.tree_util.keystr(path), x) for path, x in jax.tree_util.tree_leaves_with_path(tree)]


def test_refitted_ratings_order_the_entries():
    """Both roles of a pair count; what an entry does against itself does not."""
    results = {(0, 1): (6, 1, 1), (1, 0): (2, 2, 4), (1, 2): (7, 0, 1), (2, 1): (0, 1, 7), (0, 0): (0, 0, 8)}
    scores = np.full((3, 3, 8), np.nan)
    for pair, counts in results.items():
        scores[pair] = np.repeat([1.0, 0.5, 0.0], counts)
        np.testing.assert_array_equal(round_robin.count_results(scores)[pair], counts)
    assert round_robin.mean_scores(scores)[0, 1] == 6.5 / 8 and np.isnan(
        round_robin.mean_scores(scores)[2, 2]
    )
    for graded in (False, True):
        fit = partial(round_robin.fit_ratings, jax.random.key(0), graded=graded)
        rating = fit(rating_system("trueskill", games_per_pair=16), scores)
        assert rating[0, 0] > rating[1, 0] > rating[2, 0] and (rating[:, 1] < 25 / 3).all()
        both = (fit(rating_system("elo"), x) for x in (scores, 1.0 - scores.transpose(1, 0, 2)))
        np.testing.assert_allclose(*both, rtol=1e-6)


@pytest.mark.parametrize("name", SYSTEMS)
def test_many_games_of_a_tournament_give_ratings_that_expect_their_scores(name):
    """Of a round robin with strengths that scores follow from; the longer it is, the nearer."""
    strength = np.array([0.0, 1.0, 2.5])
    chances = 1.0 / (1.0 + np.exp(strength[None] - strength[:, None]))
    games = 512
    scores = (np.arange(games) < games * chances[..., None]).astype(float)
    system = rating_system(name, games_per_pair=2 * games)
    rating = round_robin.fit_ratings(jax.random.key(0), system, scores, graded=False)
    expected = np.asarray(system.expected(rating[:, None], rating[None]))
    np.testing.assert_allclose(expected, chances, atol=0.03)


@pytest.mark.parametrize(
    "given,message",
    [
        (["--games", "3"], "--games=3: must be a multiple of the 2 seats, such as 4"),
        (["--snapshots", "-1"], "--snapshots=-1: must be at least 0"),
        (["--rating", "chess"], "--rating=chess: must be one of trueskill, elo, glicko2"),
    ],
)
def test_invalid_tournaments_are_rejected_before_any_game(given, message, monkeypatch, tmp_path):
    program = SimpleNamespace(env=kuhn.make())
    monkeypatch.setattr(cli, "load_entrants", lambda *given: cli.Entrants({"run": ()}, program, *[None] * 3))
    monkeypatch.setattr("sys.argv", ["tournament", "run", "--output", str(tmp_path / "out"), *given])
    with pytest.raises(ValueError) as error:
        cli.main()
    assert str(error.value) == message and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused_before_any_game(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr(cli, "load_entrants", lambda *given: entrants())
    monkeypatch.setattr(cli.round_robin, "play_round_robin", None)
    monkeypatch.setattr("sys.argv", ["tournament", "run", "--output", str(tmp_path / "file")])
    with pytest.raises(ValueError, match="^--output: cannot create .*file: File exists$"):
        cli.main()


class Paid(Duel):
    """Curricula may change who is paid."""

    def task_params(self, settings):
        return self.default_params() | {"pay": jnp.float32(settings["pay"])}


def entrants(task=None, controllers=None, env=None, scored=None, **algo):
    """A run's entrants, without a checkpoint; `scored` are the settings `curriculum.evaluation`."""
    env = kuhn.make() if env is None else env
    curriculum = partial(constant_curriculum, evaluation=scored)
    algo = PPOConfig(horizon=4, widths=(4,), num_minibatches=1, epochs=1, **algo)
    run = {"total_env_steps": 1000, "num_envs": 8, "controllers": controllers or {}}
    config = RunConfig(env=env, algo=algo, curriculum=curriculum, **run)
    program = make_program(config)
    sides = cli.opposing_sides(config, program)
    policy = sides.agent.policy_state(sides.agent.init(jax.random.key(0)))
    settings = {"env": task or {"stake": 1.0}, "curriculum": {"evaluation": scored or {}}}
    return cli.Entrants({"last": policy}, program, sides, config, settings)


def test_policies_meet_only_if_the_first_run_can_play_them():
    first = entrants()
    cli.require_same_match("b", first, entrants(learning_rate=0.5))
    with pytest.raises(ValueError, match="^b: must have a network of the first run's shape, activation"):
        cli.require_same_match("b", first, entrants(activation="relu"))
    with pytest.raises(ValueError, match="^b: env.stake=2.0: must be 1.0, as in the first run$"):
        cli.require_same_match("b", first, entrants({"stake": 2.0}))


def test_policies_meet_only_if_their_runs_are_scored_on_one_task():
    """Games are those of the first run's task; settings that mean the same task may differ."""
    shared = {"env": Paid(), "controllers": {"red": "shared:blue"}}
    first = entrants(**shared)
    cli.require_same_match("b", first, entrants(scored={"pay": 1.0}, **shared))
    with pytest.raises(ValueError, match="^b: curriculum.evaluation.pay=-1.0: must be nothing, as in the"):
        cli.require_same_match("b", first, entrants(scored={"pay": -1.0}, **shared))
    same = entrants(scored={"pay": -1.0}, **shared)
    cli.require_same_match("b", same, same)


@pytest.mark.parametrize("controller", ["learner", "pool:red"])
def test_roles_with_two_learners_have_no_tournament(controller):
    with pytest.raises(ValueError, match=f"^controllers.red={controller}: must not learn by itself"):
        entrants(env=Fickle(), controllers={"red": controller})


@pytest.mark.parametrize("controller", ["shared:red", "pool:red"])
def test_a_policy_of_the_last_role_that_plays_both_can_meet_others(controller):
    """The learner is red's, whose policy or past plays blue, too."""
    found = entrants(env=Fickle(), controllers={"red": "learner", "blue": controller})
    assert (found.sides.ours, found.sides.theirs) == ("blue", "red") and list(found.program.agents) == ["red"]
    assert found.sides.agent is found.program.agents["red"]


def test_seeds_of_two_runs_have_different_names(tmp_path):
    for run in ("pool", "mirror"):
        (tmp_path / run / "seed_0").mkdir(parents=True)
        (tmp_path / run / "config.yaml").touch()
    names = [run_label(tmp_path / place) for place in ("pool", "pool/seed_0", "mirror/seed_0")]
    assert names == ["pool", "pool/seed_0", "mirror/seed_0"]
