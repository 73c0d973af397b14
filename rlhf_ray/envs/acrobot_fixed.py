"""Acrobot with a fixed episode length and a dense reward, so that the end of an episode reveals nothing about performance."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from numpy.typing import NDArray

from rlhf_ray.envs.formula import Formula, FormulaReward


class AcrobotFixed(AcrobotEnv):
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

    def step(self, a: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply the torque once. Never terminates."""
        observation, *_ = super().step(a)  # type: ignore[no-untyped-call]
        return observation, float(tip_height(observation[None])[0]), False, False, {}

    def ground_truth(self) -> FormulaReward:
        """Return the reward as a function of the observation after the step, with gradients."""
        formula = Formula("height", _height_after, inputs=("next_state",), differentiable=True)
        return FormulaReward(formula, self.observation_space, self.action_space)


def tip_height(observations: Any) -> Any:
    """Compute the height of the tip above the fixed joint in m, ``[n]``, from observations ``[n, 6]``: arrays or tensors."""
    cos1, sin1, cos2, sin2 = (observations[:, i] for i in range(4))
    return -cos1 - (cos1 * cos2 - sin1 * sin2)


def _height_after(observations: Any, actions: Any, next_observations: Any) -> Any:
    return tip_height(next_observations)
