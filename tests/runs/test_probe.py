"""The probe set of a run: fixed from the first round on, read by every version."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.probe import ProbeReading
from rlhf_ray.runs.callbacks import TrainingRun
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.probe import Probing
from rlhf_ray.settings import Experiment, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from tests.made_up import FORCES, VECTORS, some_comparisons

EXPERIMENT = Experiment()


class Made:
    """A run folder whose reward model is fitted by hand."""

    def __init__(self, path: Path, experiment: Experiment = EXPERIMENT):
        self.folder = RunFolder.create(path, experiment)
        self.store = PreferenceStore(self.folder.preferences)
        settings = RewardModelSettings(hidden=(16,), ensemble_size=2)
        self.trainer = RewardTrainer(settings, VECTORS, FORCES, held_out_share=0.1, seed=0)
        self.ring, self.counted = SimpleNamespace(version=0), 0
        config = SimpleNamespace(checked=SimpleNamespace(observation_space=VECTORS))
        algorithm = SimpleNamespace(ring=self.ring, reward_model=lambda: self.trainer.ensemble, config=config)
        self.run = TrainingRun(self.folder.experiment(), self.folder, cast(Any, algorithm))

    def label_and_fit(self, seed: int) -> None:
        self.counted += 40
        comparisons = some_comparisons(40, seed=seed)
        self.store.commit(comparisons, annotator="oracle")
        self.trainer.comparisons.add(comparisons)
        self.trainer.fit(30)
        self.ring.version += 1

    def iteration(self, probing: Probing, learned: float = 0.3) -> dict[str, Any]:
        version = self.ring.version
        metrics: dict[str, Any] = {"reward_version": version, "learner_reward_version": version}
        metrics |= {"learned_reward_mean": learned, "comparisons": self.counted}
        probing.on_metrics(metrics)
        return metrics


def test_the_probe_set_stays_and_versions_differ(tmp_path: Path) -> None:
    made, probing = Made(tmp_path / "run"), Probing()
    probing.on_start(made.run)
    assert probing._probe is None
    made.label_and_fit(seed=0)
    first = made.iteration(probing)
    names = json.loads(made.folder.probe.read_text())["fragments"]
    assert len(names) == 80
    assert math.isnan(first["probe_drift"])
    assert first["learned_gain"] == pytest.approx((0.3 - first["probe_reward_mean"]) / first["probe_reward_std"])
    told = {"reward_version", "learner_reward_version", "learned_reward_mean", "comparisons"}
    assert made.iteration(probing).keys() == told | {"learned_gain"}
    made.label_and_fit(seed=1)
    second = made.iteration(probing)
    assert json.loads(made.folder.probe.read_text())["fragments"] == names
    assert 0 < second["probe_drift"] < 1
    for name in ("step_correlation", "step_rank_correlation", "return_correlation", "return_rank_correlation"):
        assert -1 <= second[name] <= 1
    reading = ProbeReading.of(made.trainer.ensemble, probing._probe)
    assert second["probe_rank_correlation"] == pytest.approx(reading.truth(probing._probe))


def test_versions_are_compared_with_the_true_reward_at_some_points_of_a_run(tmp_path: Path) -> None:
    made, probing = Made(tmp_path / "run"), Probing()
    probing.on_start(made.run)
    total, compared = made.run.experiment.preferences.comparisons, []
    for version in range(total // 40):
        made.label_and_fit(seed=version)
        row = made.iteration(probing)
        assert "probe_rank_correlation" in row
        if "return_correlation" in row:
            compared.append(made.counted)
    # The first version after each eighth of the comparisons, and the first of all.
    wanted, passed = [], -1
    for count in range(40, total + 1, 40):
        if count * 8 // total > passed:
            wanted.append(count)
            passed = count * 8 // total
    assert compared == wanted


class Seeder(gym.Env[Any, Any]):
    """An environment whose constructor seeds the process's generators."""

    observation_space, action_space = VECTORS, FORCES
    open = made = 0

    def __init__(self) -> None:
        Seeder.open, Seeder.made = Seeder.open + 1, Seeder.made + 1
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)

    def close(self) -> None:
        Seeder.open -= 1


def test_the_true_reward_of_an_environment_that_seeds_the_process_leaves_training_s_draws_alone(tmp_path: Path) -> None:
    seeder: Any = Seeder
    gym.register("tests/SeedsProbe-v0", seeder, max_episode_steps=20)
    made, probing = Made(tmp_path / "run", Experiment(environment="tests/SeedsProbe-v0")), Probing()
    probing.on_start(made.run)
    made.label_and_fit(seed=0)

    def streams() -> Any:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]

    before = streams()
    assert "return_correlation" in made.iteration(probing)
    assert (Seeder.made, Seeder.open) == (1, 0)
    assert before == streams()


def test_of_many_comparisons_the_probe_set_is_an_even_spread_and_the_newest_are_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, probing = Made(tmp_path / "run"), Probing()
    made.label_and_fit(seed=0)
    made.label_and_fit(seed=1)
    probing.on_start(made.run)
    snapshot = made.store.snapshot()
    monkeypatch.setattr("rlhf_ray.runs.probe.STEPS", 2 * 5 * 4 + 3)  # of both sides of four pairs of five steps
    for newest, rows in ((False, [0, 20, 39, 59]), (True, [56, 57, 58, 59])):
        pairs = snapshot.gather(np.array(rows)).pairs
        found = probing._compared(60, newest=newest)  # of 80
        assert found.ids() == [*pairs.left.ids(), *pairs.right.ids()]
    monkeypatch.setattr("rlhf_ray.runs.probe.STEPS", 1)
    assert len(probing._compared(60, newest=True) or ()) == 4  # two pairs at least
    assert probing._compared(0, newest=True) is None


def test_a_learner_that_is_a_version_behind_is_measured_by_its_own(tmp_path: Path) -> None:
    made, probing = Made(tmp_path / "run"), Probing()
    probing.on_start(made.run)
    made.label_and_fit(seed=0)
    first = made.iteration(probing)
    made.label_and_fit(seed=1)
    metrics = {"reward_version": 2, "learner_reward_version": 1, "learned_reward_mean": 0.3, "comparisons": 80}
    probing.on_metrics(metrics)
    assert metrics["learned_gain"] == first["learned_gain"]
    second = probing._readings[2]
    made.label_and_fit(seed=2)
    metrics |= {"reward_version": 3, "learner_reward_version": 2, "comparisons": 120}
    probing.on_metrics(metrics)
    assert metrics["learned_gain"] == second.gain(0.3)
    assert metrics["probe_drift"] == probing._readings[3].drift(second)


def test_labels_that_a_killed_run_had_asked_for_already_do_not_count_yet(tmp_path: Path) -> None:
    rows = []
    for name, ahead in (("plain", False), ("ahead", True)):
        made, probing = Made(tmp_path / name), Probing()
        probing.on_start(made.run)
        made.label_and_fit(seed=0)
        if ahead:
            made.store.commit(some_comparisons(40, seed=1), annotator="oracle")
        rows.append(made.iteration(probing))
    assert rows[0] == pytest.approx(rows[1], nan_ok=True)


def test_a_run_without_labels_has_no_probe_set(tmp_path: Path) -> None:
    made, probing = Made(tmp_path / "run"), Probing()
    given = Experiment(preferences=PreferenceSettings(comparisons=0))
    probing.on_start(TrainingRun(given, made.folder, made.run.algorithm))
    metrics = {"reward_version": 3, "learned_reward_mean": 1.0}
    probing.on_metrics(metrics)
    assert metrics.keys() == {"reward_version", "learned_reward_mean"}
