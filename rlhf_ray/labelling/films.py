"""Films: what an annotator sees of a clip, as one image with all frames (a sprite sheet)."""

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

from rlhf_ray.data import system
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.settings.labelling import Channels

RENDERED_SIDE = 256
"""Target size of a rendered frame's longer side, in pixels. Frames are reduced by a whole factor, so they come close to it."""

QUALITY = 90
"""WebP quality of rendered frames. Image observations are stored losslessly."""

LOSSLESS_EFFORT = 20
"""WebP "quality" of lossless images, which is the compression effort, 0 to 100."""

SHADOW_SIDE = 512
"""Side of MuJoCo's shadow map, in pixels. Its default of 4096 takes most of the rendering time without a GPU."""

EPISODE_FRAMES = 100
"""Maximum number of frames in the film of an episode."""

LARGEST_SHEET = 16_383
"""Maximum side of a WebP image, in pixels."""


SHOWN = "shown_channels"
"""Key in an environment's metadata for the channels that people see."""


@dataclass(frozen=True)
class FilmInfo:
    """The layout of a film.

    Attributes:
        id: id of the clip (64 hex digits).
        frames: number of frames; frame ``k`` is in column ``k % columns`` and row ``k // columns`` of the sheet.
        columns: number of columns of the sheet.
        width, height: size of one frame, in pixels.
        pixelated: True if the frames are the agent's own observations, enlarged without smoothing; False if they are rendered
            for people.
        zoom: factor by which a pixelated film is shown, if there is room; None: as large as fits.
    """

    id: str
    frames: int
    columns: int
    width: int
    height: int
    pixelated: bool
    zoom: int | None = None


@dataclass(frozen=True)
class Film:
    """A film: ``sheet`` is the bytes of a WebP file."""

    info: FilmInfo
    sheet: bytes


@dataclass(frozen=True)
class Episode:
    """A film of an episode.

    Attributes:
        film: the film; long episodes show every n-th step only.
        fps: frames of the film per second at the environment's own speed.
        steps: number of environment steps shown.
        ended: whether the episode ended there.
        policy_version: version of the policy that acted.
        env_steps: environment steps of the training at that time.
    """

    film: Film
    fps: float
    steps: int
    ended: bool
    policy_version: int
    env_steps: int


def film(name: str, frames: Sequence[Array] | Array, *, pixelated: bool) -> Film:
    """Make a film of ``frames``.

    Args:
        name: the film's id.
        frames: ``[height, width, 3]`` uint8 each, all of the same size.
        pixelated: keep every pixel; otherwise scale frames down to about `RENDERED_SIDE` and compress lossily.
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
    # Slower methods make sheets only slightly smaller.
    options = (
        {"lossless": True, "quality": LOSSLESS_EFFORT, "method": 2} if pixelated else {"quality": QUALITY, "method": 0}
    )
    sheet.save(buffer, "WEBP", **options)
    return Film(info, buffer.getvalue())


def frames_of(made: Film) -> Array:
    """Return the frames of a film, ``[frames, height, width, 3]`` uint8: scaled down and compressed as people see them."""
    info = made.info
    with Image.open(io.BytesIO(made.sheet)) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    rows = math.ceil(info.frames / info.columns)
    cells = pixels.reshape(rows, info.height, info.columns, info.width, 3).swapaxes(1, 2)
    return cells.reshape(-1, info.height, info.width, 3)[: info.frames]


def film_info(name: str, frames: int, height: int, width: int, *, pixelated: bool) -> FilmInfo:
    """The layout of a film with so many frames; ``height`` and ``width`` in pixels, before scaling."""
    reduction = 1 if pixelated else _reduction(width, height)
    width, height = math.ceil(width / reduction), math.ceil(height / reduction)
    columns = max(1, min(math.ceil(math.sqrt(frames)), LARGEST_SHEET // width))
    if math.ceil(frames / columns) * height > LARGEST_SHEET:
        raise ValueError(
            f"{frames} frames of {width}x{height} pixels do not fit into one WebP image; use fewer frames."
        )
    return FilmInfo(name, frames, columns, width, height, pixelated)


def _reduction(width: int, height: int) -> int:
    """The factor by which a rendered frame is reduced along each side."""
    return max(1, round(max(width, height) / RENDERED_SIDE))


def picture(observation: Array, channels: Channels = "auto") -> Array:
    """``[height, width, 3]``: an image observation in colour; of stacked frames, the newest.

    Args:
        observation: the observation.
        channels: the last channels to show: see `rlhf_ray.settings.LabellingSettings.channels`.
    """
    there = observation.shape[-1]
    shown = 3 if there >= 3 and (there % 3 == 0 if channels == "auto" else channels == 3) else 1
    return np.broadcast_to(observation[..., -shown:], (*observation.shape[:2], 3))


class Reel:
    """Records the frames of one episode that films may need.

    Args:
        camera: takes the frames.
        first: step at which the first clip starts.
        spacing: steps from the start of one clip to the start of the next.
        length: steps per clip.
    """

    def __init__(self, camera: Camera, first: int, spacing: int, length: int):
        self.camera, self.first, self.spacing, self.length = camera, first, spacing, length
        self.frames: dict[int, Array] = {}
        self._stride = 0

    def show(self, steps: int) -> None:
        """Also record frames for a film of the whole episode, of at most ``steps`` steps."""
        self._stride = math.ceil((steps + 1) / EPISODE_FRAMES)

    def see(self, t: int, observation: Array) -> None:
        """Record the frame after step ``t``, which returned ``observation``, if a film needs it."""
        in_clip = t >= self.first and (t - self.first) % self.spacing <= self.length
        if in_clip or (self._stride and t % self._stride == 0):
            self.frames[t] = self.camera.frame(observation)

    def windows(self, steps: int) -> list[int]:
        """Start steps of the clips filmed completely, in an episode of ``steps`` steps."""
        return list(range(self.first, steps - self.length + 1, self.spacing))

    def episode(self, steps: int, ended: bool, policy_version: int, taken: int) -> Episode:
        """The film of the whole episode; needs `show` first."""
        shown = [frame for t, frame in self.frames.items() if t % self._stride == 0]
        name = hashlib.sha256(b"".join(frame.tobytes() for frame in shown)).hexdigest()
        made = film(name, shown, pixelated=self.camera.pixelated)
        return Episode(made, self.camera.fps / self._stride, steps, ended, policy_version, taken)


class Camera:
    """Takes frames of an environment for people: its observations if they are images, otherwise renderings.

    Args:
        env: an environment made with `camera_options`.

    Raises:
        ValueError: its observations are not images and it does not render.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        self.env = env
        self.pixelated = is_image(env.observation_space)
        if not self.pixelated and env.render_mode != "rgb_array":
            raise ValueError(
                f"{env} can't be filmed: its observations are not images and its render_mode is "
                f"{env.render_mode!r}. Use an environment that supports render_mode='rgb_array'; your own environment must "
                "accept and pass on that option."
            )

    @property
    def fps(self) -> float:
        """Frames per second at the environment's own speed."""
        return float(self.env.metadata.get("render_fps") or 15)

    def frame(self, observation: Array) -> Array:
        """The current frame, ``[height, width, 3]`` uint8. ``observation`` is the environment's latest observation."""
        if self.pixelated:
            return np.array(picture(observation, self.env.metadata.get(SHOWN, "auto")))
        return np.array(self.env.render())  # a copy: some environments reuse their arrays


def camera_for(viewer: str, env: gym.Env[Any, Any]) -> Camera:
    """Return a camera for the setting because of which films are needed, such as "preferences.teacher is human".

    Raises:
        SettingError: the environment can't be filmed.
    """
    try:
        return Camera(env)
    except ValueError as error:
        raise SettingError(f"{viewer}, but {error}") from error


def camera_options(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Options for `gym.make` with which a `Camera` can film a second environment like ``env``."""
    if is_image(env.observation_space):
        return {}
    options: dict[str, Any] = {"render_mode": "rgb_array"}
    if _is_mujoco(env) or getattr(env.unwrapped, "draws_any_size", False):
        options |= {"width": RENDERED_SIDE, "height": RENDERED_SIDE}  # half the time of the default 480 pixels
    return options


def _is_mujoco(env: gym.Env[Any, Any]) -> bool:
    """Whether it is one of gymnasium's MuJoCo environments."""
    return env.spec is not None and str(env.spec.entry_point).startswith("gymnasium.envs.mujoco")


def without_a_screen(
    make: Callable[..., gym.Env[Any, Any]], *arguments: Any, channels: Channels = "auto"
) -> gym.Env[Any, Any]:
    """``make(*arguments)`` with fast rendering, and offscreen if the machine has no display.

    Args:
        make: makes the environment.
        arguments: for it.
        channels: those that a `Camera` of the environment shows.
    """
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame
        system.draw_offscreen()
        # With OpenGL on the CPU, its threads mostly wait for each other: leave the other cores to other work.
        os.environ.setdefault("LP_NUM_THREADS", "0")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    env = make(*arguments)
    if channels != "auto":
        env.metadata = {**env.metadata, SHOWN: channels}
    if _is_mujoco(env):  # a fifth of the time per frame; looks the same at this size
        quality = env.unwrapped.model.vis.quality  # type: ignore[attr-defined]
        quality.shadowsize, quality.offsamples = SHADOW_SIDE, 0
    return env
