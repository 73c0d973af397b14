"""What is told of a fit to recorded rewards: `rlhf_ray.reward.supervised.SupervisedReport` in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlhf_ray.reward.supervised import SupervisedReport
from rlhf_ray.study.section import Section, Statement, Table
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

RARE = 0.1
"""Share of training rewards below which a kind of them is rare."""


def supervised_section(report: SupervisedReport) -> Section:
    """Return the section of a fit."""
    return WORDS.section(list(_statements(report)), (), list(_tables(report)), (), report)


def _statements(report: SupervisedReport) -> Iterator[Statement]:
    two_kinds = not math.isnan(report.balanced_auc)
    rarer = min(report.train_nonzero, report.train_steps - report.train_nonzero)
    rare = rarer / report.train_steps if report.balance == "none" and 0 < rarer < RARE * report.train_steps else None
    if report.constant_error == 0 and not two_kinds:
        key = "all_equal"
    elif report.learned:
        key = "learned"
    else:
        key = "off_in_size" if report.ranks_well else "not_learned"
    kind = "nonzero" if rarer == report.train_nonzero else "zero"
    yield WORDS.statement(key, report=report, two_kinds=two_kinds, rare=rare, kind=kind)
    if report.adversarial is not None:
        yield WORDS.statement("adversarial", adversarial=report.adversarial)


def _tables(report: SupervisedReport) -> Iterator[Table]:
    rows = [
        ("steps", report.train_steps, report.test_steps),
        ("steps with a nonzero reward", report.train_nonzero, report.test_nonzero),
        ("episodes", report.train_episodes, report.test_episodes),
        ("mean squared error", report.train_error, report.test_error),
        ("… of a constant", None, report.constant_error),
        ("balanced error", None, report.balanced_error),
        ("… of the best constant", None, report.balanced_constant_error),
        ("balanced AUC, zero or not", None, report.balanced_auc),
        ("correlation", None, report.correlation),
        ("rank correlation", None, report.rank_correlation),
    ]
    yield WORDS.table("figures", rows, report=report)
    levels = [(level.label, level.train, level.test, level.predicted, level.spread) for level in report.levels]
    yield WORDS.table("levels", levels)
