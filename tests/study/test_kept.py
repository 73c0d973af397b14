"""A finished step on disk: its section comes back as it was, and a changed file is noticed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.study import kept
from rlhf_ray.study.figures import DRAWN, figures_from, values_of
from tests.study.parts import EFFECTS, picture, section


@dataclass(frozen=True)
class Figures:
    number: float
    pairs: tuple[tuple[str, int], ...]
    many: FloatArray
    curve: FloatArray = field(default_factory=lambda: np.zeros(2), metadata=DRAWN)
    part: dict[str, float | None] = field(default_factory=dict)


def test_a_section_comes_back(tmp_path: Path) -> None:
    told = kept.as_saved(replace(section(2), pictures=[picture(), picture("film", film=True)]))
    kept.save(told, tmp_path, "key", "identity")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"section.json", "p.png", "film.webp"}
    loaded = kept.load(tmp_path, "key")
    assert loaded is not None
    again, identity = loaded
    assert identity == "identity"
    assert replace(again, effects=()) == replace(told, effects=())
    (effects,) = again.effects
    assert effects.rows[:2] == EFFECTS.rows[:2]  # with their parts
    assert math.isnan(effects.rows[2].figures["learned"].mean)
    assert kept.load(tmp_path, "another key") is None


@pytest.mark.parametrize("name", ["section.json", "film.webp"])
def test_a_changed_file_is_no_finished_step(tmp_path: Path, name: str) -> None:
    kept.save(replace(section(2), pictures=[picture("film", film=True)]), tmp_path, "key", "identity")
    with (tmp_path / "report" / name).open("ab") as file:
        file.write(b" ")
    assert kept.load(tmp_path, "key") is None


def test_figures_are_values_of_their_fields_and_come_back() -> None:
    figures = Figures(math.nan, (("a", 1), ("b", 2)), np.arange(2.0), part={"x": None, "y": 2.0})
    values = values_of(figures)
    assert values["pairs"] == [["a", 1], ["b", 2]]
    assert "curve" not in values
    again = figures_from(Figures, values | {"number": None})
    assert math.isnan(again.number)
    assert again.pairs == figures.pairs
    assert again.many.tolist() == [0.0, 1.0]
    assert again.part == {"x": None, "y": 2.0}
    assert values_of({1: [figures]})["1"][0]["many"] == [0, 1]
