"""The wrappers in a user's process: environments that return odd things, and what belongs to the whole process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.settings import FragmentSettings, PreferenceSettings
from rlhf_ray.wrappers import HumanPreferencesEnv, HumanPreferencesVectorEnv
from tests.envs.test_shared_arrays import Scribbles, ScribblesTogether, check
from tests.made_up import Walk
from tests.wrappers.walking import act, make

SEEN = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ((SEEN, 1.0, "False", False), "terminated='False'; it must be True or False"),
        ((SEEN, 1.0, False, float("nan")), "truncated=nan; it must be True or False"),
        ((SEEN, "0.5", False, False), "the reward is '0.5', which is not a number"),
        ((np.array([0.0, 1e39, 0.0]), 1.0, False, False), r"its value 1e\+39 is not a float32"),
    ],
)
def test_an_outcome_that_is_none_is_said_with_the_environment(
    in_process: SimpleNamespace, outcome: Any, said: str
) -> None:
    env = Walk((20,), numbered=False)
    env.step = lambda action: (*outcome, {})  # type: ignore[method-assign]
    with make(env) as wrapped:
        wrapped.reset(seed=0)
        with pytest.raises(FaultyEnvironmentError, match=f"Environment .*Walk.*{said}"):
            wrapped.step(np.zeros(1, np.float32))


def test_a_reward_is_the_same_in_a_script_that_changed_torchs_defaults(
    in_process: SimpleNamespace, tmp_path: Path
) -> None:
    with make(wait=True) as env:
        act(env, 10)
        env.save(tmp_path / "taught")

    def rewards() -> list[float]:
        with make(reward_model=tmp_path / "taught") as env:
            return [reward for _, reward, *_ in act(env, 30)]

    expected = rewards()
    torch.set_default_dtype(torch.float64)
    try:
        assert rewards() == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_process")
def test_what_environments_change_or_hand_out_again_is_kept_and_given_as_it_was() -> None:
    few: dict[str, Any] = {
        "total_env_steps": 100, "fragments": FragmentSettings(length=3), "preferences": PreferenceSettings(comparisons=4),
    }  # fmt: skip
    single = HumanPreferencesEnv(Scribbles("Box"), ask=False, **few)
    together = HumanPreferencesVectorEnv(ScribblesTogether(2, "Box"), ask=False, **few)
    rng = np.random.default_rng(0)
    try:
        for env, shape in ((single, (3,)), (together, (2, 3))):
            observations, actions = [env.reset(seed=0)[0]], []
            for _ in range(4):
                given = rng.uniform(-1, 1, shape).astype(np.float32)
                actions.append(given.copy())
                observations.append(env.step(given)[0])
                np.testing.assert_array_equal(given, actions[-1])
            first = (slice(None), 0) if len(shape) == 2 else (slice(None),)
            check(np.stack(observations)[first], np.stack(actions)[first], 4)
    finally:
        single.close()
        together.close()
