"""Section of the report: how the reward agrees with the true rewards in the data."""

from __future__ import annotations

import math

from rlhf_ray.data.plain import plain
from rlhf_ray.interpret.reward.calibration import Agreement, agreement, known
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "calibration"
TITLE = "How well it predicts the true reward"

GOOD = 0.5
"""Share of the true reward's variance that a reward should explain, and correlation of ranks."""
GOOD_AUC = 0.9


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the tool does not apply: the data has no true rewards."""
    subject = context.subject
    return None if len(known(subject.data)) else "The data has no true rewards to compare the reward with."


def run(context: StepContext[Subject]) -> Section:
    """Compare the reward with the true one on all steps of the data."""
    subject = context.subject
    found = agreement(subject.reward, known(subject.data))
    return Section(
        NAME,
        TITLE,
        statements=_statements(found),
        checks=_checks(found),
        tables=_tables(found),
        values=plain(
            found.errors
            | {
                "steps": found.steps,
                "scale": found.scale,
                "offset": found.offset,
                "error_of_line": found.error_of_line,
                "explained": found.explained,
                "correlation_of_returns": found.of_returns,
            }
        ),
    )


def _statements(found: Agreement) -> list[Statement]:
    if math.isnan(found.explained):
        return [
            Statement(
                "warning", "All true rewards in the data are equal, so they can't tell whether the reward is right."
            )
        ]
    says = (
        f"It explains {max(found.explained, 0):.0%} of the true reward's variance on {found.steps} steps of the data (a constant: "
        f"0%), and its rank correlation with it is {_text(found.errors['rank_correlation'])}."
    )
    auc = found.errors["balanced_auc"]
    if not math.isnan(auc):
        says += f" It tells steps with a reward from those without with AUC {auc:.2f} (chance: 0.50)."
    if all(each.passed is not False for each in _checks(found)):
        return []
    return [Statement("warning", f"The reward disagrees with the true one. {says}", weight=1 - max(found.explained, 0))]


def _checks(found: Agreement) -> list[Check]:
    explained, auc = found.explained, found.errors["balanced_auc"]
    checks = [
        Check(
            "explains the true reward better than a constant",
            None if math.isnan(explained) else explained > GOOD,
            None if math.isnan(explained) else explained,
            f"> {GOOD}",
            "The true rewards are all equal."
            if math.isnan(explained)
            else ""
            if explained > GOOD
            else "A constant is nearly as good.",
        )
    ]
    if not math.isnan(auc):
        says = "" if auc > GOOD_AUC else "It does not tell steps with a reward from those without."
        checks.append(
            Check("tells zero from nonzero rewards (balanced AUC)", auc > GOOD_AUC, auc, f"> {GOOD_AUC}", says)
        )
    return checks


def _tables(found: Agreement) -> list[Table]:
    errors = found.errors
    return [
        Table(
            ("measure", "this reward", "a constant"),
            [
                ("mean squared error", _text(errors["test_error"]), _text(errors["constant_error"])),
                ("… after the best line", _text(found.error_of_line), _text(errors["constant_error"])),
                (
                    "… zero and nonzero weighing the same",
                    _text(errors["balanced_error"]),
                    _text(errors["balanced_constant_error"]),
                ),
                ("balanced AUC, zero or not", _text(errors["balanced_auc"]), "0.5"),
                ("correlation", _text(errors["correlation"]), "0"),
                ("rank correlation", _text(errors["rank_correlation"]), "0"),
                ("correlation of the episodes' returns", _text(found.of_returns), "0"),
            ],
            "Agreement with the true reward. A reward learned from comparisons has a scale of its own, so its error counts "
            "after the best line only. Steps that the reward was fitted to count too, unless the data are others.",
        ),
        Table(
            ("true reward", "steps", "this reward, mean", "standard deviation"),
            [(of.label, of.test, _text(of.predicted), _text(of.spread)) for of in found.levels],
            "Calibration by level of the true reward.",
        ),
    ]


def _text(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


STEP = Step(NAME, TITLE, run, why_not=why_not)
