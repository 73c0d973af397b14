"""Stable-Baselines3's SAC, whose replay buffer is relabelled whenever there is a newer reward.

    python examples/sb3_off_policy.py

A scripted teacher answers 100 questions about Pendulum. Takes some minutes; a random policy's true return is about -1200.
"""

import gymnasium as gym
import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from rlhf_ray.settings import FragmentSettings, PreferenceSettings
from rlhf_ray.wrappers import HumanPreferencesEnv, relabel_replay_buffer


class Relabel(BaseCallback):
    """Relabels the replay buffer when the reward has changed."""

    def __init__(self, env: HumanPreferencesEnv):
        super().__init__()
        self.env, self.version = env, 0

    def _on_step(self) -> bool:
        if self.env.status()["reward_version"] != self.version:
            self.version = self.env.status()["reward_version"]
            relabel_replay_buffer(self.model, self.env)
        return True


def learn(env: HumanPreferencesEnv, env_steps: int, **settings: object) -> SAC:
    """The trained agent."""
    agent = SAC("MlpPolicy", DummyVecEnv([lambda: env]), learning_starts=500, seed=0, device="cpu", **settings)  # type: ignore[arg-type]
    return agent.learn(env_steps, callback=Relabel(env))


if __name__ == "__main__":
    fragments, preferences = FragmentSettings(length=10, initial_env_steps=1000), PreferenceSettings(comparisons=100)
    with HumanPreferencesEnv(
        gym.make("Pendulum-v1"), total_env_steps=10_000, fragments=fragments, preferences=preferences, wait=True
    ) as env:
        learn(env, 9_000)
        print(f"true return of the last 10 episodes: {np.mean(list(env.true_returns)[-10:]):.0f}; {env.status()}")
