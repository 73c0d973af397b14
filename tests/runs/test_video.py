"""What a video shows under and of each frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rlhf_ray.labelling.camera import RENDERED_SIDE
from rlhf_ray.runs.video import LINE, _image, _lines, save_animation


def test_under_a_frame_are_the_reward_of_the_step_that_led_to_it_and_the_return_with_it() -> None:
    rewards = {"true": np.array([1.0, -3.0, 5.5]), "learned": np.array([0.25, 0.5, 0.125])}
    assert [_lines(step, rewards, None) for step in (0, 1, 3)] == [
        ["step 0", "true reward –, return 0.0", "learned reward –, return 0.0"],
        ["step 1", "true reward 1.00, return 1.0", "learned reward 0.25, return 0.2"],
        ["step 3", "true reward 5.50, return 3.5", "learned reward 0.12, return 0.9"],
    ]
    assert _lines(3, {}, 0) == ["episode 1, step 3"]


@pytest.mark.parametrize(
    ("shape", "pixelated", "shown"),
    [
        ((30, 60), True, (30 * (RENDERED_SIDE // 60), 60 * (RENDERED_SIDE // 60))),
        ((RENDERED_SIDE, 30), True, (RENDERED_SIDE, 30)),
        ((3 * RENDERED_SIDE, 90), False, (RENDERED_SIDE, 30)),
        ((20, 20), False, (20, 20)),
    ],
)
def test_frames_are_scaled_by_whole_pixels_and_in_the_middle(
    shape: tuple[int, int], pixelated: bool, shown: tuple[int, int]
) -> None:
    frame = np.zeros((*shape, 3), np.uint8)
    frame[..., 0] = 200
    made = np.asarray(_image(frame, pixelated, ["one", "two"]))
    height, width = shown
    assert made.shape[:2] == (height + 2 * LINE + 4, max(width, RENDERED_SIDE))
    red = (made[:height] == (200, 0, 0)).all(2)
    assert red.sum() == height * width
    left = (made.shape[1] - width) // 2
    assert red[:, left : left + width].all()
    written = (made[height:] < 128).any((1, 2))
    assert written[:LINE].any()
    assert written[LINE : 2 * LINE].any()


@pytest.mark.parametrize(("fps", "milliseconds"), [(10.0, 100), (15.0, 67), (100.0, 20)])
def test_frames_last_as_long_as_a_step_but_no_shorter_than_browsers_show(
    tmp_path: Path, fps: float, milliseconds: int
) -> None:
    images = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    save_animation(tmp_path / "video.png", images, fps)
    with Image.open(tmp_path / "video.png") as video:
        assert (video.n_frames, video.info["duration"]) == (2, milliseconds)
