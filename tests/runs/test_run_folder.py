"""The run folder and how metrics are written."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlhf_ray.data.lock import LockedError
from rlhf_ray.data.metrics import plain
from rlhf_ray.runs.callbacks import Callbacks, TrainingRun
from rlhf_ray.runs.folder import RunFolder, read_metrics
from rlhf_ray.runs.metrics_files import MetricsFile, TensorBoard
from rlhf_ray.settings import Experiment, SettingError


def test_a_new_folder_holds_settings_versions_and_command(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment(seed=7))
    assert RunFolder.open(tmp_path / "run").experiment() == Experiment(seed=7)
    about = json.loads(folder.run.read_text())
    assert about["versions"]["ray"] == "2.60.0"
    assert about["finished"] is None
    folder.finish({"env_steps": 3, "normalised": float("nan")}, interrupted=True)
    assert json.loads(folder.result.read_text()) == {"env_steps": 3, "normalised": None}
    about = json.loads(folder.run.read_text())
    assert about["interrupted"] is True
    assert about["finished"] >= about["started"]


def test_what_a_run_was_given_is_kept_for_its_resume(tmp_path: Path) -> None:
    options = {"callback": [], "port": 7}
    for name, given, kept in (("one", options, options), ("other", None, {})):
        assert RunFolder.create(tmp_path / name, Experiment(), given).about()["options"] == kept


def test_nobody_else_writes_meanwhile_the_second_time_too(tmp_path: Path) -> None:
    folder, other = RunFolder.create(tmp_path / "run", Experiment()), RunFolder(tmp_path / "run")
    for _ in range(2):
        with folder.writing():
            with folder.writing():
                pass
            with pytest.raises(LockedError), other.writing():
                pass
        with other.writing():
            pass


def test_a_run_goes_back_to_the_end_of_an_iteration(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    rows = [{"iteration": number, "env_steps": 10 * number} for number in range(1, 6)]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.go_back_to(3)
    assert read_metrics(folder.metrics) == rows[:3]
    folder.go_back_to(0)
    assert folder.metrics.read_text() == ""


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SettingError, match=r"run_dir is .*already exists"):
        RunFolder.create(tmp_path, Experiment())
    with pytest.raises(SettingError, match="not a run folder"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("path", ["/proc/nothing", "/dev/null/run"])
def test_a_folder_that_cannot_be_created_is_refused(path: str) -> None:
    with pytest.raises(SettingError, match=rf"--run-dir is {path}, which can't be .*: choose a folder that can be"):
        RunFolder.create(path, Experiment())


def writers(folder: RunFolder) -> Callbacks:
    files = Callbacks([MetricsFile(), TensorBoard()])
    files.on_start(TrainingRun(folder.experiment(), folder, cast(Any, None)))
    return files


def test_metrics_are_the_same_in_jsonl_and_tensorboard(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    writer = writers(folder)
    writer.on_metrics(
        {"env_steps": 10, "true_return_mean": None, "held_out_accuracy": np.float32(0.5), "alarms": ["a", "b"]}
    )
    writer.on_metrics({"env_steps": 20, "true_return_mean": np.float64(-3.0), "held_out_accuracy": float("nan")})
    assert read_metrics(folder.metrics) == [
        {"env_steps": 10, "true_return_mean": None, "held_out_accuracy": 0.5, "alarms": ["a", "b"]},
        {"env_steps": 20, "true_return_mean": -3.0, "held_out_accuracy": None},
    ]
    assert folder.last_metrics()["env_steps"] == 20
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("held_out_accuracy")] == [(10, 0.5)]
    assert [(e.step, e.value) for e in events.Scalars("true_return_mean")] == [(20, -3.0)]
    assert [(e.step, e.value) for e in events.Scalars("alarms")] == [(10, 2.0)]
    # A resumed run drops what came after its last row, and no more.
    folder.metrics.write_text(folder.metrics.read_text().splitlines(keepends=True)[0])
    writers(folder).on_metrics({"env_steps": 15, "held_out_accuracy": 1.0, "true_return_mean": 2.0})
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("held_out_accuracy")] == [(10, 0.5), (15, 1.0)]
    assert [(e.step, e.value) for e in events.Scalars("true_return_mean")] == [(15, 2.0)]


def test_a_full_disk_leaves_out_whole_rows_and_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    writer = writers(folder)
    writer.on_metrics({"env_steps": 1, "loss": 0.5})
    files = [folder.metrics, *folder.tensorboard.iterdir()]
    before = [file.read_bytes() for file in files]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(map(len, before)) + 5, limits[1]))  # to the kernel like a full disk
    try:
        for step in range(2, 40):
            writer.on_metrics({"env_steps": step, "loss": 0.5})
            assert "metrics.jsonl" in caplog.text
            caplog.clear()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.read_bytes() for file in files] == before
    writer.check()
    writer.on_metrics({"env_steps": 40, "loss": 0.25})
    assert [row["env_steps"] for row in read_metrics(folder.metrics)] == [1, 40]
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.5), (40, 0.25)]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 10}\n{"env_st')
    assert read_metrics(path) == [{"env_steps": 10}]
    assert read_metrics(tmp_path / "none") == []


def test_plain_reaches_all_the_way_down() -> None:
    assert plain({"a": [np.int64(1), {"b": np.float32("inf")}], 2: (np.bool_(True),)}) == {
        "a": [1, {"b": None}],
        "2": [True],
    }
