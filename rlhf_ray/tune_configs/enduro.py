"""Enduro (Atari) without its dashboard: 5,500 comparisons, 10,000,000 environment steps."""

from rlhf_ray.tune_configs import pong

experiment = pong.experiment.changed(
    environment="rlhf_ray/Enduro-v0",  # the distance, the day and the cars left to pass are blacked out
    labelling={
        "instructions": "Prefer the clip where the car passes more cars, and the one that drives faster if there are none. "
        "Goal: overtake. Worst: a crash."
    },
)
