"""The control plane: remote calls, and bytes through the run's process, for each 1,000 environment steps, by frame size.

Asynchronous runs with two env runners on an environment of random images, with frames of 40 and of 120 pixels a side: nine times
the bytes. Counted in the run's process, from its third iteration on, over as many iterations each:

- calls: every remote call of an actor's method. Those to env runners and learners move rollouts and weights; the rest is the ring's
  (asking, answering, storing, fitting, looking what has arrived), which grows with labels and iterations, not with env runners.
- bytes: what it serialises (arguments, `ray.put`) and what it deserialises (`ray.get`, results), as Ray hands it over. A learner in
  the run's process has to read the rollouts it learns from; with a learner of its own process nothing of them passes through here.
  Policy and reward model have as many weights with either size, since weights do pass.

    python benchmarks/control_plane.py

Writes benchmarks/results/control_plane.json. Expect two calls for a rollout of an env runner (sample, and take new weights), and
with a learner of its own process bytes that do not grow with frames.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from ray import tune
from ray._private.serialization import SerializationContext
from ray.actor import ActorMethod
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record
from rlhf_ray.actors import executor
from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.policy import ActorCritic
from rlhf_ray.runs.quiet import quiet
from rlhf_ray.runs.train import start_ray
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings

SIDES = (40, 120)
LEARNERS = (0, 1)
RUNNERS, STEPS, WARM_UP, ITERATIONS = 2, 100, 2, 6
EPISODE = 100


class RandomImages(gym.Env[Any, Any]):
    """Images of nothing."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, side: int):
        self.observation_space = gym.spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.steps = 0

    def reset(  # noqa: D102
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: D102
        self.steps += 1
        return self._observation(), float(action), False, self.steps == EPISODE, {}

    def _observation(self) -> Any:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


class Pooled(ActorCritic):
    """A policy whose weights are as many whatever the frames' size."""

    def setup(self) -> None:
        """Build the networks (called by RLlib)."""
        super().setup()
        self.network.encoder = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.LayerNorm(48))
        self.network.actor, self.network.critic = nn.Linear(48, 2), nn.Linear(48, 1)


def count() -> Counter[str]:
    """Have calls and bytes of this process counted from now on."""
    counts = Counter[str]()

    def counted(owner: Any, name: str, note: Any) -> None:
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            note(arguments, result)
            return result

        setattr(owner, name, wrapped)

    def call(arguments: Any, result: Any) -> None:
        kind = arguments[0]._actor._ray_actor_creation_function_descriptor.class_name.rpartition(".")[2]
        of = {"EnvRunner": "env_runner", "ArrayEnvRunner": "env_runner", "_WrappedExecutable": "learner"}.get(
            kind, "ring"
        )
        counts[f"{of}_calls"] += 1
        counts[f"calls/{kind}.{arguments[0]._method_name}"] += 1

    def put(arguments: Any, result: Any) -> None:
        counts["bytes_out"] += result.total_bytes

    def got(arguments: Any, result: Any) -> None:
        counts["bytes_in"] += sum(len(data) for data, *_ in arguments[1] if data is not None)

    counted(ActorMethod, "_remote", call)
    counted(SerializationContext, "serialize", put)
    counted(SerializationContext, "deserialize_objects", got)
    return counts


def measure(side: int, learners: int, counts: Counter[str]) -> dict[str, Any]:
    """What ``ITERATIONS`` iterations took."""
    tune.register_env("random-images", lambda config: RandomImages(side))
    ppo = PPOSettings(
        num_envs=2, num_env_runners=RUNNERS, num_learners=learners, rollout_length=STEPS, minibatch_size=100, epochs=1
    )
    experiment = Experiment(
        total_env_steps=500 + (WARM_UP + ITERATIONS + 1) * ppo.iteration_env_steps,
        fragments=FragmentSettings(length=10, initial_env_steps=500, pool=40),
        preferences=PreferenceSettings(mode="asynchronous", comparisons=30, initial_comparisons=10, rounds=4),
        reward_model=RewardModelSettings(
            use_state=False, use_action=True, ensemble_size=1, batch_size=8, initial_updates=2, updates=1
        ),
        ppo=ppo,
    )
    config = PreferencePPOConfig.from_experiment(experiment).environment("random-images")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Pooled, model_config={"network": "small", "hidden": [8]}))
    algorithm: PreferencePPO = config.build_algo()
    try:
        for _ in range(WARM_UP):
            algorithm.train()
        counts.clear()
        before = algorithm.env_steps
        for _ in range(ITERATIONS):
            algorithm.train()
        taken, seen = algorithm.env_steps - before, dict(counts)
    finally:
        algorithm.stop()
    frames = side * side * 3 * taken
    return {
        "side": side,
        "learners": learners,
        "env_steps": taken,
        "frame_bytes_per_1000_steps": 1000 * frames / taken,
        "env_runner_calls_per_rollout": seen["env_runner_calls"] / (ITERATIONS * RUNNERS),
        "env_runner_calls_per_1000_steps": 1000 * seen["env_runner_calls"] / taken,
        "learner_calls_per_iteration": seen.get("learner_calls", 0) / ITERATIONS,
        "ring_calls_per_1000_steps": 1000 * seen["ring_calls"] / taken,
        "bytes_out_per_1000_steps": 1000 * seen.get("bytes_out", 0) / taken,
        "bytes_in_per_1000_steps": 1000 * seen.get("bytes_in", 0) / taken,
        "calls": {name: number for name, number in sorted(seen.items()) if name.startswith("calls/")},
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    quiet()
    start_ray(cpus=6)
    executor.one_machine = lambda: False  # each actor in a process of its own, as on several
    counts = count()
    rows = []
    for learners in LEARNERS:
        for side in SIDES:
            rows.append(measure(side, learners, counts))
            print(json.dumps(rows[-1]), flush=True)
    record("control_plane", {"rows": rows})


if __name__ == "__main__":
    main()
