"""CartPole with a fixed episode length, so that the end of an episode reveals nothing about performance."""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from rlhf_ray.envs.formula import Formula, FormulaReward


class CartPoleFixed(CartPoleEnv):
    """gymnasium's CartPole-v1 that continues after a fall; registered as ``rlhf_ray/CartPoleFixed-v0``.

    In CartPole-v1, an episode ends when the pole falls, and the reward is 1 at every step. Any positive learned reward, even a
    constant, then trains a perfect policy, and a benchmark of reward learning measures nothing. Here, the registered environment
    truncates every episode at exactly 500 steps and never terminates one (the remedy of Christiano et al. 2017, section 3.1, and
    of ``seals/CartPole-v0``).

    * Observation: float32 [4], unbounded: cart position (m), cart velocity (m/s), pole angle (rad), pole velocity
      (rad/s). After a fall, the cart may leave the track and the pole may spin.
    * Action: Discrete(2): push the cart to the left (0) or right (1) for 0.02 s.
    * Rendering: as in CartPole-v1 while the whole pole is in view. Beyond that, the view follows the cart: the area off the
      track is grey, and marks one metre apart show the cart's motion.
    * Reward: 1.0 if, after the step, the cart is within 2.4 m of the centre and the pole within 12 degrees of upright;
      else 0.0. A pole that swings back up earns reward again.
    """

    metadata: dict[str, Any] = {**CartPoleEnv.metadata}  # noqa: RUF012  # gymnasium's own convention

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape=(4,), dtype=np.float32)

    # CartPoleEnv asserts that the action is in its space.
    def step(self, action: int | NDArray[Any]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Push the cart once. Never terminates."""
        # Otherwise CartPoleEnv warns at the second step after a fall.
        self.steps_beyond_terminated = None
        observation, _, fallen, _, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation, 0.0 if fallen else 1.0, False, False, info

    def ground_truth(self) -> FormulaReward:
        """Return the reward as a function of the observation after the step."""
        formula = Formula("upright", self._upright, inputs=("next_state",))
        return FormulaReward(formula, self.observation_space, self.action_space)

    def _upright(self, observations: Any, actions: Any, next_observations: NDArray[Any]) -> NDArray[np.float64]:
        position, angle = next_observations[:, 0], next_observations[:, 2]
        stands = (np.abs(position) <= self.x_threshold) & (np.abs(angle) <= self.theta_threshold_radians)
        return np.asarray(stands, np.float64)

    def render(self) -> Any:
        """Return the image, uint8 [400, 600, 3] with ``render_mode="rgb_array"``; the cart and its pole stay in view."""
        if self.state is None or self.render_mode is None:
            return super().render()  # type: ignore[no-untyped-call]
        state, pole = self.state, 2 * self.length  # m
        shift = state[0] - np.clip(state[0], pole - self.x_threshold, self.x_threshold - pole)
        try:
            self.state = np.array([state[0] - shift, *state[1:]])
            frame = super().render()  # type: ignore[no-untyped-call]
        finally:
            self.state = state
        if shift and frame is not None:
            _draw_track(frame, shift, self.x_threshold)
        return frame


def _draw_track(frame: NDArray[np.uint8], centre: float, end: float) -> None:
    """Draw on a frame of a track that ends at -``end`` and ``end`` (m), centred at ``centre`` and ``2 * end`` wide."""
    height, width, _ = frame.shape
    scale = width / (2 * end)  # pixels per metre
    where = (np.arange(width) + 0.5) / scale - end + centre
    off_track = np.abs(where) > end
    frame[:, off_track] = frame[:, off_track] // 4 * 3
    near_a_metre = np.abs(where - np.round(where)) * scale < 2
    track = height * 3 // 4
    frame[track : track + 10, near_a_metre] = 0
