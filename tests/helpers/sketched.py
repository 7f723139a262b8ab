"""A probe that is drawn, and a short run on it as it is typed."""

from pathlib import Path

import numpy as np
import probes
from commands import TINY, write_environments
from PIL import Image
from sharded_runs import told

from jaxmarl_echelon.envs.base import ScriptedPolicy, Viewer


def observe_state(state, params, time=None):
    """A frame: the steps so far, and the cue."""
    return {"clock": state.clock, "cue": state.cue}


class Sketches(Viewer):
    """Paints every decision in a shade of its own; red where the cue is positive."""

    snapshot = staticmethod(observe_state)

    def picture(self, path, evaluation):
        clocks = np.asarray(evaluation.frames["clock"], np.uint8)
        Image.fromarray(20 * clocks).save(path)

    def animation(self, path, evaluation, episode):
        frames = self._episode(evaluation, episode)
        shades = np.where(frames["cue"] > 0, [200, 0, 0], [0, 0, 200]) + frames["clock"][:, None]
        first, *rest = (Image.fromarray(np.full((4, 4, 3), shade, np.uint8)) for shade in shades)
        first.save(path, save_all=True, append_images=rest, duration=50)

    def replay(self, path, evaluation, episode):
        path.write_text(f"<p>{self._episode(evaluation, episode)['clock'].tolist()}</p>")


class Sketched(probes.ObservationActionReward):
    """Five decisions, for those who look, and a script to compare with."""

    horizon = 5
    viewer = Sketches()
    baselines = ("lazy",)

    def __init__(self, gain=1.0):
        super().__init__()
        self.gain = gain
        self.scripts = {
            "lazy": ScriptedPolicy(tuple, lambda key, memory, *_: (memory, np.zeros(1, np.int32)))
        }

    def default_params(self):
        return super().default_params() | {"gain": np.float32(self.gain)}


def train_sketched(folder: Path, *more: str) -> Path:
    """Trains a few updates by the command line, with all that a run shows; returns its folder."""
    (folder / "conf").mkdir(parents=True)
    write_environments(folder / "conf", {"sketched": "_target_: sketched.Sketched\ngain: 1.0\n"})
    sizes = [word for word in TINY if not word.startswith(("env.", "tracking="))]
    given = ["-cd", str(folder / "conf"), "env=sketched", "tuning=none", *sizes, "run_name=run"]
    said = told([*given, *more, f"output_dir={folder / 'outputs'}"], folder / "told")
    assert said["status"] == 0, said["errors"]
    return folder / "outputs" / "sketched" / "ppo" / "run"
