"""Atari's Pong as in Christiano et al. 2017: small grey images, no score to read, no episode end that tells who won."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image

SIDE = 84
FRAMES = 4
"""Frames that an action is repeated for, and newest frames in an observation."""
SCORE_ROWS = 22
"""Rows of the screen, from the top, that hold the score: the white bar below them begins at row 24."""
NO_OPS = 30


class Pong(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Pong, registered as ``rlhf_ray/Pong-v0`` with episodes of exactly 2,000 steps (133 s of play; a game takes 1,000 to 2,000).

    * Observation: uint8 [84, 84, 4]: the newest four steps' screens, the newest last, each grey, the larger of the step's last
      two frames, and scaled down.
    * Action: Discrete(6): stay, fire, right, left, and the last two with fire. It is repeated for four frames.
    * Reward: 1 for a point, -1 for one of the other side.
    * Start: after 1 to 30 steps of doing nothing (frames). When a game is over the next one begins in the same episode.

    The score is black, since a reward model could read the true reward there, and an episode never ends with a game, since when it
    does tells who plays better (appendix A of the paper). The class itself never ends an episode: the time limit comes with
    the registered name.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} of Pong: it must be None or 'rgb_array'.")
        try:
            import ale_py
            from ale_py import roms
        except ImportError as error:
            raise ImportError("rlhf_ray/Pong-v0 needs ale-py: pip install 'rlhf-ray[atari]'.") from error
        self.render_mode = render_mode
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # it greets on stderr otherwise
        self._ale = ale_py.ALEInterface()
        self._rom = str(roms.get_rom_path("pong"))
        self._actions: list[Any] = []
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, FRAMES), np.uint8)
        self.action_space = spaces.Discrete(6)
        self._stack = np.zeros((SIDE, SIDE, FRAMES), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begins a game."""
        super().reset(seed=seed, options=options)
        if seed is not None or not self._actions:  # the emulator takes its seed when it loads the game
            self._ale.setInt("random_seed", int(self.np_random.integers(2**31)))
            self._ale.setFloat("repeat_action_probability", 0.0)
            self._ale.loadROM(self._rom)
            self._actions = self._ale.getMinimalActionSet()
        self._begin()
        return self._stack.copy(), {}

    def step(self, action: int | np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Acts for four frames. Never terminates."""
        reward = 0.0
        for frame in range(FRAMES):
            reward += self._ale.act(self._actions[action])
            if frame == FRAMES - 2:
                before = self._screen()
        self._push(np.maximum(before, self._screen()))
        if self._ale.game_over():
            self._begin()
        return self._stack.copy(), reward, False, False, {}

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """The screen in colour without the score, uint8 [210, 160, 3], in render_mode "rgb_array"; else None."""
        if self.render_mode is None:
            return None
        screen: NDArray[np.uint8] = self._ale.getScreenRGB()
        screen[:SCORE_ROWS] = 0
        return screen

    def _begin(self) -> None:
        self._ale.reset_game()
        for _ in range(int(self.np_random.integers(1, NO_OPS + 1))):
            self._ale.act(self._actions[0])
        self._stack[...] = self._small(self._screen())[..., None]

    def _screen(self) -> NDArray[np.uint8]:
        screen: NDArray[np.uint8] = self._ale.getScreenGrayscale()
        return screen

    def _push(self, screen: NDArray[np.uint8]) -> None:
        self._stack[..., :-1] = self._stack[..., 1:]
        self._stack[..., -1] = self._small(screen)

    @staticmethod
    def _small(screen: NDArray[np.uint8]) -> NDArray[np.uint8]:
        screen[:SCORE_ROWS] = 0
        return np.asarray(Image.fromarray(screen).resize((SIDE, SIDE), Image.Resampling.BOX))
