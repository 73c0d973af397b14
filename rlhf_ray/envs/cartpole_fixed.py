"""CartPole with episodes of one fixed length, so that an episode's end says nothing about how well it went."""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray


class CartPoleFixed(CartPoleEnv):
    """gymnasium's CartPole-v1 that goes on after a fall; registered as ``rlhf_ray/CartPoleFixed-v0``.

    In CartPole-v1 an episode ends when the pole falls, and its reward is 1 at every step: any learned reward that is
    positive, even a constant, then trains a perfect policy, and a benchmark of reward learning measures nothing. Here
    the registered environment truncates every episode at exactly 500 steps and never terminates one (the remedy of
    Christiano et al. 2017, section 3.1, and of ``seals/CartPole-v0``).

    * Observation: float32 [4], unbounded: cart position (m), cart velocity (m/s), pole angle (rad), pole velocity
      (rad/s). After a fall the cart leaves the track and the pole swings round and round.
    * Action: Discrete(2), push the cart to the left (0) or right (1) for 0.02 s.
    * Reward: 1.0 if, after the step, the cart is within 2.4 m of the centre and the pole within 12 degrees of upright;
      else 0.0. A pole that comes upright again earns again.
    """

    metadata: dict[str, Any] = {**CartPoleEnv.metadata}  # noqa: RUF012  # gymnasium's own convention

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape=(4,), dtype=np.float32)

    # CartPoleEnv asserts that the action is in its space.
    def step(self, action: int | NDArray[Any]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Pushes the cart once. Never terminates."""
        # Without this CartPoleEnv warns at the second step after a fall.
        self.steps_beyond_terminated = None
        observation, _, fallen, _, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation, 0.0 if fallen else 1.0, False, False, info
