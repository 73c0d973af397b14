"""What each annotator's answers count: the one file of a store that is written anew."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from rlhf_ray.store.files import Files

FILE = "annotators.json"


def read(files: Files) -> dict[str, float]:
    """The weight of each annotator for whom one was decided on.

    Raises:
        ValueError: the file is damaged.
    """
    if not files.exists(FILE):
        return {}
    try:
        weights = {str(name): float(weight) for name, weight in json.loads(files.read(FILE))["weights"].items()}
        for name, weight in weights.items():
            check(name, weight)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{files.root}/{FILE} is damaged ({error!r}); mend it, or delete it and weigh the annotators anew."
        ) from error
    return weights


def write(files: Files, weights: Mapping[str, float]) -> None:
    """Replace all weights. When this returns it is durable."""
    content = json.dumps({"weights": dict(weights)}, indent=2, sort_keys=True) + "\n"
    files.write(FILE, lambda sink: sink.write(content.encode()))


def check(annotator: str, weight: float) -> None:
    """Raise a `ValueError` unless ``annotator`` can have this weight."""
    if not annotator:
        raise ValueError("the name of the annotator is empty: say whose answers to weigh.")
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"the weight of {annotator!r} is {weight}: it must be a number, 0 (left out) or more.")
