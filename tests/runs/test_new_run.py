"""New run folders: what is said before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_ray.runs.new_run import new_run
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, SettingError


def experiment(total_env_steps: int) -> Experiment:
    return Experiment(
        environment="CartPole-v1",
        total_env_steps=total_env_steps,
        fragments=FragmentSettings(length=10, initial_env_steps=100),
        preferences=PreferenceSettings(comparisons=5, initial_comparisons=5, rounds=0, allow_variable_horizon=True),
        ppo=PPOSettings(num_envs=2, rollout_length=50, minibatch_size=50),
    )


@pytest.mark.parametrize(("total", "used"), [(460, 400), (500, None)])
def test_a_budget_that_whole_iterations_do_not_use_up_is_said(tmp_path: Path, total: int, used: int | None) -> None:
    said: list[str] = []
    new_run(tmp_path / "true", experiment(total), options={"true_reward": True}, say=said.append)
    line = f"{used} of total_env_steps={total} are used: the agent learns after every 100 steps"
    assert [text.startswith(line) for text in said] == ([True] if used else [])
    new_run(tmp_path / "learned", experiment(total), say=said.append)  # first fragments take what is left
    assert len(said) == (1 if used else 0)


def test_too_few_steps_name_the_smallest_number_and_fast() -> None:
    with pytest.raises(SettingError, match=r"need 200 steps: raise it to 200 or more, or lower those.*--fast"):
        experiment(150)
