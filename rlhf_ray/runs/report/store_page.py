"""A page that replays a preference store's latest comparisons."""

from __future__ import annotations

from pathlib import Path

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.report.clips import replay
from rlhf_ray.runs.report.pages import render
from rlhf_ray.store.store import PreferenceStore


def write_store_page(store: PreferenceStore, out: Path, count: int) -> int:
    """Write the page ``out``: the latest ``count`` comparisons, as films or plots, and their answers.

    Returns:
        The number of comparisons on the page.

    Raises:
        SettingError: the store has none.
    """
    snapshot = store.snapshot()
    if not len(snapshot):
        raise SettingError(f"{store.path} has no comparisons to show; collect some first.")
    first = max(0, len(snapshot) - count)
    pairs = replay(snapshot.gather(slice(first, None)), first + 1)
    shown = list(zip(pairs, snapshot.annotators[first:], strict=True))[::-1]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, render("store.html", where=str(store.path), pairs=shown, total=len(snapshot)))
    return len(pairs)
