"""The wrappers without Ray, for the fast tests."""

from types import SimpleNamespace

import pytest

from rlhf_ray.actors.local import LocalExecutor
from rlhf_ray.wrappers import teaching
from tests.wrappers.in_process import SettledClips, SettledRing


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The wrappers' rings are of plain objects, and Ray is only counted: ``held`` now, over ``rings``."""
    seen = SimpleNamespace(held=0, rings=[])
    SettledRing.made = seen.rings

    def hold_ray(cpus: int) -> None:
        seen.held += 1

    def release_ray() -> None:
        seen.held -= 1

    monkeypatch.setattr(teaching, "RayExecutor", lambda name: LocalExecutor())
    monkeypatch.setattr(teaching, "AsynchronousRing", SettledRing)
    monkeypatch.setattr(teaching, "GivenClips", SettledClips)
    monkeypatch.setattr(teaching, "hold_ray", hold_ray)
    monkeypatch.setattr(teaching, "release_ray", release_ray)
    monkeypatch.setattr(teaching, "ray", SimpleNamespace(is_initialized=lambda: True))
    return seen
