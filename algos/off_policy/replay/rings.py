"""Ring buffers of transitions, one per row, and the n-step windows that are read from them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike

from algos.masks import select_rows
from algos.types import PyTree, Transition


class ReplayRowLayout(NamedTuple):
    """Shapes that a ring stores with each step, in addition to those of one agent.

    Attributes:
      team: `(A,)` for rows of A agents, whose observations and actions have this axis before their features;
        `()` for rows of one agent.
      context, next_context: `jax.ShapeDtypeStruct`s of one step's, see `algos.types.Transition`.
    """

    team: tuple[int, ...] = ()
    context: PyTree = None
    next_context: PyTree = None


# One agent, and nothing else.
PLAIN_ROWS = ReplayRowLayout()


class Ring(struct.PyTreeNode):
    """Newest transitions of N rows, at most C per row, in order of time.

    Attributes:
      obs: `[N, C, F]`, float32, or the environment's integer type.
      action: `[N, C, D]`.
      reward: `[N, C]`.
      discount: `[N, C]` 0 where the step terminated the agent, 1 otherwise.
      next_obs: `[N, C, F]` next observations, including the true final one of an episode.
      context, next_context: leaves `[N, C, ...]`, see `algos.types.Transition`; None for none.
      last: `[N, C]` bool; the row's next transition does not continue this one.
      cursor: `[N]` int32, the slot that is written next.
      count: `[N]` int32, number of stored transitions.
      begins: `[N]` bool; the row's next transition begins an episode.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    next_obs: jax.Array
    context: PyTree
    next_context: PyTree
    last: jax.Array
    cursor: jax.Array
    count: jax.Array
    begins: jax.Array

    @property
    def slots(self) -> int:
        """Capacity C of one row."""
        return self.last.shape[-1]

    @property
    def newest(self) -> jax.Array:
        """`[N]` int32, slot of each row's newest transition."""
        return (self.cursor - 1) % self.slots


class StoredPositions(NamedTuple):
    """Positions at which one step was stored; `[N]` each.

    Attributes:
      row: int32, 0 to N - 1.
      slot: int32, slot of the row's transition; C, which writes with `mode="drop"` ignore, where nothing
        was stored.
      stored: bool; a transition was stored.
      first: bool; the transition begins an episode.
    """

    row: jax.Array
    slot: jax.Array
    stored: jax.Array
    first: jax.Array


class Window(NamedTuple):
    """Steps that one sample spans; steps that are not inside are arbitrary.

    Attributes:
      row: `[B]` int32.
      slot: `[B, n]` int32, consecutive.
      inside: `[B, n]` bool, true for the first m >= 1 of them.
      factor: `[B, n]` weight of the reward of each step: gamma^k, times the discounts before it.
      end: `[B]` int32, slot of the last step inside.
      discount: `[B]` weight of the value of the last step's `next_obs`.
    """

    row: jax.Array
    slot: jax.Array
    inside: jax.Array
    factor: jax.Array
    end: jax.Array
    discount: jax.Array


class IntermediateStates(struct.PyTreeNode):
    """Intermediate states of a sample, n - 1 at most.

    Attributes:
      obs: `[B, n - 1, F]`.
      factor: `[B, n - 1]` weight of a reward in that state: gamma^k, 0 where the window has ended.
    """

    obs: jax.Array
    factor: jax.Array


class Sample(struct.PyTreeNode):
    """A batch of B transitions to learn from, each spanning up to n decisions.

    Attributes:
      obs: `[B, F]`.
      action: `[B, D]`, taken in `obs`.
      reward: `[B]` discounted sum of the rewards inside the window.
      discount: `[B]` gamma^m for a window of m decisions, 0 where it ends in a termination.
      next_obs: `[B, F]` observation after the window.
      weight: `[B]` importance weights, at most 1.
      index: of the transitions, for `Replay.reprioritize`.
      context, next_context: leaves `[B, ...]` of the first and the last step of the window, or None.
      between: intermediate states; None if not requested or n is 1.
      inside: `[B, L]` bool for samples of sequences, see `read_sequences`; None for others.
      reset: `[B, L + 1]` bool for samples of sequences, `[B, L + 1, A]` for rows of A agents: the memory is
        empty before this observation. None for no such places.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    next_obs: jax.Array
    weight: jax.Array
    index: PyTree
    context: PyTree = None
    next_context: PyTree = None
    between: IntermediateStates | None = None
    inside: jax.Array | None = None
    reset: jax.Array | None = None


def init_ring(
    rows: int,
    slots: int,
    observation_size: int,
    action_size: int,
    observation_dtype: DTypeLike = jnp.float32,
    layout: ReplayRowLayout = PLAIN_ROWS,
) -> Ring:
    """Returns an empty ring of zeros. Observations of any floating type are stored as float32."""
    shape, each = (rows, slots), (rows, slots, *layout.team)
    if jnp.issubdtype(observation_dtype, jnp.floating):
        observation_dtype = jnp.float32

    def empty_of(one: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), one)

    return Ring(
        obs=jnp.zeros((*each, observation_size), observation_dtype),
        action=jnp.zeros((*each, action_size)),
        reward=jnp.zeros(shape),
        discount=jnp.zeros(shape),
        next_obs=jnp.zeros((*each, observation_size), observation_dtype),
        context=empty_of(layout.context),
        next_context=empty_of(layout.next_context),
        last=jnp.zeros(shape, bool),
        cursor=jnp.zeros(rows, jnp.int32),
        count=jnp.zeros(rows, jnp.int32),
        begins=jnp.ones(rows, bool),
    )


def store_step(ring: Ring, step: Transition) -> tuple[Ring, StoredPositions]:
    """Stores one step of the rows that are alive; the other rows are unchanged.

    In a row that is neither alive nor waits, the newest transition becomes the last of its window, so that
    later transitions do not continue it. The episode goes on until a boundary.

    Args:
      ring: N rows.
      step: `[N]` transitions with flat observations `[N, F]`, and contexts as in the layout; rows that are
        not alive are arbitrary.

    Raises:
      ValueError: for observations that the ring's type cannot represent.
    """
    if jnp.promote_types(step.obs.dtype, ring.obs.dtype) != ring.obs.dtype:
        raise ValueError(f"observations are {step.obs.dtype}, but their space is {ring.obs.dtype}")
    row = jnp.arange(ring.count.shape[0])
    slot = jnp.where(step.alive, ring.cursor, ring.slots)
    ends = step.boundary | step.alive & (step.discount == 0)
    waits = False if step.waits is None else step.waits
    judged = jnp.where(step.alive, ring.cursor, jnp.where(waits, ring.slots, ring.newest))

    def write(buffer, value):
        return buffer.at[row, slot].set(value.astype(buffer.dtype), mode="drop")

    return ring.replace(
        obs=write(ring.obs, step.obs),
        action=write(ring.action, step.action),
        reward=write(ring.reward, step.reward),
        discount=write(ring.discount, step.discount),
        next_obs=write(ring.next_obs, step.next_obs),
        context=jax.tree.map(write, ring.context, step.context),
        next_context=jax.tree.map(write, ring.next_context, step.next_context),
        last=ring.last.at[row, judged].set(ends | ~step.alive, mode="drop"),
        cursor=(ring.cursor + step.alive) % ring.slots,
        count=jnp.minimum(ring.count + step.alive, ring.slots),
        begins=ends | ring.begins & ~step.alive,
    ), StoredPositions(row, slot, step.alive, ring.begins)


def draw_uniform(key: jax.Array, ring: Ring, size: int) -> tuple[jax.Array, jax.Array]:
    """Draws `size` transitions uniformly from all transitions in the ring.

    Returns:
      `(row, slot)`, int32 `[size]` each; empty slots while the ring is empty.
    """
    ends = jnp.cumsum(ring.count)
    drawn = jax.random.randint(key, (size,), 0, jnp.maximum(ends[-1], 1))
    row = jnp.minimum(jnp.searchsorted(ends, drawn, side="right"), ends.size - 1)
    age = ends[row] - 1 - drawn
    return row, (ring.newest[row] - age) % ring.slots


def make_windows(ring: Ring, row: jax.Array, slot: jax.Array, steps: int, gamma: jax.Array | float) -> Window:
    """Builds the windows of at most `steps` steps that begin at `[B]` stored transitions.

    Windows stop at the end of an episode and at the row's newest transition, hence before the cursor.
    """
    slot = (slot[:, None] + jnp.arange(steps)) % ring.slots
    stop = ring.last[row[:, None], slot] | (slot == ring.newest[row][:, None])
    inside = (jnp.cumsum(stop, -1) - stop) == 0
    product = jnp.cumprod(gamma * ring.discount[row[:, None], slot], -1)
    factor = jnp.concatenate([jnp.ones_like(product[:, :1]), product[:, :-1]], -1)
    at_end = (jnp.arange(row.size), inside.sum(-1) - 1)
    return Window(row, slot, inside, factor, slot[at_end], product[at_end])


def window_sum(window: Window, values: jax.Array) -> jax.Array:
    """Discounted sums `[B]` of `[B, n]` values over the steps inside."""
    return jnp.where(window.inside, window.factor * values, 0.0).sum(-1)


def read_samples(
    ring: Ring, window: Window, weight: jax.Array, index: PyTree, *, between: bool = False
) -> Sample:
    """Reads windows as samples with these weights and indices `[B]`.

    With `between`, samples include the intermediate states, unless the windows have one step.
    """
    row, begin = window.row, window.slot[:, 0]
    return Sample(
        obs=ring.obs[row, begin].astype(jnp.float32),
        action=ring.action[row, begin],
        reward=window_sum(window, ring.reward[row[:, None], window.slot]),
        discount=window.discount,
        next_obs=ring.next_obs[row, window.end].astype(jnp.float32),
        weight=weight,
        index=index,
        context=jax.tree.map(lambda x: x[row, begin], ring.context),
        next_context=jax.tree.map(lambda x: x[row, window.end], ring.next_context),
        between=read_between(ring, window) if between and window.slot.shape[1] > 1 else None,
    )


def read_between(ring: Ring, window: Window) -> IntermediateStates:
    """Reads the states of the windows after their first, with factor 0 beyond the end of a window."""
    factor = jnp.where(window.inside, window.factor, 0.0)
    obs = ring.obs[window.row[:, None], window.slot[:, 1:]].astype(jnp.float32)
    return IntermediateStates(obs=obs, factor=factor[:, 1:])


def read_sequences(
    ring: Ring,
    row: jax.Array,
    slot: jax.Array,
    steps: int,
    weight: jax.Array,
    index: PyTree,
    gamma: jax.Array | float,
    burn_in: int = 0,
) -> Sample:
    """Reads sequences of L = `steps` decisions that begin at `[B]` stored transitions, `[B, L, ...]`.

    Observation l + 1 is the one after decision l, so that one pass over L + 1 observations gives all values.
    A sequence goes on after an episode with the row's next one, from an empty memory (`reset`). The last
    observation of an episode that was cut, whose value is bootstrapped, takes the place of a decision;
    this place, and those after the row's newest transition, are not `inside` and arbitrary. Nor are the first
    `burn_in` decisions, whose memory lacks what was before the sequence (Kapturowski et al. 2019), unless an
    episode begins with or before them in the sequence.

    Args:
      ring: N rows.
      row, slot: `[B]` int32, first decisions.
      steps: L.
      weight, index: `[B]`, see `Sample`.
      gamma: discount of one step.
      burn_in: fewer than L.
    """
    row, places = row[:, None], jnp.arange(steps + 1)
    slots = (slot[:, None] + places) % ring.slots
    ends, newest = ring.last[row, slots], slots == ring.newest[row]
    # The next observations of these decisions are no later decision's, so they need a place of their own.
    extra = newest | ends & (ring.discount[row, slots] > 0)
    place = places + jnp.cumsum(extra, 1) - extra
    step = (place[:, None] <= places[:, None]).sum(-1) - 1

    def at_places(x):
        return jnp.take_along_axis(x, step, 1)

    final = at_places(place) < places
    known = at_places(jnp.cumsum(newest, 1) - newest) == 0
    restarts = at_places(jnp.pad(ends[:, :-1], ((0, 0), (1, 0)))) & ~final
    source = at_places(slots)

    def seen(now, later):
        return select_rows(final, later[row, source], now[row, source])

    reset = restarts
    if ring.context is not None and ring.context.begins is not None:
        reset = seen(ring.context.begins, ring.next_context.begins) | restarts[..., None]
    inside = known & ~final
    if burn_in:
        whole = _begins_episode(ring, row, slot[:, None]) | (jnp.cumsum(restarts, 1) > 0)
        inside &= (places >= burn_in) | whole
    obs, source = seen(ring.obs, ring.next_obs).astype(jnp.float32), source[:, :-1]
    return Sample(
        obs=obs[:, :-1],
        action=ring.action[row, source],
        reward=ring.reward[row, source],
        discount=gamma * ring.discount[row, source],
        next_obs=obs[:, 1:],
        weight=weight,
        index=index,
        context=jax.tree.map(lambda x: x[row, source], ring.context),
        next_context=jax.tree.map(lambda x: x[row, source], ring.next_context),
        inside=inside[:, :-1],
        reset=reset,
    )


def _begins_episode(ring: Ring, row: jax.Array, slot: jax.Array) -> jax.Array:
    """Whether decisions `[...]` are known to be the first ones of their trajectories.

    What came before a row's oldest decision is overwritten, once the row is full.
    """
    before = (slot - 1) % ring.slots
    first = (ring.count[row] < ring.slots) & (slot == 0)
    return first | (ring.last[row, before] & (before != ring.newest[row]))
