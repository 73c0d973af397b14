"""AcrobotFixed: swing the tip up and keep it high, in episodes of 500 steps; 200 comparisons, 200,000 environment steps."""

from rlhf_ray.settings import FragmentSettings
from rlhf_ray.tune_configs import cartpole

experiment = cartpole.experiment.changed(
    environment="rlhf_ray/AcrobotFixed-v0",
    # 5 s; the first actions are repeated, because independent ones hardly swing it.
    fragments=FragmentSettings(length=25, pool=400),
    labelling={
        "instructions": "Prefer the double pendulum whose tip is higher, for longer. Goal: swing the tip up above the line."
    },
)
