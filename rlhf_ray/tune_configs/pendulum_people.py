"""Pendulum-v1 with people as teachers, who label during training; 200 comparisons, 200,000 environment steps."""

from rlhf_ray.tune_configs import pendulum

experiment = pendulum.experiment.changed(
    # As the scripted preset, whose order of questions and weight decay stand wrong answers: 150 about random actions before PPO's
    # first step, 50 during training. Twice the steps, because training continues while people think, one to five seconds per answer
    # (Christiano et al. 2017). Measured by benchmarks/browser_person.py.
    total_env_steps=200_000,
    # PPO does not wait for answers. People make mistakes: by default (reward_model.label_noise=None), each fit estimates how many
    # of each annotator's answers are wrong. Christiano et al. (2017, section 2.2.3) assume that a tenth are random.
    preferences={"teacher": "human", "mode": "asynchronous"},
)
