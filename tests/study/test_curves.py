"""Curves as SVG: each number of the data, read back from the picture with the help of its axes alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.study.curves import COLOURS, MUTED, CurvePanel, draw_curves, thin, ticks
from tests.study.parts import Drawn, number

STEPS = np.linspace(1000, 99_000, 30)


def test_curves_can_be_read_by_their_axes() -> None:
    rising, falling = np.stack([STEPS, STEPS**2 / 1e12], 1), np.stack([STEPS, 3000 - STEPS / 12], 1)
    gap = falling.copy()
    gap[12, 1] = np.nan
    top = CurvePanel("small", {"": rising})
    drawn = Drawn(draw_curves([top, CurvePanel("large", {"a": falling, "b<i>\0": gap}, {"line": 500.0}, first=1)]))
    x = drawn.axis(0)
    small, large = (drawn.axis(1, lambda at, dot=dot: at != "0" and ("." in at) == dot) for dot in (True, False))
    for colour, panel, points in ((0, small, rising), (1, large, falling), (2, large, gap[np.isfinite(gap[:, 1])])):
        (line,) = drawn.lines[COLOURS[colour]]
        np.testing.assert_allclose(x(line[:, 0]), points[:, 0], atol=30)
        np.testing.assert_allclose(panel(line[:, 1]), points[:, 1], atol=1e-3 * np.ptp(points[:, 1]))
        assert line.tolist() == drawn.dots[COLOURS[colour]]
    assert [path.count("M") for path in drawn.paths[COLOURS[2]]] == [2]  # nothing joins the ends of a gap
    levels = [large(line[0, 1]) for line in drawn.lines[MUTED] if line[0, 1] == line[1, 1]]
    assert pytest.approx(500, abs=5) in levels
    assert {"line", "environment steps"} <= set(drawn.texts)
    assert {"small", "large— a— b<i>\N{REPLACEMENT CHARACTER}"} <= set(drawn.texts)


@given(st.floats(-1e7, 1e7), st.floats(1e-4, 1e8), st.integers(2, 8), st.booleans())
def test_numbers_of_an_axis_say_where_they_are(low: float, size: float, most: int, whole: bool) -> None:
    numbers, texts = ticks(low, low + size, most, whole)
    assert len(numbers) <= most + 1
    assert all(low - 1e-6 * size <= one <= low + 1.000001 * size for one in numbers)
    assert len(texts) == len(set(texts))
    if len(numbers) > 1:
        np.testing.assert_allclose([number(text) for text in texts], numbers, atol=0.01 * (numbers[1] - numbers[0]))
        assert not whole or (numbers == np.round(numbers)).all()


def test_more_points_than_can_be_seen_keep_their_outline() -> None:
    x, y = np.linspace(0, 100, 50_000), np.random.default_rng(0).normal(size=50_000)
    thinned, left = thin(x, y)
    assert len(left) <= 402
    assert (np.diff(thinned) >= 0).all()
    for at in range(200):
        inside, kept = np.floor(2 * x) == at, np.floor(2 * thinned) == at
        assert (y[inside].min(), y[inside].max()) == (left[kept].min(), left[kept].max())


def test_many_curves_are_named_below_and_a_marked_one_is_on_top() -> None:
    lines = {f"run {i}": np.array([[0, i], [1, i + 1]]) for i in range(10)}
    drawn = Drawn(draw_curves([CurvePanel("return", lines)], "passes"))
    assert [name for name in drawn.texts if "run" in name] == [f"{'—' if i < 8 else '– –'} run {i}" for i in range(10)]
    assert len(drawn.lines[COLOURS[0]]) == 2
    marked = Drawn(draw_curves([CurvePanel("return", lines, marked="run 3")], "passes"))
    assert not any("run" in name for name in marked.texts)
    assert list(marked.dots)[-1] == "#ee7733"
