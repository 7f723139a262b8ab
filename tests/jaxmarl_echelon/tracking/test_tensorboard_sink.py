import struct

import numpy as np
import pytest
from PIL import Image
from tracking_runs import run_info, write_updates

from jaxmarl_echelon.tracking.tensorboard_sink import FOLDER, TensorboardSink

pytestmark = pytest.mark.needs("tensorboardX")


def read_events(folder):
    """The events of all files, oldest first: records of a length, its checksum, the event, and a checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted((folder / FOLDER).iterdir()):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack_from("<Q", data, place)
            yield Event.FromString(data[place + 12 : place + 12 + size])
            place += size + 16


def values_of(folder):
    return [(event.step, value) for event in read_events(folder) for value in event.summary.value]


def test_scalars_texts_and_animations_are_read_back(tmp_path):
    sink, animation = TensorboardSink(), tmp_path / "a.gif"
    frames = [Image.fromarray(np.full((6, 8, 3), n, np.uint8)) for n in (0, 9)]
    frames[0].save(animation, save_all=True, append_images=frames[1:])
    sink.open(run_info(tmp_path))
    write_updates(sink, 1, 4, curriculum=True)
    for namespace in ("episodes", "eval", "games", "entries"):
        sink.write(namespace, 4000, {"outcome": "timeout", "reward": 1.0})
    sink.write("losses", 4000, {"actor_loss": float("nan")})
    sink.event(4000, "phase 2 -> 3")
    sink.media(2**40, "evaluation/episode_1", animation)
    sink.close()
    found = values_of(tmp_path)
    returns = [(step, value.simple_value) for step, value in found if value.tag == "train/return"]
    assert returns == [(1000 * n, n - 10.5) for n in range(1, 5)]
    assert [step for step, value in found if value.tag.startswith("curriculum/phase_name")] == [1000]
    texts = {value.tag.split("/text_summary")[0]: value.tensor.string_val for _, value in found}
    assert texts["events"] == [b"phase 2 -> 3"] and b'"algo": "ppo"' in texts["config"][0]
    (image,) = [(step, value.image) for step, value in found if value.tag == "evaluation/episode_1"]
    assert image[0] == 2**40 and (image[1].width, image[1].height) == (8, 6)
    assert image[1].encoded_image_string == animation.read_bytes()
    assert not any(
        value.tag.startswith(("episodes", "eval/", "games", "entries", "losses/actor")) for _, value in found
    )


def test_a_resumed_run_hides_what_came_after_its_checkpoint(tmp_path):
    for resume_step, first in ((None, 1), (2000, 3)):
        sink = TensorboardSink()
        sink.open(run_info(tmp_path, resume_step=resume_step))
        write_updates(sink, first, 3)
        sink.close()
    starts = [event.step for event in read_events(tmp_path) if event.session_log.status == 1]
    assert starts == [2001]


def test_members_write_their_own_files(tmp_path):
    assert isinstance(TensorboardSink().for_member(), TensorboardSink)
