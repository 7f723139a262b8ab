"""Settings of scenes: their source, their bodies and their number."""

from collections.abc import Mapping
from dataclasses import dataclass

from algos.defaults import take_defaults_from
from jaxmarl_echelon.envs.drive.scenes.generated.generate import KINDS
from jaxmarl_echelon.envs.drive.scenes.learners import CONTROLS, SlotSettings
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES
from jaxmarl_echelon.envs.settings import (
    Settings,
    read_choice,
    read_interval,
    read_mapping,
    read_number,
    read_switch,
    read_whole,
    setting_field,
)

GENERATED = "generated"
ALL_SANITY = "sanity"
SANITY = f"{ALL_SANITY}:"
MOST_AGENTS, MOST_BODIES, MOST_SEGMENTS = 64, 1024, 32_768


def _text(name: str, value) -> str:
    if not isinstance(value, str) or not value:
        allowed = f"{GENERATED}, a folder of .json files, {ALL_SANITY} or {SANITY}NAME"
        raise ValueError(f"env.{name}={value}: must be {allowed}")
    return value


def _folder(name: str, value) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"env.{name}={value}: must be a folder or null")
    return value


def _bodies(name: str, value) -> int | None:
    return None if value is None else read_whole(name, value, 1, MOST_BODIES)


def _weights(name: str, value) -> dict[str, float]:
    """Validates weights of kinds; missing kinds have weight 0, and all are equal if none is given."""
    if isinstance(value, str):
        value = {value: 1.0}
    given = read_mapping(name, value)
    for kind in given:
        read_choice(name, kind, tuple(KINDS))
    weights = {
        kind: read_number(f"{name}.{kind}", given.get(kind, 0.0 if given else 1.0), 0.0) for kind in KINDS
    }
    if not sum(weights.values()):
        raise ValueError(f"env.{name}={dict(given)}: one weight must be positive; kinds: {', '.join(KINDS)}")
    return weights


def _samples(name: str, value) -> tuple[int, int]:
    low, high = read_interval(name, value, 1)
    return read_whole(name, low, 1, SAMPLES - 1), read_whole(name, high, 1, SAMPLES - 1)


@take_defaults_from("env/drive")
@dataclass(frozen=True)
class SceneSettings(Settings):
    """Flat keys of `conf/env/drive.yaml` that select the scenes.

    Attributes:
      scenes: `generated`, a folder of JSON scenes, `sanity:NAME`, or `sanity` for all of these.
      maps: number of generated training scenes.
      map_seed: seed of the generator.
      kinds: weights of the kinds of generated scenes; null for equal ones.
      goal_sample: samples of the recording at which generated bodies are at their goals.
      eval_maps: number of generated scenes held out for evaluation.
      eval_scenes: folder of held-out scenes; null holds out every eighth file of `scenes`.
      skip_bad: whether to skip faulty files instead of stopping.
      max_segments: largest number of segments of a scene.
      agents: slots of learners.
      bodies: slots of bodies; null for 32 in generated and 64 in loaded scenes.
      control: bodies that may learn.
      init_step: sample of the recording at which episodes begin.
      steps: decisions of an episode; recorded goals of files lie within them.
      min_goal_distance: m; bodies nearer to their goals stand still.
      body_scale: factor on lengths and widths.
      cache: cache folder of banks, "auto" for the default folder, null for no cache.
    """

    scenes: str = setting_field(_text)
    maps: int = setting_field(read_whole, 1, 100_000)
    map_seed: int = setting_field(read_whole, 0)
    kinds: Mapping[str, float] | None = setting_field(_weights)
    goal_sample: tuple[int, int] = setting_field(_samples)
    eval_maps: int = setting_field(read_whole, 0, 100_000)
    eval_scenes: str | None = setting_field(_folder)
    skip_bad: bool = setting_field(read_switch)
    max_segments: int = setting_field(read_whole, 1, MOST_SEGMENTS)
    agents: int = setting_field(read_whole, 1, MOST_AGENTS)
    bodies: int | None = setting_field(_bodies)
    control: str = setting_field(read_choice, CONTROLS)
    init_step: int = setting_field(read_whole, 0, SAMPLES - 2)
    steps: int = setting_field(read_whole, 1, 10_000)
    min_goal_distance: float = setting_field(read_number, 0.0)
    body_scale: float = setting_field(read_number, 0.1, 2.0)
    cache: str | None = setting_field(_folder)

    def __post_init__(self):
        super().__post_init__()
        if self.slots < self.agents:
            raise ValueError(f"env.bodies={self.bodies}: must be at least env.agents={self.agents}")

    @property
    def slots(self) -> int:
        """Number of slots of bodies N."""
        if self.bodies is not None:
            return self.bodies
        return max(self.agents, 64 if self.is_folder else 32)

    @property
    def is_folder(self) -> bool:
        """Whether scenes are loaded from files."""
        return self.scenes not in (GENERATED, ALL_SANITY) and not self.scenes.startswith(SANITY)

    @property
    def casting(self) -> SlotSettings:
        """Settings of the assignment of bodies to slots."""
        # Generated goals have their own samples, so that banks do not depend on the length of episodes.
        last = min(self.init_step + self.steps, SAMPLES - 1) if self.is_folder else SAMPLES - 1
        return SlotSettings(
            self.agents,
            self.slots,
            self.control,
            self.init_step,
            self.min_goal_distance,
            self.body_scale,
            last,
        )
