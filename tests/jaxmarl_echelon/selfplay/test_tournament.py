"""Round robins: who beats whom."""

import jax
import jax.numpy as jnp
import numpy as np
from duels import Duel

from algos.on_policy.ppo import PPOConfig
from jaxmarl_echelon.curricula.base import fixed
from jaxmarl_echelon.selfplay.ratings import rating_system
from jaxmarl_echelon.tournament import label_of
from jaxmarl_echelon.training.config import RunConfig
from jaxmarl_echelon.training.pools import tournament
from jaxmarl_echelon.training.program import make_program


def test_policies_and_scripts_meet_in_both_roles():
    """One that always chooses 0, one that always chooses 1, and a script: blue wins equal choices."""
    algo = PPOConfig(horizon=4, widths=(4,), num_minibatches=1, epochs=1)
    run = {"total_env_steps": 1000, "num_envs": 4, "controllers": {"red": "shared:blue"}}
    program = make_program(RunConfig(env=Duel(), algo=algo, curriculum=fixed, **run))
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
    sides = tournament.Sides("blue", "red", agent)
    found = jax.jit(lambda key: tournament.counts(program, sides, together, key, 8, scripts=("other",)))(
        jax.random.key(1)
    )
    agree = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 1]])
    np.testing.assert_array_equal(found[..., 0], 8 * agree)
    np.testing.assert_array_equal(found[..., 2], 8 * (1 - agree))
    np.testing.assert_array_equal(tournament.payoffs(np.asarray(found)), agree)


def leaves(tree):
    return [(jax.tree_util.keystr(path), x) for path, x in jax.tree_util.tree_leaves_with_path(tree)]


def test_refitted_ratings_order_the_entries():
    """Both roles of a pair count; what an entry does against itself does not."""
    results = np.zeros((3, 3, 3), int)
    results[0, 1], results[1, 0] = (6, 1, 1), (2, 2, 4)
    results[1, 2], results[2, 1] = (7, 0, 1), (0, 1, 7)
    results[0, 0] = (0, 0, 8)
    rating = tournament.refitted(rating_system("trueskill", games_per_pair=16), results)
    assert rating[0, 0] > rating[1, 0] > rating[2, 0] and (rating[:, 1] < 25 / 3).all()
    swapped = tournament.refitted(rating_system("elo"), results.transpose(1, 0, 2)[..., ::-1])
    np.testing.assert_allclose(swapped, tournament.refitted(rating_system("elo"), results), rtol=1e-6)


def test_seeds_of_two_runs_have_different_names(tmp_path):
    for run in ("pool", "mirror"):
        (tmp_path / run / "seed_0").mkdir(parents=True)
        (tmp_path / run / "config.yaml").touch()
    names = [label_of(tmp_path / place) for place in ("pool", "pool/seed_0", "mirror/seed_0")]
    assert names == ["pool", "pool/seed_0", "mirror/seed_0"]
