"""Verdicts: what a run's outcome must not be taken for, told from its returns, their noise, and how much its actions vary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SURE = 2.0
"""Standard errors that two mean returns must differ by before one is called larger."""

COLLAPSED = 0.1
"""How much an agent's actions vary, as a share of how much random ones do, below which it does the same at every step."""

Result = Mapping[str, Any]
"""What ``result.json`` holds; parts may be missing."""


@dataclass(frozen=True)
class Verdict:
    """Something that the outcome's numbers alone could hide.

    Attributes:
        name: which verdict, always the same.
        message: a sentence or two.
    """

    name: str
    message: str


NO_SUCCESS = frozenset({"below_random", "no_better_than_random", "actions_collapsed", "reference_says_nothing"})
"""Verdicts beside which a share of the way to the reference would read like a success that there is none of."""


def verdicts(result: Result) -> list[Verdict]:
    """All that hold of ``result``; none where the trained agent has not been evaluated."""
    trained, random, reference = (_agent(result, name) for name in ("trained", "random", "reference"))
    if trained is None or random is None:
        return []
    found: dict[str, str] = {}
    returns = f"true return {_number(trained)}, random actions {_number(random)}"
    better = compare(trained, random)
    if better < 0:
        found["below_random"] = f"The trained agent is worse than random actions: {returns}."
    elif better == 0:
        found["no_better_than_random"] = (
            f"The trained agent cannot be told apart from random actions: {returns}, a difference that so few episodes do "
            "not tell from chance."
        )
    if (share := _variety(trained, random)) < COLLAPSED:
        found["actions_collapsed"] = (
            f"The trained agent does nearly the same at every step: its actions vary {100 * share:.2g}% as much as random "
            f"ones. What it earns is what doing that earns.{_in_training(result, trained)}"
        )
    if reference is not None and compare(reference, random) <= 0:
        found["reference_says_nothing"] = (
            f"The reference is no better than random actions either (true return {_number(reference)}): with these "
            "settings PPO does not learn the task from the true reward, so the reference is no measure."
        )
    elif reference is not None and _variety(reference, random) < COLLAPSED:
        found["reference_says_nothing"] = (
            "The reference does nearly the same at every step too: with these settings PPO finds nothing better from the "
            "true reward, so the reference is no measure."
        )
    elif reference is not None and compare(trained, reference) < 0:
        found["below_reference"] = (
            f"The trained agent is below the reference, PPO on the true reward: {_number(trained)} against "
            f"{_number(reference)}, more than the evaluation's noise."
        )
    return [Verdict(*each) for each in found.items()]


def share_of_the_way(result: Result) -> float | None:
    """Where the trained agent stands between random (0) and the reference (1); None where that says nothing."""
    if NO_SUCCESS & {verdict.name for verdict in verdicts(result)}:
        return None
    trained, random, reference = (_agent(result, name) for name in ("trained", "random", "reference"))
    if trained is None or random is None or reference is None:
        return None
    span = reference["true_return_mean"] - random["true_return_mean"]
    return float((trained["true_return_mean"] - random["true_return_mean"]) / span) if span else None


def compare(one: Result, other: Result) -> int:
    """1 if ``one`` has the larger true return, -1 if ``other`` has, 0 if the episodes do not tell."""
    difference = one["true_return_mean"] - other["true_return_mean"]
    variance = 0.0
    for agent in (one, other):
        episodes = agent.get("episodes", math.inf)
        if episodes < 2:
            return 0
        variance += agent.get("true_return_std", 0.0) ** 2 / (episodes - 1)
    if abs(difference) <= SURE * math.sqrt(variance):
        return 0
    return 1 if difference > 0 else -1


def _variety(agent: Result, random: Result) -> float:
    """How much the agent's actions vary, as a share of how much random ones do; NaN where it was not measured."""
    spread, usual = agent.get("action_spread"), random.get("action_spread")
    return math.nan if spread is None or not usual else float(spread / usual)


def _in_training(result: Result, trained: Result) -> str:
    """What it earned while it acted at random around what it thinks best, where that is much more."""
    before = result.get("training_return")
    if before is None or before <= trained["true_return_mean"] + SURE * trained.get("true_return_std", 0.0):
        return ""
    return (
        f" In training, where it acts at random around that, it last earned {before:.4g}: it may have learned, and not be sure of "
        "it yet; train longer."
    ).replace("-", "−")


def _agent(result: Result, name: str) -> Result | None:
    agent = result.get(name)
    known = isinstance(agent, Mapping) and isinstance(agent.get("true_return_mean"), int | float)
    return agent if known else None


def _number(agent: Result) -> str:
    return f"{agent['true_return_mean']:.4g}".replace("-", "−")
