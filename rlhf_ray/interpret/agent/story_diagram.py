"""The diagram of causal chains: concept, direction and action as boxes, with figures on the arrows between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from rlhf_ray.interpret.agent.story import CausalChain
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
    labels = {"concept": chain.concept, "direction": f"direction in\n{site}", "action": chain.behaviour}
    for name, x in BOXES.items():
        corner = (x - WIDE / 2, y - HIGH / 2)
        axes.add_patch(FancyBboxPatch(corner, WIDE, HIGH, "round,pad=0.03", facecolor="white", edgecolor="0.25"))
        axes.text(x, y, labels[name], ha="center", va="center", fontsize=8, wrap=True)
    strongest = max((chain.removed, chain.back, chain.moved), key=lambda link: abs(link.change.mean))
    _arrow(axes, "concept", "direction", y, "0.25", 0.5 + 3 * max(chain.auc - 0.5, 0.0), True)
    _arrow(axes, "direction", "action", y, colour, 0.8 + 4 * abs(strongest.change.mean), strongest.stands_out)
    first, second = (BOXES["concept"] + BOXES["direction"]) / 2, (BOXES["direction"] + BOXES["action"]) / 2
    _label(axes, first, y + 0.08, f"AUC {chain.auc:.2f} (random {chain.auc_random:.2f})", "bottom")
    _label(
        axes, second, y + 0.08, f"gradient {chain.gradient:+.2f}\ntaken away {chain.removed.change.text()}", "bottom"
    )
    _label(axes, second, y - 0.08, f"to without {chain.back.change.text()}\nto with {chain.moved.change.text()}", "top")
    if chain.edited is not None:
        _label(axes, first, y - 0.08, f"{chain.edited.edit}:\nscore {chain.edited.score.text()}", "top")
        ends = [(BOXES[name], y - HIGH / 2 - 0.05) for name in ("concept", "action")]
        line = "--" if chain.edited.action.holds_zero else "-"
        style: dict[str, Any] = {
            "connectionstyle": "arc3,rad=0.07",
            "arrowstyle": "-|>",
            "mutation_scale": 9,
            "color": "0.55",
        }
        axes.add_patch(FancyArrowPatch(*ends, linestyle=line, **style))
        _label(axes, BOXES["direction"], y - 0.72, f"edit of the level: {chain.edited.action.text()}", "center")
    lost = "" if chain.success is None else f"\nreturn {chain.success.change.mean:+.0%}"
    right = BOXES["action"] + WIDE / 2 + 0.12
    axes.text(right, y, f"{chain.verdict}{lost}", ha="left", va="center", fontsize=9, color=colour)


def _label(axes: Axes, x: float, y: float, text: str, anchor: Literal["bottom", "top", "center"]) -> None:
    back = "w" if anchor == "center" else "none"
    axes.text(x, y, text, ha="center", va=anchor, fontsize=7, backgroundcolor=back)


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
