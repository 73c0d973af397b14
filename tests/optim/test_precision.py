"""Precision of convolutions in gradient steps."""

import pytest
import torch

from rlhf_ray.optim import precision


@pytest.mark.parametrize("has", [True, False])
def test_auto_goes_by_what_the_cpu_has(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr(precision, "computes_in_bfloat16", lambda: has)
    assert precision.in_bfloat16("auto", device) is has
    assert not precision.in_bfloat16("auto", torch.device("cuda"))
    assert precision.in_bfloat16("bfloat16", device)
    assert not precision.in_bfloat16("float32", device)
