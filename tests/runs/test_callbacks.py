"""Callbacks: what a run tells, to whom and in which order, and what becomes of a run whose callback fails."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rlhf_ray.actors.asynchronous import AsynchronousRing
from rlhf_ray.cli import main
from rlhf_ray.cli.train import _callbacks
from rlhf_ray.data import consent
from rlhf_ray.data.errors import CallbackError, SettingError
from rlhf_ray.rllib.algorithm import LearnsFromPreferences
from rlhf_ray.runs.callbacks import Callback, Callbacks, Latest, Pausing, TrainingRun
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.outcome import Outcome
from rlhf_ray.runs.train import train
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings
from tests.actors.rings import at, ring_in
from tests.command_line import fails_with
from tests.made_up import wait_for
from tests.whole_runs import small

ROOT = Path(__file__).resolve().parents[2]
TINY = small(
    total_env_steps=200 + 3 * 400,
    checkpoint_every=10,
    fragments=FragmentSettings(length=10, initial_env_steps=200, pool=20),
    preferences=PreferenceSettings(comparisons=8, initial_comparisons=4, rounds=1, held_out_share=0.2),
    ppo=PPOSettings(num_envs=2, rollout_length=200, minibatch_size=200, epochs=1, hidden=(8,)),
)


class Heard(Callback):
    """Writes down what it hears."""

    def __init__(self, log: list[Any] | None = None, name: str = ""):
        self.log: list[Any] = [] if log is None else log
        self.name = name

    def on_start(self, run: TrainingRun) -> None:
        assert isinstance(run.algorithm, LearnsFromPreferences)
        self.log.append((self.name, "start", run.algorithm.training_iteration))

    def on_stage(self, stage: str) -> None:
        self.log.append((self.name, stage))

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        assert "alarms" in metrics
        metrics["mine"] = 7
        self.log.append((self.name, "iteration", metrics["iteration"]))

    def on_end(self, outcome: Outcome | None) -> None:
        self.log.append((self.name, "end", None if outcome is None else outcome.env_steps))


class Adding(Callback):
    def on_metrics(self, metrics: dict[str, Any]) -> None:
        metrics |= {"angles": np.arange(3), "mean": np.float32(0.5)}


def test_a_metric_that_cannot_be_written_is_told_of_who_added_it() -> None:
    after = Heard()
    callbacks = Callbacks([Adding(), after])
    metrics: dict[str, Any] = {"alarms": [], "iteration": 1}
    callbacks.on_metrics(metrics)
    assert metrics.keys() == {"alarms", "iteration", "mean", "mine"}  # the files are written without it
    assert after.log
    with pytest.raises(
        CallbackError, match=r"Adding.on_metrics set the metric 'angles' to array.*not a number, string or list"
    ):
        callbacks.check()


class Failing(Callback):
    """Raises in one hook."""

    def __init__(self, hook: str):
        setattr(self, hook, self._fail)

    def _fail(self, *_: Any) -> None:
        raise KeyError("no such thing")


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_failing_callback_stops_the_run_which_resumes_with_nothing_lost(tmp_path: Path) -> None:
    folder, heard = RunFolder.create(tmp_path / "run", TINY), Heard()
    with pytest.raises(CallbackError, match=r"test_callbacks:Failing\.on_metrics raised KeyError.*--resume") as error:
        train(folder, TINY, callbacks=[Failing("on_metrics"), heard])
    assert isinstance(error.value.__cause__, KeyError)
    assert "\n" not in str(error.value)
    seen = [each[1:] for each in heard.log]
    assert seen[0] == ("start", 0)
    assert seen[-3:] == [("iteration", 1), ("stopping",), ("end", None)]
    assert [row["mine"] for row in folder.rows()] == [7]
    assert folder.checkpoint().name == "00000001"
    heard.log.clear()
    outcome = train(folder, TINY, resume=True, evaluation_episodes=1, callbacks=[heard, example_in_the_docs()])
    seen = [each[1:] for each in heard.log]
    stages = [("training",), ("iteration", 2), ("iteration", 3), ("evaluating",), ("end", 1400)]
    assert [("start", 1), *stages] == seen
    rows = folder.rows()
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert rows[-1]["best_true_return"] == max(row["true_return_mean"] for row in rows[1:])
    assert outcome.env_steps == json.loads(folder.result.read_text())["env_steps"] == 1400
    assert outcome.held_out_accuracy is not None
    assert folder.report.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_run_stopped_before_its_first_iteration_starts_anew(tmp_path: Path) -> None:
    clean = RunFolder.create(tmp_path / "clean", TINY)
    train(clean, TINY, evaluation_episodes=1)
    for hook in ("on_start", "on_stage"):
        folder = RunFolder.create(tmp_path / hook, TINY)
        with pytest.raises(CallbackError, match="The run has stopped; correct the callback, then resume it"):
            train(folder, TINY, callbacks=[Failing(hook)])
        train(folder, TINY, resume=True, evaluation_episodes=1)
        rows, expected = folder.rows(), clean.rows()
        assert len(rows) == len(expected) == 3
        for name in ("comparisons", "reward_version", "true_return_mean", "learned_return_mean"):
            assert [row.get(name) for row in rows] == [row.get(name) for row in expected], name
        assert rows[0]["reward_version"] == 1


def example_in_the_docs() -> Callback:
    """The callback that docs/metrics.md shows."""
    (code,) = re.findall(r"```python\n(.*?class .*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 25
    names: dict[str, Any] = {"__name__": "docs"}
    exec(code, names)
    return cast(Callback, names["Best"]())


def test_callbacks_are_named_on_the_command_line_and_a_folders_need_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_listeners.py").write_text(
        "from rlhf_ray.runs.callbacks import Callback\n\nclass Mine(Callback):\n    pass\n\nclass Other:\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("RLHF_RAY_MODULES", str(tmp_path))
    folder = RunFolder.create(tmp_path / "run", TINY, {"callback": ["my_listeners:Mine"]})
    with pytest.raises(SettingError, match=r"run\.json names 'my_listeners:Mine'.*--allow-import"):
        _callbacks(["my_listeners:Mine"], folder)
    assert "my_listeners" not in sys.modules
    for words, said in (
        (["my_listeners:Other"], "lacks on_start"),
        (["my_listeners:Nobody"], "my_listeners.py has no Nobody"),
        (["Mine"], "it must be module:Name"),
    ):
        assert said in fails_with(capsys, "train", "pendulum", "--callback", *words, "--run-dir", tmp_path / "new")
        assert not (tmp_path / "new").exists()
    (mine,) = _callbacks(["my_listeners:Mine"], folder)  # typed by now
    assert isinstance(mine, Callback)
    consent._allowed.discard("my_listeners")


def test_the_latest_values_are_those_of_a_resumed_run_too_and_nothing_is_no_value() -> None:
    rows = [{"seconds": 1.0, "held_out": 3}, {"seconds": 2.0, "held_out": None}]
    latest = Latest()
    latest.on_start(cast(Any, SimpleNamespace(folder=SimpleNamespace(rows=lambda: rows))))
    assert latest.values == {"seconds": 2.0, "held_out": 3}
    latest.on_metrics({"seconds": 4.0})
    assert latest.values == {"seconds": 4.0, "held_out": 3}


def test_each_callback_hears_what_is_told_in_order_and_the_end_backwards_if_it_began() -> None:
    told: list[Any] = []

    class Told(Callback):
        def __getattribute__(self, name: str) -> Any:
            return lambda *what: told.append((self, name, *what))

    one, other = Told(), Told()
    both = Callbacks([one, other])
    both.on_end(None)
    for hook in ("on_start", "on_stage", "on_links", "on_wait", "on_end"):
        getattr(both, hook)("what")
        assert told == [(each, hook, "what") for each in ((one, other) if hook != "on_end" else (other, one))]
        told.clear()


PREFERENCES = PreferenceSettings(schedule="constant", comparisons=20, initial_comparisons=6, rounds=4)


def _settle(ring: Any) -> None:
    if isinstance(ring, AsynchronousRing):
        ring.settle()
        wait_for(lambda: not ring.source.waiting())


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
    assert "is not a run folder" in fails_with(capsys, "pause", tmp_path)
