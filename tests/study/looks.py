"""A look for pages in tests: the folded page of any study with a first screen."""

from pathlib import Path

import rlhf_ray.study
from rlhf_ray.study.page import Look

LOOK = Look(Path(rlhf_ray.study.__file__).parent / "screen.html", "test/1")
