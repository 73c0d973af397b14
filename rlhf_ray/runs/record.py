"""Record episodes of a policy as demonstrations."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.measure.true_return import SEED_OFFSET, ActBest, with_an_end


def record(environment: str, act: ActBest, *, episodes: int, seed: int) -> Demonstrations:
    """Record full episodes.

    Args:
        environment: a name for `rlhf_ray.envs.make_env`.
        act: the policy.
        episodes: number of episodes, at least 1.
        seed: random seed for the initial states, which differ from those in training.
    """
    env = with_an_end(environment)
    steps: dict[str, list[Any]] = defaultdict(list)
    for episode in range(episodes):
        observation, _ = env.reset(seed=SEED_OFFSET + 1000 * seed + episode)
        over = False
        while not over:
            action = act(np.asarray(observation)[None])[0]
            steps["observations"].append(np.array(observation))  # copies: some environments reuse their arrays
            observation, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            told = {"next_observations": np.array(observation), "actions": action, "rewards": float(reward)}
            for name, value in (told | {"terminals": bool(terminated), "timeouts": bool(truncated)}).items():
                steps[name].append(value)
    env.close()  # type: ignore[no-untyped-call]
    return Demonstrations(**{name: np.stack(values) for name, values in steps.items()})
