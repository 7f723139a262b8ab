"""Time of a step of driving on a CPU: kernels of a trace, by the functions that they come from.

    taskset -c 0 python benchmarks/drive_profile.py [--learners 64] [--agents 64] [--bodies 64] [KEY=VALUE]

Scenes are roads of four generated ones on which `bodies` cars drive straight ahead as recorded; the first
`learners` of `agents` slots learn, and act at random. Keys are those of `conf/env/drive.yaml`.
"""

import argparse
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
from drive import driving
from jax.profiler import ProfileData

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.make import make
from jaxmarl_echelon.envs.drive.rewards import make_reward
from jaxmarl_echelon.envs.drive.scenes.arrays import build_scene_arrays, stack_scenes
from jaxmarl_echelon.envs.drive.scenes.generated.generate import generate_scene
from jaxmarl_echelon.envs.drive.scenes.learners import SlotSettings
from jaxmarl_echelon.envs.drive.scenes.library import Scenes
from jaxmarl_echelon.envs.drive.scenes.raw_scene import SAMPLES, STEP

KINDS = "crossing", "roundabout", "tee", "merge"
STEPS = 40
# Functions, innermost first, and what a kernel that comes from them is for.
PARTS = {
    "turn_puffer_rows": "rows turned into learners' frames",
    "gather_rows": "rows looked up",
    "_looked_up": "rows looked up",
    "_packed": "bodies in order",
    "select_bodies_by_slot": "bodies in order",
    "select_nearest_bodies": "bodies in order",
    "_finite_rows": "test for finite numbers",
    "rows_are_finite": "test for finite numbers",
    "put_rows": "rows written to the batch",
    "take_rows": "learners gathered",
    "select_rows": "select of whole time steps",
    "find_touching_bodies": "contacts of boxes",
    "boxes_of": "contacts of boxes",
    "touches_road_edge": "road edges",
    "find_lanes": "lanes",
    "_spiral_rows": "rows looked up",
    "_ego": "the learner itself",
    "_where": "zeros of empty rows, copies for learners",
    "_written": "parts of observations joined",
    "_joined": "parts of observations joined",
    "observe_learners": "other parts of observations",
    "compute_road_condition": "other look-ups on the road",
    "compute_active_road_condition": "other look-ups on the road",
    "move": "moving",
    "_begin_episodes": "resets",
    "advance": "the rest of a step",
    "step": "the rest of a step",
}


def filled(learners: int, agents: int, bodies: int) -> Scenes:
    """Scenes with so many slots of learners filled, and so many bodies."""
    found = []
    for nth, kind in enumerate(KINDS):
        given, rng = generate_scene(3, nth, kind), np.random.default_rng(nth)
        lanes = [road.points for road in given.roads if road.kind == "lane"]
        speed, pose = rng.uniform(0, 10, bodies), []
        for _ in range(bodies):
            lane = lanes[rng.integers(len(lanes))]
            piece = rng.integers(len(lane) - 1)
            along = lane[piece + 1] - lane[piece]
            pose.append([*(lane[piece] + along * rng.random()), np.arctan2(along[1], along[0])])
        x, y, heading = np.array(pose).T
        velocity = (speed * np.stack([np.cos(heading), np.sin(heading)])).T[:, None]
        position = np.stack([x, y], axis=1)[:, None] + STEP * np.arange(SAMPLES)[None, :, None] * velocity
        cars = replace(
            given, position=position, heading=np.tile(heading[:, None], SAMPLES),
            velocity=np.tile(velocity, (1, SAMPLES, 1)), valid=np.ones((bodies, SAMPLES), bool),
            size=np.tile([4.5, 2.0, 1.5], (bodies, 1)), type=np.zeros(bodies, int),
            goal=position[:, -1] + 100.0, expert=np.arange(bodies) >= learners, ids=np.arange(bodies),
            routes=(), conflict=None, junctions=np.zeros((0, 3)),
        )  # fmt: skip
        arrays = build_scene_arrays(cars, SlotSettings(agents, max(agents, bodies), "all"))[0]
        arrays["learner"] = np.arange(agents) < learners
        slot = np.arange(max(agents, bodies))
        arrays["recorded"] &= (slot < learners) | (slot >= agents)
        found.append(arrays)
    bank = SceneBank(**stack_scenes(found), kind=np.zeros(len(found), np.int32))
    count = len(found)
    return Scenes(bank, KINDS, ("straight",), np.zeros((count, 2)), count, (count - 1, 1), ("",))


def kernels(trace: Path) -> Counter:
    """Nanoseconds of each kernel itself, by name, from a trace."""
    total: Counter = Counter()
    data = ProfileData.from_file(str(next(trace.rglob("*.xplane.pb"))))
    for line in (line for plane in data.planes for line in plane.lines):
        within: list[tuple[float, str]] = []
        for start, longest, name in sorted((e.start_ns, -e.duration_ns, e.name) for e in line.events):
            while within and within[-1][0] <= start:
                within.pop()
            if within:
                total[within[-1][1]] += longest
            total[name] -= longest
            within.append((start - longest, name))
    return total


def origins(hlo: str) -> dict[str, list[str]]:
    """The Python functions that kernels come from, innermost first, by the kernel's name."""

    def section(name: str) -> dict[str, str]:
        found = re.search(rf"^{name}\n((?:\d+ .*\n)+)", hlo, re.M)
        return dict(line.split(" ", 1) for line in found[1].splitlines()) if found else {}

    functions, places, frames = map(section, ("FunctionNames", "FileLocations", "StackFrames"))

    def chain(frame: str) -> list[str]:
        names: list[str] = []
        while frame in frames:
            place, parent = re.search(r"location_id=(\d+)(?: parent_frame_id=(\d+))?", frames[frame]).groups()
            function = re.search(r"function_name_id=(\d+)", places[place])[1]
            names += functions[function].strip('"').split(".")[::-1]
            # Parents are counted from 1 there, which stands for none.
            frame = str(int(parent or 1) - 1)
        return names

    result: dict[str, list[str]] = {}
    for name, rest in re.findall(r"^\s*(?:ROOT )?%(\S+) = (.*)$", hlo, re.M):
        frame = re.search(r"stack_frame_id=(\d+)", rest)
        result.setdefault(name, chain(frame[1]) if frame else [])
    return result


def main() -> None:
    """Prints microseconds of a step by part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("learners", "agents", "bodies", "envs"):
        parser.add_argument(f"--{name}", type=int, default=64)
    given, keys = parser.parse_known_args()
    # A program from the cache may name functions as they were called when it was compiled.
    jax.config.update("jax_enable_compilation_cache", False)
    settings = dict(key.removeprefix("env.").split("=", 1) for key in keys)
    scenes = filled(given.learners, given.agents, given.bodies)
    env = make(make_reward(), scenes=scenes, others="replay", **settings)
    run, arguments = driving(env, given.envs, STEPS, 1)
    compiled = run.lower(*arguments).compile()
    alive = int(np.sum(compiled(*arguments)[1]))
    seconds = []
    for _ in range(7):
        begin = time.process_time()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.process_time() - begin)
    best = min(seconds)
    print(f"{alive / best:,.0f} steps of living learners per second of a processor")
    step = 1e6 * best / STEPS
    print(f"{1e6 * best / alive:.2f} us each, {step:,.0f} us per step of {given.envs} environments")
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(*arguments))
        spent = kernels(Path(folder))
    come_from, parts = origins(compiled.as_text()), Counter()
    for name, nanoseconds in spent.items():
        if name in come_from:
            known = (PARTS[function] for function in come_from[name] if function in PARTS)
            unknown = "other" if come_from[name] else f"{name.rsplit('.', 1)[0]}, of unknown origin"
            parts[next(known, unknown)] += nanoseconds
        elif name == "ThunkExecutor::Execute":
            parts["between kernels"] += nanoseconds
    print("of which by the kernels of a trace:")
    for part, nanoseconds in parts.most_common(24):
        print(f"{1e-3 * nanoseconds / STEPS:10,.0f}  {part}")


if __name__ == "__main__":
    main()
