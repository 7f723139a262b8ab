"""Baselines on generated scenes of every kind, scripted actions on hand-made scenes.

docs/reference/drive.md 12.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.envs.drive.bank import SceneBank
from jaxmarl_echelon.envs.drive.make import make
from jaxmarl_echelon.envs.drive.rewards import make_reward
from jaxmarl_echelon.envs.drive.scenes import scene_jobs
from jaxmarl_echelon.envs.drive.scenes.arrays import stack_scenes
from jaxmarl_echelon.envs.drive.scenes.generated import sanity
from jaxmarl_echelon.envs.drive.scenes.generated.generate import KINDS
from jaxmarl_echelon.envs.drive.scenes.library import Scenes
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings

NAMES = (*KINDS, *sanity.SCENES)
GENERATED = slice(0, len(KINDS))
FASTER, BACKWARDS = 90 // 13 * 13 + 6, 2 * 13 + 6  # 4 m/s^2 and -1.333 m/s^2, straight on


@pytest.fixture(scope="module")
def play():
    """Results of a script or an action: means over the learners of each scene, and their number."""
    count, chosen = len(NAMES), SceneSettings()
    how = chosen.casting, chosen.max_segments
    built = [
        scene_jobs.build_generated_scene(
            0, nth, kind, chosen.casting, chosen.goal_sample, chosen.max_segments
        )
        for nth, kind in enumerate(KINDS)
    ]
    built += [scene_jobs.build_scene(sanity.make_sanity_scene(name), *how) for name in sanity.SCENES]
    bank = SceneBank(**stack_scenes([arrays for arrays, _ in built]), kind=np.arange(count, dtype=np.int32))
    found = Scenes(bank, NAMES, NAMES, np.zeros((count, 2)), count, (0, count), ())
    env = make(make_reward(), scenes=found)

    @jax.jit
    def episodes(action, world):
        def episode(scene):
            placed = env.with_world(world)
            params = env.default_params().replace(first_scene=scene, scenes=jnp.int32(1))
            key = jax.random.key(0)

            def step(carry, _):
                state, time = placed.step(key, carry[0], {"vehicle": action}, params)
                return (state, time.info), None

            state, time = placed.reset(key, params)
            return jax.lax.scan(step, (state, time.info), None, env.steps)[0][1]

        return jax.vmap(episode)(jnp.arange(count, dtype=jnp.int32))

    @functools.cache
    def results(script):
        action = script
        if isinstance(script, str):
            action = env.scripts[script].act(jax.random.key(0), (), None, None)[1]
        action = np.broadcast_to(np.asarray(action, np.int32), (env.simulation.agents,))
        info = episodes(action, env.world)
        there = np.asarray(bank.learner)
        per_learner = {name: np.where(there, x, 0.0) for name, x in info.items() if x.ndim == 2}
        return {name: x.sum(1) / there.sum(1) for name, x in per_learner.items()}, there.sum(1)

    return results


def mean(found, name: str) -> float:
    """A result over all learners of the generated scenes."""
    values, learners = found
    return float(np.average(values[name][GENERATED], weights=learners[GENERATED]))


@pytest.mark.thorough
def test_the_replay_baseline_scores_one_in_every_kind(play):
    found, _ = play("replay")
    for name in ("score", "infraction", "ade"):
        expected = {"score": 1.0}.get(name, 0.0)
        np.testing.assert_allclose(found[name][GENERATED], expected, atol=1e-5, err_msg=name)


@pytest.mark.thorough
def test_the_idm_baseline_causes_no_infractions(play):
    found = play("idm")
    assert mean(found, "infraction") == 0.0 and mean(found, "score") > 0.9


def test_the_idle_baseline_does_not_solve_scenes(play):
    found = play("idle")
    assert 0.2 < mean(found, "score") < 0.8
    assert mean(found, "collision") > 0.05 and mean(found, "offroad") > 0.05


@pytest.mark.parametrize(
    "script, solved",
    [
        ("replay", {"straight", "two_agents", "follow", "turn", "s_curve", "u_turn"}),
        (FASTER, {"straight", "two_agents", "hidden_goal"}),
        (BACKWARDS, {"reverse"}),
    ],
)
def test_hand_made_scenes_are_solved_by_their_scripts(play, script, solved):
    found, _ = play(script)
    scores = dict(zip(NAMES, found["score"], strict=True))
    assert {name for name in sanity.SCENES if scores[name] == 1.0} == solved
