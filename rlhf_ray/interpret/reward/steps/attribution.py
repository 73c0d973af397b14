"""Which inputs the reward looks at, by attributions that passed their checks and by interventions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.attribution import Maps, contributions, make_methods, methods_key
from rlhf_ray.interpret.attribution.checks import Judge, Judged
from rlhf_ray.interpret.attribution.drawing import draw
from rlhf_ray.interpret.attribution.interventions import Occlusion, input_effects
from rlhf_ray.interpret.reward.question import RewardQuestion
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.figures import DRAWN, values_of
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Which inputs it attributes its reward to"

METHODS = (
    "saliency",
    "input_x_gradient",
    "integrated_gradients",
    "smoothgrad",
    "grad_cam",
    "occlusion_typical",
    "occlusion_donor",
    "occlusion_blur",
    "occlusion_inpaint",
    "perturbation",
)
"""The methods, if the subject names none."""
BACKGROUND, JUDGED, SHOWN, EXCHANGED = 512, 16, 6, 256
"""Steps that give donors and means; that checks use; in pictures; whose whole inputs are exchanged."""
UPDATES = 150
"""Gradient steps of the networks that learn permuted rewards, at effort 1."""
SHARE, TIMES = 0.4, 10.0
"""The gradient is not to be trusted if the part with the largest effect has at least this share of all effects, and this many times
its share of the gradient."""


@dataclass(frozen=True)
class GradientTrust:
    """The gradient beside interventions: shares that each step's most important part has, means over steps."""

    ablation: float  # of all effects
    gradient: float  # of the gradient

    def check(self) -> Check:
        """Return the check whether the gradient misses the most important part."""
        trusted = self.ablation < SHARE or self.ablation < TIMES * self.gradient
        bound = f"≥ {self.ablation / TIMES:.2f}" if self.ablation >= SHARE else ""
        remedy = "" if trusted else "The gradient misses the most important part: look at the interventions."
        name = "the most important part's share of the gradient"
        return Check(name, trusted, self.gradient, bound=bound, remedy=remedy)


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
