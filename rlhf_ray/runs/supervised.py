"""A fit to recorded rewards as checks and tables: `rlhf_ray.reward.supervised.SupervisedReport` for people."""

from __future__ import annotations

import math

from rlhf_ray.reward.supervised import SupervisedReport
from rlhf_ray.study.section import Check, Section, Table, figure

RARE = 0.1
"""Share of training rewards below which a kind of them is rare."""


def supervised_section(report: SupervisedReport) -> Section:
    """Return the section of a fit: its first check says whether anything was learned."""
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
    caption = f"{report.objective[:1].upper()}{report.objective[1:]} of the rewards"
    levels = [(level.label, level.train, level.test, level.predicted, level.spread) for level in report.levels]
    columns = ["true reward, or class", "training steps", "test steps", "mean prediction", "std"]
    tables = [
        Table(["", "training part", "test part"], rows, caption),
        Table(columns, levels, "Calibration on the test part"),
    ]
    notes = []
    if (made := report.adversarial) is not None:
        tables.append(
            Table(
                ["", "before", "after"],
                [
                    ("score of new visualisations", made.fresh_before, made.fresh_after),
                    ("score of held-out ones", made.held_out_before, made.held_out_after),
                    ("balanced AUC", made.auc_before, made.auc_after),
                    ("test error", made.error_before, made.error_after),
                ],
                "Adversarial training",
            )
        )
        notes.append(
            f"Adversarial training, {made.rounds} rounds: {made.trained} visualisations as reward {figure(made.nonsense_reward)}."
        )
    return Section("supervised", "A reward model of recorded rewards", [_learned(report)], tables=tables, notes=notes)


def _learned(report: SupervisedReport) -> Check:
    bound = f"< {figure(report.constant_error)}, of a constant"
    if report.constant_error == 0 and math.isnan(report.balanced_auc):
        remedy = "All test rewards are equal, so this test part can't tell whether anything was learned."
        return Check("test error", None, report.test_error, bound=bound, remedy=remedy)
    if report.learned:
        return Check("test error", True, report.test_error, bound=bound)
    if report.ranks_well:
        remedy = (
            "The model tells zero from nonzero rewards, but is off in size: see the calibration. More epochs may help."
        )
        return Check("test error", False, report.test_error, bound=bound, remedy=remedy)
    remedy = "The model is hardly better than a constant."
    rarer = min(report.train_nonzero, report.train_steps - report.train_nonzero)
    if report.balance == "none" and 0 < rarer < RARE * report.train_steps:
        kind, share = "nonzero" if rarer == report.train_nonzero else "zero", 100 * rarer / report.train_steps
        remedy += f" Only {share:.1f} % of the training rewards are {kind}: set supervised.balance to sampler."
    return Check("test error", False, report.test_error, bound=bound, remedy=remedy)
