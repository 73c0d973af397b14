"""ActorHost: several actors in one process, each with a thread of its own, where a process each would cost more than their work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

AT_ONCE = 100
"""Calls of one of these actors that may be under way where its methods are coroutines; of plain methods one call runs at a time."""


class ActorHost:
    """Makes each actor when it is first called, in the concurrency group that has the name of its role.

    When the process dies all are made anew, as they would be in processes of their own.

    Args:
        makers: of each role, what makes the actor.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]]):
        self._makers = makers
        self._actors: dict[str, Any] = {}

    async def call(self, role: str, method: str, *arguments: Any, **keywords: Any) -> Any:
        """What a method of the actor with this role returns. Ray's own ``__ray_ready__`` and ``__ray_call__`` are there too."""
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


class Hosted:
    """The handle of one of them, called as Ray's are: ``actor.method.remote(…)``.

    Args:
        host: Ray's handle of the `ActorHost`.
        role: which of its actors.
    """

    def __init__(self, host: Any, role: str):
        self.host, self.role = host, role

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__") and method not in ("__len__", "__ray_ready__", "__ray_call__"):
            raise AttributeError(method)  # what Python looks for by itself, to copy and pickle
        return _Method(self, method)


class _Method:
    def __init__(self, actor: Hosted, name: str, **options: Any):
        self._actor, self._name, self._options = actor, name, options

    def options(self, **options: Any) -> _Method:
        return _Method(self._actor, self._name, **options)

    def remote(self, *arguments: Any, **keywords: Any) -> Any:
        call = self._actor.host.call.options(concurrency_group=self._actor.role, **self._options)
        return call.remote(self._actor.role, self._name, *arguments, **keywords)
