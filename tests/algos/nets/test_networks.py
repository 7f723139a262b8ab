from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.nets.actor_critic import ActorCriticConfig, make_actor_critic, select_critic
from algos.nets.cores import CoreConfig
from algos.nets.encoders import EncoderConfig
from algos.nets.initializers import orthogonal
from algos.nets.networks import Critic, flatten_features, make_critics
from algos.types import ActionSpec, Asymmetric, Block, ObservationSpec

CONTINUOUS = ActionSpec("continuous", (2,))
DISCRETE = ActionSpec("discrete", (3,))
OBS = np.float32(np.random.default_rng(3).normal(size=(5, 4, 7)))


@cache
def build(action=CONTINUOUS, **settings):
    policy = make_actor_critic(ActorCriticConfig(widths=(16, 16), **settings), ObservationSpec((7,)), action)
    return policy, policy.init(jax.random.key(0))


def test_initial_policy_and_value_are_near_their_targets():
    policy, params = build(initial_std=0.3, initial_action=(0.2, -0.7))
    distribution, value = policy.apply(params, OBS, None)
    np.testing.assert_allclose(distribution.mode(), np.broadcast_to([0.2, -0.7], (5, 4, 2)), atol=0.05)
    np.testing.assert_allclose(distribution.std, [0.3, 0.3], rtol=1e-5)
    assert value.shape == (5, 4) and np.abs(value).max() < 0.1


def test_squashed_initial_action_is_in_action_units():
    policy, params = build(squash=True, initial_action=(0.5, -0.9))
    distribution, _ = policy.apply(params, OBS, None)
    np.testing.assert_allclose(distribution.mode(), np.broadcast_to([0.5, -0.9], (5, 4, 2)), atol=0.05)


def test_hidden_layers_are_orthogonal():
    _, params = build()
    kernel = np.asarray(params["params"]["actor_trunk"]["layer_1"]["kernel"])
    np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(16), atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 16), (5, 40), (40, 5), (1, 8)])
def test_orthogonal_kernels_of_many_keys_at_once(shape):
    draw = jax.jit(lambda key: orthogonal(2.0)(key, shape))
    kernels = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 20)))
    short = min(shape)
    for kernel in kernels:
        square = kernel @ kernel.T if shape[0] == short else kernel.T @ kernel
        np.testing.assert_allclose(square, 4.0 * np.eye(short), atol=1e-4)
    assert np.abs(kernels.mean(0)).max() < 4.0 * 2.0 / np.sqrt(max(shape) * 20)
    np.testing.assert_allclose(kernels[3], draw(jax.random.split(jax.random.key(0), 20)[3]), atol=1e-4)


def test_critics_are_independent_members_of_one_ensemble():
    critics = make_critics(Critic((8, 8), outputs=3), 4, ObservationSpec((7,)), 2)
    params = jax.tree.map(np.asarray, jax.jit(critics.init)(jax.random.key(0)))
    action, apply = np.float32(np.random.default_rng(1).normal(size=(5, 4, 2))), jax.jit(critics.apply)
    values = np.asarray(apply(params, OBS, action))
    assert values.shape == (4, 5, 4, 3) and np.abs(values).max() < 0.2
    one = jax.tree.map(lambda x: x[2:3], params)
    np.testing.assert_allclose(apply(one, OBS, action)[0], values[2], rtol=1e-5, atol=1e-6)
    assert np.abs(values[0] - values[1]).max() > 1e-3
    slopes = jax.jit(jax.grad(lambda *x: critics.apply(params, *x)[0].sum(), argnums=(0, 1)))(OBS, action)
    assert all(np.abs(slope).max() > 0 for slope in slopes)


def test_state_dependent_deviation_starts_at_its_value_and_depends_on_the_state():
    policy, params = build(state_dependent_std=True, initial_std=0.3)
    std = policy.apply(params, OBS, None)[0].std
    assert std.shape == (5, 4, 2)
    np.testing.assert_allclose(std, 0.3, rtol=0.05)
    assert np.std(std) > 0


def test_the_critic_has_its_own_trunk_unless_shared():
    def influence(params):
        """Whether the value's gradient reaches the actor's trunk."""
        grads = jax.jit(jax.grad(lambda p: policy.apply(p, OBS, None)[1].sum()))(params)
        return float(np.abs(grads["params"]["actor_trunk"]["layer_0"]["kernel"]).sum()) > 0

    policy, params = build()
    assert not influence(params) and "critic_trunk" in params["params"]
    policy, params = build(shared=True)
    assert influence(params) and "critic_trunk" not in params["params"]
    policy, params = build(value_widths=(8,))
    assert params["params"]["value"]["out"]["kernel"].shape == (1, 8)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_discrete_heads_and_masks(activation):
    policy, params = build(ActionSpec("discrete", (3, 2)), activation=activation)
    mask = np.array([True, False, True, True, True])
    distribution, _ = policy.apply(params, OBS, mask)
    probabilities = np.asarray(distribution.probabilities())
    assert probabilities.shape == (5, 4, 5) and np.all(probabilities[..., 1] == 0)
    np.testing.assert_allclose(probabilities[..., 0], 0.5, atol=0.05)


def remembering(**settings):
    """Networks with memory, of actors and of critics that see something else."""
    core = CoreConfig(kind="gru", width=6)
    observation, action = ObservationSpec((5,), (), (3,)), ActionSpec("discrete", (3,))
    config = ActorCriticConfig(widths=(8,))
    policy = make_actor_critic(config, observation, action, core, **settings)
    return policy, jax.jit(policy.init)(jax.random.key(0))


def test_a_critic_with_a_memory_of_its_own_remembers_what_only_it_has_seen():
    T, N = 6, 4
    draw = np.random.default_rng(0).standard_normal
    obs = Asymmetric(np.float32(draw((T, N, 5))), np.float32(draw((T, N, 3))))
    reset = np.zeros((T, N), bool)
    reset[3] = True
    policy, params = remembering(head_widths=(7,), critic_core=True)
    carry = policy.initial_carry((N,))

    @jax.jit
    def run(obs):
        def step(carry, now):
            carry, distribution, value = policy.step(params, *now[:1], carry, now[1], None)
            return carry, (distribution.logits, value)

        _, steps = jax.lax.scan(step, carry, (obs, reset))
        distribution, value = policy.sequence(params, obs, carry, reset, None)
        return *steps, distribution.logits, value

    logits, value, *whole = run(obs)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), (logits, value), tuple(whole))
    earlier = obs.critic.copy()
    earlier[0] += 1.0
    others, changed, *_ = run(Asymmetric(obs.actor, earlier))
    np.testing.assert_array_equal(others, logits)
    assert (changed != value).any(1).tolist() == [True, True, True, False, False, False]
    seen = obs.actor.copy()
    seen[0] += 1.0
    others, changed, *_ = run(Asymmetric(seen, obs.critic))
    np.testing.assert_array_equal(changed, value)
    assert (others != logits).any((1, 2)).tolist() == [True, True, True, False, False, False]


def test_memories_of_critics_wait_where_nothing_is_shown_to_them():
    policy, params = remembering(critic_core=True)
    own, others = jax.tree.map(jnp.ones_like, policy.initial_carry((4,)))
    (after, kept), _, value = jax.jit(policy.step)(
        params, Asymmetric(np.ones((4, 5), np.float32), None), (own, others), np.zeros(4, bool), None
    )
    assert value is None
    jax.tree.map(np.testing.assert_array_equal, kept, others)
    assert all((x != 1.0).any() for x in jax.tree.leaves(after))
    with pytest.raises(ValueError, match="critic_core=True: must be false unless critics have observations"):
        make_actor_critic(
            ActorCriticConfig(),
            ObservationSpec((5,)),
            ActionSpec("discrete", (3,)),
            CoreConfig(kind="gru"),
            critic_core=True,
        )


def test_bfloat16_arithmetic_keeps_float32_parameters_and_outputs():
    policy, params = build(compute_dtype="bfloat16")
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
    distribution, value = policy.apply(params, OBS, None)
    full, full_value = build()[0].apply(params, OBS, None)
    assert distribution.mean.dtype == value.dtype == jnp.float32
    np.testing.assert_allclose(distribution.mean, full.mean, atol=0.01)
    np.testing.assert_allclose(value, full_value, atol=0.01)


def test_flatten():
    assert flatten_features(jnp.zeros((2, 3, 4, 5), jnp.int8), (4, 5)).shape == (2, 3, 20)
    assert flatten_features(jnp.zeros((2, 3), jnp.int8), ()).dtype == jnp.int8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "gelu"}, "activation=gelu: unknown; allowed: tanh, relu, silu"),
        ({"widths": (0,)}, "widths=.* must hold positive whole numbers"),
        ({"initial_std": 0.0}, "initial_std=0.0: must be a number from"),
        ({"squash": True, "initial_action": (1.0,)}, "initial_action=.* strictly inside"),
        ({"compute_dtype": "float16"}, "compute_dtype=float16: unknown"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        ActorCriticConfig(**settings)


def test_initial_action_must_fit_the_action_space():
    with pytest.raises(ValueError, match="initial_action=.* must be 2 numbers"):
        build(initial_action=(0.1,))
    with pytest.raises(ValueError, match="must be null for discrete actions"):
        build(ActionSpec("discrete", (3,)), initial_action=(0.1,))


def attending():
    """Separate networks with attention over rows, whose values are no critic's."""
    blocks = (Block("value_of_rows", 0, (3, 2), "set"), Block("self", 6, (1,), "vector"))
    encoder = EncoderConfig(kind="attention", width=4, heads=2)
    policy = make_actor_critic(
        ActorCriticConfig(widths=(8,), encoder=encoder), ObservationSpec((7,), blocks), DISCRETE
    )
    return policy, jax.jit(policy.init)(jax.random.key(0)), OBS


def with_memories():
    policy, params = remembering(head_widths=(7,), critic_core=True)
    return policy, params, Asymmetric(OBS[..., :5], OBS[..., :3])


@pytest.mark.parametrize("networks", [attending, with_memories])
def test_parameters_of_the_critic_are_those_that_the_policy_does_not_depend_on(networks):
    policy, params, obs = networks()

    def both(params):
        if not (carry := policy.initial_carry((4,))):
            return policy.apply(params, obs, None)
        return policy.sequence(params, obs, carry, np.zeros((5, 4), bool), None)

    @jax.jit
    def gradients(params):
        of_policy = jax.grad(lambda params: jnp.square(both(params)[0].logits).sum())(params)
        return of_policy, jax.grad(lambda params: jnp.square(both(params)[1]).sum())(params)

    of_policy, of_value = jax.tree.map(lambda x: bool(np.any(np.asarray(x))), gradients(params))
    mine = select_critic(params)
    assert jax.tree.leaves(mine) == [not x for x in jax.tree.leaves(of_policy)]
    owned = zip(jax.tree.leaves(mine), jax.tree.leaves(of_value), strict=True)
    assert all(used for own, used in owned if own) and any(jax.tree.leaves(mine))
