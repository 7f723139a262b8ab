"""Static configuration of a run, and derived sizes."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from algos import checks
from algos.defaults import FROM_FILE, take_defaults_from
from algos.settings import LearnerSettings
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs.base import Environment
from jaxmarl_echelon.selfplay.credit import TransformSettings
from jaxmarl_echelon.selfplay.settings import PoolSettings
from jaxmarl_echelon.training.acting.controllers import action_spec
from jaxmarl_echelon.training.config import role_assignment
from jaxmarl_echelon.training.config.answer_tasks import make_answer_task

POSITIVE = (
    "total_env_steps",
    "num_envs",
    "eval_every",
    "eval_episodes",
    "checkpoint_every",
    "updates_per_chunk",
    "window",
    "episode_rows",
    "shards",
)


SWITCHES = ("stagger", "replay")
SIZES = (*POSITIVE, *SWITCHES, "seed", "compilation")
# How much of XLA's optimisation updates get.
COMPILATIONS = ("full", "quick")


def read_profile(setting: object) -> tuple[int, int]:
    """Returns the first and the last update of `profile=FIRST:NUMBER`, counted from 1.

    Raises:
      ValueError: one line, for another text; in a YAML file it must be quoted.
    """
    found = re.fullmatch(r"([1-9]\d{0,8}):([1-9]\d{0,8})", setting) if isinstance(setting, str) else None
    if found is None:
        raise ValueError(f"profile={setting}: must be 'FIRST:NUMBER', such as '20:3' for updates 20 to 22")
    first, number = map(int, found.groups())
    return first, first + number - 1


def require_run_sizes(values: Mapping[str, Any]) -> None:
    """Checks the values of `SIZES`, before anything that takes time is built.

    Raises:
      ValueError: one line with the key, the value and the allowed values.
    """
    for key in POSITIVE:
        checks.require_count(key, values[key])
    for key in SWITCHES:
        checks.require_switch(key, values[key])
    checks.require_integer("seed", values["seed"], 0, 2**32 - 1)
    checks.require_choice("compilation", values["compilation"], COMPILATIONS)
    for key in ("eval_every", "checkpoint_every"):
        if values[key] % values["updates_per_chunk"]:
            chunk = f"updates_per_chunk={values['updates_per_chunk']}"
            raise ValueError(f"{key}={values[key]}: must be a multiple of {chunk}")
    for key in ("num_envs", "eval_episodes"):
        if values[key] % values["shards"]:
            raise ValueError(f"{key}={values[key]}: must be a multiple of shards={values['shards']}")


@take_defaults_from("config")
@dataclass(frozen=True)
class RunConfig:
    """Static configuration of a run.

    Attributes:
      env: the environment.
      algo: settings of the learners, see `algos.settings.LearnerSettings`.
      algos: role name to settings of its learner, where they differ from `algo`.
      curriculum: `(env) -> Curriculum`.
      controllers: role name to "learner", "learner:per_agent" (one policy per agent), "shared:ROLE"
        (that role's learner, which then learns from both), "frozen:PATH" or "frozen:PATH@ROLE" (the policy
        of this role, or of ROLE, in another run), "pool:ROLE" (a pool of past policies of that role's
        learner, see docs/selfplay.md), or the name of a script of the environment.
      total_env_steps: decisions to train for, summed over environments; rounded up to whole chunks of
        updates.
      num_envs: parallel environments E.
      shards: equal parts of the environments (`algos.collectives`); divides `num_envs`, `eval_episodes`.
      seed: seed of all random keys of the run.
      eval_every, checkpoint_every: in updates; multiples of `updates_per_chunk`.
      eval_episodes: episodes N of an evaluation, at least; see `evaluation.whole_seat_rounds`.
      updates_per_chunk: updates per call of the compiled program.
      compilation: "quick" compiles updates on a CPU with the options of evaluations
        (`algos.compiler.evaluation_compile_options`), "full" with XLA's own.
      stagger: truncate first episodes at random times, to decorrelate the episode phases of environments
        that start together; these episodes bootstrap and are not counted.
      window: episodes in the rolling statistics.
      episode_rows: largest number of finished episodes per update written to `episodes.csv`.
      replay: whether the first episode of each evaluation is recorded for the replay of `report.html`.
      pool: settings of the pool of past policies, if one plays a role.
      transforms: reward transforms that produce the learners' advantages; none by default.
      video_every: evaluations between two that are animated; None for no animation.
      profile: `FIRST:NUMBER`, updates to profile; None for none.
    """

    env: Environment
    algo: LearnerSettings
    curriculum: Callable[[Environment], Curriculum]
    total_env_steps: int
    num_envs: int
    shards: int = 1
    seed: int = FROM_FILE
    eval_every: int = FROM_FILE
    eval_episodes: int = FROM_FILE
    checkpoint_every: int = FROM_FILE
    updates_per_chunk: int = FROM_FILE
    compilation: str = FROM_FILE
    stagger: bool = FROM_FILE
    window: int = FROM_FILE
    episode_rows: int = FROM_FILE
    replay: bool = False
    controllers: dict[str, str] = field(default_factory=dict)
    algos: dict[str, LearnerSettings] = field(default_factory=dict)
    pool: PoolSettings = field(default_factory=PoolSettings)
    transforms: TransformSettings = field(default_factory=TransformSettings)
    video_every: int | None = FROM_FILE
    profile: str | None = FROM_FILE

    def __post_init__(self):
        require_run_sizes({key: getattr(self, key) for key in SIZES})
        object.__setattr__(self, "controllers", role_assignment.check_controllers(self.env, self.controllers))
        object.__setattr__(self, "algos", self._all_algos())
        if self.pooled is not None:
            role_assignment.require_pool(self.env, self.controllers, self.pool, self.num_envs, self.shards)
            if self.env.spec.turns and self.algos[self.pooled].replays:
                where = f"controllers.{self.pooled}={self.controllers[self.pooled]}"
                raise ValueError(f"{where}: a learner with a replay cannot play turn games against a pool")
        self._require_language()
        self._require_tasks()
        self._require_league()
        self._require_credit()
        self._require_successes()
        self._require_looking()

    @property
    def pooled(self) -> str | None:
        """Role that a pool plays; None without a pool."""
        return role_assignment.find_pool_role(self.controllers)

    @property
    def rival(self) -> str:
        """Learner that plays against the pool; see `role_assignment.opponent_learner`."""
        return role_assignment.opponent_learner(self.controllers, self.pooled)

    def _all_algos(self) -> dict[str, LearnerSettings]:
        """Checks and returns the settings of all learners, by role name."""
        learners = [
            role for role, name in self.controllers.items() if role_assignment.has_learner(role, name)
        ]
        for role in self.algos:
            if role not in learners:
                raise ValueError(f"algos.{role}: not a learner of this run; learners: {', '.join(learners)}")
        chosen = {role: self.algos.get(role, self.algo) for role in learners}
        for role, algo in chosen.items():
            if self.env.spec.role(role).critic_observation is not None and not algo.privileged_critics:
                name = getattr(algo, "NAME", type(algo).__name__)
                raise ValueError(f"algo={name}: cannot train {role}, which has privileged critics")
        lengths = {role: algo.horizon * algo.segments for role, algo in chosen.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{role} {length}" for role, length in lengths.items())
            raise ValueError(f"horizon of {found}: learners of one run need rollouts of one length")
        numbers = {role: algo.segments for role, algo in chosen.items()}
        if len(set(numbers.values())) > 1:
            found = ", ".join(f"{role} {number}" for role, number in numbers.items())
            raise ValueError(f"segments_per_agent of {found}: learners of one run need the same number")
        return chosen

    def _require_language(self) -> None:
        """Checks that language learners, and no others, get prompts as observations."""
        for role, algo in self.algos.items():
            if algo.reads_text and role not in self.env.language:
                raise ValueError(
                    f"algo={type(algo).__name__}: {role} of {self.env.spec.name} has no prompts; "
                    "needs a text game with env.face=text"
                )
            if role in self.env.language and not algo.reads_text:
                raise ValueError(
                    f"env.face=text: {type(algo).__name__} reads numbers; needs env.face=moves, or a "
                    "language learner such as algo=reinforce_lm"
                )
            if getattr(algo, "buffer", None) is not None and self.transforms.sampling:
                raise ValueError(
                    "transforms.sampling: must be [] with algo.buffer, which draws its own batches and "
                    "standardises them by algo.buffer.normalize"
                )
            if algo.reads_text and not self.transforms and getattr(algo, "critic", None) == "none":
                raise ValueError(
                    "transforms: a language learner without critic needs reward transforms, such as "
                    "transforms=clean; or algo.critic=head"
                )

    def _require_tasks(self) -> None:
        """Checks that the learners can learn the actions of their roles, and from their rewards."""
        for name, algo in self.algos.items():
            # Without learners that need a kind, the environment may have spaces that only adapters know.
            if algo.ACTIONS is not None:
                algo.require_task(action_spec(self.env.spec.role(name).action), late=self._learns_late(name))

    def _require_league(self) -> None:
        """Checks that the learners can form a league."""
        if self.pool.league is None:
            return
        where = f"pool.league={dict(self.pool.league)}"
        if self.pooled is None:
            raise ValueError(f"{where}: needs a role that a pool plays, by controllers.ROLE=pool:LEARNER")
        if self.shards > 1:
            raise ValueError(f"{where}: needs shards=1, not {self.shards}")
        if self.curriculum(self.env).stages:
            raise ValueError(f"{where}: needs a curriculum without stages, as only one learner is evaluated")
        for role, algo in self.algos.items():
            if algo.replays:
                raise ValueError(f"{where}: {role} learns from a replay; leagues need on-policy learners")

    def _require_looking(self) -> None:
        """Checks the settings of animations and profiles."""
        if self.video_every is not None:
            checks.require_count("video_every", self.video_every)
            if self.env.viewer is None or not self.env.viewer.draws:
                raise ValueError(f"video_every={self.video_every}: {self.env.spec.name} has no animations")
        if self.profile is not None and read_profile(self.profile)[0] > self.updates:
            raise ValueError(f"profile={self.profile}: the run has {self.updates} updates")

    def _require_credit(self) -> None:
        """Checks that the learners and the environment support the reward transforms, or the lack of any."""
        plies, limit = self.horizon * self.env.spec.turns, self.env.spec.episode_limit
        known = self.transforms or self.transforms.whole_games or self.replays
        if self.env.spec.turns and self.horizon == 1 and not known:
            raise ValueError(
                "algo.horizon=1: nothing would be learnt, as the last decisions of rollouts in turn games "
                "are left out; must be at least 2"
            )
        if self.transforms.whole_games and not self.env.spec.turns:
            raise ValueError(f"transforms.whole_games=true: {self.env.spec.name} is not turn-based")
        if self.transforms.filter_opponent_invalid and self.env.spec.won_by_invalid is None:
            raise ValueError(
                f"transforms.filter_opponent_invalid=true: no action of {self.env.spec.name} is invalid; "
                "needs a language policy (algo.face=text)"
            )
        if self.transforms.whole_games and limit > plies:
            least = -(-limit // (self.env.spec.turns * self.segments))
            raise ValueError(
                f"transforms.whole_games=true: games of {self.env.spec.name} have up to {limit} plies, a "
                f"rollout of horizon={self.horizon // self.segments} has {plies}; needs horizon={least}"
            )
        for role, algo in self.algos.items() if self.transforms else ():
            name = getattr(algo, "NAME", type(algo).__name__)
            if not (algo.uses_advantages or algo.replays):
                raise ValueError(
                    f"algo={name}: {role} learns values; reward transforms need policy gradients"
                )
            if algo.replays:
                raise ValueError(
                    f"algo={name}: {role} learns from a replay; reward transforms need on-policy learners"
                )

    def _require_successes(self) -> None:
        """Checks that learners whose replay keeps successes have a score, which tells them."""
        spec = self.env.spec
        for role, algo in self.algos.items():
            ratio = getattr(getattr(algo, "replay", None), "success_ratio", 0.0)
            if ratio > 0 and spec.score_name(role) is None:
                raise ValueError(
                    f"algo.replay.success_ratio={ratio}: must be 0, as {spec.name} has no score of {role} "
                    "that tells successes"
                )

    def learner_task(self, name: str) -> tuple[tuple, dict[str, Any]]:
        """Returns positional and keyword arguments of `make` and `memory` for a role's learner."""
        role = self.env.spec.role(name)
        sizes = {
            "samples": self.columns(name),
            "episode_limit": self.env.spec.episode_limit,
            "goal": self.env.goals.get(name),
            "blocks": tuple(self.env.blocks.get(name, ())),
            "observation_dtype": role.observation.dtype,
        }
        if self._learns_late(name):
            sizes["late"] = True
        if self.env.spec.turns:
            sizes["turns"] = True
        if name in self.env.language:
            sizes["language"] = make_answer_task(self.env.language[name])
        if self.shards > 1:
            sizes["shards"] = self.shards
        if self.algos[name].teams:
            sizes["team"] = self._team(name)
        if role.critic_observation is not None:
            sizes["critic_shape"] = role.critic_observation.shape
        return (role.observation.shape, action_spec(role.action)), sizes

    def _learns_late(self, learner: str) -> bool:
        """Whether a learner is paid after the end of its agents, or of its team."""
        # The episode ends with the last agent of a whole role, not with the only one of a smaller team.
        whole = self.algos[learner].teams and self._team(learner) == self.env.spec.role(learner).size
        return self.env.spec.late and not (whole and self.env.spec.ends_with_team)

    def _team(self, learner: str) -> int:
        """Agents of an environment that are learnt from together: those of the learner's own role alone."""
        role = self.env.spec.role(learner)
        team = 1 if self.controllers[learner] == role_assignment.PER_AGENT else role.size
        if self.columns(learner) != self.num_envs * team:
            name = getattr(self.algos[learner], "NAME", type(self.algos[learner]).__name__)
            raise ValueError(f"algo={name}: {learner} must be the only role that its learner learns from")
        return team

    def agents(self, learner: str) -> int:
        """Agents per environment of a learner's policy, or of each of its policies."""
        return role_assignment.agents_per_policy(self.env, self.controllers, learner)

    def columns(self, learner: str) -> int:
        """Parallel agents from whose decisions a learner learns, over all environments."""
        return int(
            self.num_envs * role_assignment.agents_per_learner(self.env, self.controllers, learner, self.pool)
        )

    def seats(self, learner: str) -> int:
        """Number of seats of a turn-based game, or of roles, that a learner plays and learns from."""
        if self.env.spec.turns:
            return self.env.spec.turns
        plays = (role_assignment.SHARED + learner, role_assignment.POOL + learner)
        return 1 + sum(name in plays for role, name in self.controllers.items() if role != learner)

    def policies(self, learner: str) -> int:
        """Number of policies of a learner: 1, or one per agent."""
        return (
            self.env.spec.role(learner).size if self.controllers[learner] == role_assignment.PER_AGENT else 1
        )

    @property
    def segments(self) -> int:
        """Segments per rollout, the same for all learners."""
        return next(iter(self.algos.values())).segments

    @property
    def horizon(self) -> int:
        """Decisions per rollout, the same for all learners."""
        return self.segments * next(iter(self.algos.values())).horizon

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update, of all learners of a league together.

        In turn-based games a row of a rollout is a seat's own decision, so that it takes one step per seat.
        """
        plies = 1 if self.replays else max(self.env.spec.turns, 1)
        return self.steps_per_decision * self.horizon * plies

    @property
    def replays(self) -> bool:
        """Whether a learner has a replay."""
        return any(algo.replays for algo in self.algos.values())

    @property
    def steps_per_decision(self) -> int:
        """Environment steps per decision (ply) of a rollout, of all learners of a league together."""
        return self.num_envs * (1 if self.pooled is None else self.pool.learners)

    @property
    def steps(self) -> int:
        """Environment steps of the whole run, rounded up to whole chunks."""
        return self.updates * self.steps_per_update

    @property
    def updates(self) -> int:
        """Updates of the whole run, rounded up to whole chunks."""
        chunk = self.steps_per_update * self.updates_per_chunk
        return -(-self.total_env_steps // chunk) * self.updates_per_chunk
