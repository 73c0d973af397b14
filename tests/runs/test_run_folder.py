"""The run folder and how metrics are written."""

from __future__ import annotations

import csv
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
from rlhf_ray.runs.metrics_files import CSVFile, MetricsFile, TensorBoard, all_metrics
from rlhf_ray.runs.new_run import new_run
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, SettingError


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
    folder.run.write_text(json.dumps(about | {"format": "rlhf_ray.run/1"}))
    with pytest.raises(SettingError, match=r"format 'rlhf_ray\.run/1'; this version reads .*the version that wrote it"):
        folder.about()


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


def experiment(total_env_steps: int) -> Experiment:
    return Experiment(
        environment="CartPole-v1",
        total_env_steps=total_env_steps,
        fragments=FragmentSettings(length=10, initial_env_steps=100),
        preferences=PreferenceSettings(comparisons=5, initial_comparisons=5, rounds=0, allow_variable_horizon=True),
        ppo=PPOSettings(num_envs=2, rollout_length=50, minibatch_size=50),
    )


@pytest.mark.parametrize(("total", "used"), [(460, 400), (500, None)])
def test_a_budget_that_whole_iterations_do_not_use_up_is_said(tmp_path: Path, total: int, used: int | None) -> None:
    said: list[str] = []
    new_run(tmp_path / "true", experiment(total), options={"true_reward": True}, say=said.append)
    line = f"{used} of total_env_steps={total} are used: the agent learns after every 100 steps"
    assert [text.startswith(line) for text in said] == ([True] if used else [])
    new_run(tmp_path / "learned", experiment(total), say=said.append)  # first fragments take what is left
    assert len(said) == (1 if used else 0)


def test_too_few_steps_name_the_smallest_number_and_fast() -> None:
    with pytest.raises(SettingError, match=r"need 200 steps: raise it to 200 or more, or lower those.*--fast"):
        experiment(150)
