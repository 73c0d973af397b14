"""Two agents side by side, a study: do they use the same features? `rlhf-ray interpret agent RUN --against OTHER`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_ray.interpret.agent.comparison.pair import AgentPair
from rlhf_ray.interpret.agent.comparison.verdict import Answer, answer
from rlhf_ray.study.page import Look, write_page
from rlhf_ray.study.run import Study
from rlhf_ray.study.section import Section

CATALOGUE = {name: f"{__name__}.{name}:STEP" for name in ("played", "alike", "concepts", "objects", "saliency")}
LOOK = Look(Path(__file__).parent / "comparison.html", "rlhf_ray.agent_comparison/1", "comparison", "answer")

__all__ = ["CATALOGUE", "AgentPair", "Answer", "comparison_study", "write_comparison"]


def comparison_study(pair: AgentPair, folder: Path) -> Study[AgentPair]:
    """Return the study of two agents."""
    return Study(pair, CATALOGUE, folder)


def write_comparison(
    pair: AgentPair, sections: Sequence[Section], out: Path, about: dict[str, Any]
) -> tuple[Path, Answer]:
    """Write ``comparison.html`` and its twin ``comparison.json``; return the page's path and the answer."""
    facts = {
        "first": pair.names[0],
        "first_digest": pair.first.digest,
        "second": pair.names[1],
        "second_digest": pair.second.digest,
        "environment": pair.environment,
        "seed": pair.seed,
        "effort": pair.effort,
        **about,
    }
    result = answer(sections, pair.names)
    return write_page(LOOK, out, facts, result, sections), result
