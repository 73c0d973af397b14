"""Stable-Baselines3: SAC, whose replay buffer is relabelled whenever there is a newer version of the reward.

    pip install /path/to/rlhf_ray stable-baselines3
    python examples/sb3_sac.py

An off-policy agent learns from old steps, which older versions rewarded: a callback renews their rewards. A scripted teacher
answers 100 questions about Pendulum. In three minutes the true return rises from -1200, that of random actions, to about -400.
"""

import gymnasium as gym
import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

import rlhf_ray as rr

RANDOM_STEPS, AGENT_STEPS = 1_000, 6_000


class Relabel(BaseCallback):
    """Relabels the replay buffer when the reward has changed."""

    def __init__(self, env: rr.HumanPreferencesEnv):
        super().__init__()
        self.env, self.version = env, 0

    def _on_step(self) -> bool:
        if self.env.status()["reward_version"] != self.version:
            self.version = self.env.status()["reward_version"]
            rr.relabel_replay_buffer(self.model, self.env)
        return True


env = rr.HumanPreferencesEnv(
    gym.make("Pendulum-v1"),
    total_env_steps=RANDOM_STEPS + AGENT_STEPS,
    fragments=rr.FragmentSettings(length=10, initial_env_steps=RANDOM_STEPS),
    preferences=rr.Preferences(comparisons=100),
    wait=True,  # no step is rewarded before there is a first version of the reward
)
with env:
    agent = SAC("MlpPolicy", DummyVecEnv([lambda: env]), learning_rate=1e-3, learning_starts=500, seed=0, device="cpu")
    relabel = Relabel(env)
    agent.learn(AGENT_STEPS, callback=relabel)
    returns = list(env.true_returns)
    print(f"{env.status()['comparisons']} comparisons, {relabel.version} versions of the reward")
    print(f"true return: {np.mean(returns[:5]):.0f} in the first 5 episodes, {np.mean(returns[-5:]):.0f} in the last 5")
