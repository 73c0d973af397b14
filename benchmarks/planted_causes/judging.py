"""Judges a report by its twin in JSON: its first line, its sentences, and how much there is to read first."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.planted_causes import Case
from benchmarks.planted_causes.contradictions import contradictions
from rlhf_ray.study.screen import AROUND, count_numbers, count_words

KINDS = ("rewards", "ignores", "uses", "holds", "warnings", "failed")
"""Lists of a verdict that say something about the subject, rather than what could not be checked."""
LISTS = {
    "IGNORES": "ignores",
    "DOES NOT REACT": "ignores",
    "HOLDS, unused": "holds",
    "HOLDS, untested": "holds",
    "VALUE ONLY": "holds",
    "BEWARE": "warnings",
}
"""Lists of the first screen, by the kinds of their sentences."""
ACCUSES = (
    "shortcut|disagree|does not agree|differs? from the true|prefers other|far from|too (much|little)|no better than|wrong way|"
    "saturat|cut off|pays for|not what is wanted|on which the true reward depends|noise|a constant is nearly as good|does not tell|"
    "ranks (behaviour|steps) differently|steps? (late|early|after|before)|nothing about the true|constant: the same|"
    "doesn't move with|a true reward of"
)
"""What accuses a reward. A sentence about made-up inputs or about the data does not."""


def first_line(report: dict[str, Any]) -> str:
    """Return the line of the strongest cause; empty if there is none."""
    causes = report["first_screen"]["causes"]
    return str(causes[0]["line"]) if causes else ""


def sentences(report: dict[str, Any]) -> list[str]:
    """Return everything that the report says about its subject, each with its kind: first screen, verdict, failed checks."""
    screen, verdict = report["first_screen"], report["verdict"]
    kind = "uses" if "uses" in verdict else "rewards"
    said = [f"{kind}: {cause['line']} / {cause['figure']}" for cause in screen["causes"]]
    for name, items in screen["lists"].items():
        said += [f"{LISTS[name]}: {item['line']}" for item in items if name in LISTS]
    return said + [f"{kind}: {told['text']}" for kind in KINDS for told in verdict.get(kind, ())]


def first_screen(report: dict[str, Any]) -> str:
    """Return the first screen as text."""
    screen = report["first_screen"]
    causes = [
        f"{number} {each['line']} {each['strength']} {each['figure']}"
        for number, each in enumerate(screen["causes"], 1)
    ]
    lists = [f"{name} {' '.join(item['line'] for item in items)}" for name, items in screen["lists"].items()]
    return "\n".join([screen["heading"], *causes, *lists])


def judge(case: Case, report: dict[str, Any]) -> dict[str, Any]:
    """Return what a report says: its first line, whether that names the cause, false sentences, contradictions, size."""
    line, read = first_line(report), first_screen(report)
    wrong = [*case.false, *(() if case.flawed else (ACCUSES,))]
    false = [said for said in sentences(report) if any(re.search(pattern, said, re.IGNORECASE) for pattern in wrong)]
    return {
        "name": case.name,
        "truth": case.truth,
        "flawed": case.flawed,
        "first_line": line,
        "named": all(re.search(pattern, line, re.IGNORECASE) for pattern in case.first),
        "false": false,
        "contradictions": contradictions(report),
        "words": count_words(read) + AROUND,
        "numbers": count_numbers(read),
    }
