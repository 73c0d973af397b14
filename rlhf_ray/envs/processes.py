"""Copies of a Python environment in processes of their own: gymnasium's AsyncVectorEnv; and one such copy as an environment."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.envs.checked import RAISED, fault
from rlhf_ray.envs.first_of import FirstOf

_TOLD = r".*ERROR: (Received the following error|Traceback|Raising the last)"
"""Gymnasium's warnings about an error that is raised anyway."""


class ProcessesVectorEnv(AsyncVectorEnv):
    """Copies of an environment, each in a process of its own; next-step autoreset.

    Observations, rewards and infos are those of a `SyncVectorEnv`, unless the environment draws from Python's, numpy's or torch's
    global generator, which each process has.

    Args:
        name: the environment's name in errors.
        make: makes a copy.
        num_envs: number of copies.
        like: has the copies' spaces, ``metadata`` and ``render_mode``, where this process can't make one to see them.

    Raises:
        FaultyEnvironmentError: also from ``reset`` and ``step``: a copy raises, or its process ends.
    """

    def __init__(self, name: str, make: Callable[[], gym.Env[Any, Any]], num_envs: int, like: Any = None):
        self._called = name
        warnings.filterwarnings("ignore", message=_TOLD)
        with self._faults("making a copy"), _without_script():
            super().__init__([_Elsewhere(make, like)] * num_envs, context="spawn")

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        with self._faults("reset()"):
            return super().reset(**arguments)

    def step(self, actions: Any) -> Any:
        """See gymnasium."""
        with self._faults("step()"):
            return super().step(actions)

    @contextlib.contextmanager
    def _faults(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError) as error:
            self.closed = True
            for process in getattr(self, "processes", ()):
                process.terminate()
            raise FaultyEnvironmentError(
                f"Environment {self._called}: the process of a copy has ended: the environment left it, somebody killed it, or the "
                "machine is short of memory (fewer copies take less)."
            ) from error
        except RAISED as error:
            raise fault(f"Environment {self._called}: {doing}", error) from error


class EnvApart(FirstOf):
    """An environment in a process of its own, for simulators of which a process can have only one.

    Its methods are gymnasium's; other ones and attributes stay there.

    Args:
        name, make, like: see `ProcessesVectorEnv`.
        spec: what it is registered as.

    Raises:
        FaultyEnvironmentError: it can't be made there; also from its methods.
    """

    def __init__(self, name: str, make: Callable[[], gym.Env[Any, Any]], like: Any, spec: Any):
        super().__init__(ProcessesVectorEnv(name, make, 1, like))
        self.spec = spec


class _Elsewhere:
    """Makes a copy, without ``like`` here too; unpickled in another process, always."""

    def __init__(self, make: Callable[[], Any], like: Any):
        self.make, self.like = make, like

    def __call__(self) -> Any:
        return self.make() if self.like is None else self.like

    def __reduce__(self) -> Any:
        return functools.partial, (_alone, self.make)


def _alone(make: Callable[[], Any]) -> Any:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    return make()


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Keep processes that start from running this one's script again, which needs no ``if __name__ == "__main__"`` so."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
