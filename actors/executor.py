"""Executors: how the ring starts its actors and calls them: in Ray, or in this process for tests."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any, Protocol

import ray

from rlhf_ray.actors.host import AT_ONCE, ActorHost, Hosted
from rlhf_ray.actors.placement import CPUS, HOST, of_ring, one_machine


class Executor(Protocol):
    """Starts actors. A call, ``actor.method.remote(…)``, gives a reference that can be awaited or handed to other calls."""

    def start(self, kind: type, role: str, *arguments: Any, gpus: float = 0.0, shares: bool = False) -> Any:
        """An actor of this ring.

        Args:
            kind: its class.
            role: its name in the ring.
            arguments: that it is made with.
            gpus: it claims.
            shares: it works a little or while the others wait, and may be in one process with others like it.
        """
        ...

    def started(self) -> None:
        """Those that may share a process have been started, and may be called now. Later ones get processes of their own."""
        ...

    def find(self, role: str) -> Callable[[], Any]:
        """What gives another actor the one with this role, also after Ray restarted it. A handle would keep it from that."""
        ...

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        """What the reference stands for, waited for: as long as it takes, or so many seconds."""
        ...

    def put(self, value: Any) -> Any:
        """A reference to ``value``."""
        ...

    def ready(self, reference: Any) -> bool:
        """Whether what the reference stands for is there."""
        ...

    def keep(self, reference: Any) -> None:
        """Have what the reference stands for on this node too, where it outlives the one that made it. Does not read it."""
        ...

    def stop(self, actor: Any) -> None:
        """End an actor at once."""
        ...


class RayExecutor:
    """Ray's actors, which restart by themselves, named ``NAME/ROLE`` in the caller's namespace.

    On a single machine some of them share the process of an `ActorHost`.
    """

    def __init__(self, name: str):
        self.name = name
        self._hosted: dict[str, tuple[Hosted, Callable[[], Any]]] = {}
        """Of each role in the host, the handle and what makes the actor."""
        self._host: Any = None

    def start(self, kind: type, role: str, *arguments: Any, gpus: float = 0.0, shares: bool = False) -> Any:
        """See `Executor.start`."""
        if shares and self._host is None and one_machine():
            hosted = Hosted(None, role)
            self._hosted[role] = hosted, functools.partial(kind, *arguments)
            return hosted
        return self._start(kind, role, of_ring(role, gpus), CPUS.get(role, 0.0), *arguments, num_gpus=gpus)

    def _start(self, kind: type, role: str, strategy: Any, cpus: float, *arguments: Any, **options: Any) -> Any:
        of_all = {"max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": strategy, "num_cpus": cpus}
        return ray.remote(name=f"{self.name}/{role}", **of_all, **options)(kind).remote(*arguments)

    def started(self) -> None:
        """See `Executor.started`: the host begins, and all in it."""
        if not self._hosted or self._host is not None:
            return
        makers = {role: make for role, (_, make) in self._hosted.items()}
        cpus = sum(CPUS.get(role, 0.0) for role in makers)
        groups = dict.fromkeys(makers, AT_ONCE)
        self._host = self._start(ActorHost, HOST, of_ring(HOST), cpus, makers, concurrency_groups=groups)
        for hosted, _ in self._hosted.values():
            hosted.host = self._host
            hosted.__ray_ready__.remote()

    def find(self, role: str) -> Callable[[], Any]:
        """See `Executor.find`."""
        return functools.partial(look_up, self.name, role)

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        """See `Executor.get`. A thread of an asynchronous actor may wait so too, for which Ray warns of `ray.get`."""
        return reference.future().result(timeout)

    def put(self, value: Any) -> Any:
        """See `Executor.put`."""
        return ray.put(value)

    def ready(self, reference: Any) -> bool:
        """See `Executor.ready`."""
        return bool(ray.wait([reference], timeout=0, fetch_local=False)[0])

    def keep(self, reference: Any) -> None:
        """See `Executor.keep`."""
        ray.wait([reference], timeout=0, fetch_local=True)

    def stop(self, actor: Any) -> None:
        """See `Executor.stop`. What shares a process ends when the last one in it does."""
        if not isinstance(actor, Hosted):
            ray.kill(actor)
        elif self._hosted.pop(actor.role, None) is not None and not self._hosted and self._host is not None:
            ray.kill(self._host)


def look_up(name: str, role: str) -> Any:
    """The actor with this role in the ring called ``name``.

    Raises:
        ValueError: there is none.
    """
    try:
        return ray.get_actor(f"{name}/{role}")
    except ValueError:
        return Hosted(ray.get_actor(f"{name}/{HOST}"), role)


class DirectExecutor:
    """Plain objects of this process: a call is made at once, or where it is a coroutine, in the loop that runs."""

    def __init__(self) -> None:
        self.actors: dict[str, Any] = {}
        """The objects themselves, by role."""
        self._makers: dict[str, Callable[[], Any]] = {}
        self.lock = threading.RLock()
        """Held in each call that is no coroutine, as one actor makes one call at a time."""

    def start(self, kind: type, role: str, *arguments: Any, gpus: float = 0.0, shares: bool = False) -> Any:
        """See `Executor.start`."""
        self._makers[role] = functools.partial(kind, *arguments)
        self.restart(role)
        return _DirectActor(self, role)

    def started(self) -> None:
        """See `Executor.started`."""

    def restart(self, role: str) -> None:
        """Make the object anew, as Ray does with an actor that was killed: it has lost all that it knew."""
        self.actors[role] = self._makers[role]()

    def find(self, role: str) -> Callable[[], Any]:
        """See `Executor.find`."""
        return lambda: _DirectActor(self, role)

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        """See `Executor.get`."""
        return reference.result()

    def put(self, value: Any) -> Any:
        """See `Executor.put`."""
        return _Direct(value)

    def ready(self, reference: Any) -> bool:
        """See `Executor.ready`."""
        return True

    def keep(self, reference: Any) -> None:
        """See `Executor.keep`."""

    def stop(self, actor: Any) -> None:
        """See `Executor.stop`."""


class _DirectActor:
    def __init__(self, executor: DirectExecutor, role: str):
        self._executor, self._role = executor, role

    def __getattr__(self, method: str) -> Any:
        if method == "__ray_ready__":
            return _Method(lambda: True, self._executor.lock)
        return _Method(getattr(self._executor.actors[self._role], method), self._executor.lock)


class _Method:
    """``method.remote(…)``, and ``method.options(num_returns=2).remote(…)``."""

    def __init__(self, call: Callable[..., Any], lock: threading.RLock, returns: int = 1):
        self._call, self._lock, self._returns = call, lock, returns

    def options(self, num_returns: int) -> _Method:
        return _Method(self._call, self._lock, num_returns)

    def remote(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            with self._lock:
                value = self._call(*map(_value, arguments), **{name: _value(each) for name, each in keywords.items()})
        except Exception as error:
            failed = _Direct(error=error)
            return failed if self._returns == 1 else (failed,) * self._returns
        if inspect.iscoroutine(value):
            return _Direct(waiting=asyncio.ensure_future(value))
        return _Direct(value) if self._returns == 1 else tuple(map(_Direct, value))


class _Direct:
    """What a call gave, or what it raised."""

    def __init__(self, value: Any = None, error: Exception | None = None, waiting: asyncio.Future[Any] | None = None):
        self._value, self._error, self._waiting = value, error, waiting

    def result(self) -> Any:
        if self._waiting is not None:
            return self._waiting.result()
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Any, None, Any]:
        if self._waiting is not None:
            return (yield from self._waiting.__await__())
        yield from asyncio.sleep(0).__await__()
        return self.result()


def _value(argument: Any) -> Any:
    return argument.result() if isinstance(argument, _Direct) else argument
