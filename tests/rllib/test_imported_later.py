"""Modules that RLlib does not need for training are imported when something uses them, and not before."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlhf_ray.rllib.imported_later import Name, imported_later

NAMES = ("planted_frames", "planted_frames.rows")
USER = """
import planted_frames as frames, planted_frames.rows
from planted_frames import Frame
from planted_frames.rows import Row
def size(frame: Frame, rows: list[Row] | None, other: "frames.Frame" = frames.Frame) -> planted_frames.rows.Row: ...
def either(frame: Frame | None): ...
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of two modules that nothing has imported."""
    package = tmp_path / "planted_frames"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from planted_frames.rows import Row\nclass Frame(list):\n    kind = 'frame'\n__version__ = '3'\n"
    )
    (package / "rows.py").write_text("class Row: ...\n")
    (package / "columns.py").write_text("COLUMNS = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "planted_frames"]:
        del sys.modules[name]


def run(code: str, user: str = "ray.planted") -> dict[str, Any]:
    """Run code as that of a module of this name."""
    module = ModuleType(user)
    exec(code, vars(module))
    return vars(module)


def real(module: Any) -> bool:
    return type(module) is ModuleType


def test_annotations_import_nothing(planted: None) -> None:
    with imported_later(NAMES):
        run(USER)
        assert not any(real(sys.modules[name]) for name in NAMES)
    assert not set(NAMES) & sys.modules.keys()
    assert real(importlib.import_module("planted_frames"))


def test_each_use_of_a_name_imports_the_module(planted: None) -> None:
    with imported_later(NAMES):
        names = run(USER)
    frame = names["Frame"]
    assert frame([1]) == [1]
    frames = sys.modules["planted_frames"]
    assert real(frames)
    assert frame.kind == "frame"
    assert isinstance(frames.Frame(), frame)
    assert not isinstance([], frame)
    assert issubclass(frames.Frame, frame)
    assert names["frames"].Frame is frames.Frame
    assert names["frames"].__version__ == "3"
    assert names["Row"].value is frames.Row is names["planted_frames"].rows.Row


def test_a_class_inherits_from_the_real_class(planted: None) -> None:
    with imported_later(NAMES):
        mine = run("from planted_frames import Frame\nclass Mine(Frame): ...")["Mine"]
        assert mine.__mro__[1] is sys.modules["planted_frames"].Frame
        assert real(sys.modules["planted_frames"])


@pytest.mark.parametrize(
    ("code", "user"),
    [
        ("from planted_frames import Frame", "own_environment"),
        ("import planted_frames; Frame = planted_frames.Frame", "rayon"),
        ("import planted_frames.columns; from planted_frames import Frame", "ray.planted"),
        ("import planted_frames; planted_frames.__version__; from planted_frames import Frame", "ray.planted"),
    ],
)
def test_whoever_else_imports_one_of_the_modules_gets_it(planted: None, code: str, user: str) -> None:
    with imported_later(NAMES):
        names = run(code, user)
        frames = sys.modules["planted_frames"]
        assert real(frames)
        assert names["Frame"] is frames.Frame
        assert frames.Row is sys.modules["planted_frames.rows"].Row
    assert sys.modules["planted_frames"] is frames


def test_imported_modules_stay_and_missing_ones_are_missing(planted: None) -> None:
    frames = importlib.import_module("planted_frames")
    with imported_later((*NAMES, "planted_nowhere")):
        assert run("from planted_frames import Frame")["Frame"] is frames.Frame
    del sys.modules["planted_frames"], sys.modules["planted_frames.rows"]
    with imported_later((*NAMES, "planted_nowhere")), pytest.raises(ModuleNotFoundError):
        run("import planted_nowhere")


def test_an_error_inside_leaves_nothing_behind(planted: None) -> None:
    with pytest.raises(ZeroDivisionError), imported_later(NAMES):
        run("1 / 0")
    assert not set(NAMES) & sys.modules.keys()


def test_names_say_what_they_stand_for() -> None:
    assert repr(Name("pandas", "DataFrame")) == "Name(module='pandas', name='DataFrame')"


PROGRAM = """
import sys
import rlhf_ray.rllib
assert not {"pandas", "ray.data", "boto3", "smart_open"} & sys.modules.keys()

import ray.data, pandas
from ray.rllib.offline import offline_evaluator
from ray.rllib.utils import minibatch_utils
from ray.tune.analysis import experiment_analysis
assert issubclass(ray.data.dataset.MaterializedDataset, offline_evaluator.Dataset)
assert minibatch_utils.DataIterator.value is ray.data.DataIterator is ray.data.iterator.DataIterator
assert isinstance(experiment_analysis.DataFrame(), pandas.DataFrame)
assert experiment_analysis.pd.read_csv is pandas.read_csv
"""


@pytest.mark.slow
def test_rllibs_own_work_with_recorded_data_has_the_real_modules() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], timeout=120, check=True)
