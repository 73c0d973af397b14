"""Pendulum-v1 with people as teachers, who label during training; 200 comparisons, 200,000 environment steps."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_ray.tune_configs import pendulum

experiment = dataclasses.replace(
    pendulum.experiment,
    # As the scripted preset, whose order of questions and weight decay stand wrong answers: 150 about random actions before PPO's
    # first step, 50 during training. Twice the steps, because training continues while people think, one to five seconds per answer
    # (Christiano et al. 2017). Measured by benchmarks/browser_person.py.
    total_env_steps=200_000,
    preferences=dataclasses.replace(
        pendulum.experiment.preferences,
        teacher="human",
        mode="asynchronous",  # PPO does not wait for answers
    ),
    # People make mistakes: by default (reward_model.label_noise=None), each fit estimates how many of each annotator's answers are
    # wrong. Christiano et al. (2017, section 2.2.3) assume that a tenth are random.
)


def search_space() -> dict[str, Any]:
    """The search space of `rlhf-ray tune pendulum_people`: fit settings, ranked by the likelihood of held-out answers.

    Each trial asks for its own answers, so even a few trials are much work: use `--trials 3`.
    """
    from ray import tune  # slow import that training does not need

    return {
        "reward_model.learning_rate": tune.loguniform(3e-4, 3e-3),
        "reward_model.label_noise": tune.choice([None, 0.1, 0.2]),
    }
