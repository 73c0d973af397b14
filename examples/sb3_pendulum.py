"""Stable-Baselines3's PPO learns Pendulum from 200 comparisons instead of its reward, by `HumanPreferencesEnv`.

    python examples/sb3_pendulum.py [--envs 4] [--steps 100000] [--seed 0]

A scripted teacher, who knows the true reward, answers in the place of a person. Takes some minutes. What is printed is the true
return, which the agent never sees: a random policy has about -1200.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.wrappers import HumanPreferencesEnv

RANDOM_STEPS = 1_600
"""Steps of random actions, for the first clips. They are part of the budget."""


def true_return(agent: PPO, seed: int) -> float:
    """The mean true return of ``agent`` over 20 episodes of a plain Pendulum."""
    env = Monitor(gym.make("Pendulum-v1"))
    env.reset(seed=seed)
    mean, _ = evaluate_policy(agent, env, n_eval_episodes=20)
    return float(mean)  # type: ignore[arg-type]


def learn(env_steps: int, envs: int, seed: int) -> tuple[float, float, dict[str, Any]]:
    """The agent's true return before and after, and the wrapper's status at the end."""
    first = HumanPreferencesEnv(
        gym.make("Pendulum-v1"),
        total_env_steps=env_steps,
        fragments=FragmentSettings(length=10, initial_env_steps=RANDOM_STEPS),
        preferences=PreferenceSettings(
            comparisons=200, initial_comparisons=50, rounds=60, schedule="hyperbolic", steepness=6.0
        ),
        reward_model=RewardModelSettings(learning_rate=2e-3, updates=20),
        wait=True,
        seed=seed,
    )
    # The others share its reward. A DummyVecEnv made here, so that no Monitor around it mistakes learned returns for true ones.
    vector = DummyVecEnv([lambda: first, *([lambda: first.share(gym.make("Pendulum-v1"))] * (envs - 1))])
    with first:
        agent = PPO(
            "MlpPolicy",
            vector,
            n_steps=1600 // envs,
            batch_size=128,
            learning_rate=lambda left: 1e-3 * left,
            gamma=0.95,
            gae_lambda=0.9,
            use_sde=True,
            sde_sample_freq=4,
            seed=seed,
            device="cpu",
        )
        before = true_return(agent, seed + 1000)
        agent.learn(env_steps - RANDOM_STEPS)
        after = true_return(agent, seed + 1000)
        status = first.status()
        vector.close()
    return before, after, status


def main() -> None:
    """Learn and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--envs", type=int, default=4, help="environments, which share one reward")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps in all")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    arguments = parser.parse_args()
    started = time.monotonic()
    before, after, status = learn(arguments.steps, arguments.envs, arguments.seed)
    print(f"true return before {before:.0f}, after {after:.0f} ({time.monotonic() - started:.0f} s; {status})")


if __name__ == "__main__":
    main()
