"""The wrappers in a user's process: environments that return odd things, and what belongs to the whole process."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import FaultyEnvironmentError
from tests.made_up import Walk
from tests.wrappers.walking import act, make


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ((1.0, "False", False), "terminated='False'; it must be True or False"),
        ((1.0, False, float("nan")), "truncated=nan; it must be True or False"),
        (("much", False, False), "the reward is 'much', which is not a number"),
        (("0.5", False, False), "the reward is '0.5', which is not a number"),
    ],
)
def test_an_outcome_that_is_none_is_said_with_the_environment(
    in_process: SimpleNamespace, outcome: Any, said: str
) -> None:
    env = Walk((20,), numbered=False)
    env.step = lambda action: (np.zeros(3, np.float32), *outcome, {})  # type: ignore[method-assign]
    with make(env) as wrapped:
        wrapped.reset(seed=0)
        with pytest.raises(FaultyEnvironmentError, match=f"Environment .*Walk.*{said}"):
            wrapped.step(np.zeros(1, np.float32))


def test_tensors_with_gradients_are_read_like_arrays(in_process: SimpleNamespace) -> None:
    env, parameter = Walk((20,), numbered=False), torch.ones(3, requires_grad=True)
    env.step = lambda action: (2.0 * parameter, parameter.sum(), torch.tensor(False), False, {})  # type: ignore[method-assign]
    with make(env) as wrapped:
        wrapped.reset(seed=0)
        observation, _, terminated, _, info = wrapped.step(np.zeros(1, np.float32))
    assert np.asarray(observation).tolist() == [2.0, 2.0, 2.0]
    assert (terminated, info["true_reward"]) == (False, 3.0)


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


def test_the_callers_global_generators_stay_as_they_are(in_process: SimpleNamespace) -> None:
    def states() -> Any:
        of_numpy: Any = np.random.get_state()
        return random.getstate(), of_numpy[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    with make(wait=True) as env:
        act(env, 50)
        assert states() == before
