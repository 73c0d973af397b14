"""RayExecutor: the ring's actors as processes in Ray."""

from __future__ import annotations

import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import ray

from rlhf_ray.actors.cluster import hold_ray, release_ray
from rlhf_ray.actors.executor import HERE, A, Actor, Executor, Ref, T
from rlhf_ray.actors.placement import CPUS, HOST, of_ring, one_machine


class RayActor(Actor[A]):
    """An actor in a Ray process of its own."""

    def __init__(self, handle: Any):
        self.handle = handle

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        call = getattr(self.handle, method)
        return (call if returns == 1 else call.options(num_returns=returns)).remote(*arguments, **keywords)


AT_ONCE = 100
"""Maximum number of concurrent calls to an actor with coroutine methods; plain methods run one at a time."""


class ActorHost:
    """Creates each actor on its first call, in the concurrency group named after its role.

    When the process dies, all actors are created again, like actors in their own processes.

    Args:
        makers: a factory per role.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]]):
        self._makers = makers
        self._actors: dict[str, Any] = {}

    async def call(self, role: str, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the actor with this role. Supports Ray's ``__ray_ready__`` and ``__ray_call__``."""
        if role not in self._actors:
            self._actors[role] = self._makers[role]()
        actor = self._actors[role]
        if method == "__ray_ready__":
            return True
        if method == "__ray_call__":
            function, *arguments_of = arguments
            return function(actor, *arguments_of, **keywords)
        result = getattr(actor, method)(*arguments, **keywords)
        return await result if inspect.isawaitable(result) else result


class Hosted(Actor[A]):
    """The handle of an actor in an `ActorHost`."""

    def __init__(self, host: Any, role: str):
        self.host, self.role = host, role

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        call = self.host.call.options(concurrency_group=self.role, num_returns=returns)
        return call.remote(self.role, method, *arguments, **keywords)


class RayExecutor(Executor):
    """Ray actors that restart automatically, named ``NAME/ROLE`` in the caller's namespace.

    On a single machine, some of them share the process of an `ActorHost`.
    """

    here = False

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
        """Starts the host and its actors."""
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
        return functools.partial(look_up, self.name, role)

    def get(self, reference: Ref[T], timeout: float | None = None) -> T:
        """Works in threads of asynchronous actors too, where Ray warns about `ray.get`."""
        future: Future[T] = reference.future()  # type: ignore[attr-defined]
        return future.result(timeout)

    def put(self, value: T) -> Ref[T]:
        reference: Ref[T] = ray.put(value)
        return reference

    def ready(self, reference: Ref[Any]) -> bool:
        return bool(ray.wait([reference], timeout=0, fetch_local=False)[0])

    def keep(self, reference: Ref[Any]) -> None:
        ray.wait([reference], timeout=0, fetch_local=True)

    def stop(self, actor: Actor[Any]) -> None:
        """A shared process ends with its last actor."""
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


def executor_of(name: str) -> Executor:
    """Return the executor of the ring with this name: this process's, or Ray's."""
    return HERE.get(name) or RayExecutor(name)
