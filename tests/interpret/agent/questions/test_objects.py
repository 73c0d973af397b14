"""Whether an object matters, beside as much background."""

import pytest

from rlhf_ray.interpret.agent.questions.objects import ObjectFigures
from rlhf_ray.interpret.agent.questions.quantities import value


@pytest.mark.parametrize(
    ("painted", "control", "matters"),
    [(1.0, 0.0, True), (1e-7, 0.0, False), (0.0, 0.0, False), (1.0, 0.25, True), (1.0, 0.26, False), (1.0, float("nan"), False)],
)  # fmt: skip
def test_the_strongest_evidence_is_a_control_of_nothing(painted: float, control: float, matters: bool) -> None:
    figures = ObjectFigures(value(), "saw", 9, painted, painted, control, None, None, None, None, None)
    assert figures.matters is matters
