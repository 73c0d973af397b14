"""The wrappers with their real actors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from rlhf_ray.actors.executor import LocalExecutor
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.wrappers.session import WINDOW
from tests.wrappers.walking import act, make


def _until(condition: Callable[[], bool], env: Any, within_s: float = 300.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        act(env, WINDOW)
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_it_learns_beside_the_training_survives_a_lost_actor_and_goes_on_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(folder=tmp_path) as env:
        _until(lambda: env.status()["reward_version"] >= 1, env)
        assert act(env, 1)[0][4]["reward_is_learned"]
        ring = env._session.ring
        assert ring is not None
        process = ray.get(ring.actors.trainer.run(lambda self: os.getpid()))
        os.kill(process, signal.SIGKILL)
        act(env, 4_000)  # to the end of the budget, faster than the ring
        env.save(tmp_path / "saved")  # waits for the labels that are due, and the fit to them
        before = env.status()
        assert before["comparisons_due"] == 30
        assert before["reward_version"] >= 2
        expected = [reward for _, reward, *_ in act(env, 5, seed=3)]
    assert ray.is_initialized()  # it was here before
    # What was saved is the same, and further processes would take seconds to start.
    monkeypatch.setattr("rlhf_ray.wrappers.learning.RayExecutor", lambda name: LocalExecutor())
    with make() as env:
        env.load(tmp_path / "saved")
        assert [reward for _, reward, *_ in act(env, 5, seed=3)] == expected
        assert env.status()["comparisons"] == before["comparisons"] == 30
    assert len(PreferenceStore(tmp_path / "saved" / "preferences")) == 30


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_the_training_waits_for_no_teacher_however_slow() -> None:
    with make(preferences=PreferenceSettings(comparisons=30, initial_comparisons=10, answer_seconds=3600.0)) as env:
        assert not any(info["reward_is_learned"] for *_, info in act(env, 3 * WINDOW))


ALONE = """
import ray
from tests.made_up import Walk
from tests.wrappers.walking import act, make

first, second = make(), make()
act(first, 100)
first.close()
assert ray.is_initialized()
act(second, 100)
second.close()
second.close()
assert not ray.is_initialized()
"""


@pytest.mark.soak
@pytest.mark.ray
def test_ray_is_started_and_ended_with_those_that_need_it() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=800)
