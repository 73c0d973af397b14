"""Section: does the reward agree with the true one, and do its members agree with each other?"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.interpret.reward.overview import OverEpisodes, episode_sums, over_episodes, pairs_in_order
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.statistics import pearson, spearman
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "overview"
TITLE = "Agreement with the true reward"

AGREES, IN_PART = 0.9, 0.65
"""Shares of pairs of steps ordered like the true reward, from which a reward counts as agreeing, wholly or in part. Random order:
0.5."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to say: no steps."""
    subject = context.subject
    return None if len(subject.data) else "There are no steps to look at."


def run(context: StepContext[Subject]) -> Section:
    """Compare the reward with the true one, and its members with each other."""
    subject = context.subject
    data = subject.data
    members = subject.reward.members_of(data)
    rewards = members.mean(0)
    deviation = float(rewards.std())
    statements: list[Statement] = []
    checks = [
        Check(
            "the reward varies",
            deviation > 0,
            deviation,
            "> 0",
            "" if deviation > 0 else "The reward is the same for every step. It can teach an agent nothing.",
        )
    ]
    quantiles = [float(q) for q in np.quantile(rewards, [0.0, 0.05, 0.5, 0.95, 1.0])]
    tables = [
        Table(["", "minimum", "5 %", "median", "95 %", "maximum"], [["given reward", *quantiles]], "Distribution")
    ]
    values: dict[str, Any] = {
        "reward_mean": float(rewards.mean()),
        "reward_std": deviation,
        "reward_quantiles": quantiles,
    }
    known = np.isfinite(data.rewards)
    pictures = []
    if known.any() and deviation > 0:
        true, given, episodes = data.rewards[known], rewards[known], data.episodes[known]
        values["true_quantiles"] = [float(q) for q in np.quantile(true, [0.0, 0.05, 0.5, 0.95, 1.0])]
        tables[0] = Table(
            tables[0].columns, [*tables[0].rows, ["true reward", *values["true_quantiles"]]], "Distribution"
        )
        if np.ptp(true) == 0:
            statements.append(
                Statement(
                    "warning",
                    f"The true reward is {true[0]:g} at every recorded step: agreement can't be measured on this data.",
                    1.0,
                )
            )
        else:
            rng = subject.rng("overview")
            by_step = {
                "linear": over_episodes(lambda at: pearson(true[at], given[at], 0.0), episodes, rng),
                "rank": over_episodes(lambda at: spearman(true[at], given[at], 0.0), episodes, rng),
                "pairs": over_episodes(lambda at: pairs_in_order(true, given, at, rng), episodes, rng),
            }
            sums = episode_sums(given, episodes), episode_sums(true, episodes)
            by_return = (
                over_episodes(lambda at: spearman(sums[0][at], sums[1][at], 0.0), np.arange(len(sums[0])), rng)
                if np.ptp(sums[1]) > 0
                else None
            )
            tables.append(_agreement(by_step, by_return))
            values |= {
                "correlation": {**{k: vars(v) for k, v in by_step.items()}, "of_returns": by_return and vars(by_return)}
            }
            pairs = by_step["pairs"]
            checks.append(
                Check(
                    "it orders steps like the true reward",
                    pairs.value >= AGREES,
                    pairs.value,
                    f"≥ {AGREES} of pairs",
                    ""
                    if pairs.value >= AGREES
                    else "A shaped reward may do so and still be right: see the distances and the incentive test.",
                )
            )
            statements.append(_says(by_step["linear"], pairs, by_return))
            pictures.append(
                Picture("against_true", _scatter(true, given), "Given against true reward, one point per step.")
            )
    if len(members) > 1 and deviation > 0:
        of_two = [pearson(members[i], members[j], 0.0) for i in range(len(members)) for j in range(i)]
        values["members_correlation"] = float(np.mean(of_two))
        checks.append(
            Check(
                "its members agree",
                values["members_correlation"] > 0.7,
                values["members_correlation"],
                "mean correlation > 0.7",
                ""
                if values["members_correlation"] > 0.7
                else "The ensemble's members give different rewards to the same steps.",
            )
        )
    return Section(NAME, TITLE, statements, checks, tables, pictures, values)


def _agreement(by_step: dict[str, OverEpisodes], by_return: OverEpisodes | None) -> Table:
    named = {
        "pairs of steps in the true order": by_step["pairs"],
        "linear correlation of steps": by_step["linear"],
        "rank correlation of steps": by_step["rank"],
    } | ({"rank correlation of episodes' returns": by_return} if by_return else {})
    rows = [[name, of.value, of.low, of.high] for name, of in named.items()]
    return Table(["", "value", "95 % from", "to"], rows, "Agreement with the true reward")


def _says(linear: OverEpisodes, pairs: OverEpisodes, returns: OverEpisodes | None) -> Statement:
    figures = f"it orders {100 * pairs.value:.1f} % of pairs of steps like the true reward; correlation {linear}, " + (
        f"rank correlation of episodes' returns {returns}" if returns else "all episodes have the same true return"
    )
    if pairs.value >= AGREES:
        return Statement("rewards", f"What the true reward rewards, as far as these steps show: {figures}.", 10.0)
    if pairs.value >= IN_PART:
        return Statement("warning", f"It agrees with the true reward only in part: {figures}.", 10.0)
    return Statement("warning", f"It does not agree with the true reward: {figures}.", 10.0)


def _scatter(true: np.ndarray, given: np.ndarray) -> bytes:
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot()
    at = slice(None, None, max(1, len(true) // 3000))
    axes.plot(true[at], given[at], ".", markersize=3, alpha=0.35, color="#0072b2")
    axes.set_xlabel("true reward")
    axes.set_ylabel("given reward")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110, metadata={"Software": None})
    return image.getvalue()


STEP = Step(NAME, TITLE, run, why_not=why_not)
