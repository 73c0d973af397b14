"""Atari games as in Christiano et al. 2017: small grey images, and episodes whose end reveals nothing about performance.

``ALE/Breakout-v5`` and all other ``ALE/`` ids are preprocessed as in the literature (Machado et al. 2018), with gymnasium wrappers:

* Observation: uint8 [84, 84, 4]: the screens of the last four steps, newest last; each grey, the maximum of the step's last two
  frames, and scaled down.
* Action: the game's own, Discrete. Each is repeated for four frames. The id decides about sticky actions.
* Reward: the game's points, not clipped.
* Start: after 1 to 30 no-op frames. When a game is over, the next one starts in the same episode (appendix A of the paper); an
  episode takes `STEPS` steps.

``rlhf_ray/Pong-v0`` additionally disables sticky actions and blacks out the score, from which a reward model could read the true
reward.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from rlhf_ray.data.arrays import Array

PREFIX = "ALE/"
STEPS = 2_000
"""Steps per episode (133 s of play; a game of Pong takes 1,000 to 2,000)."""
FRAMES = 4
"""Screens stacked in an observation."""
PONG_SCORE_ROWS = 22
"""Top rows of Pong's screen that contain the score; the white bar below begins at row 24."""


class Games(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Plays one game after the other in an endless episode.

    Args:
        env: stacks its observations along the first axis.
        score_rows: number of top rows of the screen to black out.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], score_rows: int = 0):
        super().__init__(env)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 15}
        _, height, width = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, FRAMES), np.uint8)
        self._score_rows, self._hidden = score_rows, -(-score_rows * height // 210)

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
        screen[: self._score_rows] = 0
        return screen

    def _seen(self, stacked: Array) -> Array:
        observation = np.ascontiguousarray(np.moveaxis(stacked, 0, -1))
        observation[: self._hidden] = 0
        return observation


def pong(**options: Any) -> gymnasium.Env[Any, Any]:
    """Make ``rlhf_ray/Pong-v0``."""
    return _games("ALE/Pong-v5", "rlhf_ray/Pong-v0", PONG_SCORE_ROWS, repeat_action_probability=0.0, **options)


def atari(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make the environment with the registered id ``name``."""
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


def _games(game: str, name: str, score_rows: int = 0, **options: Any) -> gymnasium.Env[Any, Any]:
    check(name)
    # Skip the checker: it would run on every frame, and the agent sees every fourth. Skip colours: observations are grey.
    made = gymnasium.make(game, frameskip=1, obs_type="grayscale", disable_env_checker=True, **options)
    return Games(FrameStackObservation(AtariPreprocessing(made), FRAMES), score_rows)
