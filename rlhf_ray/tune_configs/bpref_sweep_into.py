"""B-Pref's SweepInto (Meta-World, EnvPool), SAC scaled to two cores; 10,000 comparisons, 1,000,000 steps."""

from rlhf_ray.tune_configs import bpref_button_press

experiment = bpref_button_press.experiment.changed(
    environment="envpool/MetaWorld/SweepInto-v3",
    preferences={"comparisons": 10_000, "initial_comparisons": 50},
    labelling={"instructions": "Prefer the arm that has moved the cube closer to the hole. Goal: sweep it in."},
)
