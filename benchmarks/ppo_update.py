"""PPO's update: CPU time of a minibatch of 128, beside RLlib's learner, Stable-Baselines3 and a plain loop in torch.

All arms take the gradient steps of one rollout of Pendulum-v1 (8 copies, 200 steps, 10 epochs): the same two networks with two
hidden layers of 64 units, Adam, a clipped gradient norm. Ours and RLlib's include values and advantages, the reward's normalisation
and the metrics; SB3's includes its buffer and log; the plain loop is nothing but forward and backward passes and Adam, on tensors
that are there.

One process, one thread, CPU time. Arms alternate; the first turn is not counted.

    python benchmarks/ppo_update.py          # 2 CPU minutes; writes benchmarks/results/ppo_update.json
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import copy
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import cpu_seconds, in_turns, ratio
from benchmarks.record import record
from rlhf_ray import envs
from rlhf_ray.rllib.env_runner import ArrayEnvRunner, EnvRunner
from rlhf_ray.rllib.reference import ReferencePPOConfig
from rlhf_ray.settings import Experiment, PPOSettings

ENVIRONMENT, COPIES, STEPS, EPOCHS, SIZE = "Pendulum-v1", 8, 200, 10, 128
MINIBATCHES = EPOCHS * COPIES * STEPS // SIZE


def configured() -> Any:
    ppo = PPOSettings(num_envs=COPIES, rollout_length=STEPS, minibatch_size=SIZE, epochs=EPOCHS)
    return ReferencePPOConfig.from_experiment(Experiment(environment=ENVIRONMENT, ppo=ppo))


def of_learner(runner: type, *, own: bool) -> Callable[[], None]:
    """Return a function that takes an update of the same rollout, with our steps or with RLlib's."""
    config = configured()
    if not own:
        base: Any = config.get_default_learner_class()

        class Overriding(base):  # type: ignore[misc]
            def compute_losses(self, **arguments: Any) -> Any:
                return super().compute_losses(**arguments)

        config.learners(learner_class=Overriding)
    config.validate()
    learner = config.build_learner(env=envs.make_env(ENVIRONMENT))
    sampler = runner(config=config, worker_index=0, num_workers=0)
    sampler.module.set_state(learner.module[DEFAULT_MODULE_ID].get_state(inference_only=True))
    rollout = sampler.sample()
    rollouts = [copy.deepcopy(rollout) for _ in range(64)]  # connectors change episodes

    def update() -> None:
        learner.update(
            training_data=TrainingData(episodes=rollouts.pop()),
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: 0},
            num_epochs=EPOCHS,
            minibatch_size=SIZE,
            shuffle_batch_per_epoch=True,
        )

    return update


def of_sb3() -> Callable[[], None]:
    """Return a function that takes SB3's gradient steps."""
    agent = PPO(
        "MlpPolicy", make_vec_env(ENVIRONMENT, COPIES), n_steps=STEPS, batch_size=SIZE, n_epochs=EPOCHS, device="cpu"
    )
    _, callback = agent._setup_learn(10**9, None)
    agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, n_rollout_steps=STEPS)
    return agent.train


def of_torch() -> Callable[[], None]:
    """Return a function that takes the steps of a plain loop."""

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    actor, critic, log_std = mlp(), mlp(), nn.Parameter(torch.zeros(1))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    adam = torch.optim.Adam(parameters, 1e-3, fused=True)
    rows = COPIES * STEPS
    seen, actions, before = torch.randn(rows, 3), torch.randn(rows, 1), torch.randn(rows) - 1.4
    advantages, targets = torch.randn(rows), torch.randn(rows)

    def update() -> None:
        for _ in range(EPOCHS):
            order = torch.randperm(rows)
            for start in range(0, rows - SIZE + 1, SIZE):
                at = order[start : start + SIZE]
                scaled = (actions[at] - actor(seen[at])) / log_std.exp()
                logp = (-0.5 * scaled**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
                ratio = (logp - before[at]).exp()
                surrogate = torch.min(ratio * advantages[at], ratio.clamp(0.8, 1.2) * advantages[at]).mean()
                error = ((critic(seen[at]).squeeze(-1) - targets[at]) ** 2).mean()
                adam.zero_grad()
                (-surrogate + 0.5 * error - 0.01 * log_std.sum()).backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                adam.step()

    return update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="turns that are counted")
    options = parser.parse_args()
    torch.set_num_threads(1)
    arms = {
        "ours": of_learner(ArrayEnvRunner, own=True),
        "rllib": of_learner(EnvRunner, own=False),
        "sb3": of_sb3(),
        "torch": of_torch(),
    }
    spent = in_turns({name: cpu_seconds(arm) for name, arm in arms.items()}, options.turns)
    milliseconds = {name: 1000.0 * statistics.median(each) / MINIBATCHES for name, each in spent.items()}
    others = {f"ours_over_{name}": ratio(spent["ours"], spent[name]) for name in ("rllib", "sb3", "torch")}
    outcome: dict[str, Any] = {"milliseconds": milliseconds, **others}
    print(outcome)
    record("ppo_update", {"turns": options.turns, **outcome})


if __name__ == "__main__":
    main()
