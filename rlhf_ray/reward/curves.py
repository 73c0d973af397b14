"""The curve of a fit: losses and accuracies after each pass, as a table and a plot."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

from rlhf_ray.data.atomic import whole_file, write_text
from rlhf_ray.reward.regularisation import PassLosses

TABLE, PLOT = "curve.csv", "curve.png"


def write_curve(passes: Sequence[PassLosses], folder: Path) -> None:
    """Write ``curve.csv``, one row per pass with the fields of `PassLosses`, and ``curve.png`` to the existing ``folder``."""
    names = [field.name for field in fields(PassLosses)]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(one, name) for name in names] for one in passes)
    write_text(folder / TABLE, text.getvalue())
    with whole_file(folder / PLOT) as sink:
        _figure(passes).savefig(sink, format="png", dpi=120)


def _figure(passes: Sequence[PassLosses]) -> Any:
    from matplotlib.figure import Figure  # slow to import, and most fits draw nothing

    figure = Figure(figsize=(8, 3), layout="constrained")
    steps = [one.gradient_steps for one in passes]
    for axes, what, unit in zip(figure.subplots(1, 2), ("loss", "accuracy"), ("nats per label", "share"), strict=True):
        for part, colour in (("train", "tab:blue"), ("held_out", "tab:orange")):
            values = [getattr(one, f"{part}_{what}") for one in passes]
            axes.plot(steps, values, color=colour, label=part.replace("_", "-"))
        axes.set_xlabel("gradient steps")
        axes.set_ylabel(f"{what} ({unit})")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    return figure
