"""Executors: how the ring starts and calls its actors. Here in this process; `rlhf_ray.actors.ray_executor` has one in Ray.

A ring that works only while the training waits gains nothing from processes, which take seconds to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import queue
import random
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakValueDictionary

import numpy as np
import torch

from rlhf_ray.data.seeds import number_of

A = TypeVar("A", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Ref(Protocol[T_co]):
    """A reference to the result of a call: await it, or pass it (`passed`) to a call of another actor, which gets the value."""

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait for the value."""


def passed(reference: Ref[T]) -> T:
    """Pass ``reference`` as an argument of `Actor.call` in place of its value. For the type checker; returns it unchanged."""
    return reference  # type: ignore[return-value]


class Actor(Generic[A]):
    """The handle of an actor of class ``A``: ``await pool.call(FragmentPool.report)`` calls that method in the actor.

    Implementations override `send`: a Ray actor, one that shares a process with others, an object in this process.
    """

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        """Call a method by name. Return a reference to its result, or references to the ``returns`` parts of a tuple."""
        raise NotImplementedError

    @overload
    def call(
        self, method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]], *arguments: P.args, **keywords: P.kwargs
    ) -> Ref[T]: ...
    @overload
    def call(self, method: Callable[Concatenate[A, P], T], *arguments: P.args, **keywords: P.kwargs) -> Ref[T]: ...
    def call(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call ``method`` in the actor. References among the arguments are replaced by their values there."""
        return self.send(method.__name__, arguments, keywords)

    def split(
        self, returns: int, method: Callable[Concatenate[A, P], Any], *arguments: P.args, **keywords: P.kwargs
    ) -> tuple[Any, ...]:
        """Call ``method``, which returns a tuple. Return a reference to each part: large parts need not come to the caller."""
        parts: tuple[Any, ...] = self.send(method.__name__, arguments, keywords, returns)
        return parts

    def ready(self) -> Ref[bool]:
        """Return a reference that is ready once the actor is made."""
        reference: Ref[bool] = self.send("__ray_ready__", (), {})
        return reference

    def run(self, function: Callable[[Any], T]) -> Ref[T]:
        """Call ``function`` with the actor's object, in the actor's process."""
        reference: Ref[T] = self.send("__ray_call__", (function,), {})
        return reference


class Executor(Protocol):
    """Starts actors, and waits for the results of calls outside of coroutines."""

    here: bool
    """Whether the actors are in this process."""

    def start(
        self,
        kind: type[T],
        role: str,
        *arguments: Any,
        gpus: float = 0.0,
        shares: bool = False,
        anywhere: bool = False,
    ) -> Actor[T]:
        """Start an actor of this ring.

        Args:
            kind: the actor's class.
            role: its name in the ring.
            arguments: constructor arguments.
            gpus: GPUs it claims.
            shares: whether it may share a process with others, because it does little, or works only while they wait.
            anywhere: whether it claims a CPU on any node, because it works all the time and needs none of this node's files.
        """

    def started(self) -> None:
        """Start the process of actors with ``shares``, before the first call to them. Later actors get their own processes."""
        return

    def find(self, kind: type[T], role: str) -> Callable[[], Actor[T]]:
        """Return a function that finds an actor by role, also after a restart. Passing a handle would prevent its restart."""

    def get(self, reference: Ref[T], timeout: float | None = None) -> T:
        """Wait for the reference's value, for ``timeout`` seconds or indefinitely, and return it."""

    def put(self, value: T) -> Ref[T]:
        """Store ``value`` and return a reference."""

    def ready(self, reference: Ref[Any]) -> bool:
        """Return whether the reference's value is available."""

    def keep(self, reference: Ref[Any]) -> None:
        """Copy the reference's value to this node, so that it outlives the node that made it. Doesn't read it."""
        return

    def apart(self) -> contextlib.AbstractContextManager[object]:
        """Return a context manager to enter while the agent waits for actors: they draw no random numbers of the agent's."""
        return contextlib.nullcontext()

    def stop(self, actor: Actor[Any]) -> None:
        """Stop an actor at once."""


class OwnStreams:
    """Context manager: inside, Python's, numpy's and torch's global generators are those of this object, not the process's.

    So a user's teacher or environment, say, that draws from them or seeds them leaves the agent's random numbers alone, as in a
    process of its own. Threads share the generators: enter it where no other thread draws. Entering it again inside has no effect.

    Args:
        seeds: seeds the generators; None: they are different in each process.
        python: whether to exchange Python's generator too, which takes longer than the rest.
    """

    def __init__(self, seeds: np.random.SeedSequence | None = None, *, python: bool = True):
        self.python = python
        self._depth = 0
        self._outside = torch.Generator()
        self.seed(seeds or np.random.SeedSequence())

    def seed(self, seeds: np.random.SeedSequence) -> None:
        """Begin the streams of ``seeds``."""
        number = number_of(seeds)
        self._states: tuple[Any, ...] = (
            random.Random(number).getstate(),
            np.random.MT19937(seeds),
            torch.Generator().manual_seed(number).get_state(),
        )
        self._of_gpus: list[torch.Tensor] = []

    def __enter__(self) -> torch.Generator:
        """Exchange the generators. Returns torch's generator of the process outside, for draws of the agent in between."""
        self._depth += 1
        if self._depth == 1:
            self._exchange()
            self._outside.set_state(self._states[2])
        return self._outside

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._states = *self._states[:2], self._outside.get_state()
            self._exchange()

    def _exchange(self) -> None:
        python, of_numpy, of_torch = self._states
        if self.python:
            now = random.getstate()
            random.setstate(python)
            python = now
        numpys: Any = np.random
        bits = numpys.get_bit_generator()
        numpys.set_bit_generator(of_numpy)  # a tenth of the time that its state takes
        self._states = python, bits, torch.get_rng_state()
        torch.set_rng_state(of_torch)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            gpus = torch.cuda.get_rng_state_all()
            if self._of_gpus:
                torch.cuda.set_rng_state_all(self._of_gpus)
            self._of_gpus = gpus


class CallThread:
    """A daemon thread, started with its first call. Unlike one of Python's executors, it doesn't keep the interpreter alive."""

    def __init__(self, name: str):
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Queue ``call``; return the future of its result.

        Raises:
            RuntimeError: `end` was called.
        """
        if self._ended:
            raise RuntimeError(f"{self._name} has ended.")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((call, future))
        return future

    def end(self) -> None:
        """Take no more calls, and none of those queued. The current one finishes."""
        self._ended = True
        self._calls.put(None)

    def join(self, timeout: float) -> None:
        """After `end`, wait until the current call has finished, for ``timeout`` seconds."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (queued := self._calls.get()) is not None:
            call, future = queued
            if self._ended or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del call, future, queued


FINISHES_WITHIN = 5.0
"""Seconds for which `LocalExecutor.stop` waits for a call: a function of the user's may never return."""

HERE: WeakValueDictionary[str, LocalExecutor] = WeakValueDictionary()
"""The executors of this process, by their rings' names."""


class LocalExecutor(Executor):
    """Objects in this process. A call runs in the object's thread or, for a coroutine, in the running event loop.

    So an interrupt of the caller cuts no call short. Results are not copied: nobody may change them.

    Args:
        name: the ring's name, by which `executor_of` finds it; None for no name.
    """

    here = True

    def __init__(self, name: str | None = None) -> None:
        self.actors: dict[str, Any] = {}
        """The objects, by role."""
        self._makers: dict[str, Callable[[], Any]] = {}
        self._threads: dict[str, CallThread] = {}
        self._streams = OwnStreams()
        if name is not None:
            HERE[name] = self

    def start(self, kind: type[T], role: str, *arguments: Any, **_place: Any) -> Actor[T]:
        self._makers[role] = functools.partial(kind, *arguments)
        self._threads[role] = CallThread(role)
        with self._streams:
            self.actors[role] = self._makers[role]()
        return _LocalActor(self, role)

    def restart(self, role: str) -> None:
        """Make the object anew between two calls, as Ray does with a killed actor: it loses its state."""

        def make() -> None:
            self.actors[role] = self._makers[role]()

        self._threads[role].submit(make).result()

    def find(self, kind: type[T], role: str) -> Callable[[], Actor[T]]:
        return functools.partial(_LocalActor, self, role)

    def get(self, reference: Ref[T], timeout: float | None = None) -> T:
        result: T = _local(reference).result(timeout)
        return result

    def put(self, value: T) -> Ref[T]:
        future: Future[Any] = Future()
        future.set_result(value)
        return _Reference(future)

    def ready(self, reference: Ref[Any]) -> bool:
        return _local(reference).done()

    def apart(self) -> contextlib.AbstractContextManager[object]:
        return self._streams

    def stop(self, actor: Actor[Any]) -> None:
        """A running call finishes, and is waited for: the caller may remove the files that it writes."""
        assert isinstance(actor, _LocalActor)
        thread = self._threads[actor.role]
        thread.end()
        if (end := getattr(self.actors[actor.role], "end", None)) is not None:
            end()
        thread.join(FINISHES_WITHIN)

    def call(self, role: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return the future of a call, with the values of references among its arguments."""
        if method == "__ray_ready__":
            return self._threads[role].submit(lambda: True)
        if method == "__ray_call__":
            return self._threads[role].submit(functools.partial(arguments[0], self.actors[role]))
        call = getattr(self.actors[role], method)
        if inspect.iscoroutinefunction(call):
            return asyncio.ensure_future(_in_loop(call, arguments, keywords))

        def value(argument: Any) -> Any:
            return argument.result() if isinstance(argument, _Reference) else argument

        def work() -> Any:
            values = [value(argument) for argument in arguments]
            named = {name: value(argument) for name, argument in keywords.items()}
            return getattr(self.actors[role], method)(*values, **named)  # which may have been made anew meanwhile

        return self._threads[role].submit(work)


async def _in_loop(call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    values = [await argument if isinstance(argument, _Reference) else argument for argument in arguments]
    return await call(*values, **keywords)


class _LocalActor(Actor[A]):
    """The handle of an object in this process."""

    def __init__(self, executor: LocalExecutor, role: str):
        self._executor, self.role = executor, role

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        future = self._executor.call(self.role, method, arguments, keywords)
        return _Reference(future) if returns == 1 else tuple(_Reference(future, part) for part in range(returns))


class _Reference:
    """The result of a call, or one part of it, to await or to pass to other calls."""

    def __init__(self, future: Any, part: int | None = None):
        self._future, self._part = future, part

    def done(self) -> bool:
        return bool(self._future.done())

    def result(self, timeout: float | None = None) -> Any:
        return self._take(self._future.result(*(() if timeout is None else (timeout,))))

    def __await__(self) -> Generator[Any, None, Any]:
        # Shielded: a caller that stops waiting doesn't cancel the call.
        future = self._future if isinstance(self._future, asyncio.Future) else asyncio.wrap_future(self._future)
        return self._take((yield from asyncio.shield(future).__await__()))

    def _take(self, value: Any) -> Any:
        return value if self._part is None else value[self._part]


def _local(reference: Ref[Any]) -> _Reference:
    assert isinstance(reference, _Reference)
    return reference
