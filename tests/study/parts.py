"""The parts of a page in tests: one of each kind."""

import io
import math

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
