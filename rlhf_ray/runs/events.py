"""TensorBoard event files with atomic writes."""

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
    """A TensorBoard event file.

    Replaces tensorboardX's writer, whose thread dies on the first full disk; after that, writes block forever on a full queue.

    Args:
        folder: folder of the event files; created if it does not exist.
        purge_step: TensorBoard drops events of this step and later from other files in the folder.

    Raises:
        OSError: the file can't be written.
    """

    def __init__(self, folder: Path, purge_step: int | None = None):
        from tensorboardX.proto import event_pb2  # imports torch, which takes seconds; some commands write nothing

        self._protocol: Any = event_pb2
        self._described: set[str] = set()
        folder.mkdir(exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=purge_step, session_log=log)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add the ``values`` of ``step``, with the metrics' descriptions for TensorBoard.

        Raises:
            OSError: the values can't be written; the file is unchanged.
        """
        summary = self._protocol.Event().summary
        for name, value in values.items():
            added = summary.value.add(tag=name, simple_value=value)
            if name not in self._described:  # TensorBoard reads the description from the first value
                added.metadata.summary_description = described(name)
        self._write(step=step, summary=summary)
        self._described |= set(values)

    def _write(self, **fields: Any) -> None:
        from tensorboardX.record_writer import masked_crc32c

        data = self._protocol.Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
        append(self._path, b"".join((length, next(checks), data, next(checks))))
