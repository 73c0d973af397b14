"""Runs that are complete or were stopped, and go on for more steps and more comparisons."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray import cli
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.new_run import extended
from rlhf_ray.settings import Experiment, PPOSettings, PreferenceSettings, SettingError
from rlhf_ray.store import PreferenceStore
from tests.actors.rings import at, ring_in
from tests.command_line import fails_with
from tests.made_up import some_comparisons, wait_for
from tests.whole_runs import options, small


def run_of(path: Path, experiment: Experiment, done: int, answers: int = 0, *, complete: bool = True) -> RunFolder:
    """The folder of a run that has taken ``done`` steps in two iterations."""
    folder = RunFolder.create(path, experiment)
    rows = [{"iteration": 1, "env_steps": done // 2}, {"iteration": 2, "env_steps": done}]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint = folder.checkpoints / "000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    if answers:
        PreferenceStore(folder.preferences).commit(some_comparisons(answers, 10), annotator="oracle")
    if complete:
        folder.finish({"trained": None}, interrupted=False)
    return folder


def test_the_folder_has_the_new_totals_and_is_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    ppo = PPOSettings(num_envs=4, rollout_length=150, minibatch_size=200, final_learning_rate=0.0, learning_rate=1e-3)
    folder = run_of(tmp_path / "run", small(ppo=ppo), 2900, 40)
    experiment, said = extended(folder, total_env_steps=5800, comparisons=60)
    assert folder.experiment() == experiment
    assert (experiment.total_env_steps, experiment.preferences.comparisons) == (5800, 60)
    assert not folder.finished()
    assert not folder.result.exists()
    assert folder.about()["parts"][0]["total_env_steps"] == 5800
    assert "goes on from 2900 to 5800 environment steps" in said[0]
    assert "20 more comparisons will be asked" in said[1]
    _, said = extended(folder, total_env_steps=8000)
    assert "20 more comparisons" in said[1]
    assert len(folder.about()["parts"]) == 2


def test_without_more_comparisons_the_reward_stays_and_it_says_so(tmp_path: Path) -> None:
    _, said = extended(run_of(tmp_path / "run", small(), 2900, 40), total_env_steps=5800)
    assert "all 40 comparisons are there, so the reward stays as it is" in said[1]
    assert len(said) == 2


@pytest.mark.parametrize(
    ("totals", "why"),
    [
        ({"total_env_steps": 2600}, "total_env_steps is 2600, but .* has taken 2900 steps.*set it to 3500 or more"),
        ({"total_env_steps": 3499}, "set it to 3500 or more"),
        ({"total_env_steps": 9000, "comparisons": 39}, "comparisons is 39, but 40 are stored .*: set it to that or"),
        ({"comparisons": 50}, "has used up total_env_steps=2900.*raise total_env_steps, too"),
        ({"total_env_steps": 9000, "comparisons": 0}, "start a new run|must be"),
    ],
)
def test_totals_that_leave_nothing_to_do_are_one_line_and_change_nothing(
    tmp_path: Path, totals: dict[str, int], why: str
) -> None:
    folder = run_of(tmp_path / "run", small(), 2900, 40)
    before = folder.config.read_text(), folder.run.read_text()
    with pytest.raises(SettingError, match=why) as error:
        extended(folder, **totals)
    assert "\n" not in str(error.value)
    assert (folder.config.read_text(), folder.run.read_text()) == before
    assert folder.finished()


def test_a_run_that_was_stopped_may_get_more_comparisons_alone_or_fewer_steps_than_planned(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", small(), 1100, 20, complete=False)
    assert extended(folder, comparisons=30)[0].preferences.comparisons == 30
    assert extended(folder, total_env_steps=1700)[0].total_env_steps == 1700


def test_an_agent_on_the_true_reward_gets_more_steps_and_no_comparisons(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", small(), 2900)
    folder._write(folder.run, folder.about() | {"options": {"true_reward": True}})
    with pytest.raises(SettingError, match="keeps whether its reward is learned, fixed or the true one"):
        extended(folder, total_env_steps=5800, comparisons=60)
    assert len(extended(folder, total_env_steps=5800)[1]) == 1


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_rounds_and_labels_go_on_at_the_share_of_the_longer_training(tmp_path: Path, mode: Any) -> None:
    """Of 20 labels in 4 rounds, 6 before them; then 40 over twice the steps: a constant schedule has 23 at the half."""
    preferences = PreferenceSettings(
        schedule="constant", mode=mode, comparisons=20, initial_comparisons=6, rounds=4, held_out_share=0.0
    )
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    with ring_in(tmp_path, preferences) as ring:
        ring.begin(200)
        for number in range(1, 5):
            ring.advance(at(number / 4, 250 * number))
        wait_for(lambda: (ring.advance(at(1.0, 1000)), ring.answered >= 20 and ring.rounds_held >= 5)[1])
        ring.save(checkpoint)
        version = ring.version
    more = dataclasses.replace(preferences, comparisons=40)

    def reached(ring: Any, progress: float, labels: int) -> bool:
        deadline = time.monotonic() + 60
        while ring.answered < labels and time.monotonic() < deadline:
            ring.advance(at(progress, int(2000 * progress)))
            time.sleep(0.02)
        ring.advance(at(progress, int(2000 * progress)))
        return bool(ring.answered == labels)

    with ring_in(tmp_path, more, total_env_steps=2000) as ring:
        ring.load(checkpoint)
        assert ring.rounds_held >= 5
        ring.advance(at(0.5, 1000))
        assert ring.rounds_held == 3
        if mode == "asynchronous":
            assert reached(ring, 0.5, 23)
        assert reached(ring, 0.75, 32)
        assert reached(ring, 1.0, 40)
        wait_for(lambda: ring.version > version)
        wait_for(lambda: ring.rounds_held >= 5)
    with ring_in(tmp_path, more, total_env_steps=1000) as ring:  # the checkpoint's own total: an ordinary resume
        ring.load(checkpoint)
        ring.advance(at(0.5, 500))
        assert ring.rounds_held >= 5


@pytest.mark.slow
def test_a_complete_run_goes_on_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, experiment = tmp_path / "run", small(total_env_steps=500 + 2 * 600)
    more = ["--evaluation-episodes", "1"]
    cli.main(["train", "Pendulum-v1", "--run-dir", str(run), *options(experiment), *more])
    capsys.readouterr()
    resume = ["train", "--resume", str(run)]
    for words, said in (
        ([], "that run is complete; .* --total-env-steps with more than 1700"),
        (["--total-env-steps", "1750"], "set it to 2300 or more"),
        (
            ["--total-env-steps", "9000", "--ppo.epochs", "3"],
            "only total_env_steps and preferences.comparisons may grow",
        ),
    ):
        assert re.search(said, fails_with(capsys, *resume, *words))
    cli.main([*resume, "--total-env-steps", str(600 + 4 * 600), "--preferences.comparisons", "60", *more])
    folder = RunFolder(run)
    assert folder.finished()
    rows = folder.rows()
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert [row["env_steps"] for row in rows] == [1100, 1700, 2300, 2900]
    assert {row["first_fragments_env_steps"] for row in rows} == {500}  # the 100 steps more fill no iteration
    assert rows[1]["comparisons"] == 40
    assert rows[-1]["comparisons"] == len(PreferenceStore(folder.preferences)) == 60
    assert rows[-1]["reward_version"] > rows[1]["reward_version"]
    assert json.loads(folder.result.read_text())["comparisons"] == 60
    assert "20 more comparisons will be asked" in capsys.readouterr().out
