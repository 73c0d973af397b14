"""The parts of a page in tests: one of each kind."""

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study import Check, Effect, Effects, Picture, Section, Table


def picture(name: str = "p", colour: int = 0, film: bool = False) -> Picture:
    """A picture of one colour, or a film of two frames."""
    buffer = io.BytesIO()
    images = [Image.new("RGB", (8, 6), (colour, colour, colour)) for colour in (colour, 255)]
    if film:
        images[0].save(buffer, "WEBP", save_all=True, append_images=images[1:])
    else:
        images[0].save(buffer, "PNG")
    return Picture(name, buffer.getvalue(), f"the `{name}` picture")


def check_of(section: Section, name: str) -> Check:
    """The one check whose name begins so."""
    (check,) = (check for check in section.checks if check.name.startswith(name))
    return check


def mean(value: float) -> MeanEstimate:
    return MeanEstimate(value, None, None)


EFFECTS = Effects.sort(
    "inputs",
    "What it looks at",
    ["learned", "true"],
    [
        Effect("b", {"learned": MeanEstimate(-0.5, -0.75, -0.25), "true": mean(0.25)}, control=0.125),
        Effect("unknown", {"learned": mean(math.nan)}),
        Effect(
            "whole",
            {"learned": MeanEstimate(1.0, 0.5, 1.5)},
            parts=(Effect("smaller", {"true": mean(0.1)}), Effect("larger", {"true": mean(-0.2)})),
        ),
        Effect("nothing known", {}),
    ],
    "The control is a `made-up` input.",
)

GOOD = Check.of("return", True, MeanEstimate(5.0, 4.0, 6.0), "> 3", "not told")
OPEN = Check.of("accuracy", None, MeanEstimate(0.56, 0.45, 0.67), "> 0.5", "collect more (`preferences.comparisons`)")
BAD = Check("the `step` ran", False, remedy="run `rlhf-ray fit`")


def section(rows: int = 50) -> Section:
    """A section with everything."""
    table = Table(["name", "value", "said"], [(f"row {i}", i, f"set `a` to {i}") for i in range(rows)], "of `numbers`")
    return Section(
        "s", "Some step", [GOOD, OPEN, BAD], [EFFECTS], [table], [picture()], ["Read `this`."], {"a": [1, None]}
    )


def number(text: str) -> float:
    """The number that an axis's text stands for."""
    unit = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1.0)
    return float(text.rstrip("kMG").replace("−", "-")) * unit


class Drawn:
    """An SVG read back: points of lines and dots by colour, in pixels, and its texts."""

    def __init__(self, image: bytes):
        self.paths, self.dots, self.texts, self._places = defaultdict(list), defaultdict(list), [], []
        for each in ElementTree.fromstring(image):
            at = each.attrib
            if each.tag.endswith("path"):
                self.paths[at["stroke"]].append(at["d"])
            elif each.tag.endswith("circle"):
                self.dots[at["fill"]].append([float(at["cx"]), float(at["cy"])])
            else:
                self.texts.append("".join(each.itertext()))
                self._places.append((float(at["x"]), float(at["y"]) - 4, at.get("text-anchor")))
        self.lines = {colour: [points_of(path) for path in paths] for colour, paths in self.paths.items()}

    def axis(self, along: int, among: Callable[[str], bool] = lambda text: True) -> Callable[[Any], Any]:
        """What turns pixels across (0) or down (1) into numbers, by the axis's numbers ``among`` the texts."""
        found = [
            (place[along], number(text))
            for text, place in zip(self.texts, self._places, strict=True)
            if place[2] == ("middle", "end")[along] and re.match(r"[−\d]", text) and among(text)
        ]
        return np.poly1d(np.polyfit(*np.array(found).T, 1))


def points_of(path: str) -> Any:
    return np.array(re.findall(r"[-\d.]+", path), float).reshape(-1, 2)
