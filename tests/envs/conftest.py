from collections.abc import Iterator

import gymnasium
import pytest

import examples.worlds  # noqa: F401 - registers MiniRun, CueRun and their like


@pytest.fixture(autouse=True)
def registered_for_the_test_alone() -> Iterator[None]:
    before = set(gymnasium.registry)
    yield
    for name in set(gymnasium.registry) - before:
        if not name.startswith(("ALE/", "seals/")):  # of packages that are imported once
            del gymnasium.registry[name]
