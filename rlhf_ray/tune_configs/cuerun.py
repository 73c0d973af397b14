"""CueRun: remember whether to jump the gates or to run under them; 400 comparisons, 300,000 environment steps.

An expert for `rlhf-ray interpret agent`: `rlhf-ray train cuerun --true-reward`.
"""

from rlhf_ray.tune_configs import minirun

experiment = minirun.experiment.changed(
    environment="rlhf_ray/CueRun-v0",
    total_env_steps=300_000,
    labelling={
        "instructions": "Prefer the clip that gets further right. Rule: after a red sky, jump the gates; after blue, run under. "
        "Goal: the yellow column."
    },
)
