"""The pages of results have the tables that benchmarks/results give; the interval of an interquartile mean is a bootstrap's."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import method_tables, page_tables, speed, tables


def test_the_pages_show_what_was_measured():
    archive, pages = method_tables.PAGE.read_text(), [page.read_text() for page in page_tables.PAGES]
    assert archive.count("<!-- table: ") == len(method_tables.LAYOUTS)
    assert sum(page.count("<!-- table: ") for page in pages) == len(page_tables.PARTS)
    assert tables.filled(archive, method_tables.markdown) == archive, "run benchmarks/method_tables.py"
    assert [tables.filled(page, page_tables.markdown) for page in pages] == pages, "run benchmarks/page_tables.py"
    assert speed.filled(archive) == archive, "run benchmarks/speed.py --page"
    assert archive.count("<!-- speed -->") == 1
    assert all(speed.kept(name) for name in ("sampling", "ppo_update", "reward_training"))


def test_the_page_of_this_version_is_short_whole_and_of_one_commit():
    assert len(page_tables.PAGE.read_text().splitlines()) <= 200
    assert page_tables.commit(page_tables.table().cells)
    assert page_tables.commit(page_tables.audits.rows())
    assert page_tables.table().missing() == 0
    assert len(page_tables.audited()) == 60
    with pytest.raises(ValueError, match="one version only, not of one, other"):
        page_tables.commit({"a": {"commit": "one"}, "b": {"commit": "other"}})


def test_an_interquartile_mean_leaves_out_a_quarter_on_each_side():
    values = [3.0, 100.0, 1.0, 2.0, -50.0]
    found = tables.estimate(values)
    assert found.value == 2.0  # of five values, the middle three count
    other = stats.bootstrap((values,), lambda v, axis: stats.trim_mean(v, 0.25, axis=axis), method="percentile", rng=1)
    np.testing.assert_allclose((found.low, found.high), other.confidence_interval, rtol=0.1)


def test_a_table_of_every_seed_tells_the_worst_and_how_many_failed(monkeypatch):
    class Made:
        tasks = ("task",)
        variants = staticmethod(lambda task: ["sse"])
        normalised = staticmethod(lambda task, variant: [1.0] * 18 + [0.89, 0.12])
        returns = staticmethod(lambda task, variant: [500.0] * 18 + [447.0, 80.0])
        random = staticmethod(lambda task: 22.0)

    (row,) = method_tables.by_seed(Made())[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["task", "sse", "20"]
    assert cells[3].startswith("**1.00 (")  # which hides both
    assert cells[4:7] == ["0.12", "2", "80.0"]


def test_a_table_of_successes_tells_those_of_each_seed_beside_the_true_reward_s(monkeypatch):
    task = "envpool/MetaWorld/WindowOpen-v3"
    rates = {"metaworld/{}/400 labels/201": (0.5, 600.0), "metaworld/{}/400 labels/202": (0.75, 850.0)}
    rates |= {"reference/{}/true reward/200": (1.0, 1100.0), "metaworld/{}/other labels/200": (0.0, 0.0)}
    cells = {
        key.format(task): {"success_rate": rate, "return": value, "random": 100.0}
        for key, (rate, value) in rates.items()
    }
    monkeypatch.setattr(tables, "kept", lambda name: cells)
    (row,) = method_tables.by_success(method_tables.table_of("metaworld"))[2:]
    found = [cell.strip() for cell in row.strip("|").split("|")]
    assert found[:3] == [task, "400 labels", "2"]
    assert found[3].startswith("**0.62 (")  # (0.5 + 0.75) / 2
    assert found[4] == "1.00"
    assert found[5].startswith("0.62 (")  # (725 - 100) / (1100 - 100)


def test_a_difference_draws_within_each_task():
    rng = np.random.default_rng(0)
    here, there = rng.normal(0, 1e-3, 5), rng.normal(100, 1e-3, 5)  # two tasks far apart
    found = tables.difference([here + 0.5, there + 0.5], [here, there])
    assert abs(found.value - 0.5) < 0.01
    assert found.high - found.low < 0.1  # drawn from all ten at once, it would be wide


def test_one_seed_has_no_interval():
    assert tables.estimate([3.0]).text() == "3.00"
    assert tables.estimate([3.0], [4.0]).text() == "3.50"  # one seed of each of two tasks
    assert tables.difference([[1.0, 2.0, 3.0]], [[1.0]]).text(sign=True) == "+1.00"
    assert " to " in tables.estimate([3.0, 4.0]).text()
    assert speed.shown(speed.Ratio("fit", "theirs", 2.0, 2.0, 2.0)) == "**2.00**"
