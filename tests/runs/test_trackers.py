"""Weights & Biases, offline: what a run's metrics become there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, cast

import pytest

from rlhf_ray.runs.callbacks import TrainingRun
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.trackers import WandB, check_tracker
from rlhf_ray.settings import Experiment, SettingError

ROW: dict[str, Any] = {
    "env_steps": 400,
    "true_return_mean": -1234.5,
    "learned_return_mean": None,
    "alarms": ["not sent"],
}


@pytest.mark.slow
def test_a_run_that_is_resumed_is_the_same_run_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = RunFolder.create(tmp_path / "run", Experiment())
    for steps in (400, 800):
        tracker = WandB()
        tracker.on_start(TrainingRun(folder.experiment(), folder, cast(Any, None)))
        tracker.on_metrics({**ROW, "env_steps": steps})
        tracker.on_end(None)
    written = sorted((folder.path / "wandb").glob("offline-run-*/*.wandb"))
    assert written
    assert len({file.stem for file in written}) == 1  # run-ID.wandb
    content = b"".join(file.read_bytes() for file in written)
    for text in (b"true_return_mean", b"-1234.5", b"Pendulum-v1"):
        assert text in content
    assert b"not sent" not in content


def test_a_library_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_tracker("none")
    with pytest.raises(SettingError, match=r"rlhf-ray\[wandb\]"):
        check_tracker("wandb")
