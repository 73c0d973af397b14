"""A training loop of your own, in CleanRL's manner: PPO on a vector environment whose reward is learned from comparisons.

    pip install /path/to/rlhf_ray
    python examples/cleanrl_vector.py

All of PPO is below, and only the wrapper around the environment knows of preferences. A scripted teacher answers 200 questions
about Pendulum. In about a minute the true return rises from -1200, that of random actions, to about -200.
"""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Normal

import rlhf_ray as rr

TOTAL_ENV_STEPS, NUM_ENVS, NUM_STEPS, GAMMA, GAE_LAMBDA, CLIP = 40_000, 8, 200, 0.95, 0.9, 0.2

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
critic = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
log_std = nn.Parameter(torch.zeros(1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters(), log_std], lr=1e-3)

envs = rr.HumanPreferencesVectorEnv(
    gym.make_vec("Pendulum-v1", NUM_ENVS, "sync", {"autoreset_mode": AutoresetMode.DISABLED}),
    total_env_steps=TOTAL_ENV_STEPS,
    fragments=rr.FragmentSettings(length=10),
    preferences=rr.Preferences(comparisons=200, rounds=60, schedule="hyperbolic", steepness=6.0),
    wait=True,  # the first reset takes random steps, and returns when there is a first version of the reward
)
with envs:
    while envs.status()["env_steps"] + NUM_ENVS * NUM_STEPS <= TOTAL_ENV_STEPS:
        # A rollout is one episode of each copy. Pendulum's are cut off and never terminate, so that all values bootstrap.
        obs, actions = torch.zeros(NUM_STEPS + 1, NUM_ENVS, 3), torch.zeros(NUM_STEPS, NUM_ENVS, 1)
        rewards, advantages = torch.zeros(NUM_STEPS, NUM_ENVS), torch.zeros(NUM_STEPS + 1, NUM_ENVS)
        obs[0] = torch.as_tensor(envs.reset()[0])
        with torch.no_grad():
            for t in range(NUM_STEPS):
                actions[t] = Normal(actor(obs[t]), log_std.exp()).sample()
                observed, learned_reward, *_ = envs.step(2 * actions[t].clamp(-1, 1).numpy())
                obs[t + 1], rewards[t] = torch.as_tensor(observed), torch.as_tensor(learned_reward)
            values, log_probs = critic(obs).squeeze(-1), Normal(actor(obs[:-1]), log_std.exp()).log_prob(actions)
            for t in reversed(range(NUM_STEPS)):
                advantages[t] = rewards[t] + GAMMA * values[t + 1] - values[t] + GAMMA * GAE_LAMBDA * advantages[t + 1]
            returns = advantages[:-1] + values[:-1]
        data = [x.flatten(0, 1) for x in (obs[:-1], actions, log_probs, advantages[:-1], returns)]
        for _ in range(10):
            for batch in torch.randperm(NUM_ENVS * NUM_STEPS).split(128):
                o, a, old, adv, ret = (x[batch] for x in data)
                ratio = (Normal(actor(o), log_std.exp()).log_prob(a) - old).exp().squeeze(-1)
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                policy_loss = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
                optimizer.zero_grad()
                (policy_loss + 0.5 * (critic(o).squeeze(-1) - ret).square().mean()).backward()
                optimizer.step()
        print(f"{envs.status()['env_steps']} steps: true return {np.mean(list(envs.true_returns)[-NUM_ENVS:]):.0f}")
