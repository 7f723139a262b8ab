"""Realism scores, computed by hand for cars that drive straight on. docs/reference/drive.md 13.4."""

import jax
import numpy as np
import pytest
from drive_scenes import FOLLOWING, bank_of, scene

from jaxmarl_echelon.envs.drive.bank import scene_at
from jaxmarl_echelon.envs.drive.measures import realism
from jaxmarl_echelon.envs.drive.measures.rollouts import (
    FIRST,
    DriveComparison,
    Poses,
    compute_realism_features,
    score_scene,
)

SAMPLES = 91 - FIRST


@pytest.fixture(scope="module")
def following():
    """Two cars on one lane at 3 m/s, 15.5 m from bumper to bumper."""
    return bank_of(scene(FOLLOWING))


@pytest.fixture(scope="module")
def one(following):
    """The only scene."""
    found = scene_at(following, 0)
    return jax.tree.map(np.asarray, found)


def recording(one, rollouts: int) -> Poses:
    """The recording, repeated as if it had been driven several times."""
    pose = np.broadcast_to(one.recording[FIRST:, :, :3], (rollouts, SAMPLES, *one.recording.shape[1:2], 3))
    present = np.broadcast_to(one.recorded[FIRST:], (rollouts, SAMPLES, one.recorded.shape[1]))
    return Poses(pose.copy(), present.copy())


def share(samples: int, bins: int, count: float = 0.1) -> float:
    """The share of a bin that holds all samples."""
    return (samples + count) / (samples + bins * count)


def test_features_of_cars_that_follow_each_other(one):
    found = compute_realism_features(one, Poses(*(x[0] for x in recording(one, 1))), np.array([0, 1]))
    np.testing.assert_allclose(found["speed"][:, 1:-1], 3.0, atol=1e-4)
    np.testing.assert_allclose(found["acceleration"][:, 2:-2], 0.0, atol=1e-3)
    # Rounded boxes keep their distance along the lane; the lower edge is 4 m from the middle of the road.
    np.testing.assert_allclose(found["nearest_object"], 15.5, atol=1e-4)
    np.testing.assert_allclose(found["road_edge"], -(4.0 - 1.75 - 1.0), atol=1e-4)
    np.testing.assert_allclose(found["time_to_collision"][:, 1:-1], 5.0)
    assert not found["collision"].any() and not found["offroad"].any()
    assert np.isnan(found["speed"][:, [0, -1]]).all() and np.isnan(found["time_to_collision"][:, 0]).all()


def test_the_recording_is_likely_among_rollouts_that_repeat_it(one):
    found = score_scene(one, recording(one, 4))
    expected = {
        "speed": share(4 * (SAMPLES - 2), 10), "acceleration": share(4 * (SAMPLES - 4), 11),
        "yaw_rate": share(4 * (SAMPLES - 2), 11), "yaw_acceleration": share(4 * (SAMPLES - 4), 11),
        "nearest_object": share(4 * SAMPLES, 10), "time_to_collision": share(4 * (SAMPLES - 2), 10),
        "collision": share(4, 2, 0.001), "road_edge": share(4 * SAMPLES, 10), "offroad": share(4, 2, 0.001),
    }  # fmt: skip
    assert {name: found[name] for name in realism.FEATURES} == pytest.approx(expected)
    assert (found["ade"], found["min_ade"], found["bodies"]) == (0.0, 0.0, 2)


def test_different_rollouts_lower_likelihood_and_increase_ade(one):
    played = recording(one, 4)
    played.pose[0, :, 1, 1] -= 3.0  # one follower drives over the edge, 3 m to the right
    played.pose[1, :, 1, 0] += 19.0  # and one in its leader
    found = score_scene(one, played)
    # One body stays on the road in all rollouts, the other in three of four; contact is of both.
    assert found["offroad"] == pytest.approx(np.sqrt(share(4, 2, 0.001) * 3.001 / 4.002))
    assert found["collision"] == pytest.approx(3.001 / 4.002)
    assert found["ade"] == pytest.approx((3.0 / 2 + 19.0 / 2) / 4) and found["min_ade"] == 0.0
    assert found["speed"] == pytest.approx(share(4 * (SAMPLES - 2), 10))


def test_absent_bodies_are_ignored(one):
    played = recording(one, 2)
    played.present[:, 40:, 1] = False
    found = score_scene(one, played)
    away = score_scene(one, Poses(np.where(played.present[..., None], played.pose, 1e4), played.present))
    assert away == pytest.approx(found) and found["ade"] == 0.0
    assert found["speed"] < score_scene(one, recording(one, 2))["speed"], (
        "fewer samples, the same pseudo-counts"
    )


def test_bodies_to_be_predicted_are_evaluated_if_the_scene_names_them(one):
    named = one.replace(predict=np.arange(len(one.predict)) == 1)
    assert score_scene(named, recording(one, 2))["bodies"] == 1


def test_bodies_that_replay_their_recording_are_not_scored_but_counted(following):
    # Of the three to be predicted one learns; the second car would be scored as a learner only.
    bank = bank_of(scene(FOLLOWING[:1] * 2 + FOLLOWING[1:]), agents=1, bodies=4)
    one = jax.tree.map(np.asarray, scene_at(bank, 0)).replace(predict=np.array([True, False, True, True]))
    played = recording(one, 2)
    played.pose[:, :, 0, 1] -= 3.0
    found = score_scene(one, played)
    assert (found["bodies"], found["bodies_not_driven"]) == (1, 2) and found["ade"] == pytest.approx(3.0)
    alone = score_scene(one.replace(predict=np.array([True, False, False, False])), played)
    assert alone == found | {"bodies_not_driven": 0}


def test_scenes_without_driven_predicted_bodies_are_not_scored(following):
    bank = bank_of(scene(FOLLOWING), scene(FOLLOWING), agents=1, bodies=3)
    predict = np.zeros((2, 3), bool)
    predict[0, 1] = predict[1, 0] = True
    bank = bank.replace(predict=predict)
    pose = np.array(bank.recording[:, FIRST:, :, :3].swapaxes(0, 1))
    frames = [Poses(pose, np.asarray(bank.recorded[:, FIRST:].swapaxes(0, 1)))] * 2
    found = DriveComparison(bank, (0, 2)).scores(frames)
    assert (found["scenes"], found["bodies"], found["bodies_not_driven"]) == (1.0, 1.0, 1.0)
    assert found["meta"] > 0.9 and np.isnan(DriveComparison(bank, (0, 1)).scores(frames)["meta"])


def test_scores_are_means_over_held_out_scenes(following):
    bank = bank_of(scene(), scene(FOLLOWING), scene(FOLLOWING))
    comparison = DriveComparison(bank, (1, 2))
    assert comparison.episodes == 2 and comparison.settings["init_step"] == FIRST
    assert comparison.settings["steps"] == SAMPLES - 1
    frames = []
    for shift in (0.0, 6.0):
        pose = np.array(bank.recording[1:, FIRST:, :, :3].swapaxes(0, 1))
        pose[:, 1, :, 0] += shift
        frames.append(Poses(pose, np.asarray(bank.recorded[1:, FIRST:].swapaxes(0, 1))))
    found = comparison.scores(frames)
    # The first scene is repeated as it was, the second by one of two rollouts.
    assert (found["scenes"], found["bodies"], found["ade"]) == (2.0, 4.0, pytest.approx(1.5, abs=1e-5))
    assert found["min_ade"] == pytest.approx(0.0, abs=1e-6)
    likely = {name: found[name] for name in realism.FEATURES}
    assert found["meta"] == pytest.approx(realism.meta_score(likely)["meta"]) and found["meta"] > 0.95
