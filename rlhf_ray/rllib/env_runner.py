"""EnvRunner: RLlib's, which says at once when an environment is at fault, where RLlib would restart it again and again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rlhf_ray.data.errors import Fault, FaultyEnvironmentError, LostClipsError
from rlhf_ray.data.failures import cause, debugging
from rlhf_ray.rllib.rllib_internals import seeded_without_compiler, tell_cluster, told_cluster

FAULTS = {kind.__name__: kind for kind in (FaultyEnvironmentError, LostClipsError)}
"""What env runners report, by name."""


class EnvRunner(SingleAgentEnvRunner):  # type: ignore[misc]
    """RLlib's env runner. Its config has a ``faults`` under which it reports (see `raise_fault`)."""

    def __init__(self, *arguments: Any, **keywords: Any):
        with seeded_without_compiler():
            super().__init__(*arguments, **keywords)

    def apply(self, func: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """See RLlib, which after any exception sleeps for a minute and has this process begin anew."""
        fault: Fault | None = None

        def watched(*arguments: Any, **keywords: Any) -> Any:
            nonlocal fault
            try:
                return func(*arguments, **keywords)
            except Exception as error:
                if not isinstance(found := cause(error), Fault):
                    raise
                fault = found

        result = super().apply(watched, *arguments, **keywords)
        if fault is not None:
            tell_cluster(self.config.faults, json.dumps([type(fault).__name__, str(fault)]))
            raise fault
        return result


def raise_fault(faults: str) -> None:
    """Raise what an env runner has reported under ``faults``, if one has.

    Raises:
        FaultyEnvironmentError: its environment is at fault.
        LostClipsError: what it sampled could not be used.
    """
    if (said := told_cluster(faults)) is not None:
        kind, text = json.loads(said)
        raise FAULTS[kind](text)


class NoFaults(logging.Filter):
    """Drops the traces that RLlib logs of an environment's fault, which is raised as well and said once, in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        error = (record.exc_info and record.exc_info[1]) or record.msg
        of_fault = isinstance(error, BaseException) and isinstance(cause(error), Fault)
        return debugging() or not (of_fault or any(name in record.getMessage() for name in FAULTS))
