"""`rlhf-ray pause`: a run's training goes on, and nothing is asked."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_ray.actors.asynchronous import AsynchronousRing
from rlhf_ray.cli import main
from rlhf_ray.runs.callbacks import Pausing
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, PreferenceSettings
from tests.actors.rings import at, ring_in

PREFERENCES = PreferenceSettings(schedule="constant", comparisons=20, initial_comparisons=6, rounds=4)


def _settle(ring: Any) -> None:
    if isinstance(ring, AsynchronousRing):
        ring.settle()
        deadline = time.monotonic() + 30
        while ring.source.waiting() and time.monotonic() < deadline:
            time.sleep(0.02)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_nothing_is_asked_during_a_pause_and_the_labels_are_made_up_for_after_it(
    tmp_path: Path, mode: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    preferences = dataclasses.replace(PREFERENCES, mode=mode)
    with ring_in(tmp_path, preferences) as ring:
        pausing, algorithm = Pausing(), SimpleNamespace(ring=ring)
        main(["pause", str(folder.path)])
        assert "collects no comparisons from the next iteration on" in capsys.readouterr().out
        pausing.on_start(SimpleNamespace(folder=folder, algorithm=algorithm))  # type: ignore[arg-type]
        ring.begin(200)  # the first labels are collected all the same
        _settle(ring)
        assert (ring.answered, ring.env_steps) == (6, 200)
        for progress in (0.25, 0.5):
            pausing.on_metrics({})
            ring.advance(at(progress, 400))
            _settle(ring)
            assert (ring.answered, ring.env_steps) == (6, 200)  # no exploration either
        main(["pause", str(folder.path), "--end"])
        pausing.on_metrics({})
        for progress, labels in ((0.75, 16), (1.0, 20)):
            ring.advance(at(progress, 800))
            _settle(ring)
            assert ring.answered == labels
        assert (ring.answered, ring.env_steps) == (20, 320)


def test_only_a_run_can_be_paused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pause", str(tmp_path)])
    assert "is not a run folder" in capsys.readouterr().err
