"""Which inputs the reward looks at, by attributions that passed their checks and by interventions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret import attribution
from rlhf_ray.interpret.attribution import Maps, Method, contributions, make_methods, methods_key
from rlhf_ray.interpret.attribution.drawing import draw
from rlhf_ray.interpret.attribution.faithfulness import rank_correlation
from rlhf_ray.interpret.attribution.interventions import Occlusion, PartEffects, input_effects, part_effects
from rlhf_ray.interpret.reward.question import RewardQuestion
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.figures import DRAWN, values_of
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Which inputs it attributes its reward to"

METHODS = tuple(name for name in attribution.METHODS.parts if name != "difference_x_gradient")
"""The methods, if the subject names none."""
BACKGROUND, JUDGED, SHOWN, EXCHANGED = 512, 16, 6, 256
"""Steps that give donors and means; that checks use; in pictures; whose whole inputs are exchanged."""
UPDATES = 150
"""Gradient steps of the networks that learn permuted rewards, at effort 1."""
SHARE, TIMES = 0.4, 10.0
"""The gradient is not to be trusted if the part with the largest effect has at least this share of all effects, and this many times
its share of the gradient."""
GAP = 0.05
"""Largest gap of a complete map, in units of the question."""
SIMILAR = 0.5
"""Rank correlation with the maps of a network that learned nothing from which a map is not about this function."""
AGREEMENT = 0.4
"""Least rank correlation with interventions."""
PARTS = 8
"""Least number of parts: of fewer, two maps that have nothing to do with each other often have the same order."""
FIRST = 7919
"""Added to the seeds of new networks: with the seed of the function's own training, they would start from its initial weights."""
MAPS = {
    "untrained": ("untrained network", "The maps of untrained networks"),
    "permuted": ("permuted labels", "The maps after learning permuted outputs"),
}
NETWORKS = 2
"""Networks that learned nothing, of each kind: the mean over them is less a matter of luck."""


@dataclass(frozen=True)
class GradientTrust:
    """The gradient beside interventions: shares that each step's most important part has, means over steps."""

    ablation: float  # of all effects
    gradient: float  # of the gradient

    def check(self) -> Check:
        """Return the check whether the gradient misses the most important part."""
        trusted = self.ablation < SHARE or self.ablation < TIMES * self.gradient
        bound = f"≥ {self.ablation / TIMES:.2f}" if self.ablation >= SHARE else ""
        remedy = "The gradient misses the most important part: look at the interventions."
        return Check.of("the most important part's share of the gradient", trusted, self.gradient, bound, remedy)


@dataclass(frozen=True)
class Judged:
    """A method's maps of the steps that the checks use, and the checks that they went through.

    The infidelity is the mean squared difference of part sums and interventions' effects over the effects' mean square; 1 is no
    better than an empty map.
    """

    method: Method
    maps: Maps
    checks: tuple[Check, ...]
    infidelity: float

    @property
    def crossed_out(self) -> str | None:
        """Why not to trust the maps; None if no check failed."""
        return " ".join(check.remedy for check in self.checks if check.passed is False) or None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        checks = {check.name: {"value": check.value, "passed": check.passed} for check in self.checks}
        return {"crossed_out": self.crossed_out, "infidelity": self.infidelity, "checks": checks}


class Judge:
    """Runs all checks of methods on the same steps, against the same other networks and interventions; no constant rewards.

    Each asks whether a map shows what the reward learned, or only what is in the picture (Adebayo et al. 2018; Yeh et al. 2019).
    Networks that learn permuted outputs do so in ``updates`` gradient steps.
    """

    def __init__(self, question: RewardQuestion, moments: Transitions, updates: int = 150):
        self.question, self.moments, self.updates = question, moments, updates

    @cached_property
    def effects(self) -> PartEffects:
        """Effects of the matching intervention: each part exchanged with other moments'; cells get their most frequent code."""
        return part_effects(self.question, self.moments, "typical" if self.question.coded else "donor")

    @cached_property
    def exchanged(self) -> PartEffects:
        """As `effects`, exchanged with other moments' in any case."""
        return part_effects(self.question, self.moments) if self.question.coded else self.effects

    @cached_property
    def others(self) -> dict[str, list[RewardQuestion]]:
        """Questions about networks that learned nothing, by key of `MAPS`; empty lists if there can be none."""
        first = FIRST + self.question.seed
        made = {
            "untrained": [self.question.untrained(first + i) for i in range(NETWORKS)],
            "permuted": [self.question.permuted(first + NETWORKS + i, self.updates, i) for i in range(NETWORKS)],
        }
        return {key: [question for question in each if question is not None] for key, each in made.items()}

    def judge(self, method: Method) -> Judged:
        """Compute a method's maps and check them."""
        maps = contributions(method, self.question, self.moments)
        sums = self.question.part_sums(maps)
        checks = [self._completeness(maps)] if method.complete else []
        checks += [*(self._differs(key, method, sums) for key in MAPS), self._agreement(method, sums)]
        size = float(np.square(self.effects.signed).mean())
        infidelity = float(np.square(sums - self.effects.signed).mean()) / size if size else 0.0
        return Judged(method, maps, tuple(checks), infidelity)

    def _completeness(self, maps: Maps) -> Check:
        error = float(self.question.gap(self.moments, maps).max()) / self.question.unit
        remedy = f"Its sums miss the output's difference by up to {error:.2g} of its standard deviation."
        return Check.of("completeness", error < GAP, error, f"< {GAP}", remedy)

    def _differs(self, key: str, method: Method, sums: FloatArray) -> Check:
        parts, others = int(self.question.varies.sum()), self.others[key]
        name, maps = MAPS[key]
        bound = f"< {SIMILAR}"
        if not others:
            return Check(name, None, bound=bound, remedy="This function has no weights to draw anew.")
        if parts < PARTS:
            few = f"Only {parts} parts of the input vary: the maps of any two networks may look alike by chance."
            return Check(name, None, bound=bound, remedy=few)
        found = []
        for other in others:
            theirs = other.part_sums(contributions(method, other, self.moments))
            both = [of[:, self.question.varies] for of in (sums, theirs)]
            found.append(rank_correlation(*(both if method.signed else map(abs, both))))
        value = float(np.mean(found))
        remedy = f"{maps} look alike (rank correlation {value:.2f}): it shows what the data have there, not what was learned."
        return Check.of(name, value < SIMILAR, value, bound, remedy)

    def _agreement(self, method: Method, sums: FloatArray) -> Check:
        varies = self.question.varies
        if varies.sum() < 2:
            return Check("agreement with interventions", None, remedy="Fewer than two parts vary in the data.")
        effects = self.exchanged if method.name == "occlusion_donor" else self.effects
        value = rank_correlation(abs(sums[:, varies]), effects.size[:, varies])
        remedy = f"It ranks the parts otherwise than exchanging them does (rank correlation {value:.2f})."
        return Check.of("agreement with interventions", value > AGREEMENT, value, f"> {AGREEMENT}", remedy)


@dataclass(frozen=True)
class AttributionFigures:
    """What the step finds."""

    spread: float  # standard deviation of the reward
    inputs: dict[str, float]  # mean change of the reward when a whole input is exchanged, in standard deviations
    parts: dict[str, float]  # mean change when one part is exchanged, in units of the reward
    gradient_against_intervention: GradientTrust | None  # None without a gradient or an effect
    steps: IntArray  # those that are drawn
    methods: dict[str, Judged]
    missing: dict[str, str] = field(metadata=DRAWN)  # why methods do not apply, by title


def run(context: StepContext[Subject]) -> Section:
    """Attribute the reward, check the attributions, and exchange inputs."""
    subject, rng = context.subject, context.subject.rng("attribution")
    question = RewardQuestion(subject.scaled, subject.data.sample(BACKGROUND, rng), subject.regions, subject.seed)
    if not question.unit:
        return Section("attribution", TITLE, skipped="The reward is the same on all steps.")
    drawn, captions = informative(question, subject.data)
    figures = measure(subject, question, drawn, rng)
    pictures = list(_pictures(question, subject.data[drawn], captions, figures))
    checks, tables = list(_checks(figures)), list(_tables(figures))
    return Section("attribution", TITLE, checks, (), tables, pictures, (), values_of(figures))


def measure(
    subject: Subject, question: RewardQuestion, drawn: IntArray, rng: np.random.Generator
) -> AttributionFigures:
    """Compute the figures."""
    exchanged = subject.data.sample(max(16, int(EXCHANGED * subject.effort)), rng)
    effects = input_effects(question, exchanged)
    judged_steps = _judged(question, subject.data, int(np.clip(JUDGED * subject.effort, 8, 4 * JUDGED)), rng)
    judge = Judge(question, judged_steps, int(np.clip(UPDATES * subject.effort, UPDATES / 5, 2 * UPDATES)))
    methods = make_methods(subject.methods or METHODS)
    why = {name: method.why_not(question) for name, method in methods.items()}
    judged = {name: judge.judge(method) for name, method in methods.items() if not why[name]}
    trust = gradient_against_intervention(question, judge, {name: judgement.maps for name, judgement in judged.items()})
    return AttributionFigures(
        question.unit,
        {name: float(effect.mean()) / question.unit for name, effect in effects.items()},
        dict(zip(question.part_names, judge.effects.size.mean(0).tolist(), strict=True)),
        trust,
        drawn,
        judged,
        {methods[name].title: reason for name, reason in why.items() if reason},
    )


def informative(question: RewardQuestion, data: Transitions) -> tuple[IntArray, list[str]]:
    """Choose up to six different steps: highest and lowest reward, typical ones, a true reward, an end of an episode."""
    rewards = question.reward.of(data)
    order = np.argsort(rewards, kind="stable")
    middle = len(order) // 2
    true = np.isfinite(data.rewards) & (data.rewards != 0)
    rare = np.flatnonzero(true) if 0 < true.mean() < 0.5 else np.zeros(0, np.int64)
    wanted = [
        ("highest", order[::-1]),
        ("lowest", order),
        ("true reward", rare[np.argsort(-np.abs(data.rewards[rare]), kind="stable")]),
        ("terminates", np.flatnonzero(data.terminated)),
        ("median", np.concatenate([order[middle:], order[:middle]])),
        ("upper quarter", order[3 * len(order) // 4 :]),
        ("lower quarter", order[len(order) // 4 :]),
        ("high", order[-max(1, len(order) // 10) :]),
    ]
    chosen: list[int] = []
    captions = []
    for name, candidates in wanted:
        index = next((int(i) for i in candidates if int(i) not in chosen), None)
        if index is not None and len(chosen) < SHOWN:
            chosen.append(index)
            captions.append(f"{name}\nreward {rewards[index]:.2f}")
    return np.array(chosen), captions


def gradient_against_intervention(
    question: RewardQuestion, judge: Judge, maps: dict[str, Maps]
) -> GradientTrust | None:
    """Compare the gradient with putting the typical value in a part's place. None without a gradient or an effect."""
    if "saliency" not in maps:
        return None
    effects = np.abs(question.part_sums(Occlusion().attribute(question, judge.moments)))
    gradient = question.part_sums(maps["saliency"])
    totals = [values.sum(1) for values in (effects, gradient)]
    usable = (totals[0] > 0) & (totals[1] > 0)
    if not usable.any():
        return None
    rows, top = np.flatnonzero(usable), effects.argmax(1)[usable]
    shares = (values[rows, top] / total[rows] for values, total in zip((effects, gradient), totals, strict=True))
    return GradientTrust(*(float(share.mean()) for share in shares))


def _judged(question: RewardQuestion, data: Transitions, count: int, rng: np.random.Generator) -> Transitions:
    """Draw the steps that checks use: half with unusual rewards, where there is something to explain, half any."""
    unusual = np.argsort(-np.abs(question.reward.of(data) - np.median(question.reward.of(data))), kind="stable")
    pool = unusual[: max(1, len(data) // 10)]
    half = rng.permutation(pool)[: count // 2]
    rest = rng.permutation(np.setdiff1d(np.arange(len(data)), half))[: count - len(half)]
    return data[np.sort(np.concatenate([half, rest]))]


def _checks(figures: AttributionFigures) -> Iterator[Check]:
    for judged in figures.methods.values():
        for check in judged.checks:
            yield replace(check, name=f"{judged.method.title}: {check.name}")
    if figures.gradient_against_intervention is not None:
        yield figures.gradient_against_intervention.check()


def _tables(figures: AttributionFigures) -> Iterator[Table]:
    names = ("completeness", "untrained network", "permuted labels", "agreement with interventions")
    rows = []
    for judged in figures.methods.values():
        checks = {check.name: check for check in judged.checks}
        verdict = "crossed out" if judged.crossed_out else "passed"
        cells = [_cell(checks.get(name)) for name in names]
        rows.append([judged.method.title, *cells, f"{judged.infidelity:.2f}", verdict])
    caption = "Attribution methods and their checks. Infidelity: 0 as interventions say, 1 no better than an empty map."
    missing = [[title, *[""] * 5, why] for title, why in figures.missing.items()]
    yield Table(["method", *names, "infidelity", "result"], rows + missing, caption)
    inputs = [[RewardQuestion.words[name], effect] for name, effect in figures.inputs.items()]
    caption = "Mean change of the reward when a whole input is exchanged, in standard deviations."
    yield Table(["input", "change"], inputs, caption)


def _cell(check: Check | None) -> str:
    return "–" if check is None or check.value is None else f"{check.value:.2f}" + ("" if check.passed else " ✗")


def _pictures(
    question: RewardQuestion, shown: Transitions, captions: list[str], figures: AttributionFigures
) -> Iterator[Picture]:
    for judged in figures.methods.values():
        method, crossed_out = judged.method, judged.crossed_out
        maps = contributions(method, question, shown)
        image = draw(question, shown, captions, maps, method.signed, crossed_out)
        yield Picture(method.name, image, f"{method.title}. All pictures of it have one scale.", crossed_out)


STEP = Step("attribution", TITLE, run, options=lambda subject: methods_key(subject.methods))
