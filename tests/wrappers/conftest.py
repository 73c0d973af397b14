"""The wrappers without Ray, for the fast tests."""

from types import SimpleNamespace

import pytest

from rlhf_ray.wrappers import teaching
from tests.wrappers.in_process import InProcessRing


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The wrappers' rings are `InProcessRing`s, and Ray is only counted: ``held`` now, over ``rings``."""
    seen = SimpleNamespace(held=0, rings=[])
    InProcessRing.made = seen.rings

    def hold_ray(cpus: int) -> None:
        seen.held += 1

    def release_ray() -> None:
        seen.held -= 1

    monkeypatch.setattr(teaching, "WrapperRing", InProcessRing)
    monkeypatch.setattr(teaching, "hold_ray", hold_ray)
    monkeypatch.setattr(teaching, "release_ray", release_ray)
    return seen
