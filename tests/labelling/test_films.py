"""Films, sprite sheets that hold each frame; and cameras: which pictures of an environment people see, and which are refused."""

import asyncio
import io
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from PIL import Image

from rlhf_ray import envs
from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.labelling.camera import SHADOW_SIDE, Camera, camera_options, picture, tried_fps, without_a_screen
from rlhf_ray.labelling.films import Films, film, film_info
from rlhf_ray.settings import LabellingSettings, SettingError
from tests.made_up import Drawn


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


RGB = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
GREY = np.broadcast_to(RGB[..., :1], RGB.shape)
OPAQUE, CLEAR = (np.dstack([RGB, np.full((20, 30), alpha, np.uint8)]) for alpha in (255, 254))


class Odd(Drawn):
    """A walk whose pictures are ``frames``, one after the other, then the last one."""

    def __init__(self, *frames: Any, **metadata: Any):
        super().__init__()
        self.frames, self.metadata, self.closed = list(frames), metadata, False

    def render(self) -> Any:
        return self.frames.pop(0) if len(self.frames) > 1 else self.frames[0]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        *((RGB.astype(dtype), RGB) for dtype in ("uint8", "int64", ">i4")),
        *((as_list, RGB) for as_list in ([RGB], RGB.tolist(), RGB[None])),
        *((grey, GREY) for grey in (RGB[..., 0], RGB[..., :1])),
        (OPAQUE, RGB),
        (torch.as_tensor(RGB), RGB),
        *((Image.fromarray(RGB).convert(mode), RGB) for mode in ("RGB", "RGBA")),
        (Image.fromarray(RGB[..., 0]), GREY),
    ],
)
def test_a_picture_that_is_beyond_doubt_is_shown_as_it_is(given: Any, shown: Any) -> None:
    frame = Camera(Odd(given)).frame()
    assert frame.dtype == np.uint8
    np.testing.assert_array_equal(frame, shown)
    assert not np.shares_memory(frame, RGB)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "None; return a picture"),
        (RGB / 255.0, r"float64 of shape \[20, 30, 3\]; convert it to uint8, times 255"),
        (RGB > 9, "bool of shape"),
        *((Image.fromarray(RGB).convert(mode), f"an image of mode {mode}; convert") for mode in ("P", "F", "1")),
        (RGB.astype(int) * 2, r"int64 of shape .* with values from 0 to \d+; scale"),
        (RGB.astype(np.int8), "int8 .* with values from -128"),
        (np.moveaxis(RGB, -1, 0), r"uint8 of shape \[3, 20, 30\]"),
        (RGB[:0], r"\[0, 30, 3\]"),
        (RGB[0, 0], r"\[3\]"),
        (CLEAR, "with transparent pixels"),
        ([RGB, RGB], r"uint8 of shape \[2, 20, 30, 3\]"),
        ([RGB, RGB[:5]], "a list that is no array"),
        ("+---+", "a str"),
        ({"rgb": RGB}, "a dict"),
    ],
)
def test_any_other_picture_is_named_with_what_it_is_before_people_are_asked(given: Any, said: str) -> None:
    env = Odd(given)
    with pytest.raises(FaultyEnvironmentError, match=rf"^Environment .*Odd.*: render\(\) returned .*{said}") as raised:
        tried_fps("", lambda: env)
    assert "\n" not in str(raised.value)
    assert env.closed


def test_pictures_keep_their_size_within_an_episode() -> None:
    with pytest.raises(FaultyEnvironmentError, match="10x30 pixels after pictures of 20x30; keep one size"):
        tried_fps("", lambda: Odd(RGB, RGB, RGB[:10]))
    camera = Camera(Odd(RGB, RGB[:10]))
    assert len(camera.frame()) == 20
    camera.begin()
    assert len(camera.frame()) == 10


def test_what_render_raises_is_named() -> None:
    class Raises(Odd):
        def render(self) -> Any:
            raise KeyError("screen")

    with pytest.raises(FaultyEnvironmentError, match=r"Raises.*: render\(\) raised KeyError"):
        Camera(Raises()).frame()


@pytest.mark.parametrize(("told", "fps"), [(20, 20), (0, 15), (None, 15), ("30", 30), (np.float32(2), 2)])
def test_frames_per_second_are_the_environment_s(told: Any, fps: float) -> None:
    assert tried_fps("", lambda: Odd(RGB, render_fps=told)) == fps


@pytest.mark.parametrize("told", [-1, float("nan"), float("inf"), "fast", [20]])
def test_other_frames_per_second_are_named(told: Any) -> None:
    with pytest.raises(FaultyEnvironmentError, match=r"metadata\['render_fps'\] is .*; it must be a number above 0"):
        tried_fps("", lambda: Odd(RGB, render_fps=told))


@pytest.mark.parametrize(("channels", "shown"), [(1, [0, 0, 0]), (4, [3, 3, 3]), (3, [0, 1, 2]), (6, [3, 4, 5])])
def test_the_newest_of_stacked_images_is_shown(channels: int, shown: list[int]) -> None:
    observation = np.broadcast_to(np.arange(channels, dtype=np.uint8), (16, 16, channels))
    assert picture(observation)[0, 0].tolist() == shown


@pytest.mark.parametrize(
    "name", ["Pendulum-v1", "rlhf_ray/CartPoleFixed-v0", "rlhf_ray/MovingDot-v0", "HalfCheetah-v5"]
)
def test_environments_are_filmed_without_a_screen(name: str) -> None:
    options = camera_options(envs.make_env(name))
    env: gym.Env[Any, Any] = without_a_screen(partial(envs.make_env, name, **options))
    observation, _ = env.reset(seed=0)
    env.action_space.seed(0)  # or ten random moves may lead back
    camera = Camera(env)
    first = camera.frame(observation)
    assert first.dtype == np.uint8
    assert first.shape[2] == 3
    assert first.std() > 0
    for _ in range(10):
        observation = env.step(env.action_space.sample())[0]
    assert not np.array_equal(camera.frame(observation), first)
    assert camera.fps > 0
    assert camera.pixelated == (name == "rlhf_ray/MovingDot-v0")
    if name == "HalfCheetah-v5":  # MuJoCo's own shadows take four fifths of the time
        assert env.unwrapped.model.vis.quality.shadowsize == SHADOW_SIDE  # type: ignore[attr-defined]
    env.close()  # type: ignore[no-untyped-call]


def test_what_cannot_be_seen_is_refused_with_what_to_do() -> None:
    blind = Drawn()
    blind.render_mode = None  # type: ignore[assignment]
    with pytest.raises(SettingError, match=r"^--video: .*render_mode='rgb_array'"):
        tried_fps("--video: ", lambda: blind)
