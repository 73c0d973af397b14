"""What a run says on the terminal: how much of what, what it waits for, and its end in one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_ray.labelling.waiting import NOBODY_AFTER, PeopleWait
from rlhf_ray.runs import progress
from rlhf_ray.runs.outcome import Outcome
from rlhf_ray.runs.progress import Counting, Labelled, ProgressBars, Waits
from rlhf_ray.settings import Experiment, FragmentSettings, PreferenceSettings


def wait(seconds: float, quiet: float = 0.0) -> PeopleWait:
    return PeopleWait(3, 10, seconds, quiet)


def test_a_wait_has_a_line_at_its_beginning_and_one_a_minute(clock: SimpleNamespace, tmp_path: Path) -> None:
    said: list[str] = []
    waits = Waits(said.append, tmp_path)
    told = []
    for second in range(150):
        for _ in range(2):  # people are looked at more than once a second
            waits.show(wait(second % 130))  # the second one begins after 130 seconds
        told.append(len(said))
        clock.now += 1
    assert [second for second in range(150) if told[second] > (told[second - 1] if second else 0)] == [0, 60, 120, 130]
    waits.show(wait(600), lines=False)
    assert len(said) == 4


def test_the_alarm_of_a_silence_is_shown_once(clock: SimpleNamespace, tmp_path: Path) -> None:
    said: list[str] = []
    waits = Waits(said.append, tmp_path)
    for quiet in (NOBODY_AFTER - 1, NOBODY_AFTER, NOBODY_AFTER + 1, 0.0, NOBODY_AFTER):
        waits.show(wait(2_000, quiet), lines=False)
    assert len(said) == 2
    assert f"rlhf-ray links {tmp_path}" in said[0]
    assert waits.alarmed


@pytest.mark.parametrize(("quiet", "note"), [(59.9, ""), (60.0, "last answer 1 min ago")])
def test_the_bar_of_labels_says_how_long_nobody_answered(
    quiet: float, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress._Console, "is_terminal", True)
    with Labelled("store", 10) as shown:
        shown.on_wait(wait(90, quiet))
        task = shown._bar.tasks[0]
        assert (task.completed, task.total, task.fields["note"]) == (3, 10, note)
        assert shown._bar.live.is_started
    assert not shown._bar.live.is_started


@pytest.mark.parametrize("terminal", [False, True])
def test_a_count_has_a_bar_or_without_a_terminal_a_line_every_ten_seconds(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(progress._Console, "is_terminal", terminal)
    with Counting("steps", 40) as shown:
        assert shown._bar.live.is_started == terminal
        for _ in range(42):
            shown.show(int(clock.now) - 99, "so far")
            clock.now += 1
        assert shown._bar.tasks[0].completed == 40
    assert not shown._bar.live.is_started
    lines = [f"steps {done}/40 so far" for done in (12, 23, 34)]
    assert terminal or capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(("total", "fits"), [(10_000, 4), (50_000, 21)])
def test_there_is_a_fit_before_the_training_and_at_most_one_after_each_iteration_but_the_last(
    monkeypatch: pytest.MonkeyPatch, total: int, fits: int
) -> None:
    """2,048 steps are an iteration: 9,000 steps hold four, and a round comes before each, but for at most 20 after the first."""
    experiment = Experiment(
        environment="Pendulum-v1",
        total_env_steps=total,
        fragments=FragmentSettings(initial_env_steps=1_000, length=10),
        preferences=PreferenceSettings(rounds=20, comparisons=77),
    )
    assert experiment.agent_settings.iteration_env_steps == 2_048
    monkeypatch.setattr(progress._Console, "is_terminal", True)
    with ProgressBars(experiment) as shown:
        totals = {task.description: task.total for task in shown._bars.tasks}
        shown.on_metrics({"iteration": 1, "raised": [], "env_steps": 3_000, "comparisons": 40, "reward_version": 2})
        assert [task.completed for task in shown._bars.tasks] == [3_000, 40, 2]
    assert totals == {"env steps": total, "labels": 77, "reward fits": fits}


def test_the_last_line_has_the_outcome_in_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    experiment = Experiment(environment="Pendulum-v1", preferences=PreferenceSettings(comparisons=100))
    shown = ProgressBars(experiment)
    shown._folder: Any = SimpleNamespace(path=tmp_path, report=tmp_path / "report.html")
    shown._wrong = "3 answers look wrong"
    outcome = Outcome("Pendulum-v1", 0, 20_000, 80, 0.75, normalised=0.5, train_seconds=61.4, skipped=2)
    shown.on_end(outcome)
    lines = " ".join(capsys.readouterr().out.split())
    assert "20 of 100 labels were not used, because nearly all answers were ties." in lines
    parts = ("normalised return 0.50", "80 labels (2", "held-out accuracy", "3 answers look wrong", "20000 env", "61 s")
    places = [lines.index(part, lines.index("normalised return")) for part in parts]
    assert places == sorted(places)
    shown.on_end(dataclasses.replace(outcome, comparisons=100))
    assert "not used" not in capsys.readouterr().out
