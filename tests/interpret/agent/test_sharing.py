"""A concept and a twin that equals it at four of five steps, each in a number of the memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf_ray.interpret.agent.erasure import Held, erasures
from rlhf_ray.interpret.agent.sharing import of_own_part, sharing, with_shared
from rlhf_ray.interpret.directions.interventions import Intervention

N = 4000


def held(rng: np.random.Generator) -> Held:
    """Numbers: ±1 by the concept, ±1 by the twin, noise, noise."""
    metal = rng.choice([-1.0, 1.0], N)
    twin = np.where(rng.random(N) < 0.8, metal, -metal)
    stamp = rng.choice([-1.0, 1.0], N)
    values = np.column_stack([metal, twin, stamp, rng.standard_normal(N)])
    return Held(
        values,
        {name: (one > 0)[:, None].astype(float) for name, one in (("metal", metal), ("twin", twin), ("stamp", stamp))},
    )


def test_all_of_a_concept_is_taken_away_with_what_it_shares() -> None:
    rng = np.random.default_rng(0)
    fit, test = held(rng), held(rng)
    found = erasures(fit, test, ["metal", "twin", "stamp"], 0.8)
    assert of_own_part(found["metal"])
    assert not of_own_part(found["stamp"])
    assert sharing(found, fit, "metal") == ["twin"]
    whole = with_shared(found, fit, test, "metal", ["twin"])
    assert whole is not None
    assert not of_own_part(whole)
    assert whole.erased == pytest.approx(0.5, abs=0.05)
    own, both = (
        Intervention(one.basis, range(len(one.basis)), "ablate_midpoint")
        .edit(0)(torch.as_tensor(test.values))[:, 0]
        .numpy()
        for one in (found["metal"], whole)
    )
    metal, twin = test.values[:, 0], test.values[:, 1]
    # What a linear reader predicts of the concept from the twin stays: 0.6 of it, the correlation. Without both, nothing does.
    assert np.abs(own - 0.6 * twin).max() < 0.15
    assert np.abs(both).max() < 0.1
    assert (own * metal).mean() == pytest.approx(0.36, abs=0.05)
