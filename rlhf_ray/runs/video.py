"""Videos of a run's policy: animated images that browsers play, written by pillow, without a video codec to install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image

from rlhf_ray import envs
from rlhf_ray.agents.true_return import SEED_OFFSET, ended
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import writing
from rlhf_ray.data.rollout import rollout
from rlhf_ray.labelling.camera import RENDERED_SIDE, camera_for, camera_options, tried_fps, without_a_screen

FORMATS = (".webp", ".gif", ".png")
"""Endings of files that pillow writes as animations."""

MOST_STEPS = 2000
"""Most steps of an episode in a video; longer episodes are cut."""


def check_video(file: Path, environment: str) -> None:
    """Check that a video of ``environment`` can be written to ``file``.

    Raises:
        SettingError: the file's ending is unknown, or the environment can't be shown.
    """
    if file.suffix.lower() not in FORMATS:
        raise SettingError(f"--video is {file}; give a file that ends in {', '.join(FORMATS)}.")
    tried_fps("--video: ", lambda: _drawn(environment))


def write_video(file: Path, environment: str, policy: Any, episodes: int, seed: int) -> None:
    """Write a video of episodes in which ``policy`` acts as when it is evaluated (``best``), in one of `FORMATS`."""
    camera = camera_for("--video: ", _drawn(environment))
    images: list[Image.Image] = []
    first = True

    def act(seen: Array) -> Any:
        nonlocal first
        began, first = first, False
        return np.asarray(policy.best(seen[None], np.array([began])))[0]

    def see(step: int, observation: Array) -> None:
        picture = Image.fromarray(np.ascontiguousarray(camera.frame(observation)))
        scale = max(1, RENDERED_SIDE // max(picture.size)) if camera.pixelated else 1
        larger = (picture.width * scale, picture.height * scale)
        images.append(picture if scale == 1 else picture.resize(larger, Image.Resampling.NEAREST))

    try:
        for episode in range(episodes):
            first = True
            rollout(camera.env, act, steps=MOST_STEPS, seed=SEED_OFFSET + 1000 * seed + episode, see=see)
    finally:
        camera.env.close()  # type: ignore[no-untyped-call]
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        # Browsers show frames of less than 20 ms more slowly.
        images[0].save(
            file, save_all=True, append_images=images[1:], duration=max(20, round(1000 / camera.fps)), loop=0
        )


def _drawn(environment: str) -> gym.Env[Any, Any]:
    """Make the environment with pictures."""
    try:
        env = envs.make_env(environment)
        options = camera_options(env)
        env.close()  # type: ignore[no-untyped-call]
        return ended(without_a_screen(lambda: envs.make_env(environment, **options)))
    except (ValueError, TypeError) as error:
        raise SettingError(f"--video: {error}") from error
