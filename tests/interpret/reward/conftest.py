"""Pictures of a low resolution: their content is tested, not their sharpness, and drawing is most of what a section costs."""

import functools
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True, scope="package")
def coarse_pictures() -> Iterator[None]:
    save = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:

        @functools.wraps(save)
        def coarse(self, target, **options):
            return save(self, target, **options | {"dpi": 20})

        patch.setattr(Figure, "savefig", coarse)
        yield
