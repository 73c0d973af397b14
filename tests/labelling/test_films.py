"""Films: sprite sheets that hold each frame."""

import asyncio
import io
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from rlhf_ray.labelling.camera import Camera, picture, without_a_screen
from rlhf_ray.labelling.films import Films, film, film_info
from rlhf_ray.settings import LabellingSettings, SettingError


def frame_of(made: Any, k: int) -> Any:
    sheet = np.asarray(Image.open(io.BytesIO(made.sheet)).convert("RGB"))
    row, column = divmod(k, made.info.columns)
    of = made.info
    return sheet[row * of.height : (row + 1) * of.height, column * of.width : (column + 1) * of.width]


@pytest.mark.parametrize("count", [1, 2, 7, 26])
def test_each_frame_of_an_image_is_there_pixel_by_pixel(count: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (count, 20, 30, 3), np.uint8)
    made = film("a" * 64, frames, pixelated=True)
    assert (made.info.frames, made.info.width, made.info.height) == (count, 30, 20)
    for k in range(count):
        np.testing.assert_array_equal(frame_of(made, k), frames[k])


@pytest.mark.parametrize(("size", "shown"), [((500, 500), (250, 250)), ((400, 600), (200, 300)), ((64, 64), (64, 64))])
def test_rendered_frames_are_brought_near_to_256_pixels(size: tuple[int, int], shown: tuple[int, int]) -> None:
    frames = [np.full((*size, 3), shade, np.uint8) for shade in (0, 128, 255)]
    made = film("a" * 64, frames, pixelated=False)
    assert (made.info.height, made.info.width) == shown
    for k, frame in enumerate(frames):
        assert abs(int(frame_of(made, k).mean()) - int(frame.mean())) <= 2


def test_how_a_film_is_laid_out_is_known_before_it_is_made() -> None:
    frames = np.zeros((9, 20, 30, 3), np.uint8)
    assert film("a" * 64, frames, pixelated=True).info == film_info("a" * 64, 9, 20, 30, pixelated=True)


def test_what_fits_into_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        film_info("a" * 64, 10_000, 210, 160, pixelated=True)


@pytest.mark.parametrize(("channels", "wanted", "shown"), [(3, 1, [2, 2, 2]), (4, 3, [1, 2, 3]), (2, 3, [1, 1, 1])])
def test_people_see_the_channels_that_the_settings_name(channels: int, wanted: Any, shown: list[int]) -> None:
    observation = np.broadcast_to(np.arange(channels, dtype=np.uint8), (16, 16, channels))
    assert picture(observation, wanted)[0, 0].tolist() == shown
    films, content = Films(channels=wanted), np.broadcast_to(observation, (2, 16, 16, channels))
    films.put_images("a" * 64, content)
    sheet = asyncio.run(films.sheet("a" * 64))
    assert sheet is not None
    with Image.open(io.BytesIO(sheet)) as image:
        assert list(image.convert("RGB").getpixel((0, 0))) == shown  # type: ignore[arg-type]

    class Seen(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(0, 255, (16, 16, channels), np.uint8)

    camera = Camera(without_a_screen(Seen, channels=wanted))
    assert camera.frame(observation)[0, 0].tolist() == shown
    assert "shown_channels" not in Seen.metadata


def test_image_clips_and_episodes_have_the_zoom_of_the_settings(tmp_path: Path) -> None:
    frames = np.zeros((2, 16, 16, 3), np.uint8)
    for zoom, told in (("auto", None), (4, 4)):
        films = Films(tmp_path / str(zoom), zoom=zoom)  # type: ignore[arg-type]
        films.put_images("a" * 64, frames)
        films.put(film("b" * 64, frames, pixelated=True))
        films.put(film("c" * 64, frames, pixelated=False))
        assert [films.info(name * 64).zoom for name in "abc"] == [told, told, None]  # rendered frames are smooth
    assert Films(tmp_path / "4").info("b" * 64).zoom is None  # not stored: a restarted page has the settings' own
    for wrong in (0, True, 1.5):
        with pytest.raises(SettingError, match=r"labelling\.zoom is .*; it must be"):
            LabellingSettings(zoom=wrong)  # type: ignore[arg-type]
