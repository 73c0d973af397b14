"""When a fit to recorded rewards is told that one kind of them is rare."""

import dataclasses
import math

import pytest

from rlhf_ray.reward.supervised import SupervisedReport
from rlhf_ray.runs.supervised import supervised_section

NOT_LEARNED = SupervisedReport(
    objective="reward", balance="none", train_steps=1_000, test_steps=100, train_episodes=10, test_episodes=1,
    trained_steps=1_000, train_nonzero=500, test_nonzero=50, gradient_steps=10, seconds=1.0, train_error=1.0,
    test_error=1.0, constant_error=1.0, balanced_error=1.0, balanced_constant_error=1.0, balanced_auc=0.5,
    correlation=0.0, rank_correlation=0.0, levels=(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("nonzero", "said"),
    [
        (99, "Only 9.9 % of the training rewards are nonzero"),
        (901, "Only 9.9 % of the training rewards are zero"),
        (100, None),
        (900, None),
        (0, None),
        (1_000, None),
    ],
)
def test_the_rarer_kind_of_reward_is_named_below_a_tenth(nonzero: int, said: str | None) -> None:
    report = dataclasses.replace(NOT_LEARNED, train_nonzero=nonzero)
    (check,) = supervised_section(report).checks
    assert check.passed is False
    assert "hardly better than a constant" in check.remedy
    assert said in check.remedy if said else "Only" not in check.remedy
    balanced = supervised_section(dataclasses.replace(report, balance="sampler")).checks[0]
    assert "Only" not in balanced.remedy
    equal = supervised_section(dataclasses.replace(report, constant_error=0.0, balanced_auc=math.nan)).checks[0]
    assert equal.passed is None
    assert "All test rewards are equal" in equal.remedy
