"""examples/method.py, the method in one file without this package, learns what the package does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import rlhf_ray as rr

FILE = Path(__file__).parents[1] / "examples" / "method.py"
SEEDS = range(5)


def method() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("method_in_one_file", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_the_budget_and_settings_of_the_preset() -> None:
    of, preset = method(), rr.preset("pendulum")
    ppo, reward, preferences = preset.ppo, preset.reward_model, preset.preferences
    assert (preset.total_env_steps, preferences.comparisons) == (of.ENV_STEPS, of.COMPARISONS)
    assert (preferences.first_comparisons, preferences.steepness) == (of.FIRST_COMPARISONS, of.STEEPNESS)
    assert (ppo.num_envs, ppo.rollout_length) == (of.COPIES, of.EPISODE)
    assert (preset.fragments.length, preset.fragments.pool) == (of.LENGTH, of.POOL)
    assert (reward.ensemble_size, reward.batch_size) == (of.MEMBERS, of.BATCH)
    assert (reward.initial_updates, reward.updates) == (of.FIRST_UPDATES, of.UPDATES)
    assert (ppo.epochs, ppo.minibatch_size, ppo.learning_rate) == (of.EPOCHS, of.MINIBATCH, of.LEARNING_RATE)
    assert (ppo.gamma, ppo.gae_lambda, ppo.clip) == (of.GAMMA, of.LAMBDA, of.CLIP)
    assert (ppo.value_coefficient, ppo.max_grad_norm) == (of.VALUE_COEFFICIENT, of.LARGEST_NORM)


def test_it_imports_nothing_of_the_package() -> None:
    assert "rlhf_ray" not in {
        line.split()[1] for line in FILE.read_text().splitlines() if line.startswith(("import", "from"))
    }


@pytest.mark.soak
@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_the_returns_of_five_seeds_overlap(tmp_path: Path) -> None:
    alone = method()
    mine = [alone.true_return(alone.learn(seed, lambda line: None)) for seed in SEEDS]
    runs = [rr.learn("pendulum", seed=seed, folder=tmp_path / str(seed), progress=False) for seed in SEEDS]
    theirs = [run.evaluate(episodes=24).true_return_mean for run in runs]
    print(f"in one file {sorted(map(round, mine))}, the package {sorted(map(round, theirs))}")
    assert max(min(mine), min(theirs)) <= min(max(mine), max(theirs))  # the ranges overlap
    assert sorted(mine)[2] > -400.0  # and both learn: random actions earn about -1200
    assert sorted(theirs)[2] > -400.0
