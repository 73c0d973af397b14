"""Whether an object matters, beside as much background."""

from dataclasses import replace

import pytest

from rlhf_ray.interpret.agent.questions.objects import ObjectFigures
from rlhf_ray.interpret.agent.questions.quantities import value
from rlhf_ray.measure.intervals import MeanEstimate


@pytest.mark.parametrize(
    ("painted", "control", "matters"),
    [(1.0, 0.0, True), (1e-7, 0.0, False), (0.0, 0.0, False), (1.0, 0.25, True), (1.0, 0.26, False)],
)  # fmt: skip
def test_the_strongest_evidence_is_a_control_of_nothing(painted: float, control: float, matters: bool) -> None:
    excess = MeanEstimate(painted - 4.0 * control, painted - 4.0 * control, painted)
    figures = ObjectFigures(value(), "saw", 9, painted, painted, control, None, None, None, None, None, excess)
    assert figures.matters is matters
    unknown = replace(figures, excess=MeanEstimate(0.0, None, None))  # in one episode, or without background beside it
    wide = replace(figures, excess=MeanEstimate(1.0, -0.1, 2.0))
    assert (unknown.matters, wide.matters) == (False, False)
