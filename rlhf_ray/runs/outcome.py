"""The outcome of a run, and whether its figures keep their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_ray.agents.true_return import LONGEST, TrueReturn
from rlhf_ray.measure.intervals import MeanEstimate, student
from rlhf_ray.study.section import Check, figure

SURE = 2.0
"""Standard errors by which two mean returns must differ to count as different."""

SUGGESTIVE = 1.0
"""Standard errors from which a difference suggests that more episodes would tell."""

COLLAPSED = 0.1
"""Variation of an agent's actions relative to random actions; below it, the agent takes the same action at every step."""

FELL_SHORT = 0.8
"""Share of the way from random actions to the reference below which the agent has not learned what it could."""

LEARN = "Train longer (--resume), with more comparisons (preferences.comparisons), or with another --seed."

Result = Mapping[str, Any]
"""The contents of ``result.json``, or of one of its agents; parts may be missing."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, written to ``result.json`` (see `rlhf_ray.runs.folder`)."""

    environment: str
    seed: int
    env_steps: int
    comparisons: int
    held_out_accuracy: float | None
    random: TrueReturn | None
    trained: TrueReturn | None
    """None if the run was stopped without time or a policy to evaluate."""
    reference: TrueReturn | None
    normalised: float | None
    """(trained - random) / (reference - random), in mean true returns; None if not meaningful (see `share_of_the_way`)."""
    train_seconds: float
    interrupted: bool
    training_return: float | None = None
    """The last mean true return in training, with the stochastic policy."""
    checks: list[Check] = field(default_factory=list)
    """The figures with their bounds."""
    held_out_decided: int | None = None
    """Answers, without ties, behind ``held_out_accuracy``."""
    skipped: int = 0
    """Pairs that annotators skipped."""
    reward_threshold: float | None = None
    """True return from which the environment counts as learned (see `rlhf_ray.envs.registry`); None if nobody says one."""


def checks_of(result: Result) -> list[Check]:
    """Return the checks of ``result``; none if the trained agent was not evaluated."""
    trained, random, reference = agents_of(result)
    if trained is None or random is None:
        return []
    checks = [_beside_random(trained, random)]
    if reference is not None:
        checks += _beside_reference(trained, random, reference)
    elif (threshold := result.get("reward_threshold")) is not None:
        mean = trained["true_return_mean"]
        remedy = f"{LEARN} --reference shows what the same settings reach on the true reward."
        checks.append(
            _check(
                "return beside the environment's threshold", mean >= threshold, mean, f"≥ {figure(threshold)}", remedy
            )
        )
    if not math.isnan(variation := _variation(trained, random)):
        checks.append(_of_actions(variation, trained, result.get("training_return")))
    if cut := sum(agent.get("cut", 0) for agent in (trained, random, reference) if agent is not None):
        remedy = (
            f"Cut after {LONGEST:,} steps, whose sum is their return. Register the environment with max_episode_steps."
        )
        checks.append(_check("episodes cut", False, cut, "0", remedy))
    return checks


def share_of_the_way(result: Result) -> float | None:
    """Return the trained agent's true return on the way from random actions (0) to the reference (1).

    None if that would suggest a success that did not happen: the agent is not better than random actions, or its actions don't
    vary, or the same holds for the reference.
    """
    trained, random, reference = agents_of(result)
    if trained is None or random is None or reference is None:
        return None
    return _way(trained, random, reference).mean if _learned(trained, random) and _learned(reference, random) else None


def agents_of(result: Result) -> tuple[Result | None, Result | None, Result | None]:
    """Return what is known of the trained agent, random actions and the reference; None for those not evaluated."""
    trained, random, reference = (
        agent
        if isinstance(agent := result.get(name), Mapping) and isinstance(agent.get("true_return_mean"), int | float)
        else None
        for name in ("trained", "random", "reference")
    )
    return trained, random, reference


def standard_errors(one: Result, other: Result) -> float:
    """By how many standard errors ``one`` has the higher true return; 0 if one episode of either tells no error."""
    difference = one["true_return_mean"] - other["true_return_mean"]
    if min(_episodes(one), _episodes(other)) < 2 or not difference:
        return 0.0
    error = math.hypot(_error(one), _error(other))
    return float(difference / error) if error else math.copysign(math.inf, difference)


def _beside_random(trained: Result, random: Result) -> Check:
    apart = standard_errors(trained, random)
    fewest = min(_episodes(trained), _episodes(random))
    passed: bool | None = apart > SURE
    remedy = LEARN
    if fewest < 2:
        passed, remedy = None, "One episode has no noise to compare with: evaluate more (--evaluation-episodes)."
    elif SUGGESTIVE <= apart <= SURE:
        enough = math.ceil(fewest * (SURE / apart) ** 2 / 10) * 10
        passed, remedy = None, f"About {enough} episodes (--evaluation-episodes) would decide it. {LEARN}"
    bound = f"> {figure(float(random['true_return_mean']))} of random actions"
    return Check.of("true return", passed, _estimate(trained), bound, remedy)


def _beside_reference(trained: Result, random: Result, reference: Result) -> Iterator[Check]:
    learned = _learned(reference, random)
    remedy = "With these settings the agent does not learn the task from the true reward either, so this is no valid baseline."
    if _variation(reference, random) < COLLAPSED:
        remedy = "It takes nearly the same action at every step, so it is no valid baseline."
    bound = f"> {figure(float(random['true_return_mean']))} of random actions"
    yield Check.of("reference's true return", learned, _estimate(reference), bound, remedy)
    if learned:
        way = _way(trained, random, reference)
        yield Check.of("share of the way to the reference", way.mean >= FELL_SHORT, way, f"≥ {FELL_SHORT}", LEARN)


def _of_actions(variation: float, trained: Result, before: float | None) -> Check:
    remedy = "It takes nearly the same action at every step; its return is that of a constant action."
    usual = trained["true_return_mean"] + SURE * trained.get("true_return_std", 0.0)
    if before and before > usual:
        remedy += (
            f" In training, the stochastic policy reached {figure(float(before))}: it may have learned something that its most "
            "likely action does not show yet; train longer."
        )
    return _check(
        "variation of actions beside random ones", variation >= COLLAPSED, variation, f"≥ {COLLAPSED}", remedy
    )


def _check(name: str, passed: bool, value: float, bound: str, remedy: str) -> Check:
    return Check.of(name, passed, MeanEstimate(value, None, None), bound, remedy)


def _learned(agent: Result, random: Result) -> bool:
    """Whether an agent is better than random actions, and not by a constant action."""
    return standard_errors(agent, random) > SURE and not _variation(agent, random) < COLLAPSED


def _way(trained: Result, random: Result, reference: Result) -> MeanEstimate:
    """The trained agent's true return on the way from random actions (0) to the reference (1), with the trained agent's noise."""
    low, best, found = random["true_return_mean"], reference["true_return_mean"], _estimate(trained)
    ends = [None if end is None else (end - low) / (best - low) for end in (found.low, found.high)]
    return MeanEstimate((found.mean - low) / (best - low), *ends)


def _estimate(agent: Result) -> MeanEstimate:
    """An agent's mean return, with its interval over episodes."""
    mean, episodes = float(agent["true_return_mean"]), _episodes(agent)
    half = None if episodes < 2 else student(episodes - 1) * _error(agent)
    return MeanEstimate(mean, None, None) if half is None else MeanEstimate(mean, mean - half, mean + half)


def _error(agent: Result) -> float:
    """The standard error of an agent's mean return; 0 if one episode tells none."""
    return float(agent.get("true_return_std", 0.0) / math.sqrt(max(1, _episodes(agent) - 1)))


def _episodes(agent: Result) -> float:
    return float(agent.get("episodes", math.inf))


def _variation(agent: Result, random: Result) -> float:
    """Variation of the agent's actions relative to random ones; NaN if not measured."""
    spread, usual = agent.get("action_spread"), random.get("action_spread")
    return math.nan if spread is None or not usual else float(spread / usual)
