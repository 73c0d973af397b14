"""A page that replays a preference store's latest comparisons."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.report.steps.fragments import show_pairs
from rlhf_ray.store.store import PreferenceStore
from rlhf_ray.study.page import Screen, render


def write_store_page(store: PreferenceStore, out: Path, count: int) -> int:
    """Write the page ``out``: the latest ``count`` comparisons, as films or plots, and their answers.

    Returns:
        The number of comparisons on the page.

    Raises:
        SettingError: the store has no comparisons.
    """
    snapshot = store.snapshot()
    if not len(snapshot):
        raise SettingError(f"{store.path} has no comparisons to show; collect some first.")
    first = max(0, len(snapshot) - count)
    shown = snapshot.gather(slice(first, None))
    _, pictures = show_pairs(shown, None, np.arange(len(shown))[::-1], first + 1)
    under = f"The latest {len(pictures)} of {len(snapshot)} comparisons, the newest first."
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"store": str(store.path), "comparisons": len(snapshot), "shown": len(pictures)}
    write_text(out, render(about, [], Screen("stored comparisons", str(store.path), under, pictures=pictures)))
    return len(pictures)
