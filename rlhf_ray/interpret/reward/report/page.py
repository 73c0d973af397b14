"""The report's page."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_ray import pages
from rlhf_ray.interpret.reward.report.verdict import MOST, RewardVerdict
from rlhf_ray.interpret.section import Section


def page(about: dict[str, Any], verdict: RewardVerdict, sections: Sequence[Section]) -> str:
    """Render the page: HTML without scripts or other files."""
    facts = {name.replace("_", " "): figure(value) for name, value in about.items() if value is not None}
    counts = {
        "passed": sum(check.passed is True for section in sections for check in section.checks),
        "made": sum(check.passed is not None for section in sections for check in section.checks),
    }
    return pages.render(
        Path(__file__).parent / "reward.html",
        {"figure": figure, "data_uri": data_uri},
        about=facts,
        verdict=verdict,
        most=MOST,
        counts=counts,
        sections=[section for section in sections if section.skipped is None],
        skipped=[section for section in sections if section.skipped is not None],
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
