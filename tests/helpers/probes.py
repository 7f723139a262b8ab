"""Tiny environments with known answers, each of which fails for one reason only.

A probe names what differs from `Probe`: spaces, observation, reward, ends. Values quoted in the
docstrings are those of the optimal (or, without a choice, the only) policy.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.spaces import Box, Discrete, MultiDiscrete

ROLE = "player"


@struct.dataclass
class ProbeState:
    """State of a probe.

    Attributes:
      clock: int32 decisions taken in this episode.
      start: uint32 number drawn at reset, to tell episodes apart.
      cue: `[A]` float32, -1 or 1, drawn at reset.
      level: float32, a number that goes nowhere but may be poisoned.
      alive: `[A]` bool.
    """

    clock: jax.Array
    start: jax.Array
    cue: jax.Array
    level: jax.Array
    alive: jax.Array


class Probe(Environment):
    """Base of the probes: constant observation 0, reward 1, terminated after `horizon` steps.

    Parameters are `gain` (multiplies rewards) and `task` (reported in `info`). `info` also has
    `start` (distinct per episode) and `clock`.
    """

    agents = 1
    horizon = 1
    observation = Box((1,), -1.0, 1.0)
    action = Discrete(2)
    times_out = False

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            name=type(self).__name__,
            version=1,
            roles=(Role(ROLE, self.agents, self.observation, self.action),),
            decision_period=0.0,
            episode_limit=self.horizon,
            results=results.standard_results(
                ("done", "timeout"), ("done",), ("first", "second", "third"), ("main", "count")
            ),
            score="success",
        )

    def default_params(self):
        return {"gain": np.float32(1.0), "task": np.int32(0)}

    def observe(self, state, params):
        """`[A, ...]` observations."""
        return jnp.zeros((self.agents, *self.observation.shape), self.observation.dtype)

    def mask(self, state, params):
        """`[A, n]` legal actions, or None."""
        return None

    def reward(self, state, action, params):
        """`[A]` rewards of taking `action` in `state`."""
        return jnp.ones(self.agents)

    def roster(self, key, params):
        """`[A]` bool; who takes part in an episode."""
        return jnp.ones(self.agents, bool)

    def survivors(self, state, action, params):
        """`[A]` bool; False for agents that this step kills."""
        return jnp.ones(self.agents, bool)

    def disturb(self, state, time, params):
        """Last word on what a step returns."""
        return state, time

    def reset(self, key, params):
        key_start, key_cue, key_roster = jax.random.split(key, 3)
        state = ProbeState(
            clock=jnp.int32(0),
            start=jax.random.bits(key_start),
            cue=jax.random.rademacher(key_cue, (self.agents,), jnp.float32),
            level=jnp.float32(0),
            alive=self.roster(key_roster, params),
        )
        none = jnp.zeros(self.agents, bool)
        return state, self._show(state, params, jnp.zeros(self.agents), none, none)

    def step(self, key, state, actions, params):
        action = actions[ROLE]
        reward = params["gain"] * self.reward(state, action, params)
        survives = self.survivors(state, action, params)
        after = state.replace(clock=state.clock + 1, alive=state.alive & survives)
        last = after.clock >= self.horizon
        truncated = after.alive & last & self.times_out
        terminated = state.alive & ~after.alive | after.alive & last & (not self.times_out)
        time = self._show(after, params, reward, terminated, truncated)
        return self.disturb(after, time, params)

    def _show(self, state, params, reward, terminated, truncated):
        mask = self.mask(state, params)
        over = state.clock >= self.horizon
        began = state.clock > 0
        return TimeStep(
            obs={ROLE: self.observe(state, params)},
            reward={ROLE: reward.astype(jnp.float32)},
            terminated={ROLE: terminated},
            truncated={ROLE: truncated},
            alive={ROLE: state.alive},
            action_mask={} if mask is None else {ROLE: mask},
            over=over,
            info={
                "outcome": jnp.where(over, jnp.int32(self.times_out), -1),
                "task": jnp.asarray(params["task"], jnp.int32),
                "start": state.start,
                "clock": state.clock,
                "reward/main": reward.sum().astype(jnp.float32),
                "reward/count": began.astype(jnp.float32),
            },
        )


class ConstantReward(Probe):
    """One step, reward 1: V = 1."""


class ObservationReward(Probe):
    """One step, the reward is the observation, -1 or 1: V(o) = o."""

    def observe(self, state, params):
        return state.cue[:, None]

    def reward(self, state, action, params):
        return state.cue


class Opposites(Probe):
    """One step of two agents that see the same: action 0 pays the first 1, action 1 the second. V = 1 for
    each with a policy of its own, 1/2 on average with one for both.
    """

    agents = 2

    def reward(self, state, action, params):
        return (action == jnp.arange(2)).astype(jnp.float32)


class DelayedReward(Probe):
    """Two steps, observations 0 and 1, reward 1 at the end: V(0) = gamma, V(1) = 1."""

    horizon = 2

    def observe(self, state, params):
        return jnp.minimum(state.clock, 1).astype(jnp.float32)[None, None]

    def reward(self, state, action, params):
        return (state.clock == 1).astype(jnp.float32)[None]


class ActionReward(Probe):
    """One step, action 1 pays 1, action 0 costs 1: V = 1."""

    def reward(self, state, action, params):
        return jnp.where(action == 1, 1.0, -1.0)


class ObservationActionReward(Probe):
    """One step, pays 1 if the action is 1 exactly where the observation is positive: V = 1."""

    def observe(self, state, params):
        return state.cue[:, None]

    def reward(self, state, action, params):
        return jnp.where((action == 1) == (state.cue > 0), 1.0, -1.0)


class Fickle(ObservationActionReward):
    """The same over again, in episodes of 1 to 20 decisions: chance ends a quarter of them after each."""

    horizon = 20

    def disturb(self, state, time, params):
        ends = (state.start >> jnp.uint32(state.clock)) & 3 == 0
        return state, time.replace(
            terminated={ROLE: time.terminated[ROLE] | ends},
            alive={ROLE: time.alive[ROLE] & ~ends},
            over=time.over | ends,
            info=time.info | {"outcome": jnp.where(ends, 0, time.info["outcome"])},
        )


class TimeLimit(Probe):
    """Reward 1 per step, cut after `horizon` steps that nobody observes: V = 1 / (1 - gamma)."""

    times_out = True

    def __init__(self, horizon: int = 10):
        self.horizon = horizon


class Counting(TimeLimit):
    """Breaks the contract: counts in Python, which a compiled program does once."""

    calls = 0

    def reward(self, state, action, params):
        self.calls += 1
        return self.calls * jnp.ones(self.agents)


class Unbounded(TimeLimit):
    """Breaks the contract: no policy can act within these bounds."""

    action = Box((2,), [0.0, -np.inf], 1.0)


class Pictures(ObservationActionReward):
    """The same with the cue as the brightness of a noisy picture, whole numbers of any type: V = 1."""

    def __init__(self, dtype=np.uint8):
        self.observation = Box((2, 3), 0.0, 255.0, dtype)

    def observe(self, state, params):
        noise = (state.start >> jnp.arange(0, 24, 4, dtype=jnp.uint32)) & 63
        bright = jnp.where(state.cue > 0, 160, 40)
        return (bright[:, None, None] + noise.reshape(2, 3)).astype(self.observation.dtype)


class Credit(Probe):
    """Two agents, each of which sees its own cue and then the other's, and is paid 1 for
    following its own: V = 1 for each, whatever the other does.
    """

    agents = 2
    observation = Box((2,), -1.0, 1.0)

    def observe(self, state, params):
        return jnp.stack([state.cue, state.cue[::-1]], axis=-1)

    def reward(self, state, action, params):
        return jnp.where((action == 1) == (state.cue > 0), 1.0, -1.0)


class MaskOnly(Probe):
    """Only the mask tells which actions are legal: {0, 1} or {2, 3}. The odd one of the two pays
    1, the even one nothing, an illegal one 10: V = 1, and any return above 1 breaks the rules.
    """

    horizon = 3
    action = Discrete(4)

    def mask(self, state, params):
        low = (state.cue > 0) == (state.clock % 2 == 0)
        return low[:, None] == (jnp.arange(4) < 2)

    def reward(self, state, action, params):
        legal = jnp.take_along_axis(self.mask(state, params), action[:, None], axis=1)[:, 0]
        return jnp.where(legal, action % 2, 10).astype(jnp.float32)


class DeadAgent(Probe):
    """Two agents; the second dies in the first of four steps, and `params["garbage"]` is all
    that is seen of it (observation and reward) from then on. Action 1 pays each of them 1.

    With `garbage` other than 0 this breaks the rule that the dead earn nothing, on purpose.
    """

    agents = 2
    horizon = 4
    observation = Box((1,), -np.inf, np.inf)

    def default_params(self):
        return super().default_params() | {"garbage": np.float32(0.0)}

    def observe(self, state, params):
        return jnp.where(state.alive, state.cue, params["garbage"])[:, None]

    def reward(self, state, action, params):
        return jnp.where(state.alive, (action == 1).astype(jnp.float32), params["garbage"])

    def survivors(self, state, action, params):
        return jnp.array([True, False])


class Absent(Probe):
    """Two steps of two agents, of whom those of `params["roster"]` take part. Each of these is paid 1 in
    each step: its return is 2, whoever else is there.
    """

    agents = 2
    horizon = 2

    def default_params(self):
        return super().default_params() | {"roster": np.array([True, False])}

    def roster(self, key, params):
        return jnp.asarray(params["roster"])

    def reward(self, state, action, params):
        return jnp.where(state.alive, 1.0, 0.0)


class Fallen(Probe):
    """Two agents in episodes of four steps; the second acts once, and is out from then on. What is paid at
    the end depends on the first action of each, which both go on seeing: 1 for action 1, nothing for action
    0. V = gamma ** 3 for each one's first decision.
    """

    agents = 2
    horizon = 4
    action = Discrete(2)

    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, late=True)

    def reset(self, key, params):
        state, time = super().reset(key, params)
        return state.replace(cue=jnp.zeros(self.agents)), time

    def step(self, key, state, actions, params):
        chosen = jnp.where(state.clock == 0, actions[ROLE].astype(jnp.float32), state.cue)
        after = state.replace(clock=state.clock + 1, cue=chosen, alive=jnp.array([True, False]))
        last = after.clock >= self.horizon
        reward = params["gain"] * jnp.where(last, chosen, 0.0)
        ends = jnp.full(self.agents, last)
        time = self._show(
            after.replace(alive=after.alive & ~last), params, reward, ends, jnp.zeros_like(ends)
        )
        return after, time

    def observe(self, state, params):
        return state.cue[:, None]


class Unequal(Fallen):
    """Three agents in episodes of five steps, who act in the first, the first three or all of them, and are
    paid in every step whether they act or not. What each sees is its value, the sum of what is still to
    come, discounted by `gamma` per step.
    """

    agents, horizon, gamma = 3, 5, 0.9
    lives = np.array([1, 3, 5])
    pay = np.array([[1, -5, 2], [0, 1, -1], [3, 0, 1], [0, 2, 0], [4, -3, 1]], np.float32)
    observation = Box((1,), -np.inf, np.inf)

    def reset(self, key, params):
        state, time = super().reset(key, params)
        return state, time.replace(obs={ROLE: self.observe(state, params)})

    def step(self, key, state, actions, params):
        after = state.replace(clock=state.clock + 1, alive=state.clock + 1 < jnp.asarray(self.lives))
        last = jnp.full(self.agents, after.clock >= self.horizon)
        return after, self._show(after, params, jnp.asarray(self.pay)[state.clock], last, last & False)

    def observe(self, state, params):
        powers = self.gamma ** np.arange(self.horizon)
        to_come = [powers[: self.horizon - t] @ self.pay[t:] for t in range(self.horizon)]
        return jnp.asarray([*to_come, np.zeros(self.agents)], jnp.float32)[state.clock][:, None]


class Comings(Probe):
    """Three slots in episodes of four steps: the first is filled throughout, the second from the third step
    on, the last never. Who is there is paid 1 per step: returns are 4 and 2. `travelled` counts an agent's
    steps, `stood` is how many of them it stood still: none, so that nothing but absence makes it 0.
    """

    agents = 3
    horizon = 4
    comes = 2

    @property
    def spec(self) -> EnvSpec:
        own = (
            results.Result("travelled", role=ROLE, reduce="sum"),
            results.Result("pace", role=ROLE, reduce="sum", source="paid", over="travelled"),
            results.Result("share", role=ROLE, kind="rate"),
        )
        plain = super().spec
        return replace(plain, results=(*plain.results, *own), score="share", roles=plain.roles)

    def there(self, clock):
        return jnp.array([True, clock >= self.comes, False])

    def reset(self, key, params):
        state, time = super().reset(key, params)
        return self._filled(state, time, jnp.zeros(self.agents))

    def step(self, key, state, actions, params):
        acted = self.there(state.clock)
        after = state.replace(clock=state.clock + 1)
        last = after.clock >= self.horizon
        reward = params["gain"] * jnp.where(acted, 1.0, 0.0)
        ends = acted & last
        time = self._show(after, params, reward, ends, jnp.zeros_like(ends))
        after, time = self._filled(after, time, reward)
        return after, time

    def _filled(self, state, time, reward):
        there, over = self.there(state.clock), state.clock >= self.horizon
        garbage = jnp.where(there | self.there(state.clock - 1), 0.0, 1e3)  # what empty slots show
        info = time.info | {
            "travelled": jnp.where(there | (reward > 0), 1.0, 0.0) * (state.clock > 0) * (reward > 0)
            + garbage,
            "paid": 2.0 * reward + garbage,
            "share": jnp.array([1.0, 0.5, 0.0]),
        }
        return state, time.replace(
            alive={ROLE: there & ~over},
            present={ROLE: there},
            begins={ROLE: (state.clock == self.comes) & jnp.array([False, True, False])},
            info=info,
        )


class Poison(Probe):
    """Becomes not-a-number in the step after which the clock is `params["poison"]` (-1: never;
    0: at reset), in the place that `where` names: state, obs, reward or info.
    """

    horizon = 6
    times_out = True

    def __init__(self, where: str = "state"):
        self.where = where

    def default_params(self):
        return super().default_params() | {"poison": np.int32(-1)}

    def observe(self, state, params):
        return state.cue[:, None]

    def reset(self, key, params):
        return self.disturb(*super().reset(key, params), params)

    def disturb(self, state, time, params):
        bad = jnp.where(state.clock == params["poison"], jnp.nan, 0.0).astype(jnp.float32)
        if self.where == "state":
            return state.replace(level=state.level + bad), time
        if self.where == "info":
            return state, time.replace(info=time.info | {"reward/main": time.info["reward/main"] + bad})
        spoilt = {ROLE: getattr(time, self.where)[ROLE] + bad}
        return state, time.replace(**{self.where: spoilt})


class Hidden(Probe):
    """One step of blind agents, paid 1 for action 1, and a hundred times a cue: V = 1 + 100 cue.

    The cue is what critics see, unless it is not `shown`: then values explain nothing, and noise drowns what
    the action was worth.
    """

    def __init__(self, shown: bool = True):
        self.shown = shown

    @property
    def spec(self) -> EnvSpec:
        (role,) = super().spec.roles
        seen = self.observation if self.shown else None
        return replace(super().spec, roles=(replace(role, critic_observation=seen),))

    def reward(self, state, action, params):
        return 100.0 * state.cue + action

    def _show(self, state, *rest):
        time = super()._show(state, *rest)
        return time.replace(critic_obs={ROLE: state.cue[:, None]}) if self.shown else time


class ContinuousTarget(Probe):
    """One step, minus the squared distance to `params["target"]` per coordinate: V = 0. The
    space is lopsided, so that a wrong scaling of actions shows.
    """

    action = Box((2,), [-1.0, 0.0], [3.0, 0.5])

    def default_params(self):
        return super().default_params() | {"target": np.array([2.0, 0.1], np.float32)}

    def reward(self, state, action, params):
        return -jnp.square(action - params["target"]).sum(-1)


class MultiDiscreteTarget(Probe):
    """One step, half a point for each of two choices (of 3 and 2) that is right: V = 1."""

    action = MultiDiscrete((3, 2))

    def reward(self, state, action, params):
        return (action == jnp.array([2, 0])).mean(-1)


class Memory(Probe):
    """The cue is seen at the first of `horizon` steps and asked for at the last: V = gamma **
    (horizon - 1) at the start with memory, 0 without.
    """

    def __init__(self, horizon: int = 3):
        self.horizon = horizon

    def observe(self, state, params):
        return jnp.where(state.clock == 0, state.cue, 0.0)[:, None]

    def reward(self, state, action, params):
        right = jnp.where((action == 1) == (state.cue > 0), 1.0, -1.0)
        return jnp.where(state.clock == self.horizon - 1, right, 0.0)


class Lessons(Probe):
    """Nothing is paid; the script `count` tells what to do by its own count of decisions and by the cues.

    Of two agents the second dies in the second of four steps, and what the script says for the dead is wrong:
    not a number, or an option that it never takes for the living. The clock is not `shown` to policies that
    must count themselves.
    """

    agents = 2
    horizon = 4
    times_out = True
    observation = Box((2,), -1.0, 4.0)
    WRONG = 3

    def __init__(self, continuous: bool = True, shown: bool = True):
        self.shown = shown
        self.action = Box((2,), [-1.0, 0.0], [3.0, 0.5]) if continuous else Discrete(4)
        self.scripts = {"count": ScriptedPolicy(lambda: jnp.int32(0), self._count)}

    def _count(self, key, memory, state, params):
        del key, params
        return memory + 1, jnp.where(
            self._living(state), self.right(memory, state.cue), jnp.nan if self._continuous else self.WRONG
        )

    @property
    def _continuous(self):
        return isinstance(self.action, Box)

    def _living(self, state):
        return state.alive[:, None] if self._continuous else state.alive

    def right(self, count, cue):
        """`[...]` options, or `[..., 2]` actions at the bounds and in the middle, after `count` decisions."""
        option = (count + (cue > 0)) % 3
        if not self._continuous:
            return option
        share = jnp.stack([option / 2.0, 1.0 - option / 2.0], axis=-1)
        low, high = (jnp.asarray(bound, jnp.float32) for bound in self.action.bounds())
        return low + share * (high - low)

    def show(self, count, cue):
        """`[..., 2]` observations after `count` decisions."""
        return jnp.stack([cue, (count if self.shown else 0) * jnp.ones_like(cue)], axis=-1)

    def observe(self, state, params):
        return self.show(state.clock, state.cue)

    def reward(self, state, action, params):
        return jnp.zeros(self.agents)

    def survivors(self, state, action, params):
        return jnp.array([True, False]) | (state.clock < 1)


class Rivals(Probe):
    """A hunter and a prey, and chance decides: the hunter's success is "done", the prey's "escaped".

    Both see the hunter's cue, which tells who wins from the start, and their own place among the two.
    """

    ROLES = ("hunter", "prey")

    agents = 2
    horizon = 3
    observation = Box((2,), -1.0, 1.0)
    action = Box((1,), -1.0, 1.0)

    @property
    def spec(self) -> EnvSpec:
        player = super().spec.roles[0]
        scores = zip(self.ROLES, ("success", "escape"), strict=True)
        roles = tuple(replace(player, name=name, size=1, score=score) for name, score in scores)
        reported = results.standard_results(
            ("done", "escaped"), ("done",), ("first", "second", "third"), ("main", "count")
        )
        escape = results.Result("escape", kind="rate", source="outcome", among=("escaped",))
        return replace(super().spec, roles=roles, results=(*reported, escape))

    def observe(self, state, params):
        return jnp.stack([jnp.full(2, state.cue[0]), jnp.arange(2.0)], axis=-1)

    def step(self, key, state, actions, params):
        both = jnp.concatenate([actions[role] for role in self.ROLES])
        return super().step(key, state, {ROLE: both}, params)

    def _show(self, state, *rest):
        time = super()._show(state, *rest)
        escaped = jnp.where(state.cue[0] > 0, 0, 1)
        fields = ("obs", "reward", "terminated", "truncated", "alive")
        apart = {
            field: {role: getattr(time, field)[ROLE][i : i + 1] for i, role in enumerate(self.ROLES)}
            for field in fields
        }
        info = time.info | {"outcome": jnp.where(time.over, escaped, -1)}
        return time.replace(**apart, info=info)


CONFORMING = (
    ConstantReward(),
    ObservationReward(),
    DelayedReward(),
    Opposites(),
    ActionReward(),
    ObservationActionReward(),
    Pictures(),
    TimeLimit(),
    Credit(),
    MaskOnly(),
    DeadAgent(),
    Absent(),
    Fallen(),
    Comings(),
    Poison(),
    Hidden(),
    ContinuousTarget(),
    MultiDiscreteTarget(),
    Memory(),
    Rivals(),
)
