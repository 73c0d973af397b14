"""Verdicts: caveats about a run's outcome, from its returns, their noise, and the variation of its actions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_ray.agents.true_return import LONGEST
from rlhf_ray.runs.outcome import Verdict
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

SURE = 2.0
"""Standard errors by which two mean returns must differ to count as different."""

SUGGESTIVE = 1.0
"""Standard errors from which a difference suggests that more episodes would tell."""

COLLAPSED = 0.1
"""Variation of an agent's actions relative to random actions; below it, the agent takes the same action at every step."""

FELL_SHORT = 0.8
"""Share of the way from random actions to the reference below which the agent has not learned what it could."""

NO_SUCCESS = frozenset({"below_random", "no_better_than_random", "actions_collapsed", "reference_says_nothing"})
"""Verdicts with which a normalised return would suggest a success that did not happen."""

Result = Mapping[str, Any]
"""The contents of ``result.json``; parts may be missing."""


def verdicts(result: Result) -> list[Verdict]:
    """The verdicts on ``result``; empty if the trained agent was not evaluated."""
    trained, random, reference = (_agent(result, name) for name in ("trained", "random", "reference"))
    if trained is None or random is None:
        return []
    names = {
        **dict(_against_random(result, trained, random)),
        **dict(_against_reference(trained, random, reference) if reference is not None else ()),
    }
    if cut := sum(agent.get("cut", 0) for agent in (trained, random, reference) if agent is not None):
        names["endless_episodes"] = {"cut": cut, "longest": LONGEST}
    threshold = result.get("reward_threshold")
    better = compare(trained, random) > 0
    if reference is None and better and threshold is not None and trained["true_return_mean"] < threshold:
        names["below_threshold"] = {"threshold": threshold}
    agents = {"trained": trained, "random": random, "reference": reference}
    return [Verdict(name, WORDS.text(name, **agents, **values)) for name, values in names.items()]


def _against_random(result: Result, trained: Result, random: Result) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the verdicts on the trained agent beside random actions, and what their sentences need."""
    better = compare(trained, random)
    if better < 0:
        yield "below_random", {}
    elif better == 0:
        yield "no_better_than_random", {"remedy": _remedy(trained, random)}
    if (variety := _variety(trained, random)) < COLLAPSED:
        before = result.get("training_return")
        usual = trained["true_return_mean"] + SURE * trained.get("true_return_std", 0.0)
        yield "actions_collapsed", {"variety": variety, "before": before if before and before > usual else None}


def _against_reference(trained: Result, random: Result, reference: Result) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the verdicts on the trained agent beside the reference, and what their sentences need."""
    way = _way(trained, random, reference)
    if compare(reference, random) <= 0:
        yield "reference_says_nothing", {"collapsed": False}
    elif _variety(reference, random) < COLLAPSED:
        yield "reference_says_nothing", {"collapsed": True}
    elif compare(trained, random) > 0 and way < FELL_SHORT:
        yield "short_of_reference", {"way": way}
    elif compare(trained, reference) < 0:
        yield "below_reference", {}


def share_of_the_way(result: Result) -> float | None:
    """The normalised return of the trained agent, from random (0) to reference (1); None if not meaningful."""
    trained, random, reference = (_agent(result, name) for name in ("trained", "random", "reference"))
    if trained is None or random is None or reference is None:
        return None
    return None if NO_SUCCESS & {verdict.name for verdict in verdicts(result)} else _way(trained, random, reference)


def _way(trained: Result, random: Result, reference: Result) -> float:
    """The trained agent's true return on the way from random (0) to the reference (1); NaN if these are equal."""
    best, mean, low = (agent["true_return_mean"] for agent in (reference, trained, random))
    return float((mean - low) / (best - low)) if best != low else math.nan


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
    fewest = min(agent.get("episodes", math.inf) for agent in (trained, random))
    if fewest < 2:
        return WORDS.text("one_episode")
    apart = standard_errors(trained, random)
    if not SUGGESTIVE <= apart <= SURE:
        return WORDS.text("nothing_learned")
    return WORDS.text("more_episodes", episodes=math.ceil(fewest * (SURE / apart) ** 2 / 10) * 10)


def _variety(agent: Result, random: Result) -> float:
    """Variation of the agent's actions relative to random ones; NaN if not measured."""
    spread, usual = agent.get("action_spread"), random.get("action_spread")
    return math.nan if spread is None or not usual else float(spread / usual)


def _agent(result: Result, name: str) -> Result | None:
    agent = result.get(name)
    known = isinstance(agent, Mapping) and isinstance(agent.get("true_return_mean"), int | float)
    return agent if known else None
