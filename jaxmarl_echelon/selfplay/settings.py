"""Settings of an opponent pool: `conf/pool/*.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass

from algos.checks import (
    require_choice,
    require_count,
    require_integer,
    require_keys,
    require_positive,
    require_range,
)
from algos.defaults import FROM_FILE, take_defaults_from
from jaxmarl_echelon.selfplay.matchmaking import COMMANDERS, EXPLORATION, MIRROR, MODES
from jaxmarl_echelon.selfplay.ratings import SYSTEMS

MIX, AUTO, IDLE, EPISODE = "mix", "auto", "idle", "episode"
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


CHOICES = {
    "mode": (*MODES, MIX, "none"),
    "weight": WEIGHTS,
    "normalise": ("softmax", "plain"),
    "prior": ("rating", "none"),
    "gate": GATES,
    "evict": EVICTIONS,
    "anchor": ANCHORS,
    "rating": tuple(SYSTEMS),
    "acting": ACTING,
    "store": STORES,
}


@take_defaults_from("pool/default")
@dataclass(frozen=True)
class PoolSettings:
    """Settings of an opponent pool: snapshots, ratings and matchmaking; see docs/reference/selfplay.md.

    Attributes:
      capacity: number K of past policies in the bank.
      groups: number G of equal groups of environments, each with one opponent at a time.
      mode: one of `matchmaking.MODES`, or "mix" of several with `shares`. "none" is an alias of "mirror".
      shares: share of each mode in a mix; "mirror" gets a fixed number of groups.
      weight: weight function of "pfsp", one of `WEIGHTS`.
      power: exponent of the weight "hard".
      temperature: temperature of the softmax modes; None for each mode's default.
      normalise: "softmax", or "plain": quality divided by its sum in "match-quality", linear in "ts-dist".
      prior: "rating": payoffs include `prior_games` virtual games with the expected score; or "none".
      prior_games: see `prior`.
      top: number of snapshots that "top" draws from, by the lower bound of their rating; number of commanders
        that "commanders" draws from, by their rating.
      recent: number of newest candidates that "commanders" draws from.
      promote_after: games after which "commanders" promotes a candidate, unless `top` commanders or such
        candidates have a higher lower bound of the rating.
      lag_range: first and last lag of the snapshots that "lagged" draws from; the newest has lag 1.
      snapshot_every: updates between snapshots.
      gate: condition for taking a snapshot that is due, one of `GATES`.
      gate_games: games required by "rated" and "improved".
      gate_sigma: maximum rating uncertainty of the learner for "rated"; None: `GATE_SHARE` of a new entry's.
      gate_payoff: minimum decayed score against the newest snapshot for "improved".
      gate_timeout: updates after which "improved" is open unconditionally.
      evict: rule for the slot of a new snapshot if none is empty, one of `EVICTIONS`.
      evict_games: games that an entry needs to be judged by "weakest" and "idle"; entries with fewer are
        evicted last.
      anchor: "initial" keeps the initial policy permanently in the first slot.
      fixed: further opponents: scripts of the environment, and "frozen:PATH".
      hold: updates for which a group keeps its opponent; "auto": about four episodes; "episode": each
        environment draws its own opponent at the beginning of each episode.
      rating: rating system, one of `ratings.SYSTEMS`.
      games_per_pair: maximum number of rated games per opponent and update.
      tau_frozen: drift of the skill of frozen opponents per game.
      decay: factor on past payoffs per update.
      greedy: whether opponents act deterministically.
      acting: evaluation of the opponents' networks, one of `ACTING`; "sorted" and "dense" allow any opponent
        per environment, and are slower.
      store: precision of the weights in the bank.
      league: number of learners for each of `LEAGUE_ROLES`, each with its own bank; replaces `mode` and
        `gate` by the rules of `selfplay.league`. None: a single learner.
    """

    capacity: int = FROM_FILE
    groups: int = FROM_FILE
    mode: str = FROM_FILE
    shares: Mapping[str, float] = FROM_FILE
    weight: str = FROM_FILE
    power: float = FROM_FILE
    temperature: float | None = FROM_FILE
    normalise: str = FROM_FILE
    prior: str = FROM_FILE
    prior_games: float = FROM_FILE
    top: int = FROM_FILE
    recent: int = FROM_FILE
    promote_after: int = FROM_FILE
    lag_range: tuple[int, int] = FROM_FILE
    snapshot_every: int = FROM_FILE
    gate: str = FROM_FILE
    gate_games: int = FROM_FILE
    gate_sigma: float | None = FROM_FILE
    gate_payoff: float = FROM_FILE
    gate_timeout: int = FROM_FILE
    evict: str = FROM_FILE
    evict_games: int = FROM_FILE
    anchor: str = FROM_FILE
    fixed: tuple[str, ...] = FROM_FILE
    hold: int | str = FROM_FILE
    rating: str = FROM_FILE
    games_per_pair: int = FROM_FILE
    tau_frozen: float = FROM_FILE
    decay: float = FROM_FILE
    greedy: bool = FROM_FILE
    acting: str = FROM_FILE
    store: str = FROM_FILE
    league: Mapping[str, int] | None = FROM_FILE

    def __post_init__(self):
        for key in COUNTS:
            require_count(f"pool.{key}", getattr(self, key))
        require_integer("pool.evict_games", self.evict_games)
        if self.hold not in (AUTO, EPISODE):
            require_count("pool.hold", self.hold, f"or {AUTO} or {EPISODE}")
        if self.capacity < 2 and self.anchor != "none":
            raise ValueError(
                f"pool.capacity={self.capacity}: must be at least 2 with pool.anchor={self.anchor}"
            )
        for key, allowed in CHOICES.items():
            require_choice(f"pool.{key}", getattr(self, key), allowed)
        self._require_positive()
        object.__setattr__(self, "fixed", tuple(self.fixed))
        self._require_lags()
        self._require_league()
        self._require_mix()
        self._require_episodes()
        if "fixed" in self.mixture and not self.fixed and not self.league:
            raise ValueError("pool.fixed=[]: must name opponents, because the mode fixed draws from them")
        if self.evict == IDLE and self.league:
            raise ValueError(f"pool.evict={IDLE}: cannot be used with pool.league")

    @property
    def mixture(self) -> dict[str, float]:
        """Returns the modes by name with their shares, which sum to 1."""
        if self.mode != MIX:
            return {MIRROR if self.mode == "none" else self.mode: 1.0}
        total = sum(self.shares.values())
        return {name: share / total for name, share in self.shares.items() if share > 0}

    @property
    def mirrored(self) -> int:
        """Number of groups in which the learner plays itself and learns from all seats; 0 in a league."""
        return 0 if self.league else round(self.groups * self.mixture.get(MIRROR, 0.0))

    @property
    def episodic(self) -> bool:
        """Whether opponents are drawn per episode instead of per group of environments."""
        return self.hold == EPISODE

    @property
    def explores(self) -> bool:
        """Whether opponents are drawn by the diversity of the games against them."""
        return EXPLORATION in self.mixture and not self.league

    @property
    def promotes(self) -> bool:
        """Whether snapshots begin as candidates that can be promoted to commanders."""
        return COMMANDERS in self.mixture and not self.league

    @property
    def roles(self) -> tuple[int, ...]:
        """Returns the learners' roles as indices of `LEAGUE_ROLES`; one main agent without a league."""
        given = self.league or {LEAGUE_ROLES[0]: 1}
        return tuple(role for role, name in enumerate(LEAGUE_ROLES) for _ in range(given.get(name, 0)))

    @property
    def learners(self) -> int:
        """Number M of learners, which are the first entries; 1 without a league."""
        return len(self.roles)

    @property
    def first_fixed(self) -> int:
        """Entry of the first fixed opponent; it follows the learners and the slots of all banks."""
        return self.learners * (1 + self.capacity)

    @property
    def entries(self) -> int:
        """Number n of entries: learners, slots of their banks, fixed opponents."""
        return self.first_fixed + len(self.fixed)

    def learner_name(self, number: int) -> str:
        """Returns a learner's name: its role, with a number if several learners have the role."""
        role = self.roles[number]
        name = LEAGUE_ROLES[role]
        return name if self.roles.count(role) == 1 else f"{name}_{number - self.roles.index(role)}"

    def held(self, episode_limit: int, horizon: int) -> int:
        """Returns the number of updates for which a group keeps its opponent; 1 if drawn per episode."""
        return {AUTO: -(-4 * episode_limit // horizon), EPISODE: 1}.get(self.hold, self.hold)

    def _require_positive(self) -> None:
        for key in ("power", "prior_games", "temperature", "gate_sigma"):
            if getattr(self, key) is not None:
                require_positive(f"pool.{key}", getattr(self, key))
        for key in ("decay", "gate_payoff"):
            require_positive(f"pool.{key}", getattr(self, key), 1.0)
        require_range("pool.tau_frozen", self.tau_frozen, 0.0)
        if self.gate == "rated" and self.rating == "elo":
            raise ValueError(
                "pool.gate=rated: needs a rating with an uncertainty, which pool.rating=elo is not"
            )

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
        require_keys("pool.league.", self.league, LEAGUE_ROLES, "unknown role")
        for name, number in self.league.items():
            require_integer(f"pool.league.{name}", number)
        if not self.league.get(LEAGUE_ROLES[0]) or sum(self.league.values()) < 2:
            raise ValueError(f"pool.league={dict(self.league)}: must have a main agent and another learner")

    def _require_episodes(self) -> None:
        if not self.episodic:
            return
        if self.acting == "groups":
            raise ValueError(
                f"pool.hold={EPISODE}: needs pool.acting=sorted or dense, since groups have several opponents"
            )
        if self.league:
            raise ValueError(f"pool.hold={EPISODE}: must be a whole number or {AUTO} with pool.league")

    def _require_mix(self) -> None:
        if self.mode != MIX or self.league:
            return
        require_keys("pool.shares.", self.shares, MODES, "unknown mode")
        for name, share in self.shares.items():
            require_range(f"pool.shares.{name}", share, 0.0)
        if sum(self.shares.values()) <= 0:
            raise ValueError(f"pool.shares={dict(self.shares)}: must not all be 0")
        if 0 < self.mixture.get(MIRROR, 0.0) < 1 and self.mirrored in (0, self.groups):
            raise ValueError(
                f"pool.groups={self.groups}: too few for a mirror share of {self.mixture[MIRROR]:.3g}; "
                f"at least one group must have an opponent and one must not"
            )
