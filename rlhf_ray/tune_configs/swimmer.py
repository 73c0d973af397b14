"""Swimmer-v5 (MuJoCo): swim forward; 700 comparisons, 1,000,000 environment steps."""

from rlhf_ray.tune_configs import half_cheetah

experiment = half_cheetah.experiment.changed(
    environment="Swimmer-v5",
    ppo={"gamma": 0.999},  # a stroke pays off late: `imitation` tuned gamma to 0.999 on this task
    fragments={"length": 50},  # 2 s at 0.04 s per step
    labelling={
        "instructions": "Prefer the swimmer that gets further to the right (watch the floor). Goal: swim forward. "
        "Worst: going backwards."
    },
)
