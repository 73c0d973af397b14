"""Presets: each fits its environment, and its fast variant runs."""

import math
from pathlib import Path

import pytest

from rlhf_ray import tune_configs
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.settings import Experiment
from tests.whole_runs import running

NEEDS = {
    "ant": "mujoco",
    "half_cheetah": "mujoco",
    "hopper": "mujoco",
    "hopper_sac": "mujoco",
    "humanoid": "mujoco",
    "reacher": "mujoco",
    "reacher_sac": "mujoco",
    "swimmer": "mujoco",
    "walker2d": "mujoco",
    "enduro": "ale_py",
    "pong": "ale_py",
    "coinrun": "procgen",
}
"""What a preset needs besides the core; those of procgen begin with its name."""


def _fast(name: str) -> Experiment:
    if need := "procgen" if name.startswith("procgen") else NEEDS.get(name):
        pytest.importorskip(need)
    return tune_configs.fast(tune_configs.load(name).experiment)


@pytest.mark.slow
@pytest.mark.parametrize("name", tune_configs.names())
def test_each_preset_fits_its_environment_and_has_a_fast_variant(name: str) -> None:
    experiment = _fast(name)
    checked = preference_config(experiment).check_environment()
    assert checked.fragments.length <= getattr(experiment, experiment.agent).rollout_length
    assert experiment.total_env_steps <= 1_100
    whole = tune_configs.load(name).experiment
    assert (experiment.environment, experiment.ppo.network) == (whole.environment, whole.ppo.network)
    whole.resolved_fragments(checked.horizon)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    "name", ["acrobot", *(pytest.param(n, marks=pytest.mark.soak) for n in ("mountain_car", "pendulum_people", *NEEDS))]
)
def test_a_fast_variant_runs_to_its_end(name: str, tmp_path: Path) -> None:
    experiment = _fast(name)
    with running(preference_config(experiment).preferences(store=tmp_path / "store").build_algo()) as algorithm:
        while not algorithm.finished:
            result = algorithm.train()
        # Where an episode ends, an environment copy is reset, which is no step.
        left = experiment.total_env_steps - algorithm.env_steps
        assert 0 <= left < experiment.agent_settings.iteration_env_steps
        asynchronous = experiment.preferences.mode == "asynchronous"
        assert result["preferences"]["comparisons"] in ((4, 8) if asynchronous else (8,))
        # A fit for each round. An asynchronous run may end before its second round is answered; one whose first answers are ties
        # gathers more first clips and has no steps left for its second round.
        assert result["preferences"]["reward_version"] in (1, 2)
        assert math.isfinite(result["learners"]["default_policy"]["learned_reward_mean"])


@pytest.mark.parametrize("name", tune_configs.names())
def test_each_preset_says_what_to_prefer_and_why(name: str) -> None:
    instructions = tune_configs.load(name).experiment.labelling.instructions
    assert instructions.startswith("Prefer the ")
    assert "Goal: " in instructions
    assert len(instructions) <= 140  # four lines on a phone
