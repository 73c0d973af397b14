"""What quantities some steps on depend on, for a panel: the attribution's samples, laid over the panel's."""

from __future__ import annotations

import numpy as np

from rlhf_ray.agents.moments import Stretches
from rlhf_ray.interpret.agent.panel.data import PanelSaliency
from rlhf_ray.interpret.agent.panel.samples import StepEffects
from rlhf_ray.interpret.agent.questions.samples import GradientSamples
from rlhf_ray.interpret.agent.saliency import THROUGH_TIME, Faithful
from rlhf_ray.interpret.directions import Directions


def effects_ahead(
    samples: GradientSamples,
    pieces: Stretches,
    basis: Directions,
    faithful: Faithful | None = None,
) -> StepEffects:
    """Return the attribution's gradients at those steps of the panel's samples that it asked about.

    Each panel sample takes the first attribution sample that starts in it. Steps beyond the world model's valid horizon stay empty.

    Args:
        samples: of the attribution; their episodes are those of ``pieces``.
        pieces: the panel's samples.
        basis: of the agent's memory.
        faithful: which maps are faithful; None: nothing is doubted.
    """
    n, steps = len(pieces.rows), samples.saliency.shape[2]
    taken: dict[int, int] = {}
    for number, (row, time) in enumerate(zip(samples.rows, samples.steps, strict=True)):
        if (piece := pieces.containing(int(row), int(time))) is not None:
            taken.setdefault(piece, number)
    rows = np.array(sorted(taken), np.int64)
    trusted = steps if samples.horizon is None or not samples.simulated else min(steps, samples.horizon + 1)
    gradients, saliency = {}, {}
    for index, quantity in enumerate(samples.quantities):
        name = f"{_title(quantity, basis)}, {steps - 1} steps on"
        doubt = "" if faithful is None else faithful.doubt(quantity, THROUGH_TIME)
        maps = np.full((len(rows), pieces.most, *samples.saliency.shape[3:]), np.nan, np.float32)
        by_score = np.full((n, pieces.most, len(basis)), np.nan, np.float32)
        for at, piece in enumerate(rows):
            number = taken[int(piece)]
            first = int(samples.steps[number] - pieces.steps[piece])
            span = min(trusted, int(pieces.lengths[piece]) - first)
            here = slice(first, first + span)
            maps[at, here] = samples.saliency[number, index, :span]
            # The memory before a step is that after the step before, which is where scores are read.
            after = samples.memory_gradients[number, index, int(first == 0) : span].astype(np.float64)
            if after.size:
                by_score[piece, max(first - 1, 0) : first - 1 + span] = basis.gradient(after)
        gradients[name], saliency[name] = by_score, PanelSaliency(rows, maps, doubt)
    return StepEffects(gradients, saliency, {})


def _title(quantity: str, basis: Directions) -> str:
    kind, _, number = quantity.partition("_")
    return str(basis.names[int(number)]) if kind == "loading" else quantity.replace("_", " ")
