"""Environments that change the action they are given, or hand out the same arrays again, behind the wrappers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhf_ray.settings import FragmentSettings, PreferenceSettings
from rlhf_ray.wrappers import HumanPreferencesEnv, HumanPreferencesVectorEnv
from tests.envs.test_shared_arrays import Scribbles, ScribblesTogether, check


@pytest.mark.usefixtures("in_process")
def test_what_the_wrappers_keep_and_give() -> None:
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
