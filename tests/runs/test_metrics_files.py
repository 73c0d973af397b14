"""metrics.csv: its columns keep their places."""

import csv
import json
from pathlib import Path
from typing import Any, cast

from rlhf_ray.runs.callbacks import TrainingRun
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.metrics_files import CSVFile, MetricsFile, all_metrics
from rlhf_ray.settings import Experiment


def begin(folder: RunFolder) -> tuple[MetricsFile, CSVFile]:
    files = MetricsFile(), CSVFile()
    for file in files:
        file.on_start(TrainingRun(folder.experiment(), folder, cast(Any, None)))
    return files


def tell(files: tuple[MetricsFile, CSVFile], **metrics: Any) -> None:
    for file in files:
        file.on_metrics(dict(metrics))


def table(folder: RunFolder) -> list[dict[str, str]]:
    with folder.metrics_csv.open(newline="") as file:
        return list(csv.DictReader(file))


def columns(folder: RunFolder) -> list[str]:
    return folder.metrics_csv.read_text().splitlines()[0].split(",")


def test_new_metrics_come_last_and_a_resume_repeats_no_row(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    files = begin(folder)
    declared = [metric.name for metric in all_metrics() if not metric.tag or metric.whole]
    assert columns(folder) == declared
    tell(files, iteration=1, env_steps=100, true_return_mean=None, alarms=["one"], raised=[{"name": "one"}])
    tell(files, **{"iteration": 2, "env_steps": 200, "error_rate/ada, b": 0.25, "round": 1})
    tell(files, iteration=3, env_steps=300, mine=1.5, label="text", held_out_loss=float("nan"))
    assert columns(folder)[: len(declared)] == declared
    rows = table(folder)
    assert [row["iteration"] for row in rows] == ["1", "2", "3"]
    assert [row["error_rate/ada, b"] for row in rows] == ["", "0.25", ""]
    assert [row["mine"] for row in rows] == ["", "", "1.5"]
    assert (rows[0]["alarms"], rows[0]["true_return_mean"], rows[2]["held_out_loss"]) == ("1", "", "")
    assert "label" not in rows[2]
    assert "raised" not in rows[0]
    before = columns(folder)
    folder.go_back_to(1)
    files = begin(folder)
    assert columns(folder) == before
    tell(files, iteration=2, env_steps=250, mine=2.5)
    assert [(row["env_steps"], row["mine"]) for row in table(folder)] == [("100", ""), ("250", "2.5")]
    assert [json.loads(line)["iteration"] for line in folder.metrics.read_text().splitlines()] == [1, 2]
