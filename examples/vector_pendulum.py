"""What a training loop of your own gets from `HumanPreferencesVectorEnv`: the learned reward, and the true one beside it.

    python examples/vector_pendulum.py

The agent here acts at random. Printed is how the rewards it is given correlate with the true ones, which it never sees.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from rlhf_ray.settings import FragmentSettings, PreferenceSettings
from rlhf_ray.wrappers import HumanPreferencesVectorEnv

ENV_STEPS = 16_000


def main() -> None:
    """Act, and compare what comes back."""
    envs = HumanPreferencesVectorEnv(
        gym.make_vec("Pendulum-v1", num_envs=8),
        total_env_steps=ENV_STEPS,
        fragments=FragmentSettings(length=10),
        preferences=PreferenceSettings(comparisons=200, initial_comparisons=50),
        wait=True,  # for the first version of the reward, made of clips of random actions
    )
    with envs:
        envs.reset(seed=0)
        learned: list[float] = []
        true: list[float] = []
        while envs.status()["env_steps"] < ENV_STEPS:
            _, rewards, _, _, infos = envs.step(envs.action_space.sample())
            steps = infos["reward_is_learned"]  # not where a copy was reset instead of stepped
            learned += rewards[steps].tolist()
            true += infos["true_reward"][steps].tolist()
            if len(true) >= 2_000:
                print(f"{np.corrcoef(learned, true)[0, 1]:.2f} {envs.status()}", flush=True)
                learned, true = [], []


if __name__ == "__main__":
    main()
