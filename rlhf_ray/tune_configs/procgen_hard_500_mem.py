"""Procgen's mode "memory", in which the agent sees only its surroundings: the settings `hard-500-mem`, 256 environments.

For `rlhf-ray train procgen_hard_500_mem --true-reward`; see `procgen_hard_500`, whose settings it has. As published, the policy has
no memory; `--ppo.memory gru` gives it one. Only caveflyer, dodgeball, heist, jumper, maze and miner have this mode.
"""

from rlhf_ray.tune_configs.procgen_hard_500 import procgen

experiment = procgen("hard", num_envs=256, total_env_steps=200_000_000).changed(
    environment="procgen/maze-memory",
    labelling={
        "instructions": "Prefer the clip that gets nearer to the cheese. Goal: reach the cheese. Worst: standing still."
    },
)
