"""What the report pages share: how values are shown, and the page around a report's own summary."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_ray import pages
from rlhf_ray.interpret.report.said import MOST
from rlhf_ray.interpret.section import Section


def render(template: Path, about: dict[str, Any], sections: Sequence[Section], **values: Any) -> str:
    """Render a report: HTML without scripts or other files.

    Args:
        template: extends ``evidence.html`` of this package.
        about: facts about the report.
        sections: the sections, in the order of the page.
        **values: further values of the template.
    """
    facts = {name.replace("_", " "): figure(value) for name, value in about.items() if value is not None}
    counts = {
        "passed": sum(check.passed is True for section in sections for check in section.checks),
        "made": sum(check.passed is not None for section in sections for check in section.checks),
    }
    return pages.render(
        template,
        {"figure": figure, "data_uri": data_uri},
        beside=Path(__file__).parent,
        about=facts,
        most=MOST,
        counts=counts,
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


def data_uri(image: bytes) -> str:
    """Embed a PNG."""
    return "data:image/png;base64," + base64.b64encode(image).decode()
