import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.on_policy.returns import gae, vtrace_gae

T, SHAPE = 13, (3, 2)
GAE = jax.jit(gae)
VTRACE = jax.jit(vtrace_gae, static_argnames="bootstrap_last")


@pytest.fixture
def rollout():
    rng = np.random.default_rng(0)
    boundary = rng.random((T, *SHAPE)) < 0.25
    terminated = boundary & (rng.random((T, *SHAPE)) < 0.5)
    return {
        "reward": rng.normal(size=(T, *SHAPE)),
        "value": rng.normal(size=(T, *SHAPE)),
        "last_value": rng.normal(size=SHAPE),
        "discount": np.where(terminated, 0.0, 1.0),
        "boundary": boundary,
        "bootstrap": np.where(boundary & ~terminated, rng.normal(size=(T, *SHAPE)), 0.0),
    }


def by_definition(rollout, gamma, lambda_):
    """Sums the discounted temporal differences forwards, one start at a time."""
    following = np.concatenate([rollout["value"][1:], rollout["last_value"][None]])
    following = np.where(rollout["boundary"], rollout["bootstrap"], following)
    delta = rollout["reward"] + gamma * rollout["discount"] * following - rollout["value"]
    advantage = np.zeros_like(delta)
    for index in np.ndindex(delta.shape):
        start, column = index[0], index[1:]
        weight = 1.0
        for t in range(start, T):
            advantage[index] += weight * delta[(t, *column)]
            if rollout["boundary"][(t, *column)] or rollout["discount"][(t, *column)] == 0:
                break
            weight *= gamma * lambda_
    return advantage


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_equals_the_definition(rollout, lambda_):
    with jax.enable_x64(True):
        advantage, target = GAE(**rollout, gamma=0.9, lambda_=lambda_)
        np.testing.assert_allclose(advantage, by_definition(rollout, 0.9, lambda_), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(target, advantage + rollout["value"], rtol=1e-12)


def test_lambda_one_is_the_discounted_return_of_the_segment(rollout):
    quiet = rollout | {"boundary": np.zeros((T, *SHAPE), bool), "discount": np.ones((T, *SHAPE))}
    with jax.enable_x64(True):
        _, target = GAE(**quiet, gamma=0.9, lambda_=1.0)
        powers = 0.9 ** np.arange(T)[:, None, None]
        expected = (powers * rollout["reward"]).sum(0) + 0.9**T * rollout["last_value"]
        np.testing.assert_allclose(target[0], expected, rtol=1e-12)


def test_a_time_limit_bootstraps_and_a_death_does_not():
    kwargs = {
        "reward": jnp.array([[1.0, 1.0]]),
        "value": jnp.zeros((1, 2)),
        "last_value": jnp.full(2, 100.0),
        "discount": jnp.array([[1.0, 0.0]]),
        "boundary": jnp.ones((1, 2), bool),
        "bootstrap": jnp.array([[10.0, 7.0]]),
    }
    _, target = GAE(**kwargs, gamma=0.5, lambda_=0.95)
    np.testing.assert_allclose(target, [[6.0, 1.0]])


def test_no_advantage_flows_back_over_a_boundary(rollout):
    rollout["boundary"][6] = True
    changed = {name: np.array(rollout[name]) for name in ("reward", "value")}
    for values in changed.values():
        values[7:] = 99.0
    before, _ = GAE(**rollout, gamma=0.9, lambda_=0.9)
    after, _ = GAE(**rollout | changed, gamma=0.9, lambda_=0.9)
    np.testing.assert_array_equal(before[:7], after[:7])
    assert not np.allclose(before[7:], after[7:])


def test_nonfinite_values_after_an_ending_have_no_effect():
    kwargs = {
        "reward": jnp.array([1.0, 2.0, jnp.nan, jnp.nan]),
        "value": jnp.array([0.5, 0.5, jnp.nan, jnp.inf]),
        "last_value": jnp.array(jnp.nan),
        "discount": jnp.array([1.0, 0.0, 1.0, 1.0]),
        "boundary": jnp.array([False, False, False, False]),
        "bootstrap": jnp.array([0.0, jnp.nan, jnp.nan, jnp.nan]),
        "alive": jnp.array([True, True, False, False]),
    }
    advantage, _ = GAE(**kwargs, gamma=0.9, lambda_=1.0)
    np.testing.assert_allclose(advantage, [1.0 + 0.9 * 2.0 - 0.5, 1.5, 0.0, 0.0], rtol=1e-6)


def test_agents_do_not_mix(rollout):
    together, _ = GAE(**rollout, gamma=0.9, lambda_=0.9)
    alone = {key: x[..., 2, 1] for key, x in rollout.items()}
    np.testing.assert_allclose(GAE(**alone, gamma=0.9, lambda_=0.9)[0], together[:, 2, 1], rtol=1e-6)


def vtrace_by_definition(rollout, ratio, gamma, lambda_, rho_clip, c_clip):
    """One agent after the other, in the words of the formula."""
    advantage = np.zeros((T, *SHAPE))
    for column in np.ndindex(*SHAPE):
        reward, value, discount, boundary, bootstrap, w = (
            x[(slice(None), *column)]
            for x in (*(rollout[k] for k in ("reward", "value", "discount", "boundary", "bootstrap")), ratio)
        )
        after, next_value = 0.0, rollout["last_value"][column]
        for t in reversed(range(T)):
            if boundary[t]:
                after, next_value = 0.0, bootstrap[t] if discount[t] else 0.0
            delta = min(w[t], rho_clip) * (reward[t] + gamma * next_value - value[t])
            after = delta + gamma * lambda_ * min(w[t], c_clip) * after
            advantage[(t, *column)] = after
            next_value = value[t]
    return advantage


@pytest.fixture
def ratio():
    return np.exp(np.random.default_rng(1).normal(size=(T, *SHAPE)))


@pytest.mark.parametrize(("rho_clip", "c_clip"), [(1.0, 1.0), (2.0, 0.7), (0.7, 2.0), (np.inf, np.inf)])
def test_vtrace_equals_the_definition(rollout, ratio, rho_clip, c_clip):
    with jax.enable_x64(True):
        settings = {"gamma": 0.9, "lambda_": 0.8, "rho_clip": rho_clip, "c_clip": c_clip}
        advantage, target = VTRACE(**rollout, ratio=ratio, **settings)
        expected = vtrace_by_definition(rollout, ratio, **settings)
        np.testing.assert_allclose(advantage, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(target, advantage + rollout["value"], rtol=1e-12)


@pytest.mark.parametrize("clip", [1.0, 3.0])
def test_vtrace_of_an_unchanged_policy_is_gae_to_the_bit(rollout, clip):
    arrays = {key: jnp.asarray(x) for key, x in rollout.items()}
    alive = jnp.asarray(np.random.default_rng(2).random((T, *SHAPE)) < 0.8)
    expected = GAE(**arrays, gamma=0.9, lambda_=0.8, alive=alive)
    ones = jnp.ones((T, *SHAPE))
    corrected = VTRACE(**arrays, ratio=ones, gamma=0.9, lambda_=0.8, rho_clip=clip, c_clip=clip, alive=alive)
    jax.tree.map(np.testing.assert_array_equal, corrected, expected)


def from_cleanrl(reward, done):
    """Rewards and endings that came with an observation, as those that followed the action before it.

    Column t of the published vectors holds what arrived with observation t, ours what action t led to:
    everything moves one column to the left, and nothing is left for the last, which holds NaN to show
    that it is not looked at.
    """
    done = np.array([*done[1:], np.nan])
    return {
        "reward": jnp.array([*reward[1:], jnp.nan]),
        "discount": jnp.array(1.0 - done),
        "boundary": jnp.array(done == 1.0),
        "bootstrap": jnp.full(len(reward), jnp.nan),
        "last_value": jnp.array(jnp.nan),
    }


@pytest.mark.parametrize(
    ("done", "ratio", "expected"),
    [
        ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0.329366, -0.486992, -0.2736, 0.37, 0]),
        ([0, 0, 1, 0, 0], [1, 1, 1, 1, 1], [0.536, -0.2, -0.2736, 0.37, 0]),
        ([0, 0, 1, 0, 0], [0.5, 2, 1.5, 0.8, 3], [0.268, -0.2, -0.32688, 0.296, 0]),
    ],
)
def test_golden_vectors_of_the_original(done, ratio, expected):
    value = jnp.array([0.5, 0.2, -0.1, 0.4, 0.3])
    advantage, target = VTRACE(
        value=value,
        **from_cleanrl([9.0, 1.0, 0.0, -1.0, 0.5], done),
        ratio=jnp.array(ratio, jnp.float32),
        gamma=0.9,
        lambda_=0.8,
        rho_clip=1.0,
        c_clip=1.0,
        bootstrap_last=False,
    )
    np.testing.assert_allclose(advantage, expected, rtol=1e-6, atol=1e-7)
    assert advantage[-1] == 0.0 and target[-1] == value[-1]


def test_without_the_last_bootstrap_the_last_row_is_the_value_after_the_row_before(rollout, ratio):
    arrays = {key: jnp.asarray(x) for key, x in rollout.items()}
    settings = {"gamma": 0.9, "lambda_": 0.8, "rho_clip": 1.0, "c_clip": 1.0}
    shorter = {key: x[:-1] for key, x in arrays.items() if key != "last_value"}
    expected, _ = VTRACE(**shorter, last_value=arrays["value"][-1], ratio=ratio[:-1], **settings)
    advantage, _ = VTRACE(**arrays, ratio=ratio, **settings, bootstrap_last=False)
    np.testing.assert_allclose(advantage[:-1], expected, rtol=1e-6, atol=1e-7)
    assert (advantage[-1] == 0).all()


def test_ratios_of_dead_rows_have_no_effect():
    kwargs = {
        "reward": jnp.array([1.0, 2.0, jnp.nan]),
        "value": jnp.array([0.5, 0.5, jnp.nan]),
        "last_value": jnp.array(jnp.nan),
        "discount": jnp.array([1.0, 0.0, 1.0]),
        "boundary": jnp.array([False, False, False]),
        "bootstrap": jnp.full(3, jnp.nan),
        "alive": jnp.array([True, True, False]),
    }
    advantage, _ = VTRACE(
        **kwargs,
        ratio=jnp.array([0.5, 2.0, jnp.nan]),
        gamma=0.9,
        lambda_=1.0,
        rho_clip=1.0,
        c_clip=1.0,
    )
    np.testing.assert_allclose(advantage, [0.5 * (1.0 + 0.45 - 0.5) + 0.9 * 0.5 * 1.5, 1.5, 0.0], rtol=1e-6)


def waiting_game(poison=0.0):
    """Two seats that move in turn, A first, for five plies; A wins on the last one, which B sees waiting."""
    acts = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]], bool)
    value = np.where(acts, np.array([0.1, -0.2, 0.3, -0.4, 0.6])[:, None], poison).astype(np.float32)
    reward = np.zeros((5, 2), np.float32)
    reward[-1] = 1.0, -1.0
    last = np.zeros((5, 2), bool)
    last[-1] = True
    return dict(
        reward=reward,
        value=value,
        last_value=np.full(2, poison, np.float32),
        discount=np.where(last, 0.0, 1.0).astype(np.float32),
        boundary=last,
        bootstrap=np.zeros((5, 2), np.float32),
        alive=acts,
        skip=~acts,
        last_skip=np.zeros(2, bool),
    )


@pytest.mark.parametrize("poison", [0.0, 1e6, np.nan])
def test_rewards_of_waiting_seats_are_credited_to_their_last_move(poison):
    """Golden values of a game by turns: gamma counts a seat's own decisions, not plies."""
    advantage, target = GAE(**waiting_game(poison), gamma=0.9, lambda_=0.8)
    wanted = np.array([[0.55016, 0], [0, -0.592], [0.528, 0], [0, -0.6], [0.4, 0]])
    np.testing.assert_allclose(advantage, wanted, atol=1e-6)
    acts = np.asarray(waiting_game()["alive"])
    np.testing.assert_allclose(target[acts], (wanted + waiting_game()["value"])[acts], atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_waiting_rows_change_nothing_but_where_rewards_lie(seed):
    """Rows of waiting, inserted anywhere, give what the decisions alone give, their rewards added up."""
    rng = np.random.default_rng(seed)
    number, length = 8, 40
    acts = rng.random(length) < 0.5
    acts[0] = True
    acts[-1] = True
    owner = np.cumsum(acts) - 1
    decisions = int(acts.sum())
    value, last_value = rng.normal(size=(decisions, number)), rng.normal(size=number)
    ends, cut = rng.random((decisions, number)) < 0.2, rng.random((decisions, number)) < 0.5
    bootstrap = rng.normal(size=(decisions, number)) * (ends & cut)
    paid = rng.normal(size=(length, number))
    # An episode ends in the last row before the next decision, in which the agent may be waiting.
    final = np.append(owner[1:] != owner[:-1], True)
    own = dict(
        reward=np.stack([paid[owner == d].sum(0) for d in range(decisions)]),
        value=value,
        last_value=last_value,
        discount=np.where(ends & ~cut, 0.0, 1.0),
        boundary=ends,
        bootstrap=bootstrap,
    )
    rows = dict(
        reward=paid,
        value=np.where(acts[:, None], value[owner], np.nan),
        last_value=last_value,
        discount=np.where(final[:, None], own["discount"][owner], 1.0),
        boundary=ends[owner] & final[:, None],
        bootstrap=bootstrap[owner] * final[:, None],
        alive=np.broadcast_to(acts[:, None], (length, number)),
        skip=np.broadcast_to(~acts[:, None], (length, number)),
        last_skip=np.zeros(number, bool),
    )
    own, rows = ({k: jnp.asarray(v) for k, v in part.items()} for part in (own, rows))
    wanted = GAE(**own, gamma=0.97, lambda_=0.9)
    found = GAE(**rows, gamma=0.97, lambda_=0.9)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a)[acts], b, rtol=1e-4, atol=1e-5)
    assert (np.asarray(found[0])[~acts] == 0).all()


def test_a_decision_with_incomplete_rewards_has_advantage_zero():
    game = waiting_game()
    first = {k: v[:4] if k not in ("last_value", "last_skip") else v for k, v in game.items()}
    # After four plies A is to move and B waits: B's move of ply 4 is not paid yet.
    first |= {"last_skip": np.array([False, True]), "last_value": np.array([0.6, 99.0], np.float32)}
    advantage, target = GAE(**first, gamma=0.9, lambda_=0.8)
    np.testing.assert_allclose(advantage[3, 1], 0.0)
    np.testing.assert_allclose(target[3, 1], -0.4)
    np.testing.assert_allclose(advantage[1, 1], 0.9 * -0.4 + 0.2, atol=1e-6)
    np.testing.assert_allclose(advantage[2, 0], 0.9 * 0.6 - 0.3, atol=1e-6)


LIVES = (1, 3, 4, 6)  # decisions of each agent in episodes of six rows, after which it is out
LONG, WINDOW = 24, 5


def unequal_lives(rng, gamma):
    """Whole episodes of agents that are out at their own times, `[LONG, agents]`, and the returns."""
    clock = np.arange(LONG) % 6
    reward = rng.normal(size=(LONG, len(LIVES)))
    ends = np.broadcast_to((clock == 5)[:, None], reward.shape)
    acts = clock[:, None] < np.array(LIVES)
    to_come = np.zeros((LONG + 1, len(LIVES)))
    for t in reversed(range(LONG)):
        to_come[t] = reward[t] + gamma * np.where(ends[t], 0.0, to_come[t + 1])
    return reward, ends, acts, to_come


def windows(x):
    """Rollouts of `WINDOW` rows that begin at every row: `[WINDOW, starts, agents]`."""
    return np.stack([x[start : start + WINDOW] for start in range(LONG - WINDOW + 1)], axis=1)


@pytest.mark.parametrize("lambda_", [1.0, 0.8])
def test_returns_over_rollouts_cut_at_every_place_are_those_of_whole_episodes(lambda_):
    """With the true value where a rollout is cut. With lambda 1 the values in between do not matter."""
    rng, gamma = np.random.default_rng(3), 0.9
    reward, ends, acts, to_come = unequal_lives(rng, gamma)
    wrong = rng.normal(size=reward.shape) if lambda_ == 1.0 else np.zeros_like(reward)
    value = to_come[:-1] + wrong
    given = {
        "reward": windows(reward),
        "value": windows(value),
        "last_value": to_come[WINDOW:],
        "discount": np.where(windows(ends), 0.0, 1.0),
        "boundary": windows(ends),
        "bootstrap": np.zeros_like(windows(reward)),
        "alive": windows(acts),
        "out": windows(~acts),
    }
    with jax.enable_x64(True):
        advantage, target = GAE(**given, gamma=gamma, lambda_=lambda_)
        np.testing.assert_allclose(target, windows(to_come[:-1]), atol=1e-12)
        np.testing.assert_allclose(advantage, np.where(windows(acts), -windows(wrong), 0.0), atol=1e-12)


@pytest.mark.parametrize("cut", [False, True])
def test_a_death_is_credited_with_later_rewards_when_the_rollout_ends_first(cut):
    """The first row kills with reward -5; the end, two rows later, adds reward 1, or has value 1 / gamma."""
    column = lambda *x: jnp.array(x)[:, None]  # noqa: E731
    advantage, target = GAE(
        reward=column(-5.0, 0.0, 0.0 if cut else 1.0),
        value=column(0.3, 7.0, 7.0),
        last_value=jnp.array([1.0 / 0.9]),
        discount=column(1.0, 1.0, 1.0 if cut else 0.0),
        boundary=column(False, False, not cut),
        bootstrap=jnp.zeros((3, 1)),
        gamma=0.9,
        lambda_=0.95,
        alive=column(True, False, False),
        out=column(False, True, True),
    )
    np.testing.assert_allclose(advantage[:, 0], [-5.3 + 0.81, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(target[:, 0], [-5.0 + 0.81, 0.9, 1.0], rtol=1e-6)


def test_a_final_reward_has_equal_value_for_living_and_dead_agents():
    """120 rows on, with gamma 0.99: 0.302, whether the agent acts in all of them or in the first only."""
    rows, nothing = 120, np.zeros((120, 2), np.float32)
    last = np.arange(rows)[:, None] == rows - 1
    acts = np.stack([np.ones(rows, bool), np.arange(rows) == 0], axis=1)
    _, target = GAE(
        reward=nothing + last,
        value=nothing,
        last_value=nothing[0],
        discount=np.where(last, 0.0, 1.0) + nothing,
        boundary=last & (nothing == 0),
        bootstrap=nothing,
        gamma=0.99,
        lambda_=1.0,
        alive=acts,
        out=~acts,
    )
    np.testing.assert_allclose(target[0], 0.99**119, rtol=1e-4)


def spans_by_definition(rows, ratio, gamma, lambda_, rho, c):
    """Targets and advantages of one column, decision by decision; see `vtrace_gae` for the rows."""
    number = len(rows["reward"])
    waits = rows["skip"] | rows["out"]

    def followed(t):
        """Rewards from row t on, the value that follows them, the next decision and its discount."""
        paid, elapsed = 0.0, 1.0
        while True:
            paid += elapsed * rows["reward"][t]
            cut = rows["discount"][t] == 0 or rows["boundary"][t]
            end = rows["bootstrap"][t] if rows["discount"][t] else 0.0
            after = t + 1
            if cut:
                return paid + elapsed * gamma * end, None, 0.0
            if after == number:
                if rows["last_skip"]:
                    return None, None, 0.0
                return paid + elapsed * gamma * rows["last_value"], None, 0.0
            if not waits[after]:
                return paid + elapsed * gamma * rows["value"][after], after, elapsed * gamma
            elapsed *= gamma if rows["out"][after] else 1.0
            t = after

    advantage, target = np.zeros(number), np.array(rows["value"], float)
    for t in reversed(range(number)):
        worth, next_one, reach = followed(t)
        if worth is None:
            continue
        beyond = 0.0 if next_one is None else lambda_ * reach * advantage[next_one]
        if not waits[t]:
            advantage[t] = min(ratio[t], rho) * (worth - rows["value"][t]) + min(ratio[t], c) * beyond
            target[t] = rows["value"][t] + advantage[t]
        elif rows["out"][t]:
            target[t] = worth + beyond
    return advantage, target


@pytest.mark.parametrize("kind", ["skip", "out"])
def test_spans_equal_the_definition_with_truncations_returns_to_play_and_ratios(kind):
    rng = np.random.default_rng(5)
    length, columns = 14, 30
    shape = (length, columns)
    ends = rng.random(shape) < 0.15
    waits = rng.random(shape) < 0.5
    nobody = np.zeros(shape, bool)
    rows = {
        "reward": rng.normal(size=shape),
        "value": rng.normal(size=shape),
        "last_value": rng.normal(size=columns),
        "discount": np.where(ends & (rng.random(shape) < 0.5), 0.0, 1.0),
        "boundary": ends,
        "bootstrap": rng.normal(size=shape),
        "skip": waits if kind == "skip" else nobody,
        "out": waits if kind == "out" else nobody,
        "last_skip": rng.random(columns) < 0.5 if kind == "skip" else nobody[0],
    }
    ratio = np.exp(rng.normal(size=shape))
    settings = {"gamma": 0.9, "lambda_": 0.8, "rho_clip": 1.5, "c_clip": 0.7}
    with jax.enable_x64(True):
        found = VTRACE(**rows, ratio=ratio, alive=~waits, **settings)
    for column in range(columns):
        own = {name: x[..., column] for name, x in rows.items()}
        wanted = spans_by_definition(own, ratio[:, column], 0.9, 0.8, 1.5, 0.7)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a[:, column], b, atol=1e-12)


def test_without_the_last_bootstrap_an_agent_that_is_out_ends_with_its_value():
    out = jnp.array([False, True, True])
    advantage, target = VTRACE(
        reward=jnp.array([1.0, 2.0, 64.0]),
        value=jnp.array([0.5, 99.0, 4.0]),
        last_value=jnp.array(jnp.nan),
        discount=jnp.ones(3),
        boundary=jnp.zeros(3, bool),
        bootstrap=jnp.zeros(3),
        ratio=jnp.ones(3),
        gamma=0.5,
        lambda_=0.8,
        rho_clip=1.0,
        c_clip=1.0,
        alive=~out,
        bootstrap_last=False,
        out=out,
    )
    np.testing.assert_allclose(advantage, [1.0 + 0.5 * (2.0 + 0.5 * 4.0) - 0.5, 0.0, 0.0])
    np.testing.assert_allclose(target, [3.0, 4.0, 4.0])
