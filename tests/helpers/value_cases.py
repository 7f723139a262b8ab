"""Small learners of action values, and a game of two steps whose values are known for each of them."""

import jax
import jax.numpy as jnp
import numpy as np

from algos.types import ActionSpec, Context, Transition

E, A = 8, 2
GAME = ActionSpec("discrete", (2,))
PAYOFF = np.float32([[0.0, 1.0], [1.0, 8.0]])
SMALL = {"widths": (32,), "batch_size": 64, "learning_starts": 64, "learning_rate": 3e-3, "gamma": 1.0}


def make(config, action=GAME, size=3, team=1, **sizes):
    """The agent of a configuration in environments of two agents, which see `size` numbers."""
    team = {"team": team} if config.teams else {}
    return config.make((size,), action, samples=E * A, episode_limit=2, **team, **sizes)


def play_two_steps(agent, key, updates):
    """Learns from random play in the game of Rashid et al. (2018, section 5.2); both agents get its pay.

    The first agent chooses a state; in the one everything pays 7, in the other `PAYOFF`. Both steps are
    stored at once, one in each half of the environments.
    """
    start = jnp.eye(3)[0]

    def step(state, key):
        key_learn, key_act, key_half = jax.random.split(key, 3)
        action = jax.random.randint(key_act, (E, A), 0, 2)
        chosen = jax.random.randint(key_half, (E,), 0, 2)
        first = jnp.arange(E) < E // 2
        paid = jnp.where(chosen == 0, 7.0, jnp.asarray(PAYOFF)[action[:, 0], action[:, 1]])
        place = jnp.where(first[:, None], start, jnp.eye(3)[1 + chosen])
        following = jnp.where(first[:, None], jnp.eye(3)[1 + action[:, 0]], start)
        alive, goes_on = jnp.ones((E, A), bool), jnp.broadcast_to(first[:, None], (E, A))
        transition = Transition(
            obs=jnp.broadcast_to(place[:, None], (E, A, 3)),
            action=action[..., None],
            reward=jnp.broadcast_to(jnp.where(first, 0.0, paid)[:, None], (E, A)),
            discount=goes_on.astype(jnp.float32),
            next_obs=jnp.broadcast_to(following[:, None], (E, A, 3)),
            boundary=jnp.ones((E, A), bool),
            success=jnp.zeros((E, A), bool),
            alive=alive,
            context=Context(alive),
            next_context=Context(goes_on),
        )
        return agent.update(state, key_learn, transition)

    key_init, key_run = jax.random.split(key)
    return jax.lax.scan(step, agent.init(key_init), jax.random.split(key_run, updates))


def act_in_game(agent, state):
    """Greedy actions `[3, A]` at the start, in the state that pays 7 and in the other one."""
    obs = jnp.broadcast_to(jnp.eye(3)[:, None], (3, A, 3))
    return agent.greedy(state, obs, (), jnp.zeros((3, A), bool), None)[0][..., 0]


def numpy_values(params, obs):
    """Outputs of a network with one relu layer, normalised or not."""
    params = jax.tree.map(np.asarray, params)["params"]
    layer, norm, out = params["trunk"]["layer_0"], params["trunk"].get("norm_0"), params["head"]["out"]
    hidden = obs @ layer["kernel"] + layer["bias"]
    if norm is not None:
        hidden = (hidden - hidden.mean(-1, keepdims=True)) / np.sqrt(hidden.var(-1, keepdims=True) + 1e-6)
        hidden = hidden * norm["scale"] + norm["bias"]
    hidden = np.maximum(hidden, 0.0)
    return hidden @ out["kernel"].T + out["bias"]


def moved(tree, seed=0, scale=0.3):
    """The parameters, each moved its own way."""
    noise = np.random.default_rng(seed)
    return jax.tree.map(lambda x: np.float32(x + scale * noise.standard_normal(x.shape)), tree)
