"""Settings of an opponent pool: `conf/pool/*.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from jaxmarl_echelon.selfplay.ratings import SYSTEMS

MIRROR, MIX, AUTO, EXPLORATION = "mirror", "mix", "auto", "exploration"
COMMANDERS, IDLE = "commanders", "idle"
EPISODE = "episode"
MODES = (
    MIRROR,
    "fixed",
    "lagged",
    "random",
    "match-quality",
    "ts-dist",
    "pfsp",
    "ucb",
    EXPLORATION,
    "top",
    COMMANDERS,
)
WEIGHTS = ("hard", "var", "linear", "capped", "gaussian")
GATES = ("always", "rated", "improved")
EVICTIONS = ("oldest", "spaced", "weakest", "similar", IDLE)
ANCHORS = ("initial", "none")
ACTING = ("groups", "sorted", "dense")
STORES = ("float32", "bf16")
LEAGUE_ROLES = ("main", "main_exploiter", "league_exploiter")
COUNTS = (
    "capacity",
    "groups",
    "snapshot_every",
    "gate_games",
    "gate_timeout",
    "games_per_pair",
    "top",
    "recent",
    "promote_after",
)


@dataclass(frozen=True)
class PoolSettings:
    """How a pool of past policies is filled and whom the learner meets.

    Attributes:
      capacity: past policies K that the bank holds.
      groups: equal parts G of the environments, each with one opponent at a time.
      mode: one of `MODES`, or "mix" of several by `shares`. "none" is another name of "mirror".
      shares: of each mode in a mix; the share of "mirror" is a fixed number of groups.
      weight: of "pfsp", one of `WEIGHTS`.
      power: of the weight "hard".
      temperature: of the modes that are a softmax; None for the mode's own.
      normalise: "softmax", or "plain": "match-quality" by shares of quality, "ts-dist" linearly.
      prior: "rating": payoffs start from expected scores, worth `prior_games`; or "none".
      prior_games: see `prior`.
      top: how many of the best snapshots, by their pessimistic ratings, "top" draws from; how many of the
        best commanders, by their ratings, "commanders" draws from.
      recent: how many of the newest candidates "commanders" draws from.
      promote_after: games after which "commanders" promotes a candidate, unless `top` commanders or such
        candidates are pessimistically better.
      lag_range: snapshots that "lagged" draws from; the newest is 1.
      snapshot_every: updates between snapshots.
      gate: when a snapshot that is due is taken, one of `GATES`.
      gate_games: games that "rated" and "improved" wait for.
      gate_sigma: uncertainty of the learner that "rated" demands.
      gate_payoff: score against the newest snapshot, decayed, that "improved" demands.
      gate_timeout: updates after which "improved" demands nothing.
      evict: whose slot a snapshot gets if none is empty, one of `EVICTIONS`.
      evict_games: games before "weakest" and "idle" judge an entry; those with fewer go after all others.
      anchor: "initial" keeps the initial policy for ever, in the first slot.
      fixed: opponents beside snapshots: scripts of the environment, and "frozen:PATH".
      hold: updates for which a group keeps its opponent, or "auto": some four episodes. "episode": every
        environment draws an opponent of its own whenever an episode begins in it.
      rating: one of `ratings.SYSTEMS`.
      games_per_pair: games of one update that are rated per opponent, at most.
      tau_frozen: drift of the skill of frozen opponents, per game.
      decay: factor of past payoffs per update.
      greedy: whether opponents act deterministically.
      acting: how groups act, one of `ACTING`; "sorted" and "dense" act for any rows, and are slower.
      store: precision of the weights in the bank.
      league: number of learners in each of `LEAGUE_ROLES`, each with a bank of its own; they replace `mode`,
        `gate` and resets follow (see `selfplay.league`). None: one learner.
    """

    capacity: int = 16
    groups: int = 8
    mode: str = MIX
    shares: Mapping[str, float] = field(default_factory=lambda: {MIRROR: 0.5, "pfsp": 0.5})
    weight: str = "hard"
    power: float = 2.0
    temperature: float | None = None
    normalise: str = "softmax"
    prior: str = "rating"
    prior_games: float = 4.0
    top: int = 20
    recent: int = 5
    promote_after: int = 20
    lag_range: tuple[int, int] = (1, 7)
    snapshot_every: int = 10
    gate: str = "always"
    gate_games: int = 100
    gate_sigma: float = 2.0
    gate_payoff: float = 0.55
    gate_timeout: int = 100
    evict: str = "spaced"
    evict_games: int = 0
    anchor: str = "initial"
    fixed: tuple[str, ...] = ()
    hold: int | str = AUTO
    rating: str = "trueskill"
    games_per_pair: int = 8
    tau_frozen: float = 0.0
    decay: float = 0.99
    greedy: bool = False
    acting: str = "groups"
    store: str = "float32"
    league: Mapping[str, int] | None = None

    def __post_init__(self):
        for key in COUNTS:
            self._require_number(key, 1)
        self._require_number("evict_games", 0)
        if self.hold not in (AUTO, EPISODE):
            self._require_number("hold", 1, f"or {AUTO} or {EPISODE}")
        if self.capacity < 2 and self.anchor != "none":
            raise ValueError(
                f"pool.capacity={self.capacity}: must be at least 2 with pool.anchor={self.anchor}"
            )
        self._require_one_of("mode", (*MODES, MIX, "none"))
        self._require_one_of("weight", WEIGHTS)
        self._require_one_of("normalise", ("softmax", "plain"))
        self._require_one_of("prior", ("rating", "none"))
        self._require_one_of("gate", GATES)
        self._require_one_of("evict", EVICTIONS)
        self._require_one_of("anchor", ANCHORS)
        self._require_one_of("rating", tuple(SYSTEMS))
        self._require_one_of("acting", ACTING)
        self._require_one_of("store", STORES)
        self._require_positive()
        object.__setattr__(self, "fixed", tuple(self.fixed))
        self._require_lags()
        self._require_league()
        self._require_mix()
        self._require_episodes()
        if "fixed" in self.mixture and not self.fixed and not self.league:
            raise ValueError("pool.fixed=[]: must name opponents where the mode fixed draws from them")
        if self.evict == IDLE and self.league:
            raise ValueError(f"pool.evict={IDLE}: not for a league, whose learners meet each other's past")

    @property
    def mixture(self) -> dict[str, float]:
        """The modes by name with their shares, which sum to 1."""
        if self.mode != MIX:
            return {MIRROR if self.mode == "none" else self.mode: 1.0}
        total = sum(self.shares.values())
        return {name: share / total for name, share in self.shares.items() if share > 0}

    @property
    def mirrored(self) -> int:
        """Groups in which the learner plays itself, and learns from both sides; none in a league."""
        return 0 if self.league else round(self.groups * self.mixture.get(MIRROR, 0.0))

    @property
    def episodic(self) -> bool:
        """Whether opponents are drawn for single episodes, not for groups of environments."""
        return self.hold == EPISODE

    @property
    def explores(self) -> bool:
        """Whether opponents are drawn by how different the games against them are."""
        return EXPLORATION in self.mixture and not self.league

    @property
    def promotes(self) -> bool:
        """Whether snapshots begin as candidates, of which some become commanders."""
        return COMMANDERS in self.mixture and not self.league

    @property
    def roles(self) -> tuple[int, ...]:
        """Roles of the learners, as indices of `LEAGUE_ROLES`; one main agent without a league."""
        given = self.league or {LEAGUE_ROLES[0]: 1}
        return tuple(role for role, name in enumerate(LEAGUE_ROLES) for _ in range(given.get(name, 0)))

    @property
    def learners(self) -> int:
        """Learners M, the first entries; 1 without a league."""
        return len(self.roles)

    @property
    def first_fixed(self) -> int:
        """The first fixed opponent's entry; before it are the learners and the slots of all their banks."""
        return self.learners * (1 + self.capacity)

    @property
    def entries(self) -> int:
        """Entries n: the learners, the slots of their banks, the fixed opponents."""
        return self.first_fixed + len(self.fixed)

    def learner_name(self, number: int) -> str:
        """Name of a league's learner: that of its role, with a number where several have the role."""
        role = self.roles[number]
        name = LEAGUE_ROLES[role]
        return name if self.roles.count(role) == 1 else f"{name}_{number - self.roles.index(role)}"

    def held(self, episode_limit: int, horizon: int) -> int:
        """Updates for which a group keeps its opponent; 1 where it is drawn for an episode."""
        return {AUTO: -(-4 * episode_limit // horizon), EPISODE: 1}.get(self.hold, self.hold)

    def _require_number(self, key: str, least: int, otherwise: str = "") -> None:
        value = getattr(self, key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            allowed = f"must be a whole number of at least {least} {otherwise}".strip()
            raise ValueError(f"pool.{key}={value}: {allowed}")

    def _require_one_of(self, key: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, key) not in allowed:
            raise ValueError(f"pool.{key}={getattr(self, key)}: must be one of {', '.join(allowed)}")

    def _require_positive(self) -> None:
        for key in ("power", "prior_games", "temperature", "gate_sigma"):
            value = getattr(self, key)
            if value is not None and not (isfinite(value) and value > 0):
                raise ValueError(f"pool.{key}={value}: must be above 0")
        for key in ("decay", "gate_payoff"):
            if not 0 < getattr(self, key) <= 1:
                raise ValueError(f"pool.{key}={getattr(self, key)}: must be above 0 and at most 1")
        if self.tau_frozen < 0:
            raise ValueError(f"pool.tau_frozen={self.tau_frozen}: must not be negative")

    def _require_lags(self) -> None:
        lags = tuple(self.lag_range)
        if len(lags) != 2 or not all(isinstance(lag, int) for lag in lags) or not 1 <= lags[0] <= lags[1]:
            raise ValueError(f"pool.lag_range={list(lags)}: must be two whole numbers, 1 <= first <= last")
        object.__setattr__(self, "lag_range", lags)

    def _require_league(self) -> None:
        if self.league is None:
            return
        if not isinstance(self.league, Mapping):
            raise ValueError(f"pool.league={self.league}: must map {', '.join(LEAGUE_ROLES)} to numbers")
        for name, number in self.league.items():
            if name not in LEAGUE_ROLES:
                raise ValueError(
                    f"pool.league.{name}={number}: no such role; allowed: {', '.join(LEAGUE_ROLES)}"
                )
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError(f"pool.league.{name}={number}: must be a whole number of at least 0")
        if not self.league.get(LEAGUE_ROLES[0]) or sum(self.league.values()) < 2:
            raise ValueError(f"pool.league={dict(self.league)}: must have a main agent and another learner")

    def _require_episodes(self) -> None:
        if not self.episodic:
            return
        if self.acting == "groups":
            raise ValueError(
                f"pool.hold={EPISODE}: needs pool.acting=sorted or dense, as no group has one opponent"
            )
        if self.league:
            raise ValueError(f"pool.hold={EPISODE}: not for a league; must be a whole number or {AUTO}")

    def _require_mix(self) -> None:
        if self.mode != MIX or self.league:
            return
        for name, share in self.shares.items():
            if name not in MODES:
                raise ValueError(f"pool.shares.{name}={share}: no such mode; allowed: {', '.join(MODES)}")
            if not (isfinite(share) and share >= 0):
                raise ValueError(f"pool.shares.{name}={share}: must not be negative")
        if sum(self.shares.values()) <= 0:
            raise ValueError(f"pool.shares={dict(self.shares)}: must not all be 0")
        if 0 < self.mixture.get(MIRROR, 0.0) < 1 and self.mirrored in (0, self.groups):
            raise ValueError(
                f"pool.groups={self.groups}: too few for a mirror share of {self.mixture[MIRROR]:.3g}; "
                f"need a group with an opponent and one without"
            )
