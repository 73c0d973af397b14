"""A run whose actors are killed at moments drawn from a seed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings
from tests.kills import Killer
from tests.made_up import labels_in
from tests.whole_runs import stored_by


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_a_run_whose_actors_are_killed_keeps_every_label_once_and_comes_to_its_end(tmp_path: Path, mode: str) -> None:
    experiment = Experiment(
        total_env_steps=500 + 20 * 800,
        seed=1,
        fragments=FragmentSettings(length=10, initial_env_steps=500, pool=60, exploration_env_steps=0),
        preferences=PreferenceSettings(mode=mode, comparisons=60, initial_comparisons=20, rounds=10),  # type: ignore[arg-type]
        reward_model=RewardModelSettings(hidden=(16,), initial_updates=20, updates=5),
        ppo=PPOSettings(num_envs=2, num_env_runners=2, rollout_length=200, minibatch_size=200, epochs=2, hidden=(16,)),
    )
    algorithm = PreferencePPOConfig.from_experiment(experiment).preferences(store=tmp_path / "store").build_algo()
    killer = Killer(os.getpid(), 8, seed=5, progress=lambda: algorithm.env_steps / experiment.total_env_steps)
    acknowledged: set[str] = set()
    published: dict[int, dict[str, Any]] = {}
    publish = algorithm.ring.newest_reward

    def noted() -> dict[str, Any]:
        version = publish()
        published[int(version["version"])] = {name: np.array(value) for name, value in version.items()}
        return version

    algorithm.ring.newest_reward = noted  # type: ignore[method-assign]
    try:
        algorithm.begin()
        killer.start()
        while not algorithm.finished:
            result = algorithm.train()
            stored = stored_by(algorithm)
            assert acknowledged <= set(stored.pairs.ids)
            acknowledged |= set(stored.pairs.ids)
            learner = algorithm.learner_group.get_weights([REWARD_MODULE_ID])[REWARD_MODULE_ID]
            version = int(learner["ensemble.version"])
            assert result["learners"][DEFAULT_MODULE_ID]["reward_version"] == version >= 1
            for name, value in published[
                version
            ].items():  # the learner has a version as it was published, the whole of it
                np.testing.assert_array_equal(learner[f"ensemble.{name}"], value)
        killer.stop()
        assert len(killer.kills) >= 6, "too few kills to show anything"
    finally:
        killer.stop()
        algorithm.stop()
    stored = labels_in(tmp_path / "store")
    assert len(stored) == len(set(stored.pairs.ids))
    assert acknowledged <= set(stored.pairs.ids)
    assert 50 <= len(stored) <= 60  # the last may still have been asked about when the run came to its end
