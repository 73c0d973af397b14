"""Judges a report by its twin in JSON: its first line, its sentences, and how much there is to read first."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.planted_causes import Case
from rlhf_ray.study.verdict import MOST

KINDS = ("rewards", "ignores", "uses", "holds", "warnings", "failed")
"""Lists of a verdict that say something about the subject, rather than what could not be checked."""
LISTS = {"IGNORES": "ignores", "DOES NOT REACT": "ignores", "HOLDS, unused": "holds", "BEWARE": "warnings"}
"""Lists of the first screen, by the kinds of their sentences."""
ACCUSES = (
    "shortcut|disagree|does not agree|differs? from the true|prefers other|far from|too (much|little)|no better than|wrong way|"
    "saturat|cut off|pays for|not what is wanted|on which the true reward depends|noise|a constant is nearly as good|does not tell|"
    "differently|steps? (late|early|after|before)|nothing about the true|rewards nothing|doesn't move with|a true reward of"
)
"""What accuses a reward. A sentence about made-up inputs or about the data does not."""
NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-−+]?\d+)?")


def screen_of(report: dict[str, Any]) -> dict[str, Any] | None:
    """Return the report's first screen; None if it has none."""
    found: dict[str, Any] | None = report.get("first_screen", report["verdict"].get("first_screen"))
    return found


def first_line(report: dict[str, Any]) -> str:
    """Return the line of the strongest cause; of a report without a first screen, the first statement and the first warning."""
    if screen := screen_of(report):
        return str(screen["causes"][0]["line"]) if screen["causes"] else ""
    verdict = report["verdict"]
    firsts = [verdict[kind][0]["text"] for kind in ("rewards", "uses", "warnings") if verdict.get(kind)]
    return " | ".join(firsts)


def sentences(report: dict[str, Any]) -> list[str]:
    """Return everything that the report says about its subject, each with its kind: first screen, verdict, failed checks."""
    screen, verdict = screen_of(report) or {}, report["verdict"]
    kind = "uses" if "uses" in verdict else "rewards"
    said = [f"{kind}: {cause['line']} / {cause['figure']}" for cause in screen.get("causes", ())]
    for name, items in screen.get("lists", {}).items():
        said += [
            f"{LISTS.get(name, name.lower())}: {item['about']} {item['text']}" for item in items if name != "NOT ASKED"
        ]
    return said + [f"{kind}: {told['text']}" for kind in KINDS for told in verdict.get(kind, ())]


def first_screen(report: dict[str, Any]) -> str:
    """Return what is read first: the first screen, or, without one, the verdict's lists as far as the page shows them."""
    if screen := screen_of(report):
        causes = [f"{cause['line']} {cause['strength']} {cause['figure']}" for cause in screen["causes"]]
        lists = [
            f"{kind} {', '.join(each['text'] for each in items)}" for kind, items in screen["lists"].items() if items
        ]
        return "\n".join([*causes, *lists])
    return "\n".join(told["text"] for kind in KINDS for told in report["verdict"].get(kind, ())[:MOST])


def judge(case: Case, report: dict[str, Any]) -> dict[str, Any]:
    """Return what a report says of a case: its first line, whether the cause is on it, false sentences, words and numbers."""
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
        "words": len(read.split()),
        "numbers": len(NUMBER.findall(read)),
    }
