"""Copies in processes of their own step as those in one process do, also of simulators of which a process can have one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.vector import SyncVectorEnv

from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.envs import EnvApart, EnvCreator, make_env, make_vector_env, thread_options
from rlhf_ray.envs.processes import ProcessesVectorEnv


class Numbers(gym.Env[Any, Any]):
    """Shows numbers of its generator; episodes end by chance, or at step 20; ``end`` comes at a copy's third step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, end: str = ""):
        self.end, self.taken = end, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 3), {"begun": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.taken = self.t + 1, self.taken + 1
        if self.taken == 3 and self.end == "raise":
            raise KeyError("no such place")
        if self.taken == 3 and self.end == "exit":
            os._exit(7)
        infos: list[dict[str, Any]] = [{}, {"success": True}, {"inner": {"number": 3}, "success": False}]
        shown, reward = self.np_random.uniform(-1, 1, 3), self.np_random.normal() + action
        return shown, reward, self.np_random.random() < 0.03, self.t == 20, infos[self.np_random.integers(3)]

    def process(self) -> int:
        return os.getpid()


gym.register("Numbers-v0", Numbers)


def same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for name in ours:
            same(ours[name], theirs[name])
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_steps_are_those_of_one_process_to_the_bit_and_closing_ends_the_processes() -> None:
    ours, theirs = make_vector_env("Numbers-v0", 3, 2), make_vector_env("Numbers-v0", 3)
    assert (type(ours), type(theirs)) == (ProcessesVectorEnv, SyncVectorEnv)
    rng, ends = np.random.default_rng(0), 0
    for options in ({"seed": [3, 1, 4], "options": {"hard": 1}}, {}, {"seed": 8}):
        for one, other in zip(ours.reset(**options), theirs.reset(**options), strict=True):
            same(one, other)
        for _ in range(40):
            actions = rng.integers(0, 3, 3)
            stepped = ours.step(actions)
            for one, other in zip(stepped, theirs.step(actions), strict=True):
                same(one, other)
            ends += int((stepped[2] | stepped[3]).sum())
    assert ends > 9
    processes = [psutil.Process(pid) for pid in ours.call("process")]
    assert len({process.pid for process in processes} | {os.getpid()}) == 4
    ours.close()  # type: ignore[no-untyped-call]
    assert not any(process.is_running() for process in processes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            "raise",
            r"Environment Numbers-v0, step 3 of episode 1: step\(\) raised KeyError: 'no such place' \(test_proce",
        ),
        (
            "exit",
            "Environment Numbers-v0: the process of a copy has ended: the environment left it, somebody killed it",
        ),
    ],
)
def test_an_error_of_a_copy_is_one_line(end: str, message: str, recwarn: pytest.WarningsRecorder) -> None:
    envs = make_vector_env("Numbers-v0", 2, 2, end=end)
    envs.reset(seed=0)
    envs.step(np.zeros(2, np.int64))
    envs.step(np.zeros(2, np.int64))
    with pytest.raises(FaultyEnvironmentError, match=message) as raised:
        envs.step(np.zeros(2, np.int64))
    assert "\n" not in str(raised.value)
    envs.close()  # type: ignore[no-untyped-call]


SCRIPT = """
import os, signal, sys
import gymnasium as gym
import numpy as np
from rlhf_ray.envs import make_vector_env

class Own(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {"process": os.getpid()}

    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {}

gym.register("Own-v0", Own, max_episode_steps=9)
assert __name__ == "__main__"
envs = make_vector_env(sys.argv[1], 2, 2)
print(*envs.reset()[1]["process"], flush=True)
if sys.argv[2] == "stop":  # Ctrl-C: the script decides what comes of it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.killpg(0, signal.SIGINT)
envs.step(np.zeros(2, np.int64))
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2] == "kill" else envs.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "end"), [("fixed/Own-v0", "stop"), ("Own-v0", "kill")])
def test_an_environment_of_a_script_works_and_its_processes_end_with_it_alone(name, end, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "script.py"), name, end]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, start_new_session=True)
    assert done.returncode == (0 if end == "stop" else -signal.SIGKILL), done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(set(pids)) == 2
    until = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_only_copies_that_step_in_a_loop_get_processes() -> None:
    assert thread_options("Numbers-v0", 4, 2) == {"worker_processes": 2}
    assert thread_options("Numbers-v0", 4) == {}
    assert thread_options("Pendulum-v1", 4, 2) == thread_options("CartPole-v1", 4, 2) == {}
    assert isinstance(make_vector_env("Numbers-v0", 1, 2), SyncVectorEnv)
    assert EnvCreator("Numbers-v0")({"worker_processes": 2}).unwrapped.end == ""


ID = "test_processes/Simulator-v0"


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


def played(env: gym.Env[Any, Any]) -> list[Any]:
    assert env.spec is not None
    seen = [env.reset(seed=5), env.spec.max_episode_steps, env.metadata["render_fps"]]
    for _ in range(4):
        seen += env.step(np.array([0.5], np.float32))
    return [*seen, np.asarray(env.render()).tolist()]


@pytest.mark.slow
def test_other_copies_are_in_processes_of_their_own_and_the_same(simulator, caplog):
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
    lines = [record.getMessage() for record in caplog.records if simulator in record.getMessage()]
    assert len(lines) <= 1  # once in a process
    assert all("a process can't make it twice (RuntimeError: it is running already)" in line for line in lines)


@pytest.mark.parametrize("before", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_can_t_be_made_at_all_is_a_fault(before: bool) -> None:
    made: Any = Simulator
    name = f"test_processes/Broken{before}-v0"
    gym.register(name, entry_point=made, kwargs={"ever": False})
    if before:
        make_env(name).close()  # type: ignore[no-untyped-call]
    del gym.registry[name]
    gym.register(name, entry_point=made, kwargs={"ever": False, "broken": True})
    with pytest.raises(FaultyEnvironmentError, match=r"Making environment .* raised RuntimeError: it is running"):
        make_env(name)
