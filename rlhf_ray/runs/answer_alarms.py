"""Alarms about wrong answers, from the error rates that each fit estimates (`rlhf_ray.reward.annotators`).

An annotator whose answers are nearly all for one side is left to `one_sided_answers`, which says why they are wrong.
"""

from __future__ import annotations

from rlhf_ray.measure.error_rates import Kind, newest_drifts, newest_rates
from rlhf_ray.runs.alarm import Figures, Rows, check, presses_of, talk_to
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

MANY_WRONG = 0.15
"""Lower end of the interval of all answers' error rate above which they are too many."""


@check(WORDS)
def no_information(rows: Rows) -> Figures:
    """An annotator's answers are as good as guessed."""
    return _annotators(rows, "guesses")


@check(WORDS)
def inverted_answers(rows: Rows) -> Figures:
    """More of an annotator's answers are wrong than right."""
    return _annotators(rows, "inverted")


@check(WORDS)
def drifting_answers(rows: Rows) -> Figures:
    """Clearly more of an annotator's newest answers are wrong than of the older ones."""
    drifts = {name: drift for name, drift in newest_drifts(rows).items() if drift.clear and not _one_sided(rows, name)}
    sentences = [drift.sentence(name) for name, drift in drifts.items()]
    return {"sentences": sentences, "talk": talk_to(drifts)} if drifts else None


@check(WORDS)
def wrong_answers(rows: Rows) -> Figures:
    """Many of all answers are wrong, and no alarm names the annotator whose they are."""
    whole, _ = newest_rates(rows)
    named = no_information(rows) or inverted_answers(rows) or any(of.one_sided for of in presses_of(rows).values())
    return None if whole is None or whole.low <= MANY_WRONG or named else {"sentence": whole.sentence()}


def _annotators(rows: Rows, kind: Kind) -> Figures:
    """Return what is known of the annotators with error rates of this kind; None without any."""
    rates = {
        name: rate for name, rate in newest_rates(rows)[1].items() if rate.kind == kind and not _one_sided(rows, name)
    }
    sentences = [rate.sentence(name) for name, rate in rates.items()]
    return {"sentences": sentences, "talk": talk_to(rates)} if rates else None


def _one_sided(rows: Rows, name: str) -> bool:
    """Whether `one_sided_answers` names the annotator."""
    return (presses := presses_of(rows).get(name)) is not None and presses.one_sided is not None
