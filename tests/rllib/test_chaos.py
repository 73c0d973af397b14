"""A run whose actors are killed at moments drawn from a seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings
from tests.made_up import labels_in
from tests.whole_runs import stored_by

ROLES = ("EnvRunner", "ActorHost", "FragmentPool", "GathererActor", "PreferenceStore", "RewardTrainerActor")
ROLES += ("RolloutCollector",)
"""What Ray calls the processes of a run's actors."""


def alive(pid: int) -> dict[str, psutil.Process]:
    """The living actors among the descendants of a process, by class."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            found |= {role: process for role in ROLES if title.startswith("ray::") and role in title}
    return found


@contextlib.contextmanager
def killing(pid: int, count: int, seed: int, progress: Callable[[], float]) -> Iterator[list[str]]:
    """Kill ``count`` of a run's actors by kill -9, at moments drawn evenly from its progress, from 0 to 1; yield their classes."""
    draw, kills, over = random.Random(seed), list[str](), threading.Event()
    planned = sorted((draw.random(), draw.random()) for _ in range(count))  # moments, and which of those alive then

    def kill() -> None:
        while planned and not over.wait(0.1):
            moment, which = planned[0]
            if progress() > moment and (living := sorted(alive(pid).items())):
                role, process = living[int(which * len(living))]
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
                    kills.append(role)
                    del planned[0]

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


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
        with killing(os.getpid(), 8, 5, lambda: algorithm.env_steps / experiment.total_env_steps) as kills:
            while not algorithm.finished:
                result = algorithm.train()
                stored = stored_by(algorithm)
                assert acknowledged <= set(stored.pairs.ids)
                acknowledged |= set(stored.pairs.ids)
                learner = algorithm.learner_group.get_weights([REWARD_MODULE_ID])[REWARD_MODULE_ID]
                version = int(learner["ensemble.version"])
                assert result["learners"][DEFAULT_MODULE_ID]["reward_version"] == version >= 1
                # The learner has a version as it was published, the whole of it.
                for name, value in published[version].items():
                    np.testing.assert_array_equal(learner[f"ensemble.{name}"], value)
        assert len(kills) >= 6, "too few kills to show anything"
    finally:
        algorithm.stop()
    stored = labels_in(tmp_path / "store")
    assert len(stored) == len(set(stored.pairs.ids))
    assert acknowledged <= set(stored.pairs.ids)
    assert 50 <= len(stored) <= 60  # the last may still have been asked about when the run came to its end
