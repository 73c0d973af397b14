"""A step's words: templates beside its module, each used, each whole."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import numpy as np
import pytest

import rlhf_ray
from rlhf_ray.study.code import code_of
from rlhf_ray.study.figures import DRAWN, values_of
from rlhf_ray.study.words import Words

FILES = sorted(path for path in Path(rlhf_ray.__file__).parent.rglob("*.toml") if path.with_suffix(".py").exists())


@dataclass(frozen=True)
class Figures:
    number: float
    many: np.ndarray
    curve: np.ndarray = field(metadata=DRAWN)


@pytest.fixture
def words(tmp_path):
    (tmp_path / "one.toml").write_text(
        """
        title = "One"
        [texts]
        by = "by {{ share | share }}"
        [statements.moves]
        kind = "rewards"
        text = "{{ names | listed | capital }} move it {% include 'by' %}, {{ 3 | counted('step') }} late."
        [checks.small]
        name = "small"
        bound = "< {{ most }}"
        failed = "It is {{ value | fmt('.2f') }}."
        unknown = "Nobody knows."
        [tables.rows]
        columns = ["a"]
        caption = "{{ share | percent(1) }}"
        [pictures]
        drawn = "{{ missing }}"
        """
    )
    return Words(str(tmp_path / "one.py"))


def test_words_become_a_section(words):
    statement = words.statement("moves", 2, names=["a", "b", "c"], share=0.0312)
    assert (statement.text, statement.weight) == ("A, b and c move it by 3.1 %, 3 steps late.", 2.0)
    assert [words.check("small", passed, 0.5, most=1).says for passed in (True, False, None)] == [
        "", "It is 0.50.", "Nobody knows.",
    ]  # fmt: skip
    table = words.table("rows", [[1, 2]], ["b"], share=0.5)
    assert (table.columns, table.caption) == (["a", "b"], "50.0 %")
    section = words.section([statement], tables=[table], figures=Figures(float("nan"), np.arange(2), np.zeros(9)))
    assert (section.name, section.title, section.values) == ("one", "One", {"number": None, "many": [0, 1]})


def test_a_missing_value_is_an_error(words):
    with pytest.raises(jinja2.UndefinedError, match="missing"):
        words.picture("drawn", b"")


def test_values_are_those_of_the_fields():
    assert values_of({"a": [Figures(1.0, np.zeros(1), np.zeros(1))]}) == {"a": [{"number": 1.0, "many": [0.0]}]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_template_is_whole_and_named_in_the_code(path):
    words, code = tomllib.loads(path.read_text()), path.with_suffix(".py").read_text()
    environment = jinja2.Environment()
    environment.filters |= dict.fromkeys(("share", "percent", "capital", "listed", "counted", "fmt"))
    for part in ("texts", "statements", "checks", "tables", "pictures"):
        for value in words.get(part, {}).values():
            for text in [value] if isinstance(value, str) else value.values():
                if isinstance(text, str):
                    environment.parse(text)
    for key in (*words.get("checks", {}), *words.get("tables", {})):
        assert f'"{key}"' in code


def test_the_code_of_a_step_holds_its_words(tmp_path, monkeypatch):
    (tmp_path / "a_step.py").write_text("def run(context):\n    return None\n")
    (tmp_path / "a_step.toml").write_text('title = "One"\n')
    monkeypatch.syspath_prepend(tmp_path)
    import a_step

    before = code_of(a_step.run)
    (tmp_path / "a_step.toml").write_text('title = "Another"\n')
    assert code_of(a_step.run) != before
