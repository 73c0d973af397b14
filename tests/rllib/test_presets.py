"""Presets whose budgets are too large for a test: their first iterations, with everything else as it is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray import tune_configs
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.sweeps import apply

LESS: dict[str, Any] = {
    "preferences.comparisons": 8,
    "preferences.initial_comparisons": 4,
    "preferences.rounds": 1,
    "reward_model.initial_updates": 2,
    "reward_model.updates": 2,
    "fragments.initial_env_steps": 400,
    "ppo.num_envs": 2,
    "ppo.rollout_length": 128,
    "ppo.minibatch_size": 64,
    "ppo.epochs": 1,
}


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("name", "needs"), [("hopper", "mujoco"), ("half_cheetah", "mujoco"), ("pong", "ale_py"), ("coinrun", "procgen")]
)
def test_a_big_preset_takes_its_first_iterations(name: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs)
    experiment = apply(tune_configs.load(name).experiment, {**LESS, "total_env_steps": 400 + 2 * (256 + 2)})
    algorithm = PreferencePPOConfig.from_experiment(experiment).preferences(store=tmp_path / "store").build_algo()
    try:
        while not algorithm.finished:
            result = algorithm.train()
        assert result["preferences"]["comparisons"] == 8
        assert result["preferences"]["reward_version"] == 2
        assert math.isfinite(result["learners"]["default_policy"]["learned_reward_mean"])
    finally:
        algorithm.stop()


@pytest.mark.parametrize("name", tune_configs.names())
def test_each_preset_says_what_to_prefer_and_why(name: str) -> None:
    instructions = tune_configs.load(name).experiment.labelling.instructions
    assert instructions.startswith("Prefer the ")
    assert "Goal: " in instructions
    assert len(instructions) <= 140  # four lines on a phone
