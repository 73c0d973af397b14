"""Copies that step in processes of their own: the bits of SyncVectorEnv, and what happens when something goes wrong."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.envs import EnvCreator, make_vector_env, thread_options
from rlhf_ray.envs.worker_processes import WorkerProcessesVectorEnv

SPACES = {
    "box": gym.spaces.Box(-1.0, 1.0, (3,), np.float64),
    "discrete": gym.spaces.Discrete(9),
    "image": gym.spaces.Box(0, 255, (5, 4, 3), np.uint8),
    "parts": gym.spaces.Dict({"a": gym.spaces.Discrete(2)}),
}
COPIES = 5
SEEDS = [3, 1, 4, 1, 5]


class Numbers(gym.Env[Any, Any]):
    """Shows numbers of its generator. Episodes end by chance, or at step 20; infos are of many kinds; ``end`` at a copy's ``last``
    step.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "told": 3}  # noqa: RUF012

    def __init__(self, kind: str = "box", last: int = 0, end: str = "", render_mode: str | None = None):
        self.observation_space, self.action_space = SPACES[kind], gym.spaces.Discrete(3)
        self.kind, self.last, self.end, self.taken, self.level = kind, last, end, 0, 0
        self.render_mode = render_mode

    def _shown(self) -> Any:
        if self.kind == "box":
            return self.np_random.uniform(-1, 1, 3)
        if self.kind == "discrete":
            return self.np_random.integers(9)
        return self.np_random.integers(0, 256, (5, 4, 3), dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._shown(), {"begun": options, "level": self.level}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.taken = self.t + 1, self.taken + 1
        if self.taken == self.last:
            return self._shown(), 0.0, False, False, self._end()
        infos: list[dict[str, Any]] = [
            {},
            {"word": "moved", "success": True, "place": np.arange(2.0) * self.t},
            {"inner": {"number": 3, "kind": type(action).__name__}, "success": False},
        ]
        reward = self.np_random.normal() + action
        return self._shown(), reward, self.np_random.random() < 0.03, self.t == 20, infos[self.np_random.integers(3)]

    def _end(self) -> dict[str, Any]:
        if self.end == "raise":
            raise KeyError("no such place")
        if self.end == "exit":
            os._exit(7)
        return {"lock": threading.Lock()} if self.end == "lock" else {"drawn": random.random()}

    def render(self) -> Any:
        return np.full((2, 2, 3), self.t, np.uint8)

    def process(self) -> int:
        return os.getpid()


gym.register("Numbers-v0", Numbers)


def together(**options: Any) -> WorkerProcessesVectorEnv:
    envs = make_vector_env("Numbers-v0", COPIES, 2, **options)
    assert isinstance(envs, WorkerProcessesVectorEnv)
    return envs


@pytest.fixture(scope="module")
def calm() -> Iterator[WorkerProcessesVectorEnv]:
    envs = together(render_mode="rgb_array")
    yield envs
    envs.close()  # type: ignore[no-untyped-call]


def same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for name in ours:
            same(ours[name], theirs[name])
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["box", "discrete", "image"])
def test_steps_are_those_of_one_process_to_the_bit(kind: str) -> None:
    make = partial(Numbers, kind)
    ours = WorkerProcessesVectorEnv("numbers", make, COPIES, 2)
    theirs = SyncVectorEnv([make] * COPIES, autoreset_mode=AutoresetMode.NEXT_STEP)
    for name in ("metadata", "render_mode", "single_observation_space", "observation_space", "action_space"):
        assert getattr(ours, name) == getattr(theirs, name), name
    rng, ends = np.random.default_rng(0), 0
    some = np.array([False, False, True, False, True])  # none in the first process
    for options, steps in [
        ({"seed": SEEDS, "options": {"hard": 1}}, 200),
        ({}, 30),
        ({"seed": 8}, 30),
        ({"options": {"reset_mask": some}}, 30),
    ]:
        begun = ours.reset(**options)
        for one, other in zip(begun, theirs.reset(**options), strict=True):
            same(one, other)
        before = begun[0].copy()
        for _ in range(steps):
            actions = rng.integers(0, 3, COPIES)
            stepped = ours.step(actions)
            for one, other in zip(stepped, theirs.step(actions), strict=True):
                same(one, other)
            ends += int(stepped[2].any()) + 100 * int(stepped[3].any())
        same(begun[0], before)  # later steps don't write into what was returned
    assert ends > 300
    assert ends % 100
    ours.close()  # type: ignore[no-untyped-call]


def test_each_process_has_a_part_and_the_copies_can_be_reached(calm: WorkerProcessesVectorEnv) -> None:
    calm.reset(seed=0)
    pids = calm.call("process")
    assert [pids.index(pid) for pid in pids] == [0, 0, 2, 2, 2]
    assert os.getpid() not in pids
    calm.set_attr("level", [1, 2, 3, 4, 5])
    assert calm.get_attr("level") == (1, 2, 3, 4, 5)
    assert calm.reset()[1]["level"].tolist() == [1, 2, 3, 4, 5]
    calm.step(np.ones(COPIES, np.int64))
    assert [frame.max() for frame in calm.render()] == [1] * COPIES
    with pytest.raises(AttributeError, match="nothing"):
        calm.get_attr("nothing")
    for wrong in (lambda: calm.step(np.ones(4)), lambda: calm.set_attr("level", [1]), lambda: calm.reset(seed=[1, 2])):
        with pytest.raises(ValueError, match="5 copies of Numbers-v0"):
            wrong()
    with pytest.raises(ValueError, match="reset_mask"):
        calm.reset(options={"reset_mask": np.zeros(COPIES, np.bool_)})
    calm.step(np.ones(COPIES, np.int64))


def test_closing_ends_the_processes_and_leaves_no_memory() -> None:
    places = [place for place in ("/dev/shm",) if os.path.isdir(place)]
    before = [set(os.listdir(place)) for place in places]
    envs = together()
    envs.reset()
    assert all(now <= then for now, then in zip([set(os.listdir(place)) for place in places], before, strict=True))
    processes = [psutil.Process(pid) for pid in set(envs.call("process"))]
    envs.close()  # type: ignore[no-untyped-call]
    assert not any(process.is_running() for process in processes)
    with pytest.raises(gym.error.ClosedEnvironmentError, match="Numbers-v0 is closed"):
        envs.reset()


def test_an_error_of_a_copy_is_that_of_one_process() -> None:
    messages = []
    for processes in (1, 2):
        envs = make_vector_env("Numbers-v0", COPIES, processes, last=4, end="raise")
        envs.reset(seed=0)
        for _ in range(3):
            envs.step(np.zeros(COPIES, np.int64))
        with pytest.raises(FaultyEnvironmentError) as raised:
            envs.step(np.zeros(COPIES, np.int64))
        messages.append(str(raised.value))
        envs.close()  # type: ignore[no-untyped-call]
    assert messages[0] == messages[1]
    assert messages[0].startswith(
        "Environment Numbers-v0, step 4 of episode 1: step() raised KeyError: 'no such place' (test_worker"
    )
    assert "in _end" in str(raised.value.__cause__)


def test_a_process_that_ends_says_so() -> None:
    envs = together(last=3, end="exit")
    envs.reset(seed=0)
    envs.step(np.zeros(COPIES, np.int64))
    envs.step(np.zeros(COPIES, np.int64))
    message = r"^Environment Numbers-v0: the process of copies 0 to 1 ended with exit status 7\. Fix the environment\.$"
    with pytest.raises(FaultyEnvironmentError, match=message):
        envs.step(np.zeros(COPIES, np.int64))
    assert envs.closed
    envs = together()
    psutil.Process(envs.call("process")[4]).kill()
    with pytest.raises(
        FaultyEnvironmentError, match="was killed, by somebody or because the machine is short of memory: fewer copies"
    ):
        envs.reset()


def test_what_cannot_be_made_or_shared_is_refused() -> None:
    with pytest.raises(FaultyEnvironmentError, match=r"Making environment Numbers-v0 raised TypeError: .*'speed'"):
        together(speed=3)
    with pytest.raises(SettingError, match="Processes can't share observations Dict"):
        WorkerProcessesVectorEnv("numbers", partial(Numbers, "parts"), 2, 2)


def test_draws_from_global_generators_are_told(
    caplog: pytest.LogCaptureFixture, calm: WorkerProcessesVectorEnv
) -> None:
    calm.reset(seed=0)
    calm.step(np.zeros(COPIES, np.int64))
    assert not caplog.messages
    drawn = []
    for _ in range(2):
        envs = together(last=2, end="draw")
        envs.reset(seed=0)
        envs.step(np.zeros(COPIES, np.int64))
        drawn.append(envs.step(np.zeros(COPIES, np.int64))[4]["drawn"].tolist())
        envs.step(np.zeros(COPIES, np.int64))
        envs.close()  # type: ignore[no-untyped-call]
    assert drawn[0] == drawn[1]  # the seeds of the copies seed them
    assert len(set(drawn[0])) == COPIES
    told = [message.startswith("Environment Numbers-v0 draws from Python's") for message in caplog.messages]
    assert told == [True, True]  # once each


def test_infos_that_cannot_be_pickled_are_refused() -> None:
    envs = together(last=2, end="lock")
    envs.reset(seed=0)
    envs.step(np.zeros(COPIES, np.int64))
    with pytest.raises(FaultyEnvironmentError, match="infos of a copy can't leave its process: they can't be pickled"):
        envs.step(np.zeros(COPIES, np.int64))
    envs.close()  # type: ignore[no-untyped-call]


SCRIPT = """
import os, signal, sys
import gymnasium as gym
import numpy as np
from rlhf_ray.envs import make_vector_env


class Mark:
    def __init__(self, number):
        self.number = number


class Own(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {"mark": Mark(os.getpid())}

    def step(self, action):
        print("stepping")
        return np.ones(2, np.float32), 1.0, False, False, {}


gym.register("Own-v0", Own, max_episode_steps=9)
assert __name__ == "__main__"
envs = make_vector_env(sys.argv[1], 2, 2)
marks = envs.reset()[1]["mark"]
assert all(type(mark) is Mark for mark in marks)
envs.step(np.zeros(2, np.int64))
print(*(mark.number for mark in marks), flush=True)
if sys.argv[2] == "close":
    envs.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "end"), [("fixed/Own-v0", "close"), ("Own-v0", "kill")])
def test_an_environment_of_a_script_works_and_its_processes_end_with_it(name: str, end: str, tmp_path: Any) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", name, end], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == (0 if end == "close" else -9), done.stderr
    assert not done.stderr
    assert done.stdout.count("stepping") == 2  # what a copy prints
    pids = [int(word) for word in done.stdout.split() if word.isdecimal()]
    assert len(set(pids)) == 2
    until = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_only_copies_that_step_in_a_loop_get_processes() -> None:
    assert thread_options("Numbers-v0", 4, 2) == {"worker_processes": 2}
    assert thread_options("Numbers-v0", 4) == {}
    assert thread_options("Pendulum-v1", 4, 2) == thread_options("CartPole-v1", 4, 2) == {}
    assert isinstance(make_vector_env("Numbers-v0", 1, 2), SyncVectorEnv)
    assert EnvCreator("Numbers-v0")({"worker_processes": 2}).unwrapped.kind == "box"
