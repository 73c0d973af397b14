"""Draws docs/learning.png, the README's picture, from benchmarks/results/learning_*.json: `python benchmarks/plot_learning.py`."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
TASKS = {"pendulum": "Pendulum-v1", "cartpole": "CartPoleFixed"}


def main() -> None:
    """One panel for each task: the true return of every seed while its agent learns from comparisons alone."""
    tasks = {name: title for name, title in TASKS.items() if (HERE / "results" / f"learning_{name}.json").exists()}
    figure, panels = plt.subplots(1, len(tasks), figsize=(3.7 * len(tasks), 3.1), constrained_layout=True)
    for panel, (name, title) in zip(panels, tasks.items(), strict=True):
        outcome = json.loads((HERE / "results" / f"learning_{name}.json").read_text())
        for run in outcome["runs"]:
            curve = np.array([[steps, value] for steps, value, _ in run["curve"] if value is not None])
            panel.plot(curve[:, 0] / 1000, curve[:, 1], color="#0072b2", alpha=0.7, linewidth=1.2)
        summary = outcome["summary"]
        for agent, label, style in (("reference", "PPO on the true reward", "--"), ("random", "random actions", ":")):
            panel.axhline(summary[agent]["mean"], color="#555555", linestyle=style, linewidth=1.2, label=label)
        panel.plot([], [], color="#0072b2", label="learned from comparisons")
        panel.set_title(f"{title}, {outcome['runs'][0]['comparisons']} comparisons", fontsize=10)
        panel.set_xlabel("environment steps (thousands)")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("true return of an episode")
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(HERE.parent / "docs" / "learning.png", dpi=130)


if __name__ == "__main__":
    main()
