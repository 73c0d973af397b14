"""A teacher of your own: the agent learns what the teacher prefers, whatever the environment's own reward says.

    pip install /path/to/rlhf_ray
    python examples/own_teacher.py

Pendulum's reward is for standing still. This teacher prefers to see it spin: after 100 of its answers and about a minute, it does.

The same from the command line, in the folder of this file:

    rlhf-ray train pendulum --preferences.teacher own_teacher:Spinner
"""

from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback

import rlhf_ray as rr


class Spinner:
    """Prefers the clip in which the pendulum turns faster."""

    name = "spinner"  # its answers are stored under this name

    def answer(self, pairs: rr.Pairs, rng: np.random.Generator) -> np.ndarray:
        """For each pair 1 if the left clip is better, 0 if the right one is, 0.5 if they are equal: ``[n]`` float32."""
        left, right = (np.abs(clips.observations[..., 2]).mean(1) for clips in (pairs.left, pairs.right))
        return np.where(left == right, 0.5, left > right).astype(np.float32)


class Speed(RLlibCallback):
    """Logs the mean angular speed of each episode."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **_: Any) -> None:
        """Called by RLlib."""
        metrics_logger.log_value("speed", np.abs(np.array(episode.get_observations())[:, 2]).mean(), window=20)


if __name__ == "__main__":
    algorithm = (
        rr.PreferencePPOConfig()
        .environment("Pendulum-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=1_600, minibatch_size=128, lr=1e-3, gamma=0.95)
        .fragments(length=10)
        .preferences(teacher=Spinner, comparisons=100, total_env_steps=30_000)
        .callbacks(Speed)
        .debugging(seed=0)
        .build_algo()
    )
    speeds: list[float] = []
    while not algorithm.finished:
        speeds.append(algorithm.train()["env_runners"]["speed"])
    algorithm.stop()
    print(f"mean angular speed (rad/s): {speeds[0]:.1f} in the first iteration, {speeds[-1]:.1f} in the last")
