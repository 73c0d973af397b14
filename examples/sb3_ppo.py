"""Stable-Baselines3: PPO learns Pendulum from 200 comparisons of clips. It never sees the environment's reward.

    pip install /path/to/rlhf_ray stable-baselines3
    python examples/sb3_ppo.py

A scripted teacher, who knows the true reward, answers in place of a person. Four environments share one learned reward. In about
two minutes the true return rises from -1200, that of random actions, to -250 to -750: seeds differ, and so do labels' arrivals.
"""

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

import rlhf_ray as rr

RANDOM_STEPS, AGENT_STEPS, NUM_ENVS = 1_600, 58_400, 4


def true_return(agent: PPO) -> float:
    """The mean return of 20 episodes of a plain Pendulum."""
    env = Monitor(gym.make("Pendulum-v1"))
    env.reset(seed=1000)
    return float(evaluate_policy(agent, env, n_eval_episodes=20)[0])  # type: ignore[arg-type]


first = rr.HumanPreferencesEnv(
    gym.make("Pendulum-v1"),
    total_env_steps=RANDOM_STEPS + AGENT_STEPS,
    fragments=rr.FragmentSettings(length=10, initial_env_steps=RANDOM_STEPS),
    preferences=rr.Preferences(comparisons=200, rounds=60, schedule="hyperbolic", steepness=6.0),
    reward_model=rr.RewardModel(learning_rate=2e-3, updates=20),
    wait=True,  # the first reset takes the random steps, and returns when there is a first version of the reward
)
with first:
    others = [first.share(gym.make("Pendulum-v1")) for _ in range(NUM_ENVS - 1)]
    agent = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda env=env: env for env in (first, *others)]),
        n_steps=1_600 // NUM_ENVS,
        batch_size=128,
        learning_rate=lambda left: 1e-3 * left,
        gamma=0.95,
        gae_lambda=0.9,
        use_sde=True,
        sde_sample_freq=4,
        seed=0,
        device="cpu",
    )
    before = true_return(agent)
    agent.learn(AGENT_STEPS)
    found = first.status()
    accuracy = f"{found['held_out_accuracy']:.2f} ({found['held_out_decided']} answers)"
    print(f"{found['comparisons']} comparisons, held-out accuracy {accuracy}")
    print(f"true return: {before:.0f} before training, {true_return(agent):.0f} after it")
