"""ActorHost: runs several actors in one process, with a thread each. Separate processes would cost more than their work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rlhf_ray.actors.handles import A, Actor

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
    """The handle of an actor in an `ActorHost`.

    Args:
        host: Ray's handle of the `ActorHost`.
        role: the actor's role.
    """

    def __init__(self, host: Any, role: str):
        self.host, self.role = host, role

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        """See `Actor.send`."""
        call = self.host.call.options(concurrency_group=self.role, num_returns=returns)
        return call.remote(self.role, method, *arguments, **keywords)
