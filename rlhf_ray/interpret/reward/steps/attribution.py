"""Section: which parts of the inputs the reward looks at, by attributions that passed their checks and by interventions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution import METHODS, WORDS, Background, Maps, input_effects
from rlhf_ray.interpret.reward.attribution.checks import Judge, Judged
from rlhf_ray.interpret.reward.attribution.drawing import draw
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import Input
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "attribution"
TITLE = "Which inputs the reward looks at"

BACKGROUND, JUDGED, SHOWN, EXCHANGED = 512, 16, 6, 256
"""Steps that give donors and means; that checks use; in pictures; whose whole inputs are exchanged."""
IGNORED, MATTERS = 0.05, 0.25
"""Mean change of the reward, in standard deviations, below which an input is ignored, and above which it matters."""
SHARE, TIMES = 0.4, 10.0
"""The gradient is not to be trusted if the part with the largest effect has at least this share of all effects, and this many times
its share of the gradient."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to attribute; None otherwise."""
    subject = context.subject
    return None if len(subject.data) > 1 else "There are too few steps to exchange inputs between."


def run(context: StepContext[Subject]) -> Section:
    """Attribute the reward, check the attributions, and exchange inputs."""
    subject = context.subject
    rng = subject.rng(NAME)
    background = Background(subject.reward, subject.data.sample(BACKGROUND, rng), subject.regions, subject.seed)
    if not background.spread:
        says = "The reward is the same for every step: it looks at nothing, and all maps are zero."
        check = Check("the reward varies", False, 0.0, "> 0", says)
        return Section(NAME, TITLE, [Statement("warning", says)], [check], values={"spread": 0.0})
    exchanged = subject.data.sample(max(16, int(EXCHANGED * subject.effort)), rng)
    groups = {
        name: float(effect.mean()) / background.spread for name, effect in input_effects(background, exchanged).items()
    }
    count = int(np.clip(JUDGED * subject.effort, 8, 4 * JUDGED))
    judge = Judge(
        background, _judged(background, subject.data, count, rng), int(np.clip(150 * subject.effort, 30, 300))
    )
    found, missing = [], []
    for method in METHODS.values():
        if why := method.unsuitable(background):
            missing.append((method.title, why))
        else:
            found.append(judge.judge(method))
    at, captions = informative(background, subject.data)
    shown = subject.data[at]
    pictures = []
    for each in found:
        maps = each.method(background, shown)
        why_not = each.crossed_out
        image = draw(background, shown, captions, maps, each.method.signed, why_not)
        pictures.append(Picture(each.method.name, image, each.method.title + ". One scale for all steps.", why_not))
    statements = [*_inputs(groups), *_parts(background, judge)]
    checks = [
        Check(f"{each.method.title}: {check.name}", check.passed, check.value, check.bound, check.says)
        for each in found
        for check in each.checks
    ]
    trust = gradient_against_intervention(background, judge, {each.method.name: each.maps for each in found})
    if trust is not None:
        distrusted = distrust(*trust)
        bound = f"> {trust[0] / TIMES:.3f}" if trust[0] >= SHARE else ""
        checks.append(Check("gradient against intervention", distrusted is None, trust[1], bound, distrusted or ""))
        if distrusted:
            statements.append(Statement("warning", distrusted, trust[0]))
    values = {
        "spread": background.spread,
        "inputs": {name: float(effect) for name, effect in groups.items()},
        "parts": dict(zip(background.part_names, judge.effects.size.mean(0).tolist(), strict=True)),
        "gradient_against_intervention": None if trust is None else {"ablation": trust[0], "gradient": trust[1]},
        "steps": at.tolist(),
        "methods": {each.method.name: _values(each) for each in found},
    }
    return Section(NAME, TITLE, statements, checks, [_table(found, missing), _input_table(groups)], pictures, values)


def informative(background: Background, data: Transitions) -> tuple[IntArray, list[str]]:
    """Choose up to six different steps: highest and lowest reward, typical ones, a true reward, an end of an episode."""
    rewards = background.reward.of(data)
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
    background: Background, judge: Judge, maps: dict[str, Maps]
) -> tuple[float, float] | None:
    """Return the share of all effects that each step's most important part has, and its share of the gradient, means over steps.

    Effects are those of putting the typical value in its place. None without a gradient or an effect.
    """
    if "saliency" not in maps:
        return None
    effects = np.abs(background.part_sums(METHODS["occlusion_typical"](background, judge.steps)))
    gradient = background.part_sums(maps["saliency"])
    totals = [of.sum(1) for of in (effects, gradient)]
    usable = (totals[0] > 0) & (totals[1] > 0)
    if not usable.any():
        return None
    rows, top = np.flatnonzero(usable), effects.argmax(1)[usable]
    shares = [
        float((of[rows, top] / total[rows]).mean()) for of, total in zip((effects, gradient), totals, strict=True)
    ]
    return shares[0], shares[1]


def distrust(ablation: float, gradient: float) -> str | None:
    """Return why not to trust the gradient, from the shares of `gradient_against_intervention`; None if it may be right."""
    if ablation < SHARE or ablation < TIMES * gradient:
        return None
    return (
        f"Don't trust the gradient: of all change that replacing single parts makes, {ablation:.0%} comes from the part that "
        f"matters most, and that part has {gradient:.1%} of the gradient."
    )


def _judged(background: Background, data: Transitions, count: int, rng: np.random.Generator) -> Transitions:
    """Draw the steps that checks use: half with unusual rewards, where there is something to explain, half any."""
    unusual = np.argsort(-np.abs(background.reward.of(data) - np.median(background.reward.of(data))), kind="stable")
    pool = unusual[: max(1, len(data) // 10)]
    half = rng.permutation(pool)[: count // 2]
    rest = rng.permutation(np.setdiff1d(np.arange(len(data)), half))[: count - len(half)]
    return data[np.sort(np.concatenate([half, rest]))]


def _inputs(groups: dict[Input, float]) -> list[Statement]:
    statements = []
    for name, effect in sorted(groups.items(), key=lambda item: -item[1]):
        word = WORDS[name]
        how = "switching it" if name == "done" else "exchanging it for another step's"
        if effect < IGNORED:
            text = f"The {word} hardly matters: {how} changes the reward by {effect:.2f} of its standard deviation."
            statements.append(Statement("ignores", text, 1.0 - effect))
        elif effect >= MATTERS:
            text = f"The {word} matters: {how} changes the reward by {effect:.2f} of its standard deviation."
            statements.append(Statement("rewards", text, effect))
    return statements


def _parts(background: Background, judge: Judge) -> list[Statement]:
    """Name the parts whose exchange changes the reward most."""
    mean = judge.effects.size.mean(0) / background.spread
    order = [int(i) for i in np.argsort(-mean, kind="stable") if mean[i] >= MATTERS][:3]
    if not order or len(mean) < 2:
        return []
    listed = ", ".join(f"{background.part_names[i]} ({mean[i]:.2f})" for i in order)
    text = f"Exchanging one part at a time, the reward changes most with {listed}, in its standard deviations."
    return [Statement("rewards", text, float(mean[order[0]]))]


def _table(found: Sequence[Judged], missing: Sequence[tuple[str, str]]) -> Table:
    names = ("completeness", "untrained network", "permuted labels", "agreement with interventions")
    rows: list[list[object]] = []
    for each in found:
        by_name = {check.name: check for check in each.checks}
        cells = [_cell(by_name.get(name)) for name in names]
        verdict = "crossed out" if each.crossed_out else "passed"
        rows.append([each.method.title, *cells, f"{each.infidelity:.2f}", verdict])
    rows += [[title, *[""] * len(names), "", why] for title, why in missing]
    caption = (
        "Methods and checks. Completeness: gap in standard deviations. Untrained network, permuted labels: rank correlation with "
        "the maps of a network that did not learn this reward; low is good. Agreement: rank correlation with exchanging each "
        "part; high is good. Infidelity: 0 is perfect, 1 no better than an empty map."
    )
    return Table(["method", *names, "infidelity", "verdict"], rows, caption)


def _cell(check: Check | None) -> str:
    if check is None or check.value is None:
        return "–"
    return f"{check.value:.2f}" + ("" if check.passed else " ✗")


def _input_table(groups: dict[Input, float]) -> Table:
    rows = [[WORDS[name], f"{effect:.3f}"] for name, effect in groups.items()]
    return Table(
        ["input", "change"], rows, "Mean change of the reward when a whole input is exchanged, in standard deviations."
    )


def _values(each: Judged) -> dict[str, object]:
    checks = {check.name: {"value": check.value, "passed": check.passed} for check in each.checks}
    return {"crossed_out": each.crossed_out, "infidelity": each.infidelity, "checks": checks}


STEP = Step(NAME, TITLE, run, why_not=why_not)
