"""Verdicts: caveats about a run's outcome, from its returns, their noise, and the variation of its actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlhf_ray.agents.true_return import LONGEST
from rlhf_ray.runs.outcome import Verdict

SURE = 2.0
"""Standard errors by which two mean returns must differ to count as different."""

SUGGESTIVE = 1.0
"""Standard errors from which a difference suggests that more episodes would tell."""

COLLAPSED = 0.1
"""Variation of an agent's actions relative to random actions; below it, the agent takes the same action at every step."""

FURTHER = "Train longer (--resume), with more comparisons, or with another --seed."

Result = Mapping[str, Any]
"""The contents of ``result.json``; parts may be missing."""


FELL_SHORT = 0.8
"""Share of the way from random actions to the reference below which the agent has not learned what it could."""

NO_SUCCESS = frozenset({"below_random", "no_better_than_random", "actions_collapsed", "reference_says_nothing"})
"""Verdicts with which a normalised return would suggest a success that did not happen."""


def verdicts(result: Result) -> list[Verdict]:
    """The verdicts on ``result``; empty if the trained agent was not evaluated."""
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
            f"The trained agent is not significantly different from random actions: {returns}. {_remedy(trained, random)}"
        )
    if (share := _variety(trained, random)) < COLLAPSED:
        found["actions_collapsed"] = (
            f"The trained agent takes nearly the same action at every step: its actions vary {100 * share:.2g}% as much as "
            f"random ones. Its return is that of a constant action.{_in_training(result, trained)}"
        )
    if reference is not None and compare(reference, random) <= 0:
        found["reference_says_nothing"] = (
            f"The reference is no better than random actions either (true return {_number(reference)}): with these "
            "settings the agent does not learn the task from the true reward, so the reference is not a valid baseline."
        )
    elif reference is not None and _variety(reference, random) < COLLAPSED:
        found["reference_says_nothing"] = (
            "The reference also takes nearly the same action at every step: with these settings the agent finds nothing better "
            "from the true reward, so the reference is not a valid baseline."
        )
    elif reference is not None and better > 0 and _way(trained, random, reference) < FELL_SHORT:
        found["short_of_reference"] = (
            f"The trained agent went {100 * _way(trained, random, reference):.0f}% of the way from random actions "
            f"({_number(random)}) to the reference ({_number(reference)}): it reaches {_number(trained)}. {FURTHER}"
        )
    elif reference is not None and compare(trained, reference) < 0:
        found["below_reference"] = (
            f"The trained agent is worse than the reference (on the true reward): {_number(trained)} against "
            f"{_number(reference)}, a difference above the evaluation's noise."
        )
    if cut := sum(agent.get("cut", 0) for agent in (trained, random, reference) if agent is not None):
        found["endless_episodes"] = (
            f"{cut} episodes of the evaluation did not end, and were cut after {LONGEST:,} steps: their true return is the sum of "
            "these. The environment has no time limit; register it with max_episode_steps."
        )
    threshold = result.get("reward_threshold")
    if reference is None and better > 0 and threshold is not None and trained["true_return_mean"] < threshold:
        found["below_threshold"] = (
            f"The trained agent's true return of {_number(trained)} is below {_figure(threshold)}, from which this environment "
            f"counts as learned. {FURTHER} --reference shows what the same settings reach on the true reward."
        )
    return [Verdict(*each) for each in found.items()]


def share_of_the_way(result: Result) -> float | None:
    """The normalised return of the trained agent, from random (0) to reference (1); None if not meaningful."""
    if NO_SUCCESS & {verdict.name for verdict in verdicts(result)}:
        return None
    trained, random, reference = (_agent(result, name) for name in ("trained", "random", "reference"))
    if trained is None or random is None or reference is None:
        return None
    return _way(trained, random, reference)


def _way(trained: Result, random: Result, reference: Result) -> float:
    """The trained agent's true return on the way from random (0) to the reference (1), which is better than random."""
    best, trained_, low = (agent["true_return_mean"] for agent in (reference, trained, random))
    return float((trained_ - low) / (best - low))


def compare(one: Result, other: Result) -> int:
    """1 if ``one`` has the higher true return, -1 if ``other`` has, 0 if the difference is not significant."""
    apart = standard_errors(one, other)
    return 0 if abs(apart) <= SURE else 1 if apart > 0 else -1


def standard_errors(one: Result, other: Result) -> float:
    """By how many standard errors ``one`` has the higher true return; 0 if one episode of either tells no error."""
    difference = one["true_return_mean"] - other["true_return_mean"]
    variance = 0.0
    for agent in (one, other):
        episodes = agent.get("episodes", math.inf)
        if episodes < 2:
            return 0.0
        variance += agent.get("true_return_std", 0.0) ** 2 / (episodes - 1)
    if not difference:
        return 0.0
    return float(difference / math.sqrt(variance)) if variance else math.copysign(math.inf, difference)


def _remedy(trained: Result, random: Result) -> str:
    """What helps an agent that is not significantly different from random actions."""
    learn = "train longer (total_env_steps) or ask for more comparisons (preferences.comparisons)"
    fewest = min(agent.get("episodes", math.inf) for agent in (trained, random))
    if fewest < 2:
        return "One episode has no noise to compare with: evaluate more (--evaluation-episodes)."
    apart = standard_errors(trained, random)
    if not SUGGESTIVE <= apart <= SURE:
        return f"Nothing suggests that it has learned the task: {learn}."
    episodes = math.ceil(fewest * (SURE / apart) ** 2 / 10) * 10
    return f"If the difference is real, about {episodes} episodes (--evaluation-episodes) would show it; otherwise {learn}."


def _variety(agent: Result, random: Result) -> float:
    """Variation of the agent's actions relative to random ones; NaN if not measured."""
    spread, usual = agent.get("action_spread"), random.get("action_spread")
    return math.nan if spread is None or not usual else float(spread / usual)


def _in_training(result: Result, trained: Result) -> str:
    """A sentence about the return of the stochastic policy in training, if it is much higher."""
    before = result.get("training_return")
    if before is None or before <= trained["true_return_mean"] + SURE * trained.get("true_return_std", 0.0):
        return ""
    return (
        f" In training, the stochastic policy reached {before:.4g}: it may have learned something that its most likely action does "
        "not show yet; train longer."
    ).replace("-", "−")


def _agent(result: Result, name: str) -> Result | None:
    agent = result.get(name)
    known = isinstance(agent, Mapping) and isinstance(agent.get("true_return_mean"), int | float)
    return agent if known else None


def _number(agent: Result) -> str:
    return _figure(agent["true_return_mean"])


def _figure(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")
