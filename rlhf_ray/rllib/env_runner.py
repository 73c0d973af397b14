"""EnvRunner: RLlib's, which says at once when an environment is at fault, where RLlib would restart it again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.data.failures import cause, debugging
from rlhf_ray.rllib.rllib_internals import seeded_without_compiler

NAMESPACE = b"rlhf_ray"
"""Of the cluster's key-value store, where env runners leave what is wrong with their environment."""


class EnvRunner(SingleAgentEnvRunner):  # type: ignore[misc]
    """RLlib's env runner. Its config has a ``faults`` under which it reports (see `raise_fault`)."""

    def __init__(self, *arguments: Any, **keywords: Any):
        with seeded_without_compiler():
            super().__init__(*arguments, **keywords)

    def apply(self, func: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """See RLlib, which after any exception sleeps for a minute and has this process begin anew."""
        fault: FaultyEnvironmentError | None = None

        def watched(*arguments: Any, **keywords: Any) -> Any:
            nonlocal fault
            try:
                return func(*arguments, **keywords)
            except Exception as error:
                if not isinstance(found := cause(error), FaultyEnvironmentError):
                    raise
                fault = found

        result = super().apply(watched, *arguments, **keywords)
        if fault is not None:
            _internal_kv_put(self.config.faults.encode(), str(fault).encode(), namespace=NAMESPACE)
            raise fault
        return result


def raise_fault(faults: str) -> None:
    """Raise what an env runner has reported under ``faults``, if one has.

    Raises:
        FaultyEnvironmentError: its environment is at fault.
    """
    if (said := _internal_kv_get(faults.encode(), namespace=NAMESPACE)) is not None:
        _internal_kv_del(faults.encode(), namespace=NAMESPACE)
        raise FaultyEnvironmentError(said.decode())


class NoFaults(logging.Filter):
    """Drops the traces that RLlib logs of an environment's fault, which is raised as well and said once, in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        error = (record.exc_info and record.exc_info[1]) or record.msg
        of_fault = isinstance(error, BaseException) and isinstance(cause(error), FaultyEnvironmentError)
        return debugging() or not (of_fault or FaultyEnvironmentError.__name__ in record.getMessage())
