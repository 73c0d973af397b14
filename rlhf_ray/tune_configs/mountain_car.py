"""MountainCar with episodes of 200 steps: swing up to the flag; 200 comparisons, 200,000 environment steps.

The true reward is -1 until the flag and 0 from then on. A scripted teacher has nothing to say about fragments that miss it, as
those of random actions do. So people compare, who see which car gets higher. All other settings are those of
`rlhf_ray.tune_configs.cartpole`; none is tuned here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.settings import FragmentSettings, LabellingSettings
from rlhf_ray.tune_configs import cartpole

experiment = dataclasses.replace(
    cartpole.experiment,
    environment="fixed/MountainCar-v0",
    fragments=FragmentSettings(),
    # Random actions hardly move the car: later fragments are worth more questions.
    preferences=dataclasses.replace(
        cartpole.experiment.preferences,
        initial_comparisons="auto",
        selection="random",
        teacher="human",
        mode="asynchronous",  # PPO does not wait for answers
    ),
    reward_model=dataclasses.replace(cartpole.experiment.reward_model, weight_decay=1e-2),
    ppo=dataclasses.replace(cartpole.experiment.ppo, num_envs=8, rollout_length=200, gamma=0.99),
    labelling=LabellingSettings(
        instructions="Prefer the car that gets higher on either side; then the one nearer to the flag. Goal: reach the flag."
    ),
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune mountain_car`: that of cartpole."""
    return cartpole.search_space()
