"""Several runs beside each other, from folders whose numbers are known; and a page of stored comparisons."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from rlhf_ray import cli
from rlhf_ray.cli.store import run
from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.folder import FORMAT
from rlhf_ray.runs.report.compare import compare, curves_of, table_of
from rlhf_ray.settings import Experiment, PreferenceSettings, to_json
from rlhf_ray.store import PreferenceStore
from rlhf_ray.study.curves import INK
from tests.command_line import fails_with
from tests.made_up import CHOICES, IMAGES, some_comparisons
from tests.study.parts import Drawn


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
    drawn = Drawn(curves_of([done, training | {"environment": "other"}]).image)
    assert {f"{done['environment']}: true return in training", "other: true return in training"} <= set(drawn.texts)


def test_the_agent_of_a_run_on_the_true_reward_is_its_reference(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", RESULT | {"trained": None, "reference": RESULT["trained"]})
    about = json.loads((path / "run.json").read_text()) | {"options": {"true_reward": True}}
    (path / "run.json").write_text(json.dumps(about))
    (run,) = compare([path])
    assert (run["true_return_mean"], run["true_return_std"], run["episodes"]) == (-3.25, 0.5, 20)


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
    assert page.count("data:image/svg+xml") == 1
    cli.main(["compare", "a", "b/<i>", "--json"])
    assert [json.loads(line)["env_steps"] for line in capsys.readouterr().out.splitlines()] == [200, 7]
    for words, said in ((["compare"], "compare needs runs"), (["compare", "a", "--out", "x.png"], "must end in .html")):
        assert said in fails_with(capsys, *words)


@pytest.mark.parametrize("spaces", [{}, {"observations": IMAGES, "actions": CHOICES}], ids=["vectors", "images"])
def test_the_latest_comparisons_are_replayed(tmp_path: Path, spaces: Any) -> None:
    batch = some_comparisons(6, 4, **spaces)
    store = PreferenceStore(tmp_path / "store")
    store.commit(batch, annotator="<Anna>")
    run(["show", str(tmp_path / "store"), str(tmp_path / "page.html"), "--comparisons", "3"])
    page = (tmp_path / "page.html").read_text()
    shown = re.findall(r"<figcaption>\s*Comparison (\d+): &lt;Anna&gt; (\w+ \w+ \w+)", page)
    answers = {1.0: "prefers the left", 0.0: "prefers the right", 0.5: "considers both equally"}
    assert shown == [(str(n), answers[p]) for n, p in zip((6, 5, 4), batch.preferences[:2:-1].tolist(), strict=True)]
    assert "&lt;Anna&gt;" in page
    assert "<Anna>" not in page
    films = re.findall(r'src="data:image/webp;base64,([^"]+)"', page)
    if not spaces:
        assert not films
        pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
        assert len(pictures) == 3
        drawn = Drawn(base64.b64decode(pictures[0]))  # of the newest
        pair, lines = batch.pairs, np.array(drawn.lines[INK]).reshape(2, -1, 5, 2)  # sides, components, steps
        values = np.stack([side.observations[5].T for side in (pair.left, pair.right)])
        for at in range(values.shape[1]):
            a, b = values[:, at], -lines[:, at, :, 1]
            np.testing.assert_allclose((a - a.min()) / np.ptp(a), (b - b.min()) / np.ptp(b), atol=0.01)
        return
    with Image.open(io.BytesIO(base64.b64decode(films[0]))) as film:  # of the newest
        frames = np.stack([np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(film)])
    right = frames[:, 2:-2:4, 86:-2:4]  # beside the left one, with edges, and four times as large
    np.testing.assert_array_equal(right, batch.pairs.right.observations[5])


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    PreferenceStore(tmp_path / "store")
    with pytest.raises(SettingError, match="no comparisons to show"):
        run(["show", str(tmp_path / "store"), str(tmp_path / "page.html")])
    with pytest.raises(SettingError, match=r"must end in .html"):
        run(["show", str(tmp_path / "store"), str(tmp_path / "page")])
