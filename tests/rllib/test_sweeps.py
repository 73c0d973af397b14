"""Sweeps, for real: Ray Tune, rings and all, with trainings of a few iterations."""

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray import tune

from rlhf_ray.cli import presets
from rlhf_ray.data.nested import read_nested
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.settings import load_experiment
from rlhf_ray.store import PreferenceStore
from rlhf_ray.sweeps import Plan, apply, strategies, sweep
from tests.command_line import fails_with
from tests.made_up import wait_for
from tests.whole_runs import running, small


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Tune is told things by the environment."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def trials_processes() -> list[psutil.Process]:
    """The processes of trials in this session's Ray."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ray::SweepTrial" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Killer(threading.Thread):
    """Kills the process of a trial that has a checkpoint and is ``between`` two of the rungs at which it may be stopped."""

    def __init__(self, folder: Path, between: tuple[int, int]):
        super().__init__(daemon=True)
        self.folder, self.between, self.killed, self.over = folder, between, 0, False
        self.seen: set[Any] = set()

    def run(self) -> None:
        while not self.killed and not self.over:
            for checkpoint in self.folder.glob("*/checkpoint_*"):
                with contextlib.suppress(OSError, ValueError, IndexError):  # a row that is being written
                    last = rows_of(checkpoint.parent)[-1]
                    self.seen.add((checkpoint.parent.name, last["env_steps"], last["pid"]))
                    if self.between[0] < last["env_steps"] < self.between[1]:
                        os.kill(last["pid"], signal.SIGKILL)
                        self.killed = last["pid"]
                        break
            time.sleep(0.02)


def rows_of(trial: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (trial / "result.json").read_text().splitlines()]


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_a_sweep_survives_a_kill_asks_for_no_more_than_fits_and_leaves_what_train_takes(tmp_path, capsys, caplog):
    space = {"ppo.gamma": tune.uniform(0.9, 0.99), "reward_model.updates": tune.choice([3, 5])}
    plan = Plan(small(total_env_steps=4100), space, trials=3, search="optuna", schedule="asha", evaluation_episodes=2)
    folder = tmp_path / "sweep"
    killer = Killer(folder, between=(1100, 2500))  # a trial that is stopped at a rung saves there, and is ending
    killer.start()
    outcome = sweep(plan, folder)
    killer.over = True
    killer.join()
    assert killer.killed, killer.seen
    assert outcome.complete
    assert [trial["status"] for trial in outcome.trials if trial["status"] not in ("finished", "stopped early")] == []
    assert len(outcome.trials) == 3
    assert outcome.best["env_steps"] == plan.experiment.total_env_steps
    curve = np.array(outcome.best["curve"])
    assert (np.diff(curve[:, 0]) > 0).all()
    assert curve[-1, 1] == outcome.best["objective"]
    assert -2000 < outcome.best["objective"] < 0
    # What train takes, and what is told.
    best = load_experiment(folder / "best.json")
    assert best == presets.preset(str(folder / "best.json")) == apply(plan.experiment, outcome.best["settings"])
    assert best != plan.experiment
    assert (folder / "report.html").exists()
    printed = capsys.readouterr().out
    begun = [(int(done), int(there)) for done, there in re.findall(r"started, (\d+) of (\d+) trials done", printed)]
    assert len(begun) == 4  # one of them twice
    assert begun[0] == (0, 3)
    # Two at a time, each with two CPUs of four. Tune's times are in whole seconds.
    all_rows = [rows_of(folder / trial["name"]) for trial in outcome.trials]
    times = [(rows[0]["timestamp"] - rows[0]["time_total_s"], rows[-1]["timestamp"] - 2.0) for rows in all_rows]
    assert all(sum(begin <= time < end for begin, end in times) <= 2 for time, _ in times), times
    assert f"rlhf-ray train {folder}/best.json" in printed.replace("\n", "")
    assert re.search(
        r"trial_\w+: its process failed; restarting from its last checkpoint, checkpoint_\d+ \(restart 1 of 10\)",
        printed,
    )
    assert "Traceback" not in printed + caplog.text
    for trial in outcome.trials:
        assert list((folder / trial["name"]).glob("events.out.tfevents.*"))  # TensorBoard
    wait_for(lambda: not trials_processes(), 20)


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_a_trial_that_takes_over_another_goes_on_with_its_labels_and_its_reward_model(tmp_path, monkeypatch):
    monkeypatch.setattr(strategies, "POPULATION", 2)  # one takeover, half-way
    # Different seeds, so that no two trials ask the same questions.
    space = {"seed": tune.randint(1, 10**6), "ppo.learning_rate": tune.loguniform(1e-4, 1e-2)}
    plan = Plan(small(), space, trials=2, schedule="pbt", evaluation_episodes=2)
    outcome = sweep(plan, tmp_path / "sweep")
    assert [trial["status"] for trial in outcome.trials] == ["finished", "finished"]
    (replaced,) = (tmp_path / "sweep").glob("*/preferences.replaced-*")
    taker = replaced.parent
    (donor,) = (tmp_path / "sweep" / trial["name"] for trial in outcome.trials if trial["name"] != taker.name)
    rows, donors = rows_of(taker), rows_of(donor)
    rate = rows[0]["settings"]["ppo.learning_rate"]
    first = next(i for i, row in enumerate(rows) if row["settings"]["ppo.learning_rate"] != rate)
    after = rows[first]
    source = donors[after["training_iteration"] - 2]  # what the donor had come to when it was taken over
    assert first > 0
    # It keeps its seed, so that it goes another way from there.
    assert after["settings"]["seed"] == rows[0]["settings"]["seed"] != source["settings"]["seed"]
    held, theirs, own = (
        PreferenceStore(path, create=False).load() for path in (taker / "preferences", donor / "preferences", replaced)
    )
    # The labels are the donor's up to then, and its own later ones; none of those it had before.
    count = int(source["preferences"]["comparisons"])
    assert 0 < count < 40
    assert held.pairs.ids[:count] == theirs.pairs.ids[:count]
    assert len(held) == len(set(held.pairs.ids)) == 40
    assert not set(own.pairs.ids) & set(held.pairs.ids)
    # The reward model goes on from the donor's version, and knows of these labels and no others.
    version = source["preferences"]["reward_version"]
    assert after["preferences"]["reward_version"] in (version, version + 1)
    state = read_nested(max(taker.glob("checkpoint_*")) / "ring")
    assert [pair for pair, _ in state["trainer"]["keys"]] == list(held.pairs.ids)
    # And PPO with the learning rate that it was given on the way.
    rate = after["learners"]["default_policy"]["default_optimizer_learning_rate"]
    assert rate == pytest.approx(after["settings"]["ppo.learning_rate"])
    assert rate != pytest.approx(source["settings"]["ppo.learning_rate"])


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_settings_that_change_at_a_checkpoint_take_effect_with_the_next_update(trained_run, tmp_path):
    changed = {
        "ppo.learning_rate": 0.0123,
        "ppo.final_learning_rate": 0.0123,
        "ppo.entropy_coefficient": 0.75,
        "ppo.epochs": 3,
        "reward_model.updates": 7,
        "preferences.rounds": 5,
        "preferences.comparisons": 60,
        "total_env_steps": 500 + 6 * 600,
    }
    config = PreferencePPOConfig.from_experiment(apply(small(), changed)).preferences(store=tmp_path / "store")
    with running(config.build_algo()) as algorithm:
        algorithm.restore_from_path(str(trained_run.checkpoint()))
        result = algorithm.train()
    policy = result["learners"]["default_policy"]
    assert policy["default_optimizer_learning_rate"] == pytest.approx(0.0123)
    assert policy["curr_entropy_coeff"] == pytest.approx(0.75)
    assert policy["num_module_steps_trained"] >= 3 * 600
    assert result["preferences"]["round"]["gradient_steps"] == 7


def test_the_command_line_of_a_sweep_is_checked_before_anything_starts(tmp_path, capsys):
    (tmp_path / "bad.json").write_text('{"ppo": 3}')
    for words, message in (
        (["tune", "pendulum", "--vary", "ppo.gama=1,2"], "there is no setting 'ppo.gama'"),
        (["tune", "Pendulum-v1"], "Nothing varies"),
        (["tune", "pendulum", "--search", "optuna", "--schedule", "pb2"], "remove --search"),
        (["tune", "--resume", str(tmp_path)], "is not a sweep's folder"),
        (["tune", "--resume"], "needs the folder"),
        (["tune", "--resume", str(tmp_path), "--trials", "9"], "give no others"),
        (["tune", "--resume", str(tmp_path), "--cores", "0"], "--cores is 0"),
        (["tune", "--resume", str(tmp_path), "--cores=2"], "is not a sweep's folder"),
        (["train", str(tmp_path / "bad.json")], "Can't read settings"),
        (["train", str(tmp_path / "none.json")], "Can't read settings"),
    ):
        assert message in " ".join(fails_with(capsys, *words).split())
