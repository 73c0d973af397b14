"""Executors: how the ring starts and calls its actors. Here in Ray; `rlhf_ray.actors.local` has one for this process."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import ray

from rlhf_ray.actors.cluster import hold_ray, release_ray
from rlhf_ray.actors.handles import Actor, RayActor, Ref
from rlhf_ray.actors.host import AT_ONCE, ActorHost, Hosted
from rlhf_ray.actors.placement import CPUS, HOST, of_ring, one_machine

T = TypeVar("T")


class Executor(Protocol):
    """Starts actors, and waits for the results of calls outside of coroutines."""

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
        ...

    def started(self) -> None:
        """Start the process of actors with ``shares``, before the first call to them. Later actors get their own processes."""
        ...

    def find(self, kind: type[T], role: str) -> Callable[[], Actor[T]]:
        """Return a function that finds an actor by role, also after a restart. Passing a handle would prevent its restart."""
        ...

    def get(self, reference: Ref[T], timeout: float | None = None) -> T:
        """Wait for the reference's value, for ``timeout`` seconds or indefinitely, and return it."""
        ...

    def put(self, value: T) -> Ref[T]:
        """Store ``value`` and return a reference."""
        ...

    def ready(self, reference: Ref[Any]) -> bool:
        """Return whether the reference's value is available."""
        ...

    def keep(self, reference: Ref[Any]) -> None:
        """Copy the reference's value to this node, so that it outlives the node that made it. Doesn't read it."""
        ...

    def apart(self) -> contextlib.AbstractContextManager[object]:
        """Return a context manager to enter while the agent waits for actors: they draw no random numbers of the agent's."""
        ...

    def stop(self, actor: Actor[Any]) -> None:
        """Stop an actor at once."""
        ...


class RayExecutor:
    """Ray actors that restart automatically, named ``NAME/ROLE`` in the caller's namespace.

    On a single machine, some of them share the process of an `ActorHost`.
    """

    def __init__(self, name: str):
        self.name = name
        self._hosted: dict[str, tuple[Hosted[Any], Callable[[], Any]]] = {}
        """Handle and factory of each role in the host."""
        self._host: Any = None

    def start(
        self,
        kind: type[T],
        role: str,
        *arguments: Any,
        gpus: float = 0.0,
        shares: bool = False,
        anywhere: bool = False,
    ) -> Actor[T]:
        """See `Executor.start`."""
        if anywhere:
            return self._start(kind, role, "SPREAD", 1.0, *arguments, num_gpus=gpus)
        if shares and self._host is None and one_machine():
            hosted: Hosted[T] = Hosted(None, role)
            self._hosted[role] = hosted, functools.partial(kind, *arguments)
            return hosted
        return self._start(kind, role, of_ring(role, gpus), CPUS.get(role, 0.0), *arguments, num_gpus=gpus)

    def _start(
        self, kind: type[T], role: str, strategy: Any, cpus: float, *arguments: Any, **options: Any
    ) -> RayActor[T]:
        of_all = {"max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": strategy, "num_cpus": cpus}
        return RayActor(ray.remote(name=f"{self.name}/{role}", **of_all, **options)(kind).remote(*arguments))

    def started(self) -> None:
        """See `Executor.started`. Starts the host and its actors."""
        if not self._hosted or self._host is not None:
            return
        makers = {role: make for role, (_, make) in self._hosted.items()}
        cpus = sum(CPUS.get(role, 0.0) for role in makers)
        groups = dict.fromkeys(makers, AT_ONCE)
        self._host = self._start(ActorHost, HOST, of_ring(HOST), cpus, makers, concurrency_groups=groups).handle
        for hosted, _ in self._hosted.values():
            hosted.host = self._host
            hosted.ready()

    def find(self, kind: type[T], role: str) -> Callable[[], Actor[T]]:
        """See `Executor.find`."""
        return functools.partial(look_up, self.name, role)

    def get(self, reference: Ref[T], timeout: float | None = None) -> T:
        """See `Executor.get`. Works in threads of asynchronous actors too, where Ray warns about `ray.get`."""
        future: Future[T] = reference.future()  # type: ignore[attr-defined]
        return future.result(timeout)

    def put(self, value: T) -> Ref[T]:
        """See `Executor.put`."""
        reference: Ref[T] = ray.put(value)
        return reference

    def ready(self, reference: Ref[Any]) -> bool:
        """See `Executor.ready`."""
        return bool(ray.wait([reference], timeout=0, fetch_local=False)[0])

    def keep(self, reference: Ref[Any]) -> None:
        """See `Executor.keep`."""
        ray.wait([reference], timeout=0, fetch_local=True)

    def apart(self) -> contextlib.AbstractContextManager[object]:
        """See `Executor.apart`. Actors are in processes of their own."""
        return contextlib.nullcontext()

    def stop(self, actor: Actor[Any]) -> None:
        """See `Executor.stop`. A shared process ends with its last actor."""
        if isinstance(actor, RayActor):
            ray.kill(actor.handle)
        elif (
            isinstance(actor, Hosted)
            and self._hosted.pop(actor.role, None) is not None
            and not self._hosted
            and self._host is not None
        ):
            ray.kill(self._host)


@contextlib.contextmanager
def players(kind: type[T], count: int, *arguments: Any) -> Iterator[tuple[RayExecutor, list[Actor[T]]]]:
    """Context manager: ``count`` actors in Ray, one CPU each on any node, and their executor. They end with it."""
    hold_ray(cpus=count)
    executor, actors = RayExecutor(f"players-{uuid.uuid4().hex[:12]}"), list[Actor[T]]()
    try:
        for i in range(count):
            actors.append(executor.start(kind, f"player{i}", *arguments, anywhere=True))
        yield executor, actors
    finally:
        for actor in actors:
            executor.stop(actor)
        release_ray()


def look_up(name: str, role: str) -> Actor[Any]:
    """Return the actor with this role in the ring ``name``.

    Raises:
        ValueError: there is none.
    """
    try:
        return RayActor(ray.get_actor(f"{name}/{role}"))
    except ValueError:
        return Hosted(ray.get_actor(f"{name}/{HOST}"), role)
