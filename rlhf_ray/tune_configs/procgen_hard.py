"""Procgen, hard levels: an expert as published (`hard` of the train-procgen code): 128 environments, 200,000,000 steps.

For `rlhf-ray train procgen_hard --true-reward`; see `procgen_hard_500`, whose other settings it has.
"""

from rlhf_ray.tune_configs.procgen_hard_500 import procgen

experiment = procgen("hard", num_envs=128, total_env_steps=200_000_000)
