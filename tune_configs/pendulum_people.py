"""Pendulum-v1 with people as teachers: they compare clips at a page while it trains; 150 comparisons, 200,000 environment steps."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.tune_configs import pendulum

experiment = dataclasses.replace(
    pendulum.experiment,
    # These budgets are what benchmarks/people.py measured. Twice the steps of a scripted teacher: training goes on while people
    # think, for three to five seconds each time (Christiano et al. 2017).
    total_env_steps=200_000,
    preferences=dataclasses.replace(
        pendulum.experiment.preferences,
        teacher="human",
        mode="asynchronous",  # PPO waits for nobody
        comparisons=150,  # about ten minutes of somebody's time
        initial_comparisons=40,  # before PPO's first step, so that it begins with a reward that is more right than wrong
    ),
    # People err: the likelihood expects a tenth of the answers to be random (Christiano et al. 2017, section 2.2.3), which is what
    # reward_model.label_noise is by itself where people are asked.
)


def search_space() -> dict[str, Any]:
    """What `rlhf-ray tune pendulum_people` varies: how answers are fitted, by the likelihood of those held out.

    Each trial asks for answers of its own, so that few trials are a lot of work: `--trials 3`.
    """
    from ray import tune  # imports much that training has no use for

    return {
        "reward_model.learning_rate": tune.loguniform(3e-4, 3e-3),
        "reward_model.label_noise": tune.choice([0.05, 0.1, 0.2]),
    }
