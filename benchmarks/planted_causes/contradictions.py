"""Finds contradictions in a report's ``report.json``: statements and checks of one verdict with opposite stances on one thing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

NO_CLAIMS = ("explained", "unchecked", "failed")
"""Lists of the verdict that claim nothing, or what the sections' checks claim."""


def contradictions(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of texts that contradict each other.

    What another statement explains claims nothing: the page says so beside it. The first screen must not show it either.

    Args:
        report: the values of ``report.json``.
    """
    claims = list(_claims(report))
    pairs = [
        (first["text"], second["text"])
        for first, second in itertools.combinations(claims, 2)
        if {first["stance"], second["stance"]} == {"yes", "no"} and _subjects(first) & _subjects(second)
    ]
    explained = {told["key"] + told["about"] for told in report["verdict"].get("explained", ())}
    held = {told["key"] + told["about"] for told in claims}
    screen = report.get("first_screen", {"causes": [], "lists": {}})
    lines = [*screen["causes"], *itertools.chain(*screen["lists"].values())]
    return pairs + [
        (line["line"], "is explained by another statement")
        for line in lines
        if line["key"] and line["key"] + line["about"] in explained - held
    ]


def _claims(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    verdict = report["verdict"]
    for name, tolds in verdict.items():
        if name not in NO_CLAIMS:
            yield from tolds
    aside = {(told["section"], told["text"]) for told in verdict.get("explained", ())}
    for section in report["sections"]:
        for check in section["checks"]:
            text = f"{check['name']}: {check['says']}" if check["says"] else check["name"]
            if check["passed"] is not None and (section["name"], text) not in aside:
                yield {
                    "text": text,
                    "about": check["about"],
                    "key": check["key"],
                    "stance": "yes" if check["passed"] else "no",
                }


def _subjects(told: Mapping[str, Any]) -> set[str]:
    return {subject for subject in told["about"].split("; ") if subject}
