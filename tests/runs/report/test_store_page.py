"""`rlhf-ray store show`: stored comparisons are replayed on a page."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from rlhf_ray.cli.store import run
from rlhf_ray.settings import SettingError
from rlhf_ray.store import PreferenceStore
from tests.made_up import CHOICES, IMAGES, some_comparisons


@pytest.mark.parametrize("spaces", [{}, {"observations": IMAGES, "actions": CHOICES}], ids=["vectors", "images"])
def test_the_latest_comparisons_are_replayed(tmp_path: Path, spaces: Any) -> None:
    batch = some_comparisons(6, 4, **spaces)
    store = PreferenceStore(tmp_path / "store")
    store.commit(batch, annotator="<Anna>")
    run(["show", str(tmp_path / "store"), str(tmp_path / "page.html"), "--comparisons", "3"])
    page = (tmp_path / "page.html").read_text()
    assert re.findall(r'data-comparison="(\d+)"', page) == ["6", "5", "4"]
    answers = re.findall(r'data-side="left" data-answer="(\w+)"', page)
    assert answers == [{1.0: "preferred", 0.0: "other", 0.5: "tie"}[p] for p in batch.preferences[:2:-1].tolist()]
    assert "&lt;Anna&gt;" in page
    assert "<Anna>" not in page
    films = re.findall(r'src="data:image/webp;base64,([^"]+)"', page)
    if not spaces:
        assert not films
        assert page.count("<svg") == 6
        return
    with Image.open(io.BytesIO(base64.b64decode(films[1]))) as film:  # the right one of the newest
        frames = np.stack([np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(film)])
    np.testing.assert_array_equal(frames, batch.pairs.right.observations[5])


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    PreferenceStore(tmp_path / "store")
    with pytest.raises(SettingError, match="no comparisons to show"):
        run(["show", str(tmp_path / "store"), str(tmp_path / "page.html")])
    with pytest.raises(SettingError, match=r"must end in .html"):
        run(["show", str(tmp_path / "store"), str(tmp_path / "page")])
