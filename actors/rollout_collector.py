"""RolloutCollector: makes clips outside of PPO's own rollouts, with random actions or with some random actions mixed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from actors.fragmenter import Clips
from rlhf_ray.arrays import Array
from rlhf_ray.fragments import RANDOM_POLICY, Trajectory, cut_fragments
from rlhf_ray.settings import FragmentSettings


class Policy(Protocol):
    """What the collector needs of a policy; how it is made is not its business."""

    def act(self, observation: Array, rng: np.random.Generator) -> Any:
        """An action for the environment, drawn from the policy, for one observation."""
        ...


PolicyFactory = Callable[[], Policy]
"""Makes a policy, its weights included."""


class RolloutCollector:
    """Steps one environment.

    Args:
        make_env: makes the environment.
        settings: fragments.
        seed: of environments and actions; each round draws from its own generator.
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        settings: FragmentSettings,
        seed: int,
    ):
        self.settings = settings
        self.seed = seed
        self.env = make_env()

    def collect(
        self,
        env_steps: int,
        rollouts: int,
        round_number: int,
        policy_version: int = RANDOM_POLICY,
        make_policy: PolicyFactory | None = None,
    ) -> Clips:
        """Take exactly ``env_steps`` steps and cut fragments from them, as many as the pool has room for.

        Args:
            env_steps: environment steps, shared evenly by the rollouts.
            rollouts: how often the environment is begun anew (it also is when an episode ends); fewer times where the steps
                are too few for rollouts that hold a fragment.
            round_number: decides everything random.
            policy_version: of the policy that is made.
            make_policy: makes the policy to follow but for a share of random actions; None takes random actions only.
        """
        rng = np.random.default_rng([self.seed, 3, round_number])
        policy = None if make_policy is None else make_policy()
        self.env.action_space.seed(int(rng.integers(2**31)))
        trajectories: list[Trajectory] = []
        lengths: list[int] = []
        rollouts = max(1, min(rollouts, env_steps // self.settings.length))
        for steps in np.diff(np.linspace(0, env_steps, rollouts + 1).round().astype(int)):
            while steps > 0:
                trajectory, ended = self._roll(int(steps), policy, rng)
                steps -= len(trajectory)
                trajectories.append(trajectory)
                if ended:
                    lengths.append(len(trajectory))
        fragments = cut_fragments(
            trajectories,
            length=self.settings.length,
            count=self.settings.pool,
            start_share=self.settings.start_share,
            policy_version=policy_version,
            rng=rng,
        )
        too_short = sum(len(trajectory) < self.settings.length for trajectory in trajectories)
        return Clips(-1, policy_version, fragments, too_short, tuple(lengths))

    def _roll(self, steps: int, policy: Policy | None, rng: np.random.Generator) -> tuple[Trajectory, bool]:
        """At most ``steps`` steps of one episode from its beginning, and whether it ended."""
        observation, _ = self.env.reset(seed=int(rng.integers(2**31)))
        observations = [np.array(observation)]  # copies: some environments reuse their arrays
        actions: list[Array] = []
        rewards: list[float] = []
        terminated = truncated = False
        while len(actions) < steps and not (terminated or truncated):
            if policy is None or rng.random() < self.settings.random_action_share:
                action = self.env.action_space.sample()
            else:
                action = policy.act(observation, rng)
            observation, reward, terminated, truncated, _ = self.env.step(action)
            observations.append(np.array(observation))
            actions.append(action)
            rewards.append(float(reward))
        trajectory = Trajectory(
            np.stack(observations), np.stack(actions), np.array(rewards, dtype=np.float64), bool(terminated)
        )
        return trajectory, bool(terminated or truncated)
