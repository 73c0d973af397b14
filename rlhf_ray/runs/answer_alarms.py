"""Alarms: what they are, and those about answers: sides, ties, and errors, by the error rates that each fit estimates."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_ray.measure.error_rates import GUESSED, OPPOSED, ROSE, ErrorRate, Kind, newest_drifts, newest_rates, opposed
from rlhf_ray.queries.schedule import TIES, held_back
from rlhf_ray.store.answers import FEW_ANSWERS, MOSTLY, Presses

Row = dict[str, Any]
Rows = Sequence[Row]
"""The metrics so far: the rows of ``metrics.jsonl``, the oldest first."""

MANY_WRONG = 0.15
"""Lower end of the interval of all answers' error rate above which they are too many."""

DISTINCT_FRAGMENTS = 0.5
"""Minimum fraction of distinct fragments in the pool; below it, most labels would compare duplicates."""

SAME_BUTTON = (
    "If fragments do differ, somebody may press “equally good” every time: see each annotator's answers in the report."
)
SEE = "Look at the answers: `rlhf-ray store show RUN answers.html`."


@dataclass(frozen=True)
class Alarm:
    """A problem in training.

    Attributes:
        name: fixed name of the alarm.
        message: the finding, with numbers.
        remedy: how to fix it.
        value: the figure that is out of bounds.
        bound: what it has to be.
    """

    name: str
    message: str
    remedy: str
    value: float
    bound: str


Found = tuple[str, float, str] | tuple[str, float, str, Iterable[str]] | None
"""What an alarm has found: message, value and bound of the `Alarm`, and the annotators whom it is about."""

CHECKS: list[Callable[[Rows], Alarm | None]] = []
"""The alarms that need no more than the metrics."""


def raises(remedy: str) -> Callable[[Callable[..., Found]], Callable[..., Alarm | None]]:
    """Decorate a function of the metrics that returns what is wrong: it raises the alarm of its name, with this remedy.

    ``{whom}`` stands for what to do about the annotators whom it is about.
    """

    def decorate(find: Callable[..., Found]) -> Callable[..., Alarm | None]:
        @functools.wraps(find)
        def check(rows: Rows, *context: Any) -> Alarm | None:
            if (found := find(rows, *context)) is None:
                return None
            message, value, bound, *about = found
            names = [name for each in about for name in each]
            commands = ", ".join(f"`rlhf-ray store weigh RUN {name} 0`" for name in names)
            whom = f"talk to {' and '.join(names)}, or leave their answers out ({commands})"
            return Alarm(find.__name__, message, remedy.replace("{whom}", whom), value, bound)

        if len(inspect.signature(find).parameters) == 1:
            CHECKS.append(check)
        return check

    return decorate


def has(row: Row, *names: str) -> bool:
    """Return whether a row has finite values for all these metrics."""
    return all(isinstance(row.get(name), int | float) and math.isfinite(row[name]) for name in names)


def newest(rows: Rows, count: int, *names: str) -> list[Row]:
    """Return the newest ``count`` rows (or fewer) that have all these metrics, oldest first."""
    found: list[Row] = []
    for row in reversed(rows):
        if has(row, *names):
            found.append(row)
            if len(found) == count:
                break
    return found[::-1]


@raises(
    "Sides are random, so about half should be. They may press the same button every time: {whom}. Check that the page shows both "
    "clips."
)
def one_sided_answers(rows: Rows) -> Found:
    """Nearly all recent answers of an annotator are for the fragment shown on one side, although sides are random."""
    presses = {name: each for name, each in presses_of(rows).items() if each.one_sided}
    if not presses:
        return None
    found = [
        f"{max(each.left, each.right)} of the last {each.decided} answers of {name} (ties excluded) are for the fragment shown on "
        f"the {each.one_sided}"
        for name, each in presses.items()
    ]
    most = max(max(each.left, each.right) / each.decided for each in presses.values())
    return f"{'; '.join(found)}.", most, "about 0.5", presses


@raises("Ties teach little. They may press the same button every time: {whom}.")
def equal_answers(rows: Rows) -> Found:
    """An annotator answers "equally good" nearly always, and others don't, so that it isn't the fragments."""
    presses = presses_of(rows)
    equal = {name: each for name, each in presses.items() if each.mostly_equal}
    others = [each for each in presses.values() if each.answers >= FEW_ANSWERS and not each.mostly_equal]
    if not equal or not others:
        return None
    usual = sum(each.equal for each in others) / sum(each.answers for each in others)
    found = [f"{each.equal} of the last {each.answers} answers of {name}" for name, each in equal.items()]
    message = f"{'; '.join(found)} are “equally good”; of the others' answers, {100 * usual:.0f} %."
    return message, max(each.equal / each.answers for each in equal.values()), f"≤ {MOSTLY}", equal


@raises(
    "Comparing similar fragments teaches nothing. Raise fragments.length, fragments.exploration_env_steps or "
    f"ppo.entropy_coefficient. {SAME_BUTTON}"
)
def fragments_alike(rows: Rows) -> Found:
    """The fragments are duplicates, or the teacher sees no difference between them."""
    pools, fits = newest(rows, 1, "distinct_fragments"), newest(rows, 1, "ties", "comparisons")
    distinct = pools[0]["distinct_fragments"] if pools else 1.0
    ties, answers = (fits[0]["ties"], fits[0]["comparisons"]) if fits else (0, 0)
    if distinct < DISTINCT_FRAGMENTS:
        message = f"Only {100 * distinct:.0f} % of the fragments in the pool are distinct."
        return message, distinct, f"≥ {DISTINCT_FRAGMENTS}"
    if held_back(rows[-1]) is not None:
        return None  # `labels_held_back` reports it
    if nothing_decided(rows):
        message = f"All {answers} answers are ties, held-out ones too: the reward model has learned nothing from them."
    elif answers >= FEW_ANSWERS and ties > TIES * answers:
        message = f"{ties:.0f} of {answers} answers are ties."
    else:
        return None
    return message, ties / answers, f"≤ {TIES}"


@raises(
    "The fragments hardly show the behaviour to learn. Start from --demonstrations or --policy-from, or raise fragments.length or "
    f"fragments.exploration_env_steps. {SAME_BUTTON}"
)
def labels_held_back(rows: Rows) -> Found:
    """Due labels are held back, because the answers would be ties."""
    held = held_back(rows[-1])
    return None if held is None else (held, rows[-1]["labels_held_back"], "0")


@raises(
    "Such answers teach nothing. They may be guessed, or about something that the reward model can't see "
    f"(reward_model.network, fragments.length): {{whom}}. {SEE}"
)
def no_information(rows: Rows) -> Found:
    """An annotator's answers are as good as guessed."""
    return _rated(rows, "guesses", f"< {GUESSED[0]}")


@raises(
    "They may press the keys the wrong way round: {whom}. Until then, with reward_model.label_noise=None, fits take these answers "
    "for their opposite."
)
def inverted_answers(rows: Rows) -> Found:
    """More of an annotator's answers are wrong than right."""
    return None if opposed(newest_rates(rows)[1]) else _rated(rows, "inverted", "< 0.5")


@raises(
    "Nobody but you can say who is right: look at the answers (`rlhf-ray store show RUN answers.html`) and labelling.instructions. "
    "Then {whom}; or leave out the others'."
)
def two_camps(rows: Rows) -> Found:
    """Annotators prefer the opposite of what the others prefer, and there are nearly as many answers of either side."""
    rates = newest_rates(rows)[1]
    against = {name: rates[name] for name in opposed(rates) if rates[name].kind == "inverted"}
    if not against:
        return None
    share = sum(rate.answers for rate in against.values()) / sum(rate.answers for rate in rates.values())
    names = " and ".join(against)
    message = (
        f"{names}, with {100 * share:.0f} % of the answers, and the others prefer opposite things. Until you decide, the "
        f"answers of {names} count for nothing."
    )
    return message, share, f"≤ {OPPOSED}", against


@raises(f"They may be tired or in a hurry, or judge otherwise than before: suggest a break, {{whom}}. {SEE}")
def drifting_answers(rows: Rows) -> Found:
    """An annotator's error rate has clearly risen."""
    drifts = {name: drift for name, drift in newest_drifts(rows).items() if drift.clear and not _one_sided(rows, name)}
    if not drifts:
        return None
    message = " ".join(drift.sentence(name) for name, drift in drifts.items())
    return message, max(drift.rose for drift in drifts.values()), f"≤ {ROSE}", drifts


@raises(
    "Fits learn less from each. Make questions easier (a longer fragments.length, labelling.instructions that say what to look "
    f"for), allow skips, or collect more answers (preferences.comparisons). {SEE}"
)
def wrong_answers(rows: Rows) -> Found:
    """Many of all answers are wrong, and no alarm names the annotator whose they are."""
    whole, _ = newest_rates(rows)
    named = (
        no_information(rows)
        or inverted_answers(rows)
        or two_camps(rows)
        or any(of.one_sided for of in presses_of(rows).values())
    )
    if whole is None or whole.low <= MANY_WRONG or named:
        return None
    return _said({"": whole}), whole.rate, f"≤ {MANY_WRONG}, by its interval"


def nothing_decided(rows: Rows) -> bool:
    """Return whether all answers are ties: `fragments_alike` says so, and the fitted reward, which is noise, has nothing to add."""
    fits = newest(rows, 1, "ties", "comparisons")
    return bool(fits) and 0 < fits[0]["comparisons"] <= fits[0]["ties"]


def presses_of(rows: Rows) -> dict[str, Presses]:
    """Return what each annotator chose in their newest answers, as of the newest fit that tells."""
    for row in reversed(rows):
        sides = {side: {} for side in ("left", "right", "equal")}  # type: dict[str, dict[str, int]]
        for metric, value in row.items():
            head, _, name = metric.partition("/")
            if name and (side := head.removeprefix("chosen_")) in sides and value is not None:
                sides[side][name] = int(value)
        names = dict.fromkeys(name for of in sides.values() for name in of)
        if names:
            return {name: Presses(**{side: of.get(name, 0) for side, of in sides.items()}) for name in names}
    return {}


def _rated(rows: Rows, kind: Kind, bound: str) -> Found:
    """Find annotators with error rates of this kind, but those that `one_sided_answers` names and says why."""
    rates = newest_rates(rows)[1]
    found = {name: rate for name, rate in rates.items() if rate.kind == kind and not _one_sided(rows, name)}
    return (_said(found), max(rate.rate for rate in found.values()), bound, found) if found else None


def _one_sided(rows: Rows, name: str) -> bool:
    return (presses := presses_of(rows).get(name)) is not None and presses.one_sided is not None


def _said(rates: dict[str, ErrorRate]) -> str:
    sentences = [rate.sentence(name) for name, rate in rates.items()]
    return " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences)
