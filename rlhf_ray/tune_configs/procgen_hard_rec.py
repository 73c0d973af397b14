"""Procgen, hard levels: a recurrent expert as published (`hard-rec`), with a GRU of 64 units: 256 environments, 200,000,000 steps.

For `rlhf-ray train procgen_hard_rec --true-reward`; see `procgen_hard_500`, whose other settings it has. A minibatch holds whole
rollouts of 32 environments; the published code sums the gradients of four parts of it, which is the same but for their scale. Its
agents had no backgrounds and a million levels, which an environment of your own can set (`rlhf_ray.envs.procgen`).
"""

from rlhf_ray.tune_configs.procgen_hard_500 import procgen

experiment = procgen("hard", num_envs=256, total_env_steps=200_000_000, memory="gru")
