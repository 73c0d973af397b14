"""The preference store: labels and fragments on disk, durable when a commit returns.

Folder layout (segments and packs are immutable once named, and open with pyarrow, pandas, polars or duckdb)::

    store.json                     format and version
    labels/NUMBER-HASH.parquet     a segment: the events of one commit, or of several compacted ones; has page checksums
    clips/NUMBER-HASH.arrow        a pack: Arrow IPC, one row per fragment that a commit added
    annotators.json                annotator weights, if any were set; rewritten on each change
    quarantine/                    damaged files that the writer moved out of the way

``NUMBER`` is the sequence number of the last event written so far; ``HASH`` verifies the content. Fragments are written before the
labels that refer to them. A killed process leaves complete files and possibly a ``.tmp-`` file, which readers ignore. docs/store.md
describes the columns, and how to read them without this library.
"""

from rlhf_ray.store.packs import DamagedFragmentError, Snapshot
from rlhf_ray.store.reading import Tally
from rlhf_ray.store.schema import LABELS, Event
from rlhf_ray.store.store import PreferenceStore

__all__ = ["LABELS", "DamagedFragmentError", "Event", "PreferenceStore", "Snapshot", "Tally"]
