"""One .npz file for each basis, without pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError


def write(path: Path, kind: str, names: Sequence[str], arrays: Mapping[str, Any]) -> None:
    """Write a basis to ``path``; the same basis gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, kind=np.array(kind), names=np.array(list(names), dtype=np.str_), **arrays)


def read(path: Path) -> tuple[str, list[str], dict[str, Array]]:
    """Return kind, names and arrays of what `write` wrote.

    Raises:
        SettingError: there is no basis, or it is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return str(arrays.pop("kind")), [str(name) for name in arrays.pop("names")], arrays
    except FileNotFoundError:
        raise SettingError(f"There is no basis at {path}: fit one with rlhf_ray.interpret.agent.bases.fit.") from None
    except Exception as error:
        raise SettingError(f"The basis in {path} can't be read ({error}): fit it again.") from error
