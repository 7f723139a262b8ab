"""The baselines on generated scenes of every kind: spec drive 2.2."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_echelon.envs.drive.make import make
from jaxmarl_echelon.envs.drive.rewards import make_reward
from jaxmarl_echelon.envs.drive.scenes.generated.generate import KINDS
from jaxmarl_echelon.envs.drive.scenes.library import scenes
from jaxmarl_echelon.envs.drive.scenes.settings import SceneSettings


@pytest.fixture(scope="module")
def play():
    """Mean results of a script over the learners of one scene of each kind."""
    count = len(KINDS)
    found = scenes(SceneSettings(maps=count, eval_maps=0, cache=None), workers=1, progress=False)
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

    def results(name):
        action = env.scripts[name].act(jax.random.key(0), (), None, None)[1]
        info = episodes(action, env.world)
        there = np.asarray(found.bank.learner)
        return {name: float(np.asarray(x)[there].mean()) for name, x in info.items() if x.ndim == 2}

    return results


def test_the_recording_is_a_clean_drive_to_every_goal(play):
    found = play("replay")
    assert found["score"] == 1.0 and found["infraction"] == 0.0 and found["ade"] < 1e-4


def test_the_driver_model_drives_everybody_without_infractions(play):
    found = play("idm")
    assert found["infraction"] == 0.0 and found["score"] > 0.9


def test_rolling_on_is_not_enough(play):
    found = play("idle")
    assert 0.2 < found["score"] < 0.8 and found["collision"] > 0.05 and found["offroad"] > 0.05
