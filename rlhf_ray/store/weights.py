"""Annotator weights: the store's one file that is rewritten."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from rlhf_ray.store.files import Files

FILE = "annotators.json"


def read(files: Files) -> dict[str, float]:
    """Return the weights that were set, by annotator.

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
            f"{files.root}/{FILE} is damaged ({error!r}); repair it, or delete it and set the weights again."
        ) from error
    return weights


def write(files: Files, weights: Mapping[str, float]) -> None:
    """Replace all weights, durably."""
    content = json.dumps({"weights": dict(weights)}, indent=2, sort_keys=True) + "\n"
    files.write(FILE, lambda sink: sink.write(content.encode()))


def check(annotator: str, weight: float) -> None:
    """Raise `ValueError` unless the annotator's name and weight are valid."""
    if not annotator:
        raise ValueError("The annotator's name is empty; name the annotator to weigh.")
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"The weight of {annotator!r} is {weight}; it must be a finite number, 0 (excluded) or more.")
