"""Videos of a run's policy: animated images that browsers play, written by pillow, without a video codec to install."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from rlhf_ray import envs
from rlhf_ray.agents.true_return import SEED_OFFSET, ended
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import writing
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.rollout import rollout
from rlhf_ray.labelling.camera import RENDERED_SIDE, camera_for, camera_options, tried_fps, without_a_screen
from rlhf_ray.labelling.films import QUALITY
from rlhf_ray.reward import RewardEnsemble

FORMATS: dict[str, dict[str, Any]] = {
    ".webp": {"format": "WEBP", "quality": QUALITY, "method": 0},
    ".gif": {"format": "GIF"},
    ".png": {"format": "PNG"},
}
"""Options of pillow by file ending."""

MOST_STEPS = 2000
"""Most steps of an episode in a video; longer episodes are cut."""

FONT, LINE = 13, 18
"""Size of the text and height of a line, in pixels."""


def check_video(file: Path, environment: str) -> None:
    """Check that a video of ``environment`` can be written to ``file``.

    Raises:
        SettingError: the file's ending is unknown, or the environment can't be shown.
    """
    if file.suffix.lower() not in FORMATS:
        raise SettingError(f"--video is {file}; give a file that ends in {', '.join(FORMATS)}.")
    tried_fps("--video: ", lambda: _drawn(environment))


def write_video(
    file: Path, environment: str, policy: Any, reward: RewardEnsemble | None, episodes: int, seed: int
) -> None:
    """Write a video of episodes in which ``policy`` acts deterministically, as when it is evaluated.

    Under each frame are the reward of the step that led to it and the return so far: the true ones and, with ``reward``, the
    learned ones.

    Args:
        file: where to write, with an ending of `FORMATS`. Missing folders are created.
        environment: a name that `rlhf_ray.envs.make_env` accepts.
        policy: a policy with ``best(observations, first)``: see `rlhf_ray.agents.true_return.ActBest`.
        reward: the learned reward to show; None for none.
        episodes: number of episodes, one after another.
        seed: seeds the episodes' initial states.

    Raises:
        SettingError: the environment can't be shown.
    """
    camera = camera_for("--video: ", _drawn(environment))
    images: list[Image.Image] = []
    try:
        for episode in range(episodes):
            frames: list[Array] = []
            first = True

            def act(seen: Array) -> Any:
                nonlocal first
                action = np.asarray(policy.best(seen[None], np.array([first])))[0]
                first = False
                return action

            def see(step: int, observation: Array, frames: list[Array] = frames) -> None:
                frames.append(camera.frame(observation))

            took = rollout(camera.env, act, steps=MOST_STEPS, seed=SEED_OFFSET + 1000 * seed + episode, see=see)
            rewards = _rewards(took.trajectory, reward)
            images += [
                _image(frame, camera.pixelated, _lines(step, rewards, episode if episodes > 1 else None))
                for step, frame in enumerate(frames)
            ]
    finally:
        camera.env.close()  # type: ignore[no-untyped-call]
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        save_animation(file, images, camera.fps)


def save_animation(file: Path, images: Sequence[Image.Image], fps: float) -> None:
    """Write images of one size as an animation that repeats, in the format of the file's ending (`FORMATS`)."""
    options = FORMATS[file.suffix.lower()]
    # Browsers show frames of less than 20 ms more slowly.
    duration = max(20, round(1000 / fps))
    images[0].save(file, save_all=True, append_images=images[1:], duration=duration, loop=0, **options)


def _drawn(environment: str) -> gym.Env[Any, Any]:
    """Make the environment with pictures."""
    try:
        env = envs.make_env(environment)
        options = camera_options(env)
        env.close()  # type: ignore[no-untyped-call]
        return ended(without_a_screen(lambda: envs.make_env(environment, **options)))
    except (ValueError, TypeError) as error:
        raise SettingError(f"--video: {error}") from error


def _rewards(trajectory: Trajectory, reward: RewardEnsemble | None) -> dict[str, FloatArray]:
    rewards: dict[str, FloatArray] = {"true": trajectory.rewards}
    if reward is not None:
        steps = torch.as_tensor(trajectory.observations), torch.as_tensor(trajectory.actions)
        rewards["learned"] = (
            reward.combine(reward.episode_rewards(*steps, trajectory.terminated)).numpy().astype(np.float64)
        )
    return rewards


def _lines(step: int, rewards: dict[str, FloatArray], episode: int | None) -> list[str]:
    """The text under the frame after ``step`` steps."""
    lines = [f"step {step}" if episode is None else f"episode {episode + 1}, step {step}"]
    for name, of in rewards.items():
        now = f"{of[step - 1]:.2f}" if step else "–"
        lines.append(f"{name} reward {now}, return {of[:step].sum():.1f}")
    return lines


def _image(frame: Array, pixelated: bool, lines: Sequence[str]) -> Image.Image:
    """The frame, about as large as people see it when they compare clips, with ``lines`` under it."""
    picture = Image.fromarray(np.ascontiguousarray(frame))
    longer = max(picture.size)
    if pixelated and longer < RENDERED_SIDE:
        scale = RENDERED_SIDE // longer
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    elif not pixelated:
        picture = picture.reduce(max(1, round(longer / RENDERED_SIDE)))
    made = Image.new("RGB", (max(picture.width, RENDERED_SIDE), picture.height + LINE * len(lines) + 4), "white")
    made.paste(picture, ((made.width - picture.width) // 2, 0))
    draw, font = ImageDraw.Draw(made), ImageFont.load_default(FONT)
    for row, line in enumerate(lines):
        draw.text((4, picture.height + 2 + row * LINE), line, fill="black", font=font)
    return made
