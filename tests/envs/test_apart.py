"""Simulators of which a process can have one: further copies are in processes of their own, and the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.envs import EnvApart, make_env, make_vector_env

ID = "test_apart/Simulator-v0"


class Simulator(gym.Env[Any, Any]):
    """Exists once at a time, or (``ever``) once in a process."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 9}  # noqa: RUF012
    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    running = False

    def __init__(self, ever: bool, broken: bool = False, render_mode: str | None = None):
        if Simulator.running or broken:
            raise RuntimeError("it is running already")
        Simulator.running, self.ever, self.render_mode = True, ever, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.at, {"level": 3}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = self.at + 0.1 * action
        return self.at, float(self.at[0]), False, False, {"success": True, "parts": {"a": 0.5}}

    def render(self) -> Any:
        return np.full((16, 16, 3), 7, np.uint8)

    def close(self) -> None:
        Simulator.running = self.ever


@pytest.fixture(params=[False, True], ids=["at a time", "ever"])
def simulator(request: pytest.FixtureRequest) -> Iterator[str]:
    made: Any = Simulator
    gym.register(ID, entry_point=made, max_episode_steps=4, kwargs={"ever": request.param})
    yield ID
    Simulator.running = False
    del gym.registry[ID]


def played(env: gym.Env[Any, Any]) -> list[Any]:
    assert env.spec is not None
    seen = [env.reset(seed=5), env.spec.max_episode_steps, env.metadata["render_fps"]]
    for _ in range(4):
        seen += env.step(np.array([0.5], np.float32))
    return [*seen, np.asarray(env.render()).tolist()]


@pytest.mark.slow
def test_other_copies_are_in_processes_of_their_own_and_the_same(
    simulator: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = make_env(simulator, render_mode="rgb_array")
    expected = played(first)
    first.close()  # type: ignore[no-untyped-call]
    again = make_env(simulator, render_mode="rgb_array")
    other = make_env(simulator, render_mode="rgb_array")
    assert isinstance(other.unwrapped, EnvApart)
    np.testing.assert_equal(played(again), expected)
    np.testing.assert_equal(played(other), expected)
    for env in (again, other):
        env.close()  # type: ignore[no-untyped-call]
    result = evaluate(simulator, lambda seen, first: np.ones((len(seen), 1), np.float32), episodes=3, seed=0)
    assert (result.episodes, result.success_rate) == (3, 1.0)
    copies = make_vector_env(simulator, 2)
    copies.reset(seed=5)
    np.testing.assert_array_equal(copies.step(np.full((2, 1), 0.5, np.float32))[0][0], expected[3])
    copies.close()
    lines = [record.getMessage() for record in caplog.records if simulator in record.getMessage()]
    assert len(lines) <= 1  # once in a process
    assert all("a process can't make it twice (RuntimeError: it is running already)" in line for line in lines)


def test_what_can_t_be_made_at_all_is_a_fault() -> None:
    made: Any = Simulator
    gym.register(ID, entry_point=made, kwargs={"ever": False, "broken": True})
    try:
        with pytest.raises(FaultyEnvironmentError, match=r"Making environment .* raised RuntimeError: it is running"):
            make_env(ID)
    finally:
        del gym.registry[ID]
