"""Copies of a Python environment that step in processes of their own: a core for each, to the bits of gymnasium's SyncVectorEnv."""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import multiprocessing
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space, create_empty_array

from rlhf_ray.data import system
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.envs.checked import RAISED, fault

GRACE = 5.0
"""Seconds that a process has to close its copies."""

_PROGRAM = f"import sys; files, sys.path[:] = sys.argv[1:3], sys.argv[3:]; from {__name__} import serve; serve(*map(int, files))"
"""What a process runs, with the number of its pipe's file, that of the shared memory's, and where its parent finds modules."""

_SAME = (FaultyEnvironmentError, SettingError, ImportError, ValueError, AttributeError, AssertionError)
"""Errors that leave a process as they are. Others become a `FaultyEnvironmentError`."""

logger = logging.getLogger(__name__)


class _Job(NamedTuple):
    """What a process needs to make its copies."""

    name: str
    make: CloudpickleWrapper
    first: int
    copies: int
    seed: int
    torch_threads: int | None


class _Failure(NamedTuple):
    kind: type[Exception]
    text: str
    trace: str


class _Steps:
    """What the copies return, in shared memory."""

    def __init__(self, memory: int, space: gym.Space[Any], copies: int):
        shown = create_empty_array(space, copies)
        if not isinstance(shown, np.ndarray):
            raise SettingError(f"Processes can't share observations {space}: let one process step the copies.")
        size = copies * 10 + shown.nbytes
        if os.fstat(memory).st_size < size:
            with open(memory, "wb", closefd=False) as file:
                file.write(bytes(size))  # not only a size: where there is no room, this raises
        buffer = mmap.mmap(memory, size)
        self.rewards: FloatArray = np.ndarray(copies, np.float64, buffer)
        self.observations: Array = np.ndarray(shown.shape, shown.dtype, buffer, copies * 8)
        self.terminated: BoolArray = np.ndarray(copies, np.bool_, buffer, copies * 8 + shown.nbytes)
        self.truncated: BoolArray = np.ndarray(copies, np.bool_, buffer, copies * 9 + shown.nbytes)


class WorkerProcessesVectorEnv(VectorEnv[Any, Any, Any]):
    """Copies of an environment, each process steps a part of them.

    Observations, rewards and infos are those of a `SyncVectorEnv`, to the bit, unless the environment draws from Python's, numpy's
    or torch's global generator, which each process has: then the log says so.

    Args:
        name: the environment's name in errors.
        make: makes a copy.
        num_envs: number of copies.
        processes: number of processes, at most that of copies.

    Raises:
        FaultyEnvironmentError: also from ``reset`` and ``step``: a copy raises, or a process ends.
    """

    def __init__(self, name: str, make: Callable[[], gym.Env[Any, Any]], num_envs: int, processes: int):
        self.num_envs, self._called, self._warned = num_envs, name, False
        ends = [num_envs * part // processes for part in range(processes + 1)]
        self._parts = [slice(first, end) for first, end in itertools.pairwise(ends)]
        self._workers: list[_Worker] = []
        with _memory() as memory:
            try:
                self._start(make, memory.fileno())
            except BaseException:
                self.close()
                raise

    def _start(self, make: Callable[[], gym.Env[Any, Any]], memory: int) -> None:
        for part in self._parts:
            self._workers.append(_Worker(self._called, part, memory))
        states = np.random.get_state()[1].tobytes(), repr(random.getstate()).encode()  # type: ignore[index]
        seed = zlib.crc32(states[0], zlib.crc32(states[1]))
        made, torch = CloudpickleWrapper(make), sys.modules.get("torch")
        threads = None if torch is None else torch.get_num_threads()
        jobs = [_Job(self._called, made, part.start, part.stop - part.start, seed, threads) for part in self._parts]
        told = self._ask([("make", (job,)) for job in jobs])
        if any(each[2:] != told[0][2:] for each in told):
            raise FaultyEnvironmentError(
                f"Environment {self._called}: copies have other spaces than the first. Fix the environment."
            )
        self.metadata, self.render_mode, self.single_observation_space, self.single_action_space = told[0]
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._steps = _Steps(memory, self.single_observation_space, self.num_envs)
        self._ask([("share", (self.num_envs,))] * len(self._workers))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """See gymnasium."""
        if seed is None or isinstance(seed, int | np.integer):
            seed = [None if seed is None else int(seed) + copy for copy in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"reset() got {len(seed)} seeds for {self.num_envs} copies of {self._called}.")
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = options["reset_mask"]
            if getattr(mask, "shape", None) != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
                raise ValueError(
                    f"reset_mask is {mask!r}; it must be an array of {self.num_envs} booleans, not all False."
                )
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        asked = [("begin", (seed[part], options, mask[part])) if mask[part].any() else None for part in self._parts]
        infos = self._infos(self._ask(asked))
        return self._steps.observations.copy(), infos

    def step(self, actions: Any) -> tuple[Array, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """See gymnasium."""
        if len(actions) != self.num_envs:
            raise ValueError(f"step() got {len(actions)} actions for {self.num_envs} copies of {self._called}.")
        infos = self._infos(self._ask([("advance", (actions[part],)) for part in self._parts]))
        steps = self._steps
        return (
            steps.observations.copy(),
            steps.rewards.copy(),
            steps.terminated.copy(),
            steps.truncated.copy(),
            infos,
        )

    def render(self) -> tuple[Any, ...]:
        """See gymnasium."""
        return self._of_copies(("render", ()))

    def call(self, name: str, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        """Call a method of each copy, or read an attribute; see gymnasium."""
        return self._of_copies(("call", (name, *arguments), keywords))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """See gymnasium."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """See gymnasium."""
        values = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"set_attr() got {len(values)} values for {self.num_envs} copies of {self._called}.")
        self._ask([("set_attr", (name, list(values[part]))) for part in self._parts])

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes, after they have closed their copies."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.end()

    def _of_copies(self, message: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(itertools.chain.from_iterable(self._ask([message] * len(self._workers))))

    def _ask(self, messages: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Send each process a message, then wait for all answers. Raise the first copy's error."""
        if self.closed:
            raise gym.error.ClosedEnvironmentError(f"Environment {self._called} is closed.")
        asked = [(worker, message) for worker, message in zip(self._workers, messages, strict=True) if message]
        try:
            for worker, message in asked:
                worker.send(message)
            answers = [worker.receive() for worker, _ in asked]
        except BaseException:  # also Ctrl-C: what comes later would be taken for another step's
            self.close()
            raise
        for answer in answers:
            if isinstance(answer, _Failure):
                raise answer.kind(answer.text) from RuntimeError(f"in a process of its own:\n{answer.trace}")
        return answers

    def _infos(self, said: Iterable[tuple[bool, list[tuple[int, dict[str, Any]]]]]) -> dict[str, Any]:
        """Merge what copies say as gymnasium does."""
        infos: dict[str, Any] = {}
        drew = False
        for drawn, of_copies in said:
            drew |= drawn
            for copy, info in of_copies:
                infos = self._add_info(infos, info, copy)
        if drew and not self._warned:
            self._warned = True
            logger.warning(
                "Environment %s draws from Python's, numpy's or torch's global generator, and each process has its own: episodes "
                "depend on the number of processes. Let it draw from self.np_random.",
                self._called,
            )
        return infos


class _Worker:
    """A process, as its parent sees it."""

    def __init__(self, name: str, part: slice, memory: int):
        last = part.stop - 1
        copies = f"copy {last}" if last == part.start else f"copies {part.start} to {last}"
        self._words = f"Environment {name}: the process of {copies}"
        self.connection, theirs = multiprocessing.Pipe()
        with theirs:
            files = theirs.fileno(), memory
            path = [folder for folder in sys.path if isinstance(folder, str)]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *map(str, files), *path],
                stdin=subprocess.DEVNULL,
                pass_fds=files,
                process_group=0,  # Ctrl-C is for the parent
            )

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended: `receive` says so
            self.connection.send(message)

    def receive(self) -> Any:
        try:
            answer = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise FaultyEnvironmentError(f"{self._words} {self._end_and_remedy()}") from None
        try:
            answer = ForkingPickler.loads(answer)
        except Exception as error:
            raise fault(f"{self._words}: reading what it sent", error) from error
        return answer.fn if isinstance(answer, CloudpickleWrapper) else answer

    def end(self) -> int:
        """Wait until the process has ended, kill it if it takes long, and return its exit status."""
        try:
            return self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _end_and_remedy(self) -> str:
        status = self.end()
        if status >= 0:
            return f"ended with exit status {status}. Fix the environment."
        if status == -signal.SIGKILL:
            return "was killed, by somebody or because the machine is short of memory: fewer copies, or processes, take less."
        return f"was ended by {signal.Signals(-status).name}. Fix the environment."


def _memory() -> Any:
    """Return a file without a name, in memory where the system has a place for that."""
    with contextlib.suppress(OSError):
        return tempfile.TemporaryFile(dir=system.SHARED_MEMORY)
    return tempfile.TemporaryFile()


class _Part(SyncVectorEnv):
    """The copies of one process."""

    def __init__(self, memory: int, job: _Job):
        self._memory, self._first, self._said = memory, job.first, list[tuple[int, dict[str, Any]]]()
        _seed_globals([job.seed, job.first])
        self._drawn = _drawn()
        with warnings.catch_warnings():
            if job.first:  # the first process says it
                warnings.simplefilter("ignore")
            super().__init__([job.make.fn] * job.copies, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        if (torch := sys.modules.get("torch")) and job.torch_threads:
            torch.set_num_threads(job.torch_threads)  # their number changes the last bits

    def share(self, copies: int) -> None:
        """Find the rows of this part among all ``copies``."""
        self._shared = _Steps(self._memory, self.single_observation_space, copies)
        self._rows = slice(self._first, self._first + self.num_envs)

    def begin(self, seeds: Sequence[int | None], options: dict[str, Any] | None, mask: BoolArray) -> Any:
        """Reset the copies in ``mask``."""
        drew = self._drew()
        if None not in seeds:
            _seed_globals(seeds)
            self._drawn = _drawn()
        if not mask.all():
            options = (options or {}) | {"reset_mask": mask}
        self._shared.observations[self._rows] = self.reset(seed=list(seeds), options=options)[0]
        return self._drew() or drew, self._spoken()

    def advance(self, actions: Any) -> Any:
        """Step the copies."""
        stepped: Any = self.step(actions)
        observations, rewards, terminated, truncated, _ = stepped
        shared, rows = self._shared, self._rows
        shared.observations[rows], shared.rewards[rows] = observations, rewards
        shared.terminated[rows], shared.truncated[rows] = terminated, truncated
        return self._drew(), self._spoken()

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        """Keep what a copy says for the parent, which merges it."""
        if env_info:
            self._said.append((self._first + env_num, env_info))
        return vector_infos

    def _spoken(self) -> list[tuple[int, dict[str, Any]]]:
        said, self._said = self._said, []
        return said

    def _drew(self) -> bool:
        """Return whether something has drawn from a global generator since the last call."""
        before, self._drawn = self._drawn, _drawn()
        return any(one not in (None, other) for one, other in zip(before, self._drawn, strict=True))


def _seed_globals(numbers: Sequence[Any]) -> None:
    number = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(number)
    np.random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(number)


def _drawn() -> tuple[Any, ...]:
    """Return what changes whenever something draws from a global generator."""
    numpys: Any = np.random.get_state(legacy=False)
    torch = sys.modules.get("torch")
    torchs = torch and torch.get_rng_state()[8:24].tolist()
    return random.getstate()[1][-1], (numpys["state"]["pos"], numpys["has_gauss"]), torchs


def serve(channel: int, memory: int) -> None:
    """Make copies, and do what the parent says until its pipe closes (the program of a process)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_after, args=(channel,), daemon=True).start()
    connection = Connection(channel)
    part: _Part | None = None
    name = ""
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            break
        try:
            method, arguments, *keywords = ForkingPickler.loads(message)
            if method == "make":
                name, part = arguments[0].name, _Part(memory, *arguments)
                answer: Any = part.metadata, part.render_mode, part.single_observation_space, part.single_action_space
                answer = CloudpickleWrapper(answer)
            else:
                answer = getattr(part, method)(*arguments, **(keywords[0] if keywords else {}))
        except RAISED as error:
            answer = _failure(error, name)
        try:
            connection.send_bytes(_packed(answer, name))
        except OSError:
            break
    if part is not None:
        part.close()


def _failure(error: BaseException, name: str) -> _Failure:
    one = error if type(error) in _SAME else fault(f"Environment {name}", error)
    return _Failure(type(one), str(one), "".join(traceback.format_exception(error)))  # type: ignore[arg-type]


def _packed(answer: Any, name: str) -> Any:
    for one in (answer, CloudpickleWrapper(answer)):  # the second takes classes of a script, but takes longer
        with contextlib.suppress(Exception):
            return ForkingPickler.dumps(one)
    problem = FaultyEnvironmentError(
        f"Environment {name}: infos of a copy can't leave its process: they can't be pickled. Let one process step the copies."
    )
    return ForkingPickler.dumps(_failure(problem, name))


def _leave_after(channel: int) -> None:
    """End this process a while after the parent has closed the pipe, or has died, whatever the copies do then."""
    hung_up = select.poll()
    hung_up.register(channel, 0)
    hung_up.poll()
    time.sleep(GRACE)
    os._exit(1)
