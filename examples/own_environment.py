"""An environment of your own, trained by PPO on preferences: any gymnasium environment will do.

    pip install /path/to/rlhf_ray
    python examples/own_environment.py

The same from the command line, in the folder of this file, with a report of the run:

    rlhf-ray train own_environment:Reach-v0 --total-env-steps 30000

A point has to come to a goal and stay there. In about a minute the true return rises from about -80 to about -20.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import rlhf_ray as rr

Vector = npt.NDArray[np.float32]


class Reach(gym.Env[Vector, Vector]):
    """A point in the plane, pushed by actions. Observed is where the goal lies from it; episodes all have one length."""

    observation_space = gym.spaces.Box(-4.0, 4.0, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Begin anew, somewhere in the square."""
        super().reset(seed=seed)
        self.to_goal = self.np_random.uniform(-2.0, 2.0, 2).astype(np.float32)
        return self.to_goal, {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Take a step. The reward is what the scripted teacher goes by; the agent never sees it."""
        self.to_goal = np.clip(self.to_goal - 0.1 * action, -4.0, 4.0, dtype=np.float32)
        return self.to_goal, -float(np.linalg.norm(self.to_goal)), False, False, {}


gym.register("Reach-v0", entry_point=Reach, max_episode_steps=50)

if __name__ == "__main__":
    algorithm = (
        rr.PreferencePPOConfig()
        .environment("Reach-v0")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=1_600, minibatch_size=128)
        .preferences(comparisons=100, total_env_steps=30_000)
        .debugging(seed=0)
        .build_algo()
    )
    returns: list[float] = []
    while not algorithm.finished:
        returns.append(algorithm.train()["env_runners"]["episode_return_mean"])
    algorithm.stop()
    print(f"true return: {returns[0]:.0f} in the first iteration, {returns[-1]:.0f} in the last")
