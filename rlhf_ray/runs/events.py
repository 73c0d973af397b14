"""Events: numbers as TensorBoard reads them, each write whole or not there at all."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_ray.data.atomic import append
from rlhf_ray.data.metrics import described


class EventFile:
    """An event file of TensorBoard's.

    tensorboardX has a writer too, a thread that ends at the first full disk: from then on its queue fills up, and who writes waits
    for ever.

    Args:
        folder: of the event files; made where it is not there.
        purge_step: TensorBoard forgets what it has read of this step and later ones, in other files of the folder.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, purge_step: int | None = None):
        from tensorboardX.proto import event_pb2  # imports torch: seconds, for commands that write nothing

        self._protocol: Any = event_pb2
        self._described: set[str] = set()
        folder.mkdir(exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=purge_step, session_log=log)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add the ``values`` of ``step``. TensorBoard shows beside each what the metric is.

        Raises:
            OSError: they cannot be written; the file is as before.
        """
        summary = self._protocol.Event().summary
        for name, value in values.items():
            added = summary.value.add(tag=name, simple_value=value)
            if name not in self._described:  # TensorBoard reads it with the first value
                added.metadata.summary_description = described(name)
        self._write(step=step, summary=summary)
        self._described |= set(values)

    def _write(self, **fields: Any) -> None:
        from tensorboardX.record_writer import masked_crc32c

        data = self._protocol.Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
        append(self._path, b"".join((length, next(checks), data, next(checks))))
