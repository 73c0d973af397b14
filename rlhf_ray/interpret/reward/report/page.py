"""The reward report's page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_ray.interpret.report.page import render
from rlhf_ray.interpret.reward.report.verdict import RewardVerdict
from rlhf_ray.interpret.section import Section


def page(about: dict[str, Any], verdict: RewardVerdict, sections: Sequence[Section]) -> str:
    """Render the page: HTML without scripts or other files."""
    return render(Path(__file__).parent / "reward.html", about, sections, verdict=verdict)
