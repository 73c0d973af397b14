import statistics

import pytest

from rlhf_ray.measure.intervals import mean_interval


@pytest.mark.parametrize(
    ("count", "quantile"), [(2, 12.706), (5, 2.776), (10, 2.262), (31, 2.042)]
)  # any table of Student's t
def test_the_interval_is_students(count: int, quantile: float) -> None:
    values = [float(i * i) for i in range(count)]
    low, high = mean_interval(values) or (0, 0)
    half = quantile * statistics.stdev(values) / count**0.5
    assert low == pytest.approx(statistics.mean(values) - half, rel=1e-3, abs=1e-3 * half)
    assert high == pytest.approx(statistics.mean(values) + half, rel=1e-3)


def test_one_value_has_none_and_equal_ones_no_width() -> None:
    assert mean_interval([3.0]) is None
    assert mean_interval([3.0, 3.0]) == [3.0, 3.0]
