"""Procgen, easy levels: an expert as published (`easy` of the train-procgen code): 64 environments, 25,000,000 steps.

For `rlhf-ray train procgen_easy --true-reward`; see `procgen_hard_500`, whose other settings it has.
"""

from rlhf_ray.tune_configs.procgen_hard_500 import procgen

experiment = procgen("easy", num_envs=64, total_env_steps=25_000_000)
