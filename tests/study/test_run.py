"""A study: steps run once, and again only if what they depend on has changed; what is kept of them comes back."""

from __future__ import annotations

import errno
import importlib
import math
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import name_of
from rlhf_ray.study import Section, Step, StepContext, Study, kept, run_study
from rlhf_ray.study.figures import DRAWN, figures_from, values_of
from rlhf_ray.study.run import code_of, run_here
from tests.study.parts import EFFECTS, picture, section

NEEDS = {"recording": (), "bases": ("recording",), "clusters": ("recording",), "story": ("bases",)}


@dataclass(frozen=True)
class Numbers:
    digest: str = "one"
    seed: int = 0
    effort: float = 1.0


@dataclass(frozen=True)
class Fake:
    """Steps that copy what they read, in a folder; ``ran`` lists those that run."""

    catalogue: dict[str, str]
    folder: Path
    ran: list[str]

    def study(self, **subject: object) -> Study[Numbers]:
        return Study(Numbers(**subject), self.catalogue, self.folder)  # type: ignore[arg-type]

    def run(self, **subject: object) -> list[str]:
        self.ran.clear()
        assert [section.name for section in run_study(self.study(**subject))] == list(NEEDS)
        return sorted(self.ran)


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    ran: list[str] = []

    def make(name: str) -> Step[Numbers]:
        def run(context: StepContext[Numbers]) -> Section:
            ran.append(name)
            if name == "clusters" and context.subject.effort == 0.5:
                raise ValueError("too little")
            if name == "clusters" and context.subject.effort == 0.125:
                raise OSError(errno.ENOSPC, "No space left on device")
            texts = [(folder / "out.txt").read_text() for folder in context.folders.values()]
            (context.out / "out.txt").write_text(f"{name}({','.join(texts)})")
            return Section(name, name.title(), values={"effort": context.subject.effort})

        def why_not(context: StepContext[Numbers]) -> str | None:
            return "no memory" if name == "clusters" and context.subject.effort == 0.25 else None

        return Step(name, name.title(), run, NEEDS[name], why_not)

    return Fake({name: name_of(make(name)) for name in NEEDS}, tmp_path, ran)


def test_a_rerun_does_nothing_and_a_deleted_artefact_remakes_only_what_depends_on_it(fake: Fake) -> None:
    assert fake.run() == sorted(NEEDS)
    assert (fake.folder / "story" / "out.txt").read_text() == "story(bases(recording()))"
    assert fake.run() == []
    (fake.folder / "bases" / "out.txt").unlink()
    assert fake.run() == ["bases", "story"]
    (fake.folder / "recording" / "out.txt").write_text("damaged")
    assert fake.run() == sorted(NEEDS)
    assert fake.run() == []
    (fake.folder / "clusters" / "report" / "section.json").write_text("{")
    assert fake.run() == ["clusters"]


@pytest.mark.parametrize("change", [{"seed": 1}, {"effort": 2.0}, {"digest": "two"}])
def test_another_subject_makes_everything_again(fake: Fake, change: dict[str, object]) -> None:
    fake.run()
    assert fake.run(**change) == sorted(NEEDS)


def test_a_failed_step_costs_no_other_and_is_tried_again(fake: Fake) -> None:
    sections = {section.name: section for section in run_study(fake.study(effort=0.5))}
    assert [check.passed for check in sections["clusters"].checks] == [False]
    assert "too little" in sections["clusters"].checks[0].remedy
    assert sections["story"].values == {"effort": 0.5}
    assert not list(fake.folder.glob(".tmp-*"))
    assert fake.run(effort=0.5) == ["clusters"]


def test_a_full_disk_stops_the_study_and_finished_steps_are_kept(fake: Fake) -> None:
    with pytest.raises(SettingError, match=f"--out is {fake.folder}: No space left on device; free some space"):
        run_study(fake.study(effort=0.125))
    assert (fake.folder / "recording" / "out.txt").exists()
    assert not (fake.folder / "clusters").exists()


def test_a_step_that_does_not_apply_is_left_out(fake: Fake) -> None:
    sections = {section.name: section for section in run_study(fake.study(effort=0.25))}
    assert sections["clusters"].skipped == "no memory"
    assert "clusters" not in fake.ran


def test_chosen_steps_bring_those_that_they_need(fake: Fake) -> None:
    assert list(fake.study().steps(["story"])) == ["recording", "bases", "story"]
    with pytest.raises(SettingError, match="--steps has 'stori'; the steps are recording, bases"):
        fake.study().steps(["stori"])


OWN = """
from rlhf_ray.study import Section, Step
import helpers

STEP = Step("own", "My own", lambda context: Section("own", "My own", values={"figure": helpers.FIGURE}))
"""


def test_an_edited_step_or_helper_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helpers.py").write_text("FIGURE = 1\n")
    (package / "steps.py").write_text(OWN.replace("import helpers", "from mine import helpers"))
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(edited: str = "") -> tuple[object, list[bool]]:
        for name in ("mine", "mine.helpers", "mine.steps"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        kept: list[bool] = []
        study = Study(Numbers(), {}, tmp_path / "out", ("mine.steps:STEP",))
        (section,) = run_study(study, ["mine.steps:STEP"], finished=lambda name, earlier: kept.append(earlier))
        return section.values["figure"], kept

    assert run() == (1, [False])
    assert run() == (1, [True])
    (package / "helpers.py").write_text("FIGURE = 23\n")
    assert run() == (23, [False])
    (package / "steps.py").write_text((package / "steps.py").read_text().replace("helpers.FIGURE", "456 + 0"))
    assert run() == (456, [False])


def test_an_edit_of_the_packages_that_study_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def code(version: int, text: str, name: str = "interpret") -> str:
        package = tmp_path / str(version) / name
        package.mkdir(parents=True)
        (package / "part.py").write_text(text)
        monkeypatch.setattr("rlhf_ray.study.run.PACKAGE", package.parent)
        return code_of(run_here)

    assert code(1, "FIGURE = 1") == code(2, "FIGURE = 1") != code(3, "FIGURE = 2")
    assert code(4, "FIGURE = 1", "optim") == code(5, "FIGURE = 2", "optim")


def test_quick_steps_run_here_and_an_error_is_a_failed_check() -> None:
    def broken(subject: int) -> Section:
        raise ValueError("no such luck")

    good, bad = run_here(7, {"good": lambda subject: Section("good", "Good", values={"it": subject}), "a_step": broken})
    assert good.values == {"it": 7}
    assert (bad.name, bad.title, bad.checks[0].passed) == ("a_step", "A step", False)
    assert "no such luck" in bad.checks[0].remedy


def test_a_name_that_is_no_step_is_refused_in_one_line(fake: Fake) -> None:
    with pytest.raises(SettingError, match="which is type"):
        Study(Numbers(), {}, fake.folder, ("pathlib:Path",)).steps()
    own = name_of(Step("story", "Mine", lambda context: Section("story", "Mine")))
    with pytest.raises(SettingError, match="two steps with the name"):
        Study(Numbers(), fake.catalogue, fake.folder, (own,)).steps()


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
