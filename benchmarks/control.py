"""The cells of the table `control` of benchmarks/method.py: DeepMind Control with EnvPool, learned with PreferenceSAC."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.cells import Cell, cells_of, train

CONTROL_SAC = (
    *("--agent", "sac", "--sac.hidden", "128", "128", "--sac.num-envs", "8", "--sac.rollout-length", "50"),
    *("--sac.updates-per-env-step", "0.25", "--sac.learning-starts", "5000", "--sac.actor-learning-rate", "1e-3"),
    *("--sac.critic-learning-rate", "1e-3", "--sac.alpha-learning-rate", "1e-3", "--fragments.length", "50"),
)
"""Small networks and a gradient step for every four steps: gradient steps are most of what a run costs."""

WALK = ("envpool/WalkerWalk-v1", "--total-env-steps", "500000", *CONTROL_SAC)

CONTROL: Mapping[str, tuple[str, ...]] = {
    "500 labels": ("--preferences.comparisons", "500"),
    "500 labels, 30 % wrong": (
        "--preferences.comparisons",
        "500",
        "--preferences.teacher",
        "mistake",
        "--preferences.mistake",
        "0.3",
    ),
    "500 labels, human-like": ("--preferences.comparisons", "500", "--preferences.teacher", "human_like"),
    "100 labels, 10 % wrong": (
        "--preferences.comparisons",
        "100",
        "--preferences.teacher",
        "mistake",
        "--preferences.mistake",
        "0.1",
    ),
}
"""Labels and teachers: B-Pref's budget (Lee et al. 2021) and that of MCP (Heo et al. 2024)."""


def control() -> list[Cell]:
    """The cells of the table."""
    cells = cells_of("reference", WALK[0], "true reward", train(*WALK, "--true-reward"))
    for variant, words in CONTROL.items():
        cells += cells_of("control", WALK[0], variant, train(*WALK, *words))
    return cells
