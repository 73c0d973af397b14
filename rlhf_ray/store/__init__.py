"""The preference store: labels and clips on disk, durable when a commit returns.

Layout of the folder (files in folders are immutable once they have their names, and open with pyarrow, pandas, polars or duckdb)::

    store.json                     format and version
    labels/NUMBER-HASH.parquet     a segment: the events of one commit, or of many that were compacted; page checksums
    clips/NUMBER-HASH.arrow        a pack: Arrow IPC, the clips that came with a commit and were not stored before, one row each
    annotators.json                what each annotator's answers count, where that was decided; written anew each time
    quarantine/                    damaged files that the writer moved out of the way

``NUMBER`` is the sequence number of the last event written so far, ``HASH`` tells of the content whether it is whole. Clips
are written before the labels that name them. A process that is killed leaves whole files and perhaps a ``.tmp-`` file, which
nobody reads. docs/store.md has the columns, and how to open them without this library.
"""

from rlhf_ray.store.clips import DamagedClipError
from rlhf_ray.store.schema import LABELS, Event
from rlhf_ray.store.snapshot import Snapshot
from rlhf_ray.store.store import PreferenceStore, Tally

__all__ = ["LABELS", "DamagedClipError", "Event", "PreferenceStore", "Snapshot", "Tally"]
