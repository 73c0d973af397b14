"""Actor: the typed handle of an actor. A type checker and "go to definition" find the method behind each call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

A = TypeVar("A", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T_co = TypeVar("T_co", covariant=True)


class Ref(Protocol[T_co]):
    """A reference to the result of a call: await it, or pass it (`passed`) to a call of another actor, which gets the value."""

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait for the value."""
        ...


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

    @overload
    def split(
        self,
        returns: Literal[2],
        method: Callable[Concatenate[A, P], tuple[T1, T2]],
        *arguments: P.args,
        **keywords: P.kwargs,
    ) -> tuple[Ref[T1], Ref[T2]]: ...
    @overload
    def split(
        self,
        returns: Literal[3],
        method: Callable[Concatenate[A, P], tuple[T1, T2, T3]],
        *arguments: P.args,
        **keywords: P.kwargs,
    ) -> tuple[Ref[T1], Ref[T2], Ref[T3]]: ...
    @overload
    def split(
        self,
        returns: Literal[4],
        method: Callable[Concatenate[A, P], tuple[T1, T2, T3, T4]],
        *arguments: P.args,
        **keywords: P.kwargs,
    ) -> tuple[Ref[T1], Ref[T2], Ref[T3], Ref[T4]]: ...
    def split(self, returns: int, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call ``method``, which returns a tuple. Return a reference to each part: large parts need not come to the caller."""
        return self.send(method.__name__, arguments, keywords, returns)

    def ready(self) -> Ref[bool]:
        """Return a reference that is ready once the actor is made."""
        reference: Ref[bool] = self.send("__ray_ready__", (), {})
        return reference

    def run(self, function: Callable[[Any], T]) -> Ref[T]:
        """Call ``function`` with the actor's object, in the actor's process."""
        reference: Ref[T] = self.send("__ray_call__", (function,), {})
        return reference


class RayActor(Actor[A]):
    """An actor in a Ray process of its own.

    Args:
        handle: Ray's handle.
    """

    def __init__(self, handle: Any):
        self.handle = handle

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        """See `Actor.send`."""
        call = getattr(self.handle, method)
        return (call if returns == 1 else call.options(num_returns=returns)).remote(*arguments, **keywords)
