"""How many calls between processes an iteration takes, counted: the gate against chattier rings and runners."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
from ray.actor import ActorMethod

from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.settings import PPOSettings
from tests.rllib.test_preference_ppo import small

RUNNERS, ITERATIONS = 2, 3


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_calls_of_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = PPOSettings(
        num_envs=2, num_env_runners=RUNNERS, rollout_length=200, minibatch_size=200, epochs=2, hidden=(16,)
    )
    algorithm = PreferencePPOConfig.from_experiment(small(total_env_steps=500 + 4 * 800, ppo=ppo)).build_algo()
    counts = Counter[str]()
    remote = ActorMethod._remote

    @functools.wraps(remote)
    def counted(method: Any, *arguments: Any, **keywords: Any) -> Any:
        kind = method._actor._ray_actor_creation_function_descriptor.class_name.rpartition(".")[2]
        counts[kind] += 1
        return remote(method, *arguments, **keywords)

    try:
        algorithm.train()  # begins
        monkeypatch.setattr(ActorMethod, "_remote", counted)
        for _ in range(ITERATIONS):
            algorithm.train()
    finally:
        monkeypatch.undo()
        algorithm.stop()
    assert counts.pop("ArrayEnvRunner") == 2 * RUNNERS * ITERATIONS  # sample, and take new weights
    assert 0 < counts.total() <= 8 * ITERATIONS  # of the ring, which asks and fits in two of them
