"""Writes a study's page, HTML without scripts or other files, and its twin in JSON."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from rlhf_ray import pages
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.plain import plain
from rlhf_ray.study import kept
from rlhf_ray.study.screen import Screen
from rlhf_ray.study.section import Section
from rlhf_ray.study.verdict import MOST, StudyVerdict

LONG = 40
"""Rows of a table above which the page folds it."""


@dataclass(frozen=True)
class Look:
    """How a study's page looks.

    Attributes:
        template: a template that extends ``evidence.html`` of this package.
        format: name and version of the twin.
        name: of both files, without ending.
        summary: name of the verdict in the twin.
    """

    template: Path
    format: str
    name: str = "report"
    summary: str = "verdict"


def write_page(
    look: Look,
    folder: Path,
    about: dict[str, Any],
    summary: Any,
    sections: Sequence[Section],
    screen: Screen | None = None,
    **values: Any,
) -> Path:
    """Write the page and its twin to ``folder``; return the page's path.

    Args:
        look: the template, and how the files are named.
        folder: the study's folder.
        about: facts about the study.
        summary: what the page says: a `rlhf_ray.study.verdict.StudyVerdict`, or anything else with ``to_json``.
        sections: the sections, in the order of the page.
        screen: what it says first; the rest is folded. None: nothing is folded.
        **values: further values of the template.
    """
    folder.mkdir(parents=True, exist_ok=True)
    twin = {
        "format": look.format,
        "about": about,
        **({} if screen is None else {"first_screen": screen.to_json()}),
        look.summary: summary.to_json(),
        "sections": [kept.to_json(section) for section in sections],
    }
    write_text(folder / f"{look.name}.json", json.dumps(plain(twin), indent=1) + "\n")
    page = folder / f"{look.name}.html"
    write_text(page, render(look.template, about, sections, **{look.summary: summary}, screen=screen, **values))
    return page


def render(template: Path, about: dict[str, Any], sections: Sequence[Section], **values: Any) -> str:
    """Render a page that extends ``evidence.html``."""
    facts = {name.replace("_", " "): figure(value) for name, value in about.items() if value is not None}
    counts = {
        "passed": sum(check.passed is True for section in sections for check in section.checks),
        "made": sum(check.passed is not None for section in sections for check in section.checks),
    }
    verdict = values.get("verdict")
    reason = verdict.because if isinstance(verdict, StudyVerdict) else lambda section, text: ""
    return pages.render(
        template,
        {"figure": figure, "code": code, "data_uri": data_uri},
        beside=Path(__file__).parent,
        about=facts,
        most=MOST,
        long=LONG,
        counts=counts,
        reason=reason,
        sections=[section for section in sections if section.skipped is None],
        skipped=[section for section in sections if section.skipped is not None],
        **values,
    )


def figure(value: Any) -> str:
    """Format a value of a table: numbers with three significant digits, a dash for nothing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if value == 0 or 1e-3 <= abs(value) < 1e5:
            digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
            return f"{value:.{min(digits, 4)}f}".replace("-", "−")
        return f"{value:.1e}".replace("-", "−")
    return str(value)


def code(text: str) -> Markup:
    """Escape a text, and show what is in backticks as code."""
    return Markup(
        re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    )  # joined as a Markup, the tags would be escaped


def data_uri(image: bytes) -> str:
    """Embed a PNG or a WebP."""
    kind = "webp" if image[8:12] == b"WEBP" else "png"
    return f"data:image/{kind};base64," + base64.b64encode(image).decode()
