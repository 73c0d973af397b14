"""Alarms about wrong answers, from the error rates that each fit estimates (`rlhf_ray.reward.annotators`).

An annotator whose answers are nearly all for one side is left to `one_sided_answers`, which says why they are wrong.
"""

from __future__ import annotations

from rlhf_ray.measure.error_rates import ErrorRate, Kind, newest_drifts, newest_rates
from rlhf_ray.runs.alarm import Alarm, Rows, check, presses_of, talk_to

MANY_WRONG = 0.15
"""Lower end of the interval of all answers' error rate above which they are too many."""

SEE = "Look at the answers: `rlhf-ray store show RUN answers.html`."


@check
def no_information(rows: Rows) -> Alarm | None:
    """An annotator's answers are as good as guessed."""
    found = _annotators(rows, "guesses")
    if not found:
        return None
    return Alarm(
        "no_information",
        _told(found),
        "Such answers teach nothing. They may be guessed, or about something that the reward model can't see "
        f"(reward_model.network, fragments.length): {talk_to(found)}. {SEE}",
    )


@check
def inverted_answers(rows: Rows) -> Alarm | None:
    """More of an annotator's answers are wrong than right."""
    found = _annotators(rows, "inverted")
    if not found:
        return None
    return Alarm(
        "inverted_answers",
        _told(found),
        f"They may press the keys the wrong way round: {talk_to(found)}. Until then, with reward_model.label_noise=None, fits take "
        "these answers for their opposite.",
    )


@check
def drifting_answers(rows: Rows) -> Alarm | None:
    """Clearly more of an annotator's newest answers are wrong than of the older ones."""
    found = {name: drift for name, drift in newest_drifts(rows).items() if drift.clear and not _one_sided(rows, name)}
    if not found:
        return None
    return Alarm(
        "drifting_answers",
        " ".join(drift.sentence(name) for name, drift in found.items()),
        f"They may be tired or in a hurry, or judge otherwise than before: suggest a break, {talk_to(found)}. {SEE}",
    )


@check
def wrong_answers(rows: Rows) -> Alarm | None:
    """Many of all answers are wrong, and no alarm names the annotator whose they are."""
    whole, _ = newest_rates(rows)
    named = no_information(rows) or inverted_answers(rows) or any(of.one_sided for of in presses_of(rows).values())
    if whole is None or whole.low <= MANY_WRONG or named:
        return None
    return Alarm(
        "wrong_answers",
        _sentence(whole),
        "Fits learn less from each. Make questions easier (a longer fragments.length, labelling.instructions that say what to look "
        f"for), allow skips, or collect more answers (preferences.comparisons). {SEE}",
    )


def _annotators(rows: Rows, kind: Kind) -> dict[str, ErrorRate]:
    """Return the annotators with error rates of this kind."""
    return {name: of for name, of in newest_rates(rows)[1].items() if of.kind == kind and not _one_sided(rows, name)}


def _one_sided(rows: Rows, name: str) -> bool:
    """Whether `one_sided_answers` names the annotator."""
    return (presses := presses_of(rows).get(name)) is not None and presses.one_sided is not None


def _told(found: dict[str, ErrorRate]) -> str:
    return " ".join(_sentence(rate, name) for name, rate in found.items())


def _sentence(rate: ErrorRate, name: str = "") -> str:
    return f"{(said := rate.sentence(name))[0].upper()}{said[1:]}."
