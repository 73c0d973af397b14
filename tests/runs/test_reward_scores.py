"""Scores of a stored reward model are those of its last fit; groups add up; distances and videos of made-up runs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rlhf_ray.data.comparisons import stable_uniform
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments, Trajectory
from rlhf_ray.data.metrics import plain
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.reward.functions import CallableReward, RewardFunction
from rlhf_ray.reward.sampled_distances import DISTANCES, dard, epic, recorded_distances
from rlhf_ray.reward.supervised import SupervisedReport
from rlhf_ray.runs import reward_scores
from rlhf_ray.runs.distances import distances_to_truth, logged_distances
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.report.run_report import STEPS
from rlhf_ray.runs.report.steps import scores
from rlhf_ray.runs.report.subject import read_run
from rlhf_ray.runs.reward_scores import newest_of_annotators, score_reward, scores_of_run
from rlhf_ray.runs.supervised import supervised_section
from rlhf_ray.runs.video import check_video, write_video
from rlhf_ray.settings import Experiment, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.study.run import run_here
from tests.made_up import FORCES, VECTORS, played_at_random, some_comparisons, some_fragments

SHARE = 0.3


def fitted(store: PreferenceStore, settings: RewardModelSettings, rounds: int = 3) -> tuple[RewardTrainer, FitReport]:
    """A reward model fitted after each of several rounds of answers by two annotators, with ties."""
    trainer = RewardTrainer(settings, VECTORS, FORCES, held_out_share=SHARE, seed=0)
    for number in range(rounds):
        for who in ("ada", "ben"):
            comparisons = some_comparisons(30, seed=2 * number + (who == "ben"), reward_version=number)
            comparisons.preferences[:3] = 0.5
            comparisons.pairs.left.policy_versions[:] = comparisons.pairs.right.policy_versions[:] = number - 1
            store.commit(comparisons, annotator=who)
        trainer.comparisons.apply(store.since(0))
        report = trainer.fit(40)
    return trainer, report


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"label_noise": 0.2, "annotator_rationality": True},
        {"label_noise": 0.0},
        {"discount": 0.5, "largest_log_odds": 0.5},
    ],
)
def test_scores_are_those_of_the_fits_report(tmp_path: Path, settings: dict[str, float]) -> None:
    store = PreferenceStore(tmp_path / "store")
    trainer, _ = fitted(store, RewardModelSettings(hidden=(16,), ensemble_size=2, **settings))  # type: ignore[arg-type]
    report = trainer.fit(0)  # with the error rates that it has, instead of those from the fit before
    known = trainer.annotators
    found = score_reward(trainer.ensemble, store, SHARE, known.assumed, known.rationalities)
    assert found.version == report.version == 4
    assert found.overall.answers == report.held_out
    assert found.overall.accuracy.mean == pytest.approx(report.held_out_accuracy)
    assert found.overall.log_likelihood.mean == pytest.approx(-report.held_out_loss, abs=1e-5)
    assert found.overall.brier.mean == pytest.approx(report.held_out_brier, abs=1e-6)
    assert found.overall.calibration_error == pytest.approx(report.held_out_calibration_error, abs=1e-6)
    assert found.disagreement is not None


def test_groups_hold_every_answer_once_and_are_named(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "store")
    trainer, _ = fitted(store, RewardModelSettings(hidden=(16,)))
    found = score_reward(trainer.ensemble, store, SHARE)
    assert set(found.groups["annotator"]) == {"ada", "ben"}
    for groups in found.groups.values():
        assert sum(of.answers for of in groups.values()) == found.overall.answers
        assert sum(of.answers * of.brier.mean for of in groups.values()) == pytest.approx(
            found.overall.answers * found.overall.brier.mean
        )
    assert sum(of.answers for of in found.curve) == found.overall.answers
    assert found.correlations.fragments == 2 * found.overall.answers
    assert found.correlations.returns_linear.mean > 0.3
    store.weigh("ben", 0.0)
    without = score_reward(trainer.ensemble, store, SHARE)
    assert set(without.groups["annotator"]) == {"ada"}


def test_the_newest_of_many_answers_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PreferenceStore(tmp_path / "store")
    trainer, _ = fitted(store, RewardModelSettings(hidden=(16,)))
    monkeypatch.setattr(reward_scores, "MOST", 5)
    found = score_reward(trainer.ensemble, store, SHARE)
    assert found.overall.answers == 5


def test_where_all_that_counts_is_held_out_fits_train_on_it(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "store")
    reward = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(hidden=(8,)))
    answers = some_comparisons(30)
    held_out = stable_uniform(answers.pairs.ids, "held out") < SHARE
    store.commit(answers[held_out], annotator="ada")
    store.commit(answers[~held_out], annotator="ben")
    assert score_reward(reward, store, SHARE) is not None
    store.weigh("ben", 0.0)
    assert score_reward(reward, store, SHARE) is None


def test_nothing_held_out_has_no_scores(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "store")
    reward = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(hidden=(8,)))
    assert score_reward(reward, store, SHARE) is None
    store.commit(some_comparisons(10), annotator="ada")
    assert score_reward(reward, store, 0.0) is None
    assert score_reward(reward, store, 1.0) is None  # fits train on all if all are held out


def test_error_rates_and_rationalities_are_the_newest() -> None:
    rows = [
        {"error_rate_assumed/ada": 0.1, "rationality/ada": 2.0, "loss": 1.0, "stage_rate/asking": 3.0},
        {"error_rate_assumed/ada": 0.2, "error_rate_assumed/b/c": 0.3, "error_rate/ada": 0.5},
        {"error_rate_assumed/ada": None},
    ]
    assert newest_of_annotators(rows) == ({"ada": 0.2, "b/c": 0.3}, {"ada": 2.0})


@pytest.mark.slow
def test_a_runs_folder_is_scored_and_its_report_says_so(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    assert scores_of_run(folder) is None
    store = PreferenceStore(folder.preferences)
    trainer, _ = fitted(store, RewardModelSettings(hidden=(16,)))
    trainer.ensemble.save(folder.reward_model)
    found = scores_of_run(folder)
    assert found[1] is not None
    row = {"iteration": 1, "env_steps": 100, "learned_gain": 0.5, "probe_rank_correlation": 0.9, "epic_distance": 0.4}
    folder.metrics.write_text(json.dumps(row) + "\n")
    sections = {section.name: section for section in run_here(read_run(folder), STEPS)}
    held_out, truth = sections["scores"].tables
    rows = {row[0]: row[1] for row in held_out.rows}
    assert {"all", "annotator ada", "annotator ben"} == set(rows)
    assert rows["all"].startswith(str(found[1].overall.answers))
    assert len(truth.rows) == 4
    assert [picture.name for picture in sections["learning"].pictures] == ["drift", "distances", "reliability"]


def test_while_a_run_trains_again_its_newest_checkpoint_has_the_newest_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    PreferenceStore(folder.preferences)
    for version, place in enumerate((folder.reward_model, tmp_path / "4" / "reward_model"), 1):
        reward = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(hidden=(8,)))
        reward.version.fill_(version)
        reward.save(place)
        monkeypatch.setattr(reward_scores, "last_checkpoint", lambda folder, found=place.parent: found)
        found = scores_of_run(folder)
        assert (int(found[0].version), found[1]) == (version, None)


def pendulum_steps() -> Transitions:
    return Transitions.of_trajectories(played_at_random("Pendulum-v1", range(12), 60))


def test_distances_to_the_truth_are_kept_and_shown(tmp_path: Path) -> None:
    steps, env = pendulum_steps(), make_env("Pendulum-v1")
    reward = RewardEnsemble(env.observation_space, env.action_space, RewardModelSettings(hidden=(8,)))  # type: ignore[arg-type]
    found = distances_to_truth(reward, "Pendulum-v1", steps, 0.9)
    assert set(found.values) == set(DISTANCES)
    assert found.values["epic"].value > 0.2  # it is untrained
    folder = RunFolder.create(tmp_path / "run", Experiment())
    folder.distances.write_text(json.dumps(plain(dataclasses.asdict(found))))
    assert read_run(folder).distances == found
    name, shown = scores.section(read_run(folder)).tables[0].rows[0]
    assert name == "EPIC, as published, new steps, reward version 0"
    assert shown.startswith(f"{found.values['epic'].value:.2f} [")
    unknown = distances_to_truth(reward, "CartPole-v1", steps, 0.9)  # its reward is no formula of ours
    assert set(unknown.values) == {"starc", "pearson", "spearman"}


def test_recorded_rewards_do_for_distances_that_need_no_others() -> None:
    steps, truth = pendulum_steps(), ground_truth("Pendulum-v1")
    found = recorded_distances(truth, steps, 0.9)
    assert found["starc"].value == pytest.approx(0.0, abs=1e-6)
    assert found["pearson"].value == pytest.approx(1.0)
    assert set(found) == {"starc", "pearson", "spearman"}


class Still:
    """A policy that does nothing."""

    def __init__(self, action: object):
        self.action = np.asarray(action)
        self.first: list[bool] = []

    def best(self, observations: np.ndarray, first: np.ndarray) -> np.ndarray:
        self.first += first.tolist()
        return self.action[None].repeat(len(observations), 0)


@pytest.mark.parametrize("ending", [".webp", ".gif", ".png"])
def test_a_video_has_every_step_of_its_episodes(tmp_path: Path, ending: str) -> None:
    file, policy = tmp_path / "new" / f"video{ending}", Still(0)
    write_video(file, "CartPole-v1", policy, episodes=2, seed=0)
    assert policy.first.count(True) == 2
    with Image.open(file) as video:
        times = []
        for at in range(video.n_frames):  # equal frames in a row are one, shown for longer
            video.seek(at)
            video.load()
            times.append(video.info["duration"])
        shown = sum(times) / min(times)
        assert shown == pytest.approx(
            len(policy.first) + 2, abs=0.1
        )  # an episode's first frame is before its first step
        assert video.info.get("loop") == 0


def test_small_images_are_enlarged(tmp_path: Path) -> None:
    write_video(tmp_path / "dot.webp", "rlhf_ray/MovingDot-v0", Still(0), episodes=1, seed=0)
    with Image.open(tmp_path / "dot.webp") as video:
        assert video.width >= 200


def test_what_cannot_be_filmed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"video\.mp4; give a file that ends in \.webp"):
        check_video(tmp_path / "video.mp4", "Pendulum-v1")


@pytest.fixture(scope="module")
def swings() -> Fragments:
    """Fragments of Pendulum under random actions."""
    whole = played_at_random("Pendulum-v1", range(8), 200)
    return Fragments.concatenate([each.window(start, 25, 0) for each in whole for start in range(0, 200, 25)])


def _reward(of: Callable[..., Any], truth: RewardFunction) -> RewardFunction:
    return CallableReward(of, truth.observation_space, truth.action_space)


def test_steps_of_fragments_are_theirs_in_order() -> None:
    clips = some_fragments(5, 4)
    steps = Transitions.of_fragments(clips)
    parts = [
        Trajectory(
            clips.observations[i], clips.actions[i], clips.rewards[i], bool(clips.terminated[i]), int(clips.starts[i])
        )
        for i in range(5)
    ]
    for name, value in vars(Transitions.of_trajectories(parts)).items():
        np.testing.assert_array_equal(getattr(steps, name), value)


def test_the_true_reward_shaped_and_scaled_is_near_0_and_its_opposite_near_1(swings: Fragments) -> None:
    truth, steps = ground_truth("Pendulum-v1"), Transitions.of_fragments(swings)

    def shaped(o: Any, a: Any, s: Any, d: Any) -> Any:
        return 3 * truth(o, a, s, d) + 0.95 * 5 * s[:, 0] - 5 * o[:, 0]

    same = logged_distances(_reward(shaped, truth), truth, steps, 0.95)
    opposite = logged_distances(_reward(lambda *of: -shaped(*of), truth), truth, steps, 0.95)
    noise = logged_distances(_reward(lambda o, a, s, d: np.sin(50 * o[:, 2]), truth), truth, steps, 0.95)
    assert list(same) == list(opposite) == ["epic_distance", "dard_distance"]
    assert max(same.values()) < 0.05
    assert min(opposite.values()) > 0.95
    assert all(0.6 < value < 0.8 for value in noise.values())
    assert logged_distances(_reward(shaped, truth), truth, steps, 0.95) == same


def test_they_are_near_those_of_many_more_draws(swings: Fragments) -> None:
    truth, steps = ground_truth("Pendulum-v1"), Transitions.of_fragments(swings)
    other = _reward(lambda o, a, s, d: truth(o, a, s, d) + 2 * np.sin(5 * o[:, 0] + o[:, 2]) + 2 * o[:, 1], truth)
    found = logged_distances(other, truth, steps, 0.95)
    for name, measure in (("epic", epic), ("dard", dard)):
        many = measure(other, truth, steps, 0.95, np.random.default_rng(9), pairs=400)
        assert found[f"{name}_distance"] == pytest.approx(many.value, abs=0.1)


NOT_LEARNED = SupervisedReport(
    objective="reward", balance="none", train_steps=1_000, test_steps=100, train_episodes=10, test_episodes=1,
    trained_steps=1_000, train_nonzero=500, test_nonzero=50, gradient_steps=10, seconds=1.0, train_error=1.0,
    test_error=1.0, constant_error=1.0, balanced_error=1.0, balanced_constant_error=1.0, balanced_auc=0.5,
    correlation=0.0, rank_correlation=0.0, levels=(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("nonzero", "said"),
    [
        (99, "Only 9.9 % of the training rewards are nonzero"),
        (901, "Only 9.9 % of the training rewards are zero"),
        (100, None),
        (900, None),
        (0, None),
        (1_000, None),
    ],
)
def test_the_rarer_kind_of_reward_is_named_below_a_tenth(nonzero: int, said: str | None) -> None:
    report = dataclasses.replace(NOT_LEARNED, train_nonzero=nonzero)
    (check,) = supervised_section(report).checks
    assert check.passed is False
    assert "hardly better than a constant" in check.remedy
    assert said in check.remedy if said else "Only" not in check.remedy
    balanced = supervised_section(dataclasses.replace(report, balance="sampler")).checks[0]
    assert "Only" not in balanced.remedy
    equal = supervised_section(dataclasses.replace(report, constant_error=0.0, balanced_auc=math.nan)).checks[0]
    assert equal.passed is None
    assert "All test rewards are equal" in equal.remedy
