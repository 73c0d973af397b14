"""The header of a reward's report: is it a function of a step, how far is it from the true reward, what does it teach?

An exact result counts as such: a distance of 0 means that the reward is the true one up to potential shaping and scale, whatever
other figures say, since shaping changes the order of single steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.consistency import Consistency, consistency
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.trained import Taught, taught
from rlhf_ray.measure.intervals import CORRELATION, SHARE, MeanEstimate, blocks, jackknife_interval, jackknife_rows
from rlhf_ray.measure.statistics import constant, pearson, spearman
from rlhf_ray.reward.distance_estimates import Estimate
from rlhf_ray.reward.sampled_distances import DISTANCES, all_distances, recorded_distances
from rlhf_ray.reward.supervised.report import RewardLevel, levels_of
from rlhf_ray.study.figures import DRAWN, values_of
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Use it?"
STEPS = 2000
"""Recorded steps that the distances rest on; a quarter for images."""
PAIRS, PAIRS_OF_IMAGES = 512, 128
ORDERED = 20_000
"""Pairs of steps that are compared."""
EXACT = 1e-3
"""Distance below which a reward is the true one up to shaping and scale: 32-bit networks leave as much."""
NEAR, AGREES, TEACHES, MEMBERS = 0.3, 0.8, 0.8, 0.7
"""Bounds: of the distances, of the pairs of steps in the true order, of the share of the true return that it teaches, of the mean
correlation of an ensemble's members."""
DOTS = 3000


@dataclass(frozen=True)
class Header:
    """The figures. What needs the true reward is None or empty where that is unknown."""

    mean: float  # of the reward on the steps
    deviation: float
    function: Consistency  # whether the reward is a function of a step
    distances: dict[str, Estimate]  # by name (`DISTANCES`)
    exact: bool  # whether EPIC, with the ends of episodes kept, and DARD, where there is one, are 0
    pairs: MeanEstimate | None  # see `pairs_in_order`
    linear: MeanEstimate | None  # correlation of steps
    rank: MeanEstimate | None  # of their ranks
    returns: MeanEstimate | None  # of the episodes' returns
    taught: Taught | None  # what an agent gets that is trained on it
    members: float | None  # mean correlation of an ensemble's members
    level: float | None  # what a line through the true rewards adds to them, in their units
    levels: tuple[RewardLevel, ...] = field(default=(), metadata=DRAWN)  # mean reward by level of the true one
    values: FloatArray = field(default_factory=lambda: np.zeros((2, 0)), metadata=DRAWN)  # the reward and the true one


def run(context: StepContext[Subject]) -> Section:
    """Measure, and set each figure beside its bound."""
    figures = measure(context.subject)
    pictures = [_picture(figures.values)] if np.isfinite(figures.values).all() and figures.deviation > 0 else []
    notes = [] if figures.distances else ["The true reward is unknown: give it with --truth module:function."]
    return Section("header", TITLE, _checks(figures), (), _tables(figures), pictures, notes, values_of(figures))


def measure(subject: Subject) -> Header:
    """Compute the figures."""
    data, truth = subject.data, subject.true_reward
    rewards, members = subject.reward.of(data), subject.reward.members_of(data)
    compared = subject.true_known and not constant(data.rewards) and not constant(rewards)
    distances: dict[str, Estimate] = {}
    if subject.true_known:
        image = is_image(subject.reward.observation_space)
        steps = data.sample(round(STEPS * min(1.0, subject.effort) / (4 if image else 1)), subject.rng("distances"))
        pairs = PAIRS_OF_IMAGES if image else PAIRS
        if truth is None:
            distances = recorded_distances(subject.scaled, steps, subject.gamma, subject.seed)
        else:
            distances = all_distances(subject.scaled, truth, steps, subject.gamma, subject.seed, pairs=pairs)
    each = [pearson(members[i], members[j], 0.0) for i in range(len(members)) for j in range(i)]
    found = [distances[name] for name in ("epic", "dard") if name in distances and not distances[name].refused]
    agents, true = None, data.rewards
    if subject.environment is not None and not constant(rewards):
        gamma, seed, effort = subject.gamma, subject.seed, subject.effort
        agents = taught(subject.reward, subject.environment, gamma=gamma, seed=seed, effort=effort, truth=subject.truth)
    linear = rank = ordered = returns = level = None
    if compared:
        linear = jackknife_rows(lambda at: pearson(rewards[at], true[at], 0.0), data.episodes, CORRELATION)
        rank = jackknife_rows(lambda at: spearman(rewards[at], true[at], 0.0), data.episodes, CORRELATION)
        ordered = pairs_in_order(rewards, true, data.episodes, subject.rng("pairs"))
        sums = [np.bincount(np.unique(data.episodes, return_inverse=True)[1], of) for of in (rewards, true)]
        if not any(map(constant, sums)):
            numbers = np.arange(len(sums[0]))
            returns = jackknife_rows(lambda at: spearman(sums[0][at], sums[1][at], 0.0), numbers, CORRELATION)
        slope, start = np.polyfit(true, rewards, 1)
        level = float(start / slope) if slope > 0 else None
    return Header(
        mean=float(rewards.mean()),
        deviation=float(rewards.std()),
        function=consistency(subject.reward, data),
        distances=distances,
        exact=bool(found) and all(distance.value < EXACT for distance in found),
        pairs=ordered,
        linear=linear,
        rank=rank,
        returns=returns,
        taught=agents,
        members=float(np.mean(each)) if each else None,
        level=level,
        levels=levels_of(rewards, true, np.zeros(0)) if subject.true_known else (),
        values=np.stack([rewards, true]),
    )


def pairs_in_order(rewards: FloatArray, true: FloatArray, episodes: IntArray, rng: np.random.Generator) -> MeanEstimate:
    """Estimate the share of pairs of steps with different true rewards that a reward orders alike; ties count half.

    Unlike a rank correlation, it does not depend on how many steps share one true reward. 0.5 if all do. `ORDERED` pairs are drawn.
    """
    first, second = rng.integers(len(true), size=(2, ORDERED))
    differ = true[first] != true[second]
    first, second = first[differ], second[differ]
    if not len(first):
        return MeanEstimate(0.5, None, None)
    alike = (np.sign(rewards[first] - rewards[second]) * np.sign(true[first] - true[second]) + 1) / 2
    block = blocks(episodes)
    kept = [(block[first] != left) & (block[second] != left) for left in range(int(block.max()) + 1)]
    others = np.array([alike[of].mean() if of.any() else np.nan for of in kept])
    value = float(alike.mean())
    return MeanEstimate(value, *jackknife_interval(value, others, np.bincount(block), SHARE))


def beyond(estimate: MeanEstimate, bound: float) -> bool | None:
    """Return whether a figure is above its bound; None if the bound lies within its interval, or if it has none."""
    if estimate.low is None or estimate.high is None or estimate.low <= bound < estimate.high:
        return None
    return estimate.low > bound


def _checks(figures: Header) -> list[Check]:
    found = [Check("the reward varies", figures.deviation > 0, figures.deviation, bound="> 0")]
    found += function_checks(figures.function)
    exact, teaches = figures.exact, figures.taught
    name, bound = "share of the true return that an agent trained on it gets", f"> {TEACHES}"
    if teaches is not None and teaches.share is not None:
        remedy = "Ask for comparisons where it differs."
        found.append(Check.of(name, exact or beyond(teaches.share, TEACHES), teaches.share, bound, remedy))
    elif figures.deviation > 0 and not exact:
        why = "The short PPO here can't train on it"
        if teaches is not None:
            why = "PPO gains nothing on the true reward in this time"
        remedy = f"{why}: `rlhf-ray train ENVIRONMENT --reward-from` trains on it."
        found.append(Check(name, None, bound=bound, remedy=remedy))
    for name in ("epic", "dard", "starc"):
        if name in figures.distances:
            found.append(_distance(DISTANCES[name], figures.distances[name], exact))
    if figures.pairs is not None:
        passed = True if exact else beyond(figures.pairs, AGREES)
        bound = f"> {AGREES}, or a distance of 0" if exact else f"> {AGREES}"
        found.append(Check.of("pairs of steps in the true order", passed, figures.pairs, bound))
    if figures.members is not None:
        agree, remedy = figures.members > MEMBERS, "The members disagree: ask for more comparisons."
        found.append(Check.of("correlation of the members", agree, figures.members, f"> {MEMBERS}", remedy))
    return found


def _distance(name: str, distance: Estimate, exact: bool) -> Check:
    if distance.refused:
        return Check(name, None, bound=f"< {NEAR}", remedy=distance.refused)
    estimate = MeanEstimate(distance.value, *(None if np.isnan(end) else end for end in (distance.low, distance.high)))
    far = beyond(estimate, NEAR)
    bound = "0: the true reward, up to shaping and scale" if exact and distance.value < EXACT else f"< {NEAR}"
    return Check.of(name, True if exact else None if far is None else not far, estimate, bound)


def function_checks(found: Consistency) -> list[Check]:
    """Return the checks that a reward is a function of a step."""
    bound = f"≤ {found.most:.2g} standard deviations"
    if found.fault:
        remedy = found.error or "It must compute each step's reward from that step alone."
        return [Check("the same step, the same reward", False, getattr(found, found.fault), bound=bound, remedy=remedy)]
    largest = max(found.again, found.alone or 0.0, found.elsewhere)
    checks = [Check("the same step, the same reward", True, largest, bound=bound)]
    if found.remembers > found.most:
        remedy = "It remembers earlier calls; here, each call starts from its state as loaded."
        checks.append(Check("the same answer twice in a row", None, found.remembers, bound=bound, remedy=remedy))
    if found.changes:
        remedy = f"It changes its inputs in place ({', '.join(found.changes)}): let it copy them first."
        checks.append(Check("inputs stay as they are", None, remedy=remedy))
    return checks


def _tables(figures: Header) -> list[Table]:
    rows = [
        [label, each.value, each.low, each.high, each.refused]
        for name, label in DISTANCES.items()
        if (each := figures.distances.get(name)) is not None
    ]
    for name, of in {
        "pairs of steps in the true order": figures.pairs,
        "linear correlation of steps": figures.linear,
        "rank correlation of steps": figures.rank,
        "rank correlation of episodes' returns": figures.returns,
    }.items():
        if of is not None:
            rows.append([name, of.mean, of.low, of.high, ""])
    if figures.level is not None:
        rows.append(["level: what it adds to the true reward, in its units", figures.level, None, None, ""])
    found = []
    if rows:
        caption = (
            "Beside the true reward. Distances: 0 is equal up to shaping and scale, 0.71 unrelated, 1 opposite. EPIC as published "
            "(Gleave et al. 2020) ignores a constant; with the ends of episodes kept, it counts as it does for an agent."
        )
        found.append(Table(["", "value", "95 % from", "to", "why not"], rows, caption))
    if (of_agents := figures.taught) is not None:
        how = "exact, discounted" if of_agents.exact else "agents trained by PPO"
        rows = [
            ["the true reward", of_agents.best],
            ["this reward", of_agents.learned],
            ["random actions", of_agents.random],
        ]
        found.append(Table(["trained on", "true return"], rows, f"True returns ({how})."))
    if figures.levels:
        levels = [[each.label, each.test, each.predicted, each.spread] for each in figures.levels]
        found.append(Table(["true reward", "steps", "mean reward", "standard deviation"], levels, "By true reward."))
    return found


def _picture(values: FloatArray) -> Picture:
    given, true = values[:, :: max(1, values.shape[1] // DOTS)]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(true, given, ".", markersize=3, alpha=0.35, color="#0072b2")
    axes.set(xlabel="true reward", ylabel="given reward")
    return Picture("against_true", png(figure, dpi=110), "Each dot is a step.")


STEP = Step("header", TITLE, run)
