"""Settings of scenes: where they come from, who is in them, how many."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxmarl_echelon.envs.drive.scenes.generated.generate import KINDS
from jaxmarl_echelon.envs.drive.scenes.learners import CONTROLS, Casting
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES
from jaxmarl_echelon.envs.settings import Settings, choice, interval, mapping, number, setting, switch, whole

GENERATED = "generated"
ALL_SANITY = "sanity"
SANITY = f"{ALL_SANITY}:"
MOST_AGENTS, MOST_BODIES, MOST_SEGMENTS = 64, 1024, 32_768


def _text(name: str, value) -> str:
    if not isinstance(value, str) or not value:
        allowed = f"{GENERATED}, a folder of .json files, {ALL_SANITY} or {SANITY}NAME"
        raise ValueError(f"env.{name}={value!r}: must be {allowed}")
    return value


def _folder(name: str, value) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"env.{name}={value!r}: must be a folder or null")
    return value


def _bodies(name: str, value) -> int | None:
    return None if value is None else whole(name, value, 1, MOST_BODIES)


def _weights(name: str, value) -> dict[str, float]:
    """Weights of kinds; those that are not named are 0, all are equal if none is."""
    if isinstance(value, str):
        value = {value: 1.0}
    given = mapping(name, value)
    for kind in given:
        choice(name, kind, tuple(KINDS))
    weights = {kind: number(f"{name}.{kind}", given.get(kind, 0.0 if given else 1.0), 0.0) for kind in KINDS}
    if not sum(weights.values()):
        raise ValueError(f"env.{name}={dict(given)}: one weight must be positive; kinds: {', '.join(KINDS)}")
    return weights


def _samples(name: str, value) -> tuple[int, int]:
    low, high = interval(name, value, 1)
    return whole(name, low, 1, SAMPLES - 1), whole(name, high, 1, SAMPLES - 1)


@dataclass(frozen=True)
class SceneSettings(Settings):
    """Flat keys of `conf/env/drive.yaml` that say which scenes there are.

    Attributes:
      scenes: `generated`, a folder of JSON scenes, `sanity:NAME`, or `sanity` for all of these.
      maps: generated scenes to train on.
      map_seed: of the generator.
      kinds: weights of the kinds of generated scenes; null for equal ones.
      goal_sample: samples of the recording at which generated bodies are at their goals.
      eval_maps: generated scenes that are held out for evaluation.
      eval_scenes: folder of held-out scenes; null holds out every eighth file of `scenes`.
      skip_bad: whether to leave out faulty files instead of stopping.
      max_segments: most segments of a scene.
      agents: slots of learners.
      bodies: slots of bodies; null takes 32 for generated and 64 for loaded scenes.
      control: who may learn.
      init_step: sample of the recording at which episodes begin.
      steps: decisions of an episode; recorded goals of files lie within it.
      min_goal_distance: m; who is nearer to its goal stands still.
      body_scale: factor on lengths and widths.
      cache: folder that keeps banks, "auto" for the usual one, null for none.
    """

    scenes: str = setting(GENERATED, _text)
    maps: int = setting(64, whole, 1, 100_000)
    map_seed: int = setting(0, whole, 0)
    kinds: Mapping[str, float] | None = setting(None, _weights)
    goal_sample: tuple[int, int] = setting((60, 90), _samples)
    eval_maps: int = setting(64, whole, 0, 100_000)
    eval_scenes: str | None = setting(None, _folder)
    skip_bad: bool = setting(False, switch)
    max_segments: int = setting(8192, whole, 1, MOST_SEGMENTS)
    agents: int = setting(16, whole, 1, MOST_AGENTS)
    bodies: int | None = setting(None, _bodies)
    control: str = setting("vehicles", choice, CONTROLS)
    init_step: int = setting(0, whole, 0, SAMPLES - 2)
    steps: int = setting(SAMPLES - 1, whole, 1, 10_000)
    min_goal_distance: float = setting(2.0, number, 0.0)
    body_scale: float = setting(1.0, number, 0.1, 2.0)
    cache: str | None = setting("auto", _folder)

    def __post_init__(self):
        super().__post_init__()
        if self.slots < self.agents:
            raise ValueError(f"env.bodies={self.bodies}: must be at least env.agents={self.agents}")

    @property
    def slots(self) -> int:
        """Slots of bodies N."""
        if self.bodies is not None:
            return self.bodies
        return max(self.agents, 64 if self.is_folder else 32)

    @property
    def is_folder(self) -> bool:
        """Whether scenes are loaded from files."""
        return self.scenes not in (GENERATED, ALL_SANITY) and not self.scenes.startswith(SANITY)

    @property
    def casting(self) -> Casting:
        """How bodies get their parts."""
        # Generated goals are at samples of their own, so that banks need not be made for every length.
        last = min(self.init_step + self.steps, SAMPLES - 1) if self.is_folder else SAMPLES - 1
        return Casting(
            self.agents,
            self.slots,
            self.control,
            self.init_step,
            self.min_goal_distance,
            self.body_scale,
            last,
        )
