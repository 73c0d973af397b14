"""CartPole and Acrobot with a fixed episode length, so that the end of an episode reveals nothing about performance."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from rlhf_ray.envs.formula import Formula, KnownReward


class CartPoleFixed(CartPoleEnv, KnownReward):
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
        self.formula = Formula("upright", self._upright, inputs=("next_state",))

    # CartPoleEnv asserts that the action is in its space.
    def step(self, action: int | NDArray[Any]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Push the cart once. Never terminates."""
        # Otherwise CartPoleEnv warns at the second step after a fall.
        self.steps_beyond_terminated = None
        observation, _, fallen, _, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation, 0.0 if fallen else 1.0, False, False, info

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


class AcrobotFixed(AcrobotEnv, KnownReward):
    """gymnasium's Acrobot-v1 that continues at the goal; registered as ``rlhf_ray/AcrobotFixed-v0``.

    In Acrobot-v1, an episode ends when the tip passes the line, and the reward is -1 until then: any negative constant trains a
    good policy. Here, the registered environment truncates every episode at exactly 500 steps and never terminates one, and the
    reward says at each step how high the tip is.

    * Observation: float32 [6]: cosine and sine of the upper link's angle (0: hanging down), cosine and sine of the lower link's
      angle relative to the upper one, and their velocities (rad/s).
    * Action: Discrete(3): torque of -1, 0 or 1 N m on the joint between the links for 0.2 s.
    * Reward: height of the tip above the fixed joint after the step, in m: from -2, hanging down, to 2, upright. Acrobot-v1's line
      is at 1.
    """

    metadata: dict[str, Any] = {**AcrobotEnv.metadata}  # noqa: RUF012  # gymnasium's own convention
    formula = Formula(
        "height", lambda before, actions, after: tip_height(after), inputs=("next_state",), differentiable=True
    )

    def step(self, a: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply the torque once. Never terminates."""
        observation, *_ = super().step(a)  # type: ignore[no-untyped-call]
        return observation, float(tip_height(observation[None])[0]), False, False, {}


def tip_height(observations: Any) -> Any:
    """Compute the height of the tip above the fixed joint in m, ``[n]``, from observations ``[n, 6]``: arrays or tensors."""
    cos1, sin1, cos2, sin2 = (observations[:, i] for i in range(4))
    return -cos1 - (cos1 * cos2 - sin1 * sin2)
