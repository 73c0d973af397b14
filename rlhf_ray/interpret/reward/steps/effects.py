"""What a reward looks at: the table of effects, and where it differs from the true reward."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhf_ray.interpret.effects.edits import world_edits
from rlhf_ray.interpret.effects.exchange import COLUMNS, DIFFERENCE, HAIR, LEARNED, StepPairs, associations
from rlhf_ray.interpret.effects.parts import frames, parts_of
from rlhf_ray.interpret.effects.regions import object_names
from rlhf_ray.interpret.effects.tree import DifferenceTree, difference_tree
from rlhf_ray.interpret.reward.steps.header import Header
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Check, Effect, Effects, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "What it looks at"
PAIRS, PAIRS_OF_IMAGES = 3000, 800
"""Pairs of a step and a donor, at effort 1."""
FEWEST = 200
NOISY = 0.1
"""Share of the order that may be lost when every number moves by a hair."""
CAPTION = (
    "The share of the reward's order that is lost when something is exchanged among the steps: 1 for its only input, 0 for what it "
    "ignores. Difference: between what the exchange does to the two rewards at each step; opposite changes count up to four times. "
    "Intervals: 95 %, over episodes. Control: every number moved by a hair."
)


@dataclass(frozen=True)
class Looks:
    """The figures."""

    inputs: list[Effect]  # parts of the step; objects of grids
    times: list[Effect]  # the points in time that a step shows
    beside: list[Effect]  # numbers that the reward does not see, and that go with it
    tree: DifferenceTree | None  # where it differs; None if the true reward is unknown, or it differs nowhere
    outside: dict[
        str, float
    ]  # share of the changed steps without a finite reward, by the row's name; they are left out


def run(context: StepContext[Subject]) -> Section:
    """Measure the effects, and grow the tree."""
    subject, header = context.subject, context.figures("header", Header)
    exact = header is not None and header.exact
    figures = measure(subject, exact=exact)
    columns = [each for each in COLUMNS if any(each in row.figures for row in figures.inputs)]
    times = "As above, for all that a step shows of one point in time."
    beside = (
        "What its order goes with: the share that the number tells. These are no inputs, and nothing was exchanged."
    )
    tables = [
        Effects.sort("inputs", "What it looks at", columns, figures.inputs, CAPTION),
        Effects.sort("times", "When", columns, figures.times, times),
        *([Effects.sort("beside", "What goes with it", columns, figures.beside, beside)] if figures.beside else []),
    ]
    size = next(row.figures[LEARNED] for row in figures.inputs if row.name == HAIR)
    name = "order that is lost when every number moves by a hair"
    checks = [Check.of(name, size.mean <= NOISY, size, f"≤ {NOISY}")]
    same = "The reward is the true one up to shaping and scale (its distance is 0), so nothing differs."
    notes = [same] if exact else []
    if figures.outside:
        left_out = "; ".join(f"{name}: {share:.0%}" for name, share in figures.outside.items())
        notes.append(f"Changed steps for which the reward is not a finite number are left out: {left_out}.")
    return Section("effects", TITLE, checks, tables, _tables(figures.tree), (), notes, values_of(figures))


def measure(subject: Subject, *, exact: bool = False) -> Looks:
    """Compute the figures; ``exact``: the reward is the true one, as its distance says: then none is a difference."""
    data, truth = subject.data, subject.true_reward
    image = data.observations.ndim == 4
    count = max(FEWEST, round((PAIRS_OF_IMAGES if image else PAIRS) * subject.effort))
    exchange = StepPairs(subject.reward, truth, data, count, subject.rng("pairs"))
    space = subject.reward.action_space
    regions = subject.regions
    inputs = exchange.effects(parts_of(data, regions, space))
    if subject.grid is not None:
        names = object_names(subject.environment)
        inputs += [exchange.effect(*edit) for edit in world_edits(data, names, subject.rng("edits"))]
    hair = exchange.hair(subject.rng("hair"))
    inputs.append(hair)
    learned, true = subject.reward.of(data), data.rewards if subject.true_known else None
    looks = Looks(
        inputs,
        exchange.effects(frames(data)),
        associations(learned, true, data),
        None if true is None or exact else difference_tree(learned, true, data, regions, space),
        exchange.outside,
    )
    control = hair.figures[DIFFERENCE if DIFFERENCE in hair.figures and not exact else LEARNED]
    rows = [[_told(row, control, exact) for row in of] for of in (looks.inputs, looks.times, looks.beside)]
    return replace(looks, inputs=rows[0], times=rows[1], beside=rows[2])


def _told(row: Effect, control: MeanEstimate, exact: bool) -> Effect:
    figures = {name: of for name, of in row.figures.items() if not exact or name != DIFFERENCE}
    largest = None if row.name == HAIR else control.mean if control.high is None else control.high
    return replace(
        row, figures=figures, control=largest, parts=tuple(_told(part, control, exact) for part in row.parts)
    )


def _tables(tree: DifferenceTree | None) -> list[Table]:
    if tree is None:
        return []
    rows = [
        [leaf.path, leaf.share, leaf.difference.mean, leaf.difference.low, leaf.difference.high] for leaf in tree.leaves
    ]
    caption = (
        f"Where it differs from the true reward: steps of held-out episodes, by a tree that explains {tree.explained:.0%} of the "
        "difference. Difference: of the places in the order, 0 to 1; positive: overvalued."
    )
    return [Table(["steps", "share of steps", "difference", "95 % from", "to"], rows, caption)]


STEP = Step("effects", TITLE, run, needs=("header",))
