"""The wrappers without Ray, for the fast tests."""

from types import SimpleNamespace

import pytest

from rlhf_ray.actors.executor import LocalExecutor
from rlhf_ray.wrappers import learning
from tests.wrappers.in_process import SettledFragments, SettledRing


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The wrappers' rings are of plain objects, and Ray is only counted: ``held`` now, over ``rings``."""
    seen = SimpleNamespace(held=0, rings=[])
    SettledRing.made = seen.rings

    def hold_ray(cpus: int) -> None:
        seen.held += 1

    def release_ray() -> None:
        seen.held -= 1

    monkeypatch.setattr(learning, "RayExecutor", lambda name: LocalExecutor())
    monkeypatch.setattr(learning, "AsynchronousRing", SettledRing)
    monkeypatch.setattr(learning, "GivenFragments", SettledFragments)
    monkeypatch.setattr(learning, "hold_ray", hold_ray)
    monkeypatch.setattr(learning, "release_ray", release_ray)
    monkeypatch.setattr(learning, "ray", SimpleNamespace(is_initialized=lambda: True))
    return seen
