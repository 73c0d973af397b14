"""Camera: takes the pictures that people see of an environment, and names those that can't be shown."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image

from rlhf_ray.data import system
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.envs.checked import RAISED, fault, try_out
from rlhf_ray.settings.preferences import Channels

RENDERED_SIDE = 256
"""Target size of a rendered frame's longer side, in pixels. Frames are reduced by a whole factor, so they come close to it."""

SHADOW_SIDE = 512
"""Side of MuJoCo's shadow map, in pixels. Its default of 4096 takes most of the rendering time without a GPU."""

SHOWN = "shown_channels"
"""Key in an environment's metadata for the channels that people see."""

FPS = 15.0
"""Frames per second of environments that don't tell theirs."""


class Camera:
    """Takes frames of an environment for people: its observations if they are images, otherwise renderings.

    Args:
        env: an environment made with `camera_options`.
        pixelated: whether to show observations; None: if they are images.

    Raises:
        ValueError: its observations are not images and it does not render.
    """

    def __init__(self, env: gym.Env[Any, Any], pixelated: bool | None = None):
        self.env = env
        self._called = getattr(env.spec, "id", None) or str(env)
        self._size: tuple[int, ...] | None = None
        self.pixelated = is_image(env.observation_space) if pixelated is None else pixelated
        if not self.pixelated and env.render_mode != "rgb_array":
            raise ValueError(
                f"{env} can't be filmed: its observations are not images and its render_mode is "
                f"{env.render_mode!r}. Use an environment that supports render_mode='rgb_array'; your own environment must "
                "accept and pass on that option."
            )

    @property
    def fps(self) -> float:
        """Frames per second at the environment's own speed.

        Raises:
            FaultyEnvironmentError: the environment's is no number above 0.
        """
        return fps_of(self.env, self._called)

    def begin(self) -> None:
        """Begin an episode: its pictures may have another size than those before."""
        self._size = None

    def frame(self, observation: Array | None = None) -> Array:
        """The current frame, ``[height, width, 3]`` uint8, a copy. Where it is rendered, no ``observation`` is needed.

        Raises:
            FaultyEnvironmentError: the picture can't be shown for sure as it is meant, or its size changes within an episode.
        """
        if self.pixelated:
            assert observation is not None
            return np.array(picture(observation, self.env.metadata.get(SHOWN, "auto")))
        try:
            rendered: Any = self.env.render()
        except RAISED as error:
            raise fault(f"Environment {self._called}: render()", error) from error
        try:
            made = _shown(rendered)
            if self._size is not None and self._size != made.shape:
                before = "x".join(map(str, self._size[:2]))
                raise ValueError(f"{made.shape[0]}x{made.shape[1]} pixels after pictures of {before}; keep one size")
        except ValueError as error:
            raise FaultyEnvironmentError(
                f"Environment {self._called}: render() returned {error}. People need uint8 images [height, width, 3]: fix render()."
            ) from None
        self._size = made.shape
        return made


def _shown(rendered: Any) -> Array:
    """Return what an environment rendered as a new image ``[height, width, 3]`` uint8.

    Grey images, whole numbers from 0 to 255 of any dtype, RGBA without transparency and a batch or list of one image are converted.

    Raises:
        ValueError: it is anything else; says what.
    """
    if isinstance(rendered, Image.Image) and rendered.mode not in ("L", "RGB", "RGBA"):
        raise ValueError(f"an image of mode {rendered.mode}; convert it to RGB")
    try:
        image = np.asarray(rendered)
    except (ValueError, TypeError, RuntimeError):  # pictures of different sizes, a tensor with a gradient, …
        raise ValueError(f"a {type(rendered).__name__} that is no array") from None
    if image.dtype.kind not in "biufc":
        raise ValueError("None; return a picture at each step" if rendered is None else f"a {type(rendered).__name__}")
    of = f"{image.dtype} of shape {list(image.shape)}"
    if image.ndim == 4 and len(image) == 1:
        image = image[0]
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or not image.size or image.shape[2] not in (1, 3, 4):
        raise ValueError(of)
    if image.dtype.kind not in "iu":
        raise ValueError(f"{of}; convert it to uint8{', times 255 if white is 1' if image.dtype.kind == 'f' else ''}")
    if image.min() < 0 or image.max() > 255:
        raise ValueError(f"{of} with values from {image.min()} to {image.max()}; scale them to 0 to 255")
    if image.shape[2] == 4 and (image[..., 3] != 255).any():
        raise ValueError(f"{of} with transparent pixels; draw it on a background")
    return np.array(np.broadcast_to(image[..., :3], (*image.shape[:2], 3)), np.uint8)


def fps_of(env: Any, name: str) -> float:
    """Return the frames per second of an environment, also a vector environment.

    Raises:
        FaultyEnvironmentError: its ``render_fps`` is no number above 0.
    """
    declared = env.metadata.get("render_fps") or FPS
    try:
        fps = float(declared)
        if not 0 < fps < math.inf:
            raise ValueError
    except (TypeError, ValueError):
        raise FaultyEnvironmentError(
            f"Environment {name}: metadata['render_fps'] is {declared!r}; it must be a number above 0. Fix the environment."
        ) from None
    return fps


def picture(observation: Array, channels: Channels = "auto") -> Array:
    """``[height, width, 3]``: an image observation in colour; of stacked frames, the newest (see `LabellingSettings.channels`)."""
    there = observation.shape[-1]
    shown = 3 if there >= 3 and (there % 3 == 0 if channels == "auto" else channels == 3) else 1
    return np.broadcast_to(observation[..., -shown:], (*observation.shape[:2], 3))


def camera_for(why: str, env: gym.Env[Any, Any], pixelated: bool | None = None) -> Camera:
    """Return a camera; errors begin with the option or setting because of which films are needed, such as "--video: ".

    Raises:
        SettingError: the environment can't be filmed.
    """
    try:
        return Camera(env, pixelated)
    except ValueError as error:
        raise SettingError(f"{why}{error}") from error


def tried_fps(why: str, make_env: Callable[[], gym.Env[Any, Any]]) -> float:
    """Make an environment, try out its pictures, close it, and return its frames per second. ``why`` is as for `camera_for`.

    Raises:
        SettingError: the environment can't be filmed.
        FaultyEnvironmentError: a picture can't be shown.
    """
    env = make_env()
    try:
        camera = camera_for(why, env)
        if not camera.pixelated:
            try_out(env, camera.frame)
        return camera.fps
    finally:
        env.close()  # type: ignore[no-untyped-call]


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
    """``make(*arguments)`` with fast rendering, offscreen if the machine has no display; a `Camera` of it shows ``channels``."""
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
