"""The outcome of a run, and whether its figures keep their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_ray.agents.true_return import LONGEST, TrueReturn
from rlhf_ray.measure.intervals import MeanEstimate, student
from rlhf_ray.study.section import Check, figure

SUGGESTIVE = 0.5
"""Share of half an interval from which a difference inside it suggests that more episodes would tell."""

UNUSUAL = 2.0
"""Standard deviations of an episode's return from which a return in training is above what the policy usually gets."""

COLLAPSED = 0.1
"""Variation of an agent's actions relative to random actions; below it, the agent takes the same action at every step."""

REACHED = 2 / 3
"""Share of what the best compared fragments earn per step, above the average one, below which the policy has not reached what it
was shown. Chosen on runs of Pendulum and CartPole with 20 and 30 % of the answers wrong: all 78 that learned had 0.70 or more, and
34 of 35 that failed had less than 0.67. Where a fragment earns what no policy keeps up, as in Swimmer, good runs have less too."""

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
    held_out_accuracy: float | None = None
    random: TrueReturn | None = None
    trained: TrueReturn | None = None
    """None if the run was stopped without time or a policy to evaluate."""
    reference: TrueReturn | None = None
    normalised: float | None = None
    """(trained - random) / (reference - random), in mean true returns; None if not meaningful (see `share_of_the_way`)."""
    train_seconds: float = 0.0
    interrupted: bool = False
    training_return: float | None = None
    """The last mean true return in training, with the stochastic policy."""
    best_fragments: float | None = None
    """The least that the best twentieth of the compared fragments earns per step (see `FitReport`)."""
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
        mean, bound = trained["true_return_mean"], f"≥ {figure(threshold)}"
        remedy = f"{LEARN} --reference shows what the same settings reach on the true reward."
        checks.append(Check.of("return beside the environment's threshold", mean >= threshold, mean, bound, remedy))
    checks += _beside_fragments(trained.get("learned_reward"), result)
    if not math.isnan(variation := _variation(trained, random)):
        checks.append(_of_actions(variation, trained, result.get("training_return")))
    if cut := sum(agent.get("cut", 0) for agent in (trained, random, reference) if agent is not None):
        remedy = (
            f"Cut after {LONGEST:,} steps, whose sum is their return. Register the environment with max_episode_steps."
        )
        checks.append(Check.of("episodes cut", False, cut, "0", remedy))
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
    agents = (result.get(name) for name in ("trained", "random", "reference"))
    known = [agent if isinstance(agent, Mapping) else {} for agent in agents]
    trained, random, reference = (of if isinstance(of.get("true_return_mean"), int | float) else None for of in known)
    return trained, random, reference


def difference(one: Result, other: Result) -> MeanEstimate:
    """By how much ``one`` has the higher mean return (Welch's t); no interval if either was evaluated on one episode."""
    mean = float(one["true_return_mean"] - other["true_return_mean"])
    freedoms = [_episodes(one) - 1, _episodes(other) - 1]
    if min(freedoms) < 1:
        return MeanEstimate(mean, None, None)
    squares = [of.get("true_return_std", 0.0) ** 2 / free for of, free in zip((one, other), freedoms, strict=True)]
    parts = sum(square**2 / free for square, free in zip(squares, freedoms, strict=True))
    half = student(sum(squares) ** 2 / parts) * math.sqrt(sum(squares)) if parts else 0.0
    return MeanEstimate(mean, mean - half, mean + half)


def _beside_fragments(learned: float | None, result: Result) -> list[Check]:
    """Compare what the policy earns per step, of the learned reward, with what the best compared fragments do."""
    if learned is None or (best := result.get("best_fragments")) is None:
        return []
    remedy = (
        "The policy earns far less than the best compared fragments: it is stuck, was trained too briefly, or fragments earn what "
        "no policy keeps up. Train another on the same reward: `rlhf-ray train RUN/config.json --reward-from RUN`, with this run's "
        "folder for RUN, or another agent (--agent)."
    )
    least = REACHED * best
    return [Check.of("learned reward per step", learned >= least, learned, f"≥ {figure(least)}", remedy)]


def _beside_random(trained: Result, random: Result) -> Check:
    above, remedy = difference(trained, random), LEARN
    passed: bool | None = _sure(above)
    if above.low is None or above.high is None:
        passed, remedy = None, "One episode has no noise to compare with: evaluate more (--evaluation-episodes)."
    elif not passed and above.mean > 0 and above.mean >= SUGGESTIVE * (half := above.high - above.mean):
        enough = math.ceil(min(_episodes(trained), _episodes(random)) * (half / above.mean) ** 2 / 10) * 10
        passed, remedy = None, f"About {enough} episodes (--evaluation-episodes) would decide it. {LEARN}"
    return Check.of("true return", passed, _estimate(trained), _above(above, random), remedy)


def _sure(above: MeanEstimate) -> bool:
    return above.low is not None and above.low > 0.0


def _above(above: MeanEstimate, random: Result) -> str:
    """The bound of a return that has to be above that of random actions, with the interval that decides it."""
    by = "" if above.low is None else f", by more than 0: {figure(above.low)} to {figure(above.high)}"
    return f"> {figure(float(random['true_return_mean']))} of random actions{by}"


def _beside_reference(trained: Result, random: Result, reference: Result) -> Iterator[Check]:
    learned = _learned(reference, random)
    remedy = "With these settings the agent does not learn the task from the true reward either, so this is no valid baseline."
    if _variation(reference, random) < COLLAPSED:
        remedy = "It takes nearly the same action at every step, so it is no valid baseline."
    bound = _above(difference(reference, random), random)
    yield Check.of("reference's true return", learned, _estimate(reference), bound, remedy)
    if learned:
        way = _way(trained, random, reference)
        yield Check.of("share of the way to the reference", way.mean >= FELL_SHORT, way, f"≥ {FELL_SHORT}", LEARN)


def _of_actions(variation: float, trained: Result, before: float | None) -> Check:
    remedy = "It takes nearly the same action at every step; its return is that of a constant action."
    usual = trained["true_return_mean"] + UNUSUAL * trained.get("true_return_std", 0.0)
    if before and before > usual:
        remedy += (
            f" In training, the stochastic policy reached {figure(float(before))}: it may have learned something that its most "
            "likely action does not show yet; train longer."
        )
    name = "variation of actions beside random ones"
    return Check.of(name, variation >= COLLAPSED, variation, f"≥ {COLLAPSED}", remedy)


def _learned(agent: Result, random: Result) -> bool:
    """Whether an agent is better than random actions, and not by a constant action."""
    return _sure(difference(agent, random)) and not _variation(agent, random) < COLLAPSED


def _way(trained: Result, random: Result, reference: Result) -> MeanEstimate:
    """The trained agent's true return on the way from random actions (0) to the reference (1), with the trained agent's noise."""
    low, best, found = random["true_return_mean"], reference["true_return_mean"], _estimate(trained)
    ends = [None if end is None else (end - low) / (best - low) for end in (found.low, found.high)]
    return MeanEstimate((found.mean - low) / (best - low), *ends)


def _estimate(agent: Result) -> MeanEstimate:
    """An agent's mean return, with its interval over episodes."""
    return difference(agent, {"true_return_mean": 0.0})


def _episodes(agent: Result) -> float:
    return float(agent.get("episodes", math.inf))


def _variation(agent: Result, random: Result) -> float:
    """Variation of the agent's actions relative to random ones; NaN if not measured."""
    spread, usual = agent.get("action_spread"), random.get("action_spread")
    return math.nan if spread is None or not usual else float(spread / usual)
