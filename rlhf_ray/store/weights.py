"""Annotator weights: the store's one file that is rewritten."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

from rlhf_ray.store.files import Files

FILE = "annotators.json"


class WeightsMissingError(ValueError):
    """Weights were set, and their file is gone."""


def read(files: Files, *, were_set: bool) -> dict[str, float]:
    """Return the weights that were set, by annotator.

    Args:
        files: the store's files.
        were_set: whether weights were ever set.

    Raises:
        ValueError: the file is damaged or, although weights were set, missing.
    """
    if not files.exists(FILE):
        if were_set:
            raise WeightsMissingError(
                f"{files.root}/{FILE} is missing, and weights of annotators were set: restore it, or set the weights again."
            )
        return {}
    try:
        content = json.loads(files.read(FILE))
        weights = {str(name): float(weight) for name, weight in content["weights"].items()}
        if content.keys() - {"weights", "sha256"} or content.get("sha256", _hash(weights)) != _hash(weights):
            raise ValueError("its content doesn't match its sha256")
        for name, weight in weights.items():
            check(name, weight)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{files.root}/{FILE} is damaged ({error!r}); repair it, or delete it and set the weights again."
        ) from error
    return weights


def write(files: Files, weights: Mapping[str, float]) -> None:
    """Replace all weights, durably."""
    content = json.dumps({"weights": dict(weights), "sha256": _hash(weights)}, indent=2, sort_keys=True) + "\n"
    files.write(FILE, lambda sink: sink.write(content.encode()))


def _hash(weights: Mapping[str, float]) -> str:
    text = json.dumps({name: float(weight) for name, weight in weights.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check(annotator: str, weight: float) -> None:
    """Raise `ValueError` unless the annotator's name and weight are valid."""
    if not annotator:
        raise ValueError("The annotator's name is empty; name the annotator to weigh.")
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"The weight of {annotator!r} is {weight}; it must be a finite number, 0 (excluded) or more.")
