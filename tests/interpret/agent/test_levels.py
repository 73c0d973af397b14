"""Distinct levels: of a world with few, the sample is these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.interpret.agent.subject import AgentSubject
from tests.agents.test_play import agent_of
from tests.interpret.agent.corridor import Corridors


class FewCorridors(Corridors):
    """Corridors of ``kinds`` different levels."""

    kinds = 5

    def reset(self, levels: Sequence[int]) -> Array:
        return super().reset([level % self.kinds + 7 for level in levels])


def test_levels_with_the_same_content_are_one() -> None:
    subject = AgentSubject(agent_of("gru", False), "Few", batches=FewCorridors)
    levels = np.array([0, 5, 1, 6, 12, 0, 3, 4])
    drawn = [np.random.default_rng(level % 5 + 7) for level in levels]
    what = np.array([(int(rng.integers(3, 7)), int(rng.integers(2))) for rng in drawn])
    groups = subject.groups(levels)
    for first in range(len(levels)):
        for second in range(len(levels)):
            assert (groups[first] == groups[second]) == (what[first] == what[second]).all()
    assert len(np.unique(AgentSubject(agent_of("gru", False), "All", batches=Corridors).groups(range(60)))) == 8
