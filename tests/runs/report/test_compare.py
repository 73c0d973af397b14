"""Several runs beside each other, from folders whose numbers are known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray import cli
from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.folder import FORMAT
from rlhf_ray.runs.report.compare import compare, curves_of, table_of
from rlhf_ray.settings import Experiment, PreferenceSettings, to_json


def folder(path: Path, result: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A run of two iterations, finished if it has a result."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(to_json(replace(Experiment(), **changes))))
    about = {"format": FORMAT, "finished": "2026-01-01" if result else None, "interrupted": False}
    (path / "run.json").write_text(json.dumps(about))
    rows = [{"iteration": i, "env_steps": 100 * i, "true_return_mean": -10.0 / i, "comparisons": 5 * i} for i in (1, 2)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if result:
        (path / "result.json").write_text(json.dumps(result))
    return path


RESULT: dict[str, Any] = {
    "comparisons": 12,
    "held_out_accuracy": 0.75,
    "held_out_decided": 4,
    "env_steps": 200,
    "trained": {"true_return_mean": -3.25, "true_return_std": 0.5, "episodes": 20},
    "random": {"true_return_mean": -50.0},
}


def test_each_number_is_its_runs_own_and_only_settings_that_differ_are_listed(tmp_path: Path) -> None:
    many = replace(PreferenceSettings(), comparisons=77)
    paths = [folder(tmp_path / "a", RESULT, seed=1), folder(tmp_path / "b", seed=2, preferences=many)]
    done, training = compare(paths)
    assert (done["run"], done["seed"], done["state"]) == (str(paths[0]), 1, "finished")
    assert (done["true_return_mean"], done["random_return_mean"], done["comparisons"]) == (-3.25, -50.0, 12)
    assert (training["state"], training["true_return_mean"], training["comparisons"]) == ("unfinished", None, 10)
    assert training["training_return"] == -5.0
    assert done["curve"] == [[100.0, -10.0], [200.0, -5.0]]
    assert done["settings"] == {"preferences.comparisons": PreferenceSettings().comparisons}
    assert training["settings"] == {"preferences.comparisons": 77}
    table = table_of([done, training])
    rows = {name: values for name, *values in table.rows}
    assert list(table.columns) == ["", *map(str, paths)]
    assert rows["true return"] == ["−3.2 ± 0.5 (20)", None]
    assert rows["held-out accuracy"] == ["0.75 (4 answers)", None]
    assert rows["preferences.comparisons"] == [PreferenceSettings().comparisons, 77]
    assert curves_of([done, training | {"environment": "other"}]).image.startswith(b"\x89PNG")


def test_a_run_may_name_modules_that_are_not_here_and_lack_files(tmp_path: Path) -> None:
    strange = folder(tmp_path / "a", environment="not_here:Env-v0")
    (strange / "metrics.jsonl").unlink()
    (strange / "result.json").write_text("[]")
    (run,) = compare([strange])
    assert (run["environment"], run["curve"], run["training_return"]) == ("not_here:Env-v0", [], None)
    assert "result.json" in run["unreadable"][0]
    with pytest.raises(SettingError, match="not a run folder"):
        compare([tmp_path])


def test_the_command_prints_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "a", RESULT)
    folder(tmp_path / "b" / "<i>", RESULT | {"env_steps": 7})
    cli.main(["compare", "a", "b/<i>"])
    printed = capsys.readouterr().out
    for text in ("−3.2 ± 0.5 (20)", "0.75 (4 answers)", "−50.0", "comparison.html"):
        assert text in " ".join(printed.split())
    page = Path("comparison.html").read_text()
    assert "b/&lt;i&gt;" in page
    assert len(re.findall("data:image/png", page)) == 1
    cli.main(["compare", "a", "b/<i>", "--json"])
    assert [json.loads(line)["env_steps"] for line in capsys.readouterr().out.splitlines()] == [200, 7]
    for words, said in ((["compare"], "compare needs runs"), (["compare", "a", "--out", "x.png"], "must end in .html")):
        with pytest.raises(SystemExit):
            cli.main(words)
        assert said in capsys.readouterr().err
