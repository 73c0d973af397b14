"""What went wrong in a run, or would mislead a reader: alarms, unreadable files, missing answers, ties, annotators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlhf_ray.measure.error_rates import newest_rates
from rlhf_ray.queries.schedule import gathered, held_back
from rlhf_ray.runs.report.subject import Run, is_number, part
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Check, Section, Table

MANY_TIES = 0.25
"""Fraction of ties above which the report warns."""


def section(run: Run) -> Section:
    """Check the run's numbers."""
    checks = [*_of_alarms(run), *_of_rollouts(run), *_of_labels(run), *_of_annotators(run)]
    rates, presses = newest_rates(run.rows)[1], run.presses
    names = dict.fromkeys((*presses, *rates))
    rows = [[name, str(presses.get(name, "")), rates[name].sentence(name) if name in rates else None] for name in names]
    columns = ["annotator", "answers, by the side as shown", "errors, by the reward model"]
    tables = [Table(columns, rows, "Annotators")] if rows else []
    figures = {check.name: check.value for check in checks}
    values = {"checks": figures, "alarms": _alarms(run), "presses": values_of(presses)}
    return Section("health", "Health", checks, tables=tables, values=values)


def _alarms(run: Run) -> list[dict[str, Any]] | None:
    """Return the alarms raised, each with its iteration and environment steps; None if none were recorded."""
    if not any("raised" in row for row in run.rows):
        return None
    when = ("iteration", "env_steps")
    return [alarm | {name: row.get(name) for name in when} for row in run.rows for alarm in row.get("raised", [])]


def _of_alarms(run: Run) -> Iterator[Check]:
    alarms = _alarms(run)
    if alarms is None:
        yield Check("alarms", None, bound="0", remedy="Alarms were not recorded.")
    if alarms == []:
        yield Check("alarms", True, 0, bound="0")
    for alarm in alarms or []:
        name = f"{alarm['name'].replace('_', ' ')}, iteration {alarm['iteration']}"
        remedy = f"{alarm['message']} {alarm['remedy']}"
        yield Check(name, False, alarm.get("value"), bound=alarm.get("bound", ""), remedy=remedy)


def _of_rollouts(run: Run) -> Iterator[Check]:
    yield _none("unreadable files", len(run.unreadable), "; ".join(run.unreadable))
    short = "They can't be compared. A smaller fragments.length would include them."
    yield _none("episodes too short for a fragment", int(run.latest("too_short") or 0), short)
    failed = sum(row["fragments_failed"] for row in run.rows if is_number(row.get("fragments_failed")))
    lost = "Training continued without them; see the run's log for the reason."
    yield _none("rollouts without fragments because of an error", int(failed), lost)


def _of_labels(run: Run) -> Iterator[Check]:
    rounds = [row for row in run.rows if is_number(row.get("wanted")) and is_number(row.get("answered"))]
    short = [row for row in rounds if row["answered"] < row["wanted"]]
    which = " ".join(f"Round {row.get('round')}: {row['answered']} of {row['wanted']}." for row in short[:5])
    asked = "There were too few fragments to pair, or answers are missing. Later rounds ask for the missing ones."
    yield _none(f"labelling rounds, of {len(rounds)}, with too few answers", len(short), f"{which} {asked}")
    known = (row for row in reversed(run.rows) if is_number(row.get("first_fragments_gathered")))
    ties: dict[str, Any] = next(known, {})
    if (before := gathered(ties)) is not None:
        yield Check("collections of first fragments", False, ties["first_fragments_gathered"], bound="1", remedy=before)
    if held := ties.get("labels_held_back"):
        text = held_back(ties) or "Labels are held back while nearly all answers are ties."
        yield _none("labels held back because of ties", held, text)
    if skipped := int(run.latest("skipped") or 0):
        spent = bool(part(run.settings, "preferences").get("skips_count"))
        text = f"They are not trained on{' and used up the label budget' if spent else '; others were asked in their place'}."
        answered = run.number("comparisons") or 0
        yield Check("pairs skipped", skipped <= answered, skipped, bound=f"≤ {answered:.0f} answered", remedy=text)
    if (stored := run.comparisons) is not None and len(stored):
        share = stored.ties / len(stored)
        text = "A tie only says that two fragments are similar. If there are many ties, try longer fragments."
        name = f"share of ties ({stored.ties} of {len(stored)} answers)"
        yield Check.of(name, share <= MANY_TIES, share, f"≤ {MANY_TIES}", text)


def _of_annotators(run: Run) -> Iterator[Check]:
    for name, presses in run.presses.items():
        if presses.one_sided or presses.mostly_equal:
            most = max(presses.left, presses.right, presses.equal) / presses.answers
            said = f"Nearly all are for the {presses.one_sided} side, although sides are random"
            text = f"{said if presses.one_sided else 'Nearly all are “equally good”'}: the same button every time?"
            yield Check(f"share of {name}'s most frequent answer", False, most, bound="about 0.5", remedy=text)
    for name, rate in newest_rates(run.rows)[1].items():
        if rate.kind in ("guesses", "inverted"):
            text = f"By the reward model, {rate.sentence(name)}."
            yield Check(f"{name}'s error rate", False, rate.rate, rate.low, rate.high, "below that of guesses", text)


def _none(name: str, count: int, remedy: str) -> Check:
    """Return the check that there is none of something."""
    return Check.of(name, count == 0, count, "0", remedy)
