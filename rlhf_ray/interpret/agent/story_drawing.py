"""The diagram of causal chains: concept, direction and action as boxes, with figures on the arrows between them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from rlhf_ray.interpret.agent.story import CausalChain
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.plots import png

COLOURS = {
    "both": "#0072b2",
    "necessary": "#0072b2",
    "sufficient": "#009e73",
    "contributes": "#56b4e9",
    "decodable only": "#e69f00",
    "spurious": "#d55e00",
    "not settled": "#777777",
    "not read off": "#777777",
}
BOXES = {"concept": 0.9, "direction": 4.9, "action": 8.9}
"""Centres of the boxes."""
WIDE, HIGH = 1.55, 0.62
ROW = 1.9
"""Height of a chain."""


def diagram(chains: Sequence[CausalChain], site: str) -> bytes:
    """Draw one chain below the other.

    Args:
        chains: the chains.
        site: what the report calls the place of the directions.
    """
    figure = Figure((9.5, 0.2 + 1.15 * len(chains)), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.1, 11.3), ylim=(-ROW * len(chains) + 0.75, 1.15))
    axes.set_axis_off()
    for number, chain in enumerate(chains):
        _draw(axes, chain, -ROW * number, site)
    return png(figure)


def _draw(axes: Axes, chain: CausalChain, y: float, site: str) -> None:
    colour = COLOURS[chain.verdict]
    texts = {"concept": chain.concept, "direction": f"direction in\n{site}", "action": chain.behaviour}
    for name, x in BOXES.items():
        box = FancyBboxPatch(
            (x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, boxstyle="round,pad=0.03", facecolor="white", edgecolor="0.25"
        )
        axes.add_patch(box)
        axes.text(x, y, texts[name], ha="center", va="center", fontsize=8, wrap=True)
    acts = max((chain.removed, chain.back, chain.moved), key=lambda link: abs(link.change.mean))
    _arrow(axes, "concept", "direction", y, "0.25", 0.5 + 3 * max(chain.auc - 0.5, 0.0), True)
    _arrow(axes, "direction", "action", y, colour, 0.8 + 4 * abs(acts.change.mean), acts.stands_out)
    first = (BOXES["concept"] + BOXES["direction"]) / 2
    axes.text(
        first, y + 0.08, f"AUC {chain.auc:.2f} (random {chain.auc_random:.2f})", ha="center", va="bottom", fontsize=7
    )
    if chain.edit is not None and chain.edit_score is not None:
        text = f"{chain.edit}:\nscore {_text(chain.edit_score)}"
        axes.text(first, y - 0.08, text, ha="center", va="top", fontsize=7)
    second = (BOXES["direction"] + BOXES["action"]) / 2
    lines = [f"gradient {chain.gradient:+.2f}", f"taken away {_text(chain.removed.change)}"]
    axes.text(second, y + 0.08, "\n".join(lines), ha="center", va="bottom", fontsize=7)
    lines = [f"to without {_text(chain.back.change)}", f"to with {_text(chain.moved.change)}"]
    axes.text(second, y - 0.08, "\n".join(lines), ha="center", va="top", fontsize=7)
    if chain.edit_action is not None:
        arc = FancyArrowPatch(
            (BOXES["concept"], y - HIGH / 2 - 0.05),
            (BOXES["action"], y - HIGH / 2 - 0.05),
            connectionstyle="arc3,rad=0.07",
            arrowstyle="-|>",
            mutation_scale=9,
            color="0.55",
            linestyle="--" if chain.edit_action.holds_zero else "-",
        )
        axes.add_patch(arc)
        text = f"edit of the level: {_text(chain.edit_action)}"
        axes.text(
            BOXES["direction"], y - 0.72, text, ha="center", va="center", fontsize=7, color="0.35", backgroundcolor="w"
        )
    lost = "" if chain.success is None else f"\nreturn {chain.success.change.mean:+.0%}"
    axes.text(
        BOXES["action"] + WIDE / 2 + 0.12, y, f"{chain.verdict}{lost}", ha="left", va="center", fontsize=9, color=colour
    )


def _arrow(axes: Axes, start: str, end: str, y: float, colour: str, width: float, works: bool) -> None:
    arrow = FancyArrowPatch(
        (BOXES[start] + WIDE / 2 + 0.05, y),
        (BOXES[end] - WIDE / 2 - 0.05, y),
        arrowstyle="-|>",
        mutation_scale=11,
        color=colour,
        linewidth=width,
        linestyle="-" if works else "--",
    )
    axes.add_patch(arrow)


def _text(of: MeanEstimate) -> str:
    if of.low is None or of.high is None:
        return f"{of.mean:+.2f}"
    return f"{of.mean:+.2f} [{of.low:+.2f}, {of.high:+.2f}]"
