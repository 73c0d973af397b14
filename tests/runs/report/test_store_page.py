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
    shown = re.findall(r"<figcaption>\s*Comparison (\d+): &lt;Anna&gt; (\w+ \w+ \w+)", page)
    answers = {1.0: "prefers the left", 0.0: "prefers the right", 0.5: "considers both equally"}
    assert shown == [(str(n), answers[p]) for n, p in zip((6, 5, 4), batch.preferences[:2:-1].tolist(), strict=True)]
    assert "&lt;Anna&gt;" in page
    assert "<Anna>" not in page
    films = re.findall(r'src="data:image/webp;base64,([^"]+)"', page)
    if not spaces:
        assert not films
        assert page.count("data:image/png") == 3
        return
    with Image.open(io.BytesIO(base64.b64decode(films[0]))) as film:  # of the newest
        frames = np.stack([np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(film)])
    right = frames[:, 2:-2:4, 86:-2:4]  # beside the left one, with edges, and four times as large
    np.testing.assert_array_equal(right, batch.pairs.right.observations[5])


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    PreferenceStore(tmp_path / "store")
    with pytest.raises(SettingError, match="no comparisons to show"):
        run(["show", str(tmp_path / "store"), str(tmp_path / "page.html")])
    with pytest.raises(SettingError, match=r"must end in .html"):
        run(["show", str(tmp_path / "store"), str(tmp_path / "page")])
