"""What went wrong in a run, or would mislead a reader: alarms, missing answers, ties, annotators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rlhf_ray.measure.error_rates import ErrorRate, newest_rates
from rlhf_ray.queries.schedule import gathered, held_back
from rlhf_ray.runs.report.subject import Run, is_number, part
from rlhf_ray.store.answers import Presses
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.section import Check, Section, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

MANY_TIES = 0.25
"""Fraction of ties above which the report warns."""


@dataclass(frozen=True)
class RunHealth:
    """What to know before reading the numbers; None where nothing was recorded.

    Attributes:
        alarms: the raised alarms: name, message, remedy, iteration, env_steps.
        unreadable: unreadable files of the folder, with reasons.
        too_short: trajectories too short for a fragment.
        rollouts_failed: rollouts without fragments because of an error.
        rounds, short_rounds: labelling rounds, and those with too few answers: number, answered, wanted.
        tie_texts: what was done about ties: before training, and now.
        skipped: pairs that annotators could not decide.
        answers, ties: stored answers, and how many say "equally good".
        presses: which sides each annotator chose, as shown to them.
        error_rates: of each annotator.
    """

    alarms: list[dict[str, Any]] | None
    unreadable: tuple[str, ...]
    too_short: int
    rollouts_failed: int
    rounds: int
    short_rounds: list[tuple[Any, int, int]]
    labels_held_back: int | None
    tie_texts: tuple[str | None, str | None] = field(metadata=DRAWN)
    skipped: int
    skips_count: bool
    comparisons: float | None
    answers: int
    ties: int
    presses: dict[str, Presses]
    error_rates: dict[str, ErrorRate]


def run(context: StepContext[Run]) -> Section:
    """Check the run's numbers."""
    figures = measure(context.subject)
    return WORDS.section((), list(_checks(figures)), list(_tables(figures)), (), figures)


def measure(run: Run) -> RunHealth:
    """Count in the metrics and among the answers."""
    rounds = [row for row in run.rows if is_number(row.get("wanted")) and is_number(row.get("answered"))]
    ties = next((row for row in reversed(run.rows) if is_number(row.get("first_fragments_gathered"))), None)
    stored = run.comparisons
    return RunHealth(
        [alarm | _when(row) for row in run.rows for alarm in row.get("raised", [])]
        if any("raised" in row for row in run.rows)
        else None,
        run.unreadable,
        int(run.latest("too_short") or 0),
        int(sum(row["fragments_failed"] for row in run.rows if is_number(row.get("fragments_failed")))),
        len(rounds),
        [(row.get("round"), row["answered"], row["wanted"]) for row in rounds if row["answered"] < row["wanted"]],
        None if ties is None else ties["labels_held_back"],
        (None, None) if ties is None else (gathered(ties), held_back(ties)),
        int(run.latest("skipped") or 0),
        bool(part(run.settings, "preferences").get("skips_count")),
        run.number("comparisons"),
        0 if stored is None else len(stored),
        0 if stored is None else stored.ties,
        dict(run.presses),
        newest_rates(run.rows)[1],
    )


def _when(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in ("iteration", "env_steps")}


def _checks(figures: RunHealth) -> Iterator[Check]:
    yield WORDS.check("readable", not figures.unreadable, None, reasons="; ".join(figures.unreadable))
    alarms = figures.alarms
    yield WORDS.check("alarms", None if alarms is None else not alarms, None if alarms is None else len(alarms))
    yield WORDS.check("long_enough", figures.too_short == 0, figures.too_short)
    yield WORDS.check("rollouts", figures.rollouts_failed == 0, figures.rollouts_failed)
    short = len(figures.short_rounds)
    yield WORDS.check("rounds", short == 0, short, rounds=figures.rounds, short=figures.short_rounds)
    if figures.labels_held_back is not None:
        before, now = figures.tie_texts
        yield WORDS.check("first_answers", before is None, text=before)
        yield WORDS.check("held_back", figures.labels_held_back == 0, figures.labels_held_back, text=now)
    if figures.skipped:
        few = figures.skipped <= (figures.comparisons or 0)
        yield WORDS.check("skipped", few, figures.skipped, counted=figures.skips_count)
    if figures.answers:
        ties = figures.ties / figures.answers
        yield WORDS.check("ties", ties <= MANY_TIES, ties, figures=figures, most=MANY_TIES)
    for name, presses in figures.presses.items():
        same = presses.one_sided is not None or presses.mostly_equal
        yield WORDS.check("sides", not same, name=name, presses=presses)
    for name, rate in figures.error_rates.items():
        useful = rate.kind not in ("guesses", "inverted")
        yield WORDS.check("annotator", useful, rate.rate, name=name, sentence=rate.sentence(name))


def _tables(figures: RunHealth) -> Iterator[Table]:
    if figures.alarms:
        columns = ("iteration", "env_steps", "message", "remedy")
        rows = [[alarm["name"].replace("_", " "), *(alarm[name] for name in columns)] for alarm in figures.alarms]
        yield WORDS.table("alarms", rows)
    if names := {**figures.presses, **figures.error_rates}:
        rates, presses = figures.error_rates, figures.presses
        rows = [
            [name, str(presses.get(name, "")), rates[name].sentence(name) if name in rates else None] for name in names
        ]
        yield WORDS.table("annotators", rows)


STEP = Step(WORDS.name, WORDS.title, run)
