"""Atari games as in Christiano et al. 2017: small grey images, and episodes whose end reveals nothing about performance.

``ALE/Breakout-v5`` and all other ``ALE/`` ids are preprocessed as in the literature (Machado et al. 2018), with gymnasium wrappers:

* Observation: uint8 [84, 84, 4]: the screens of the last four steps, newest last; each grey, the maximum of the step's last two
  frames, and scaled down.
* Action: the game's own, Discrete. Each is repeated for four frames. The id decides about sticky actions.
* Reward: the game's points, not clipped.
* Start: after 1 to 30 no-op frames. When a game is over, the next one starts in the same episode (appendix A of the paper); an
  episode takes `STEPS` steps.

``rlhf_ray/Pong-v0`` and ``rlhf_ray/Enduro-v0`` additionally disable sticky actions and black out the score (in Enduro: the
dashboard with the speedometer), from which a reward model could read the true reward. The option ``blanked=[(0, 17, 0, 160)]`` of
``make_env`` blacks out parts of any other game.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError

PREFIX = "ALE/"
STEPS = 2_000
"""Steps per episode (133 s of play; a game of Pong takes 1,000 to 2,000)."""
FRAMES = 4
"""Screens stacked in an observation."""
SCREEN = 210, 160
"""Height and width of a game's screen in pixels."""

Rectangle: TypeAlias = tuple[int, int, int, int]
"""Part of the screen in pixels: top, bottom, left and right, without the row ``bottom`` and the column ``right``."""

PONG_SCORE: Rectangle = (0, 22, 0, 160)
"""The top rows of Pong's screen, with the score; the white bar below begins at row 24."""
ENDURO_DASHBOARD: Rectangle = (160, 210, 0, 160)
"""The bottom rows of Enduro's screen, with the distance covered, the day and the cars left to pass; black from row 155 on."""


class Games(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Plays one game after the other in an endless episode, with the parts ``blanked`` of the screen black.

    Raises:
        SettingError: a part is empty or off the screen.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], blanked: Sequence[Rectangle] = ()):
        super().__init__(env)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 15}
        _, height, width = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, FRAMES), np.uint8)
        self._blanked = [_slices(part, SCREEN) for part in blanked]
        self._hidden = [_slices(part, (height, width)) for part in blanked]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start a game."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._seen(observation), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Repeat the action for four frames. Never ends the episode."""
        observation, reward, over, cut_off, info = self.env.step(action)
        if over or cut_off:
            observation, _ = self.env.reset()
        return self._seen(observation), float(reward), False, False, info

    def render(self) -> Any:
        """Return the colour screen, uint8 [210, 160, 3], in render_mode "rgb_array"; else None."""
        if self.render_mode is None:
            return None
        screen = np.array(self.env.render())
        for part in self._blanked:
            screen[part] = 0
        return screen

    def _seen(self, stacked: Array) -> Array:
        observation = np.ascontiguousarray(np.moveaxis(stacked, 0, -1))
        for part in self._hidden:
            observation[part] = 0
        return observation


def pong(**options: Any) -> gymnasium.Env[Any, Any]:
    """Make ``rlhf_ray/Pong-v0``."""
    return _games("ALE/Pong-v5", "rlhf_ray/Pong-v0", [PONG_SCORE], repeat_action_probability=0.0, **options)


def enduro(**options: Any) -> gymnasium.Env[Any, Any]:
    """Make ``rlhf_ray/Enduro-v0``."""
    return _games("ALE/Enduro-v5", "rlhf_ray/Enduro-v0", [ENDURO_DASHBOARD], repeat_action_probability=0.0, **options)


def atari(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make the environment with the registered id ``name``; ``blanked`` among the options blacks out parts of the screen."""
    return TimeLimit(_games(name, name, **options), STEPS)


def check(name: str) -> None:
    """Let ale-py register its ids.

    Raises:
        ImportError: a dependency of ``name`` is not installed.
    """
    try:
        import ale_py
        import cv2  # noqa: F401 - scales images for gymnasium
    except ImportError as error:
        raise ImportError(f"{name} needs ale-py and OpenCV: pip install 'rlhf-ray[atari]'.") from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # suppresses its banner on stderr


def _games(game: str, name: str, blanked: Sequence[Rectangle] = (), **options: Any) -> gymnasium.Env[Any, Any]:
    check(name)
    # Skip the checker: it would run on every frame, and the agent sees every fourth. Skip colours: observations are grey.
    made = gymnasium.make(game, frameskip=1, obs_type="grayscale", disable_env_checker=True, **options)
    return Games(FrameStackObservation(AtariPreprocessing(made), FRAMES), blanked)


def _slices(part: Rectangle, size: tuple[int, int]) -> tuple[slice, slice]:
    """Return the rows and columns of ``part`` on a screen scaled to ``size``: all that contain any of it."""
    top, bottom, left, right = part
    if not (0 <= top < bottom <= SCREEN[0] and 0 <= left < right <= SCREEN[1]):
        raise SettingError(
            f"blanked is {part}; it must be (top, bottom, left, right) on a screen of {SCREEN[0]} x {SCREEN[1]} pixels."
        )
    height, width = size
    rows = slice(top * height // SCREEN[0], -(-bottom * height // SCREEN[0]))
    return rows, slice(left * width // SCREEN[1], -(-right * width // SCREEN[1]))
