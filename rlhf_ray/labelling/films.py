"""Films: what a person sees of a clip, as one picture that holds all frames (a sprite sheet)."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.images import is_image

RENDERED_SIDE = 256
"""Pixels of the longer side that rendered frames are brought near to, by joining squares of whole pixels."""

QUALITY = 90
"""WebP's quality of rendered frames. Observations that are images are kept without loss."""

LOSSLESS_EFFORT = 20
"""What WebP calls the quality of lossless pictures: the effort, of 100."""

SHADOW_SIDE = 512
"""Pixels of a side of the map that MuJoCo draws shadows with, for each frame. Its own 4096 take most of the time without a GPU."""

EPISODE_FRAMES = 100
"""Frames, at most, of the film of an episode."""

LARGEST_SHEET = 16_383
"""Pixels of a side, at most, that WebP allows."""


@dataclass(frozen=True)
class FilmInfo:
    """How a film is played.

    Attributes:
        id: of the clip it shows (64 hex digits).
        frames: how many; frame ``k`` is in column ``k % columns`` and row ``k // columns`` of the sheet.
        columns: of the sheet.
        width, height: of one frame, in pixels.
        pixelated: whether frames are the agent's own observations, to be enlarged pixel by pixel, and not pictures rendered
            for people.
    """

    id: str
    frames: int
    columns: int
    width: int
    height: int
    pixelated: bool


@dataclass(frozen=True)
class Film:
    """A film: ``sheet`` is a WebP file."""

    info: FilmInfo
    sheet: bytes


@dataclass(frozen=True)
class Episode:
    """A film of an episode.

    Attributes:
        film: of it, perhaps of every so many steps only.
        fps: frames of the film per second at the environment's own pace.
        steps: that are shown of it.
        ended: whether it ended there.
        policy_version: of the policy that acted.
        env_steps: that the training had taken by then.
    """

    film: Film
    fps: float
    steps: int
    ended: bool
    policy_version: int
    env_steps: int


def film(name: str, frames: Sequence[Array] | Array, *, pixelated: bool) -> Film:
    """The film of ``frames``.

    Args:
        name: the film's id.
        frames: ``[height, width, 3]`` uint8 each, all of one size.
        pixelated: keep every pixel; else frames are scaled down to `RENDERED_SIDE` and compressed with some loss.
    """
    height, width = frames[0].shape[:2]
    info = film_info(name, len(frames), height, width, pixelated=pixelated)
    sheet = Image.new("RGB", (info.columns * info.width, math.ceil(info.frames / info.columns) * info.height))
    for i, frame in enumerate(frames):
        image = Image.fromarray(np.ascontiguousarray(frame))
        if not pixelated:
            image = image.reduce(_reduction(width, height))
        sheet.paste(image, (i % info.columns * info.width, i // info.columns * info.height))
    buffer = io.BytesIO()
    # Slower methods make sheets hardly any smaller.
    options = (
        {"lossless": True, "quality": LOSSLESS_EFFORT, "method": 2} if pixelated else {"quality": QUALITY, "method": 0}
    )
    sheet.save(buffer, "WEBP", **options)
    return Film(info, buffer.getvalue())


def film_info(name: str, frames: int, height: int, width: int, *, pixelated: bool) -> FilmInfo:
    """How a film of so many frames of this size (pixels, before any scaling) is laid out."""
    reduction = 1 if pixelated else _reduction(width, height)
    width, height = math.ceil(width / reduction), math.ceil(height / reduction)
    columns = max(1, min(math.ceil(math.sqrt(frames)), LARGEST_SHEET // width))
    if math.ceil(frames / columns) * height > LARGEST_SHEET:
        raise ValueError(f"{frames} frames of {width}x{height} pixels do not fit into one picture; show fewer of them.")
    return FilmInfo(name, frames, columns, width, height, pixelated)


def _reduction(width: int, height: int) -> int:
    """How many pixels of a rendered frame become one, along each side."""
    return max(1, round(max(width, height) / RENDERED_SIDE))


def picture(observation: Array) -> Array:
    """``[height, width, 3]``: the colours of an image, or the newest of those that are stacked along its channels."""
    channels = observation.shape[-1]
    newest = observation[..., -3:] if channels % 3 == 0 else observation[..., -1:]
    return np.broadcast_to(newest, (*observation.shape[:2], 3))


class Reel:
    """The frames of one episode that somebody may be shown.

    Args:
        camera: takes them.
        first: step at which the first clip begins.
        spacing: steps from there to the beginning of the next one.
        length: of a clip.
    """

    def __init__(self, camera: Camera, first: int, spacing: int, length: int):
        self.camera, self.first, self.spacing, self.length = camera, first, spacing, length
        self.frames: dict[int, Array] = {}
        self._stride = 0

    def show(self, steps: int) -> None:
        """Take frames for the film of the whole episode too, which has at most so many steps."""
        self._stride = math.ceil((steps + 1) / EPISODE_FRAMES)

    def see(self, t: int, observation: Array) -> None:
        """The episode's step ``t`` has led to ``observation``."""
        in_clip = t >= self.first and (t - self.first) % self.spacing <= self.length
        if in_clip or (self._stride and t % self._stride == 0):
            self.frames[t] = self.camera.frame(observation)

    def windows(self, steps: int) -> list[int]:
        """Where clips begin that were filmed whole, in an episode of ``steps`` steps."""
        return list(range(self.first, steps - self.length + 1, self.spacing))

    def episode(self, steps: int, ended: bool, policy_version: int, taken: int) -> Episode:
        """The film of the whole episode, as `show` prepared it."""
        shown = [frame for t, frame in self.frames.items() if t % self._stride == 0]
        name = hashlib.sha256(b"".join(frame.tobytes() for frame in shown)).hexdigest()
        made = film(name, shown, pixelated=self.camera.pixelated)
        return Episode(made, self.camera.fps / self._stride, steps, ended, policy_version, taken)


class Camera:
    """Takes the frames that people are shown of an environment: its observations where these are images, else renderings.

    Args:
        env: made with the options of `camera_options`.

    Raises:
        ValueError: it has no images to observe, and does not render any either.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        self.env = env
        self.pixelated = is_image(env.observation_space)
        if not self.pixelated and env.render_mode != "rgb_array":
            raise ValueError(
                f"{env} cannot be shown to people: its observations are no images, and its render_mode is "
                f"{env.render_mode!r}. Use an environment that takes render_mode='rgb_array'; one of your own has to hand "
                "that option on."
            )

    @property
    def fps(self) -> float:
        """Frames per second at the environment's own pace."""
        return float(self.env.metadata.get("render_fps") or 15)

    def frame(self, observation: Array) -> Array:
        """``[height, width, 3]`` uint8 of the environment as it is now, when it has just given ``observation``."""
        if self.pixelated:
            return np.array(picture(observation))
        rendered: Any = self.env.render()
        return np.asarray(rendered)


def camera_options(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """The options to make another environment like ``env`` with, so that a `Camera` can film it."""
    if is_image(env.observation_space):
        return {}
    options: dict[str, Any] = {"render_mode": "rgb_array"}
    if _is_mujoco(env):
        options |= {"width": RENDERED_SIDE, "height": RENDERED_SIDE}  # half the time that its 480 pixels take
    return options


def _is_mujoco(env: gym.Env[Any, Any]) -> bool:
    """Whether it is one of gymnasium's MuJoCo environments."""
    return env.spec is not None and str(env.spec.entry_point).startswith("gymnasium.envs.mujoco")


def without_a_screen(make: Callable[..., gym.Env[Any, Any]], *arguments: Any) -> gym.Env[Any, Any]:
    """``make(*arguments)``, quick to draw, in a process whose libraries are told to draw without a screen where there is none."""
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame
        os.environ.setdefault("MUJOCO_GL", "egl")  # without it, MuJoCo raises or ends the process
        # Where OpenGL draws on the CPU, its threads wait for each other: others are better at the other cores.
        os.environ.setdefault("LP_NUM_THREADS", "0")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    env = make(*arguments)
    if _is_mujoco(env):  # a fifth of the time per frame, which looks the same at this size
        quality = env.unwrapped.model.vis.quality  # type: ignore[attr-defined]
        quality.shadowsize, quality.offsamples = SHADOW_SIDE, 0
    return env
