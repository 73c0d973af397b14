"""Scripted answers, to a ring's questions and to recorded behaviour without an environment."""

import dataclasses
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from rlhf_ray.cli.label import run
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import name_of
from rlhf_ray.queries.gatherers import ScriptedGatherer, answer_waits
from rlhf_ray.queries.offline import label_recorded, load_recorded
from rlhf_ray.queries.selection import SELECTIONS
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.teachers import TEACHERS, Answers
from tests.made_up import (
    CHOICES,
    FORCES,
    IMAGES,
    VECTORS,
    joined,
    same_comparisons,
    same_fragments,
    some_comparisons,
    some_fragments,
)

MODEL = RewardModelSettings(hidden=(8,), initial_updates=5, updates=5)


def _recorded(file: Path, observations: Any = VECTORS, actions: Any = FORCES, episodes: int = 4) -> Path:
    clips = some_fragments(episodes, 20, observations=observations, actions=actions)
    ends = np.zeros((episodes, 20), bool)
    ends[:, -1] = True

    def flat(values: Any) -> Any:
        return values.reshape(-1, *values.shape[2:])

    Demonstrations(
        flat(clips.observations[:, :-1]), flat(clips.actions), flat(clips.observations[:, 1:]), flat(clips.rewards) + 1.0,
        None, ends.reshape(-1),
    ).save(file)  # fmt: skip
    return file


def _preferences(**changes: Any) -> PreferenceSettings:
    return PreferenceSettings(**{"comparisons": 8, "rounds": 2, "oversampling": 3} | changes)


def test_the_oracle_labels_a_file_by_its_true_returns(tmp_path: Path) -> None:
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5))
    assert found.length == 5
    settings = FragmentSettings()
    assert load_recorded(tmp_path / "steps.npz").ids() == load_recorded(tmp_path / "steps.npz", settings).ids()
    tally = label_recorded(found, tmp_path / "store", _preferences())
    labels = PreferenceStore(tmp_path / "store").load()
    assert tally.comparisons == len(labels) == 8
    better = labels.pairs.left.returns() > labels.pairs.right.returns()
    assert np.array_equal(labels.preferences, better.astype(np.float32))


@pytest.mark.parametrize("teacher", [*TEACHERS.parts, "stochastic+skip"])
def test_every_teacher_labels(teacher: str, tmp_path: Path) -> None:
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5))
    tally = label_recorded(found, tmp_path / "store", _preferences(teacher=teacher))
    assert tally.comparisons == 8
    assert teacher == "population" or set(tally.by_annotator) == {teacher}


@pytest.mark.parametrize("selection", [*SELECTIONS.parts, "entropy+k_center"])
def test_every_selection_chooses_and_the_same_arguments_give_the_same_labels(selection: str, tmp_path: Path) -> None:
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5))
    stores = [PreferenceStore(tmp_path / name) for name in ("one", "again")]
    for store in stores:
        assert label_recorded(found, store, _preferences(selection=selection), MODEL).comparisons == 8
    one, again = (store.load() for store in stores)
    assert one is not None
    assert again is not None
    assert same_comparisons(one, again)
    versions = set(stores[0].events()["reward_version"].to_pylist())
    made = SELECTIONS.make(selection)
    assert versions == ({0, 1, 2} if made is not None and made.needs_reward else {0})


def test_labelling_continues_in_a_store_with_pairs_that_were_not_asked(tmp_path: Path) -> None:
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5, pool=6))
    for comparisons, held in ((4, 4), (12, 12), (99, 15)):  # six fragments make 15 pairs
        assert label_recorded(found, tmp_path / "store", _preferences(comparisons=comparisons)).comparisons == held
    rows = PreferenceStore(tmp_path / "store").events().to_pylist()
    assert len({frozenset((row["left_id"], row["right_id"])) for row in rows}) == 15
    again = load_recorded(tmp_path / "store")
    assert sorted(again.ids()) == sorted(found.ids())


def test_labelling_ends_when_all_annotators_have_left(tmp_path: Path) -> None:
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5))
    leaving = _preferences(teacher="population", annotators=("oracle@3", "guessing@2"))
    for _ in range(2):  # another labelling in the same store finds nobody either
        assert label_recorded(found, tmp_path / "store", leaving).by_annotator == {"oracle": 3, "guessing": 2}


class SkipsAll:
    """A teacher without an opinion."""

    name = "skips all"

    def answer(self, pairs: Any, rng: np.random.Generator) -> Any:
        return np.full(len(pairs), np.nan)


def test_a_teacher_that_skips_everything_is_asked_for_another_hundred_pairs_at_most(tmp_path: Path) -> None:
    found = load_recorded(
        _recorded(tmp_path / "steps.npz"), FragmentSettings(length=5)
    )  # 64 fragments have 2,016 pairs
    asking = _preferences(teacher=SkipsAll, comparisons=100, initial_comparisons=40)
    with pytest.raises(SettingError, match="skipped all of the first 120 pairs"):
        label_recorded(found, tmp_path / "store", asking)


def test_images_and_discrete_actions_are_labelled_too(tmp_path: Path) -> None:
    found = load_recorded(_recorded(tmp_path / "steps.npz", IMAGES, CHOICES), FragmentSettings(length=5, pool=20))
    model = RewardModelSettings(initial_updates=1, updates=1, ensemble_size=2)
    assert label_recorded(found, tmp_path / "store", _preferences(selection="disagreement"), model).comparisons == 8


def test_the_reward_model_of_a_selection_is_fitted_as_in_training(tmp_path, monkeypatch):
    fits = []
    real = RewardTrainer.fit

    def watched(self: RewardTrainer, updates: int, **rest: Any) -> Any:
        fits.append((updates, rest["unlabelled"], {name for pair in store.pairs() for name in pair}, len(store)))
        return real(self, updates, **rest)

    monkeypatch.setattr(RewardTrainer, "fit", watched)
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5, pool=12))
    model = RewardModelSettings(hidden=(8,), updates=5, initial_epochs=6, batch_size=3, methods=("surf",))
    store = PreferenceStore(tmp_path / "store")
    label_recorded(found, store, _preferences(selection="entropy", comparisons=20, initial_comparisons=5), model)
    assert [of[0] for of in fits] == [-(-6 * fits[0][3] // 3), 5]
    for _, unlabelled, _, held in fits:
        assert len(unlabelled) == 12 * 11 // 2 - held  # of all fragments of the pool; pairs with an answer are left out
    assert set(fits[0][1].left.ids()) - fits[0][2]  # fragments that were in no question, too


def test_what_cannot_be_labelled_is_one_line(tmp_path: Path) -> None:
    steps = _recorded(tmp_path / "steps.npz")
    with pytest.raises(SettingError, match="fewer than two fragments"):
        load_recorded(steps, FragmentSettings(length=50))
    below = load_recorded(_recorded(tmp_path / "below.npz", actions=Discrete(3, start=-1)), FragmentSettings(length=5))
    with pytest.raises(SettingError, match="integer actions from -1 to 1, but actions are numbered from 0: add 1"):
        label_recorded(below, tmp_path / "other", _preferences(selection="entropy"))
    below.actions[:] += 1
    assert label_recorded(below, tmp_path / "other", _preferences(selection="entropy"), MODEL).comparisons == 8
    found = load_recorded(steps, FragmentSettings(length=5))
    with pytest.raises(SettingError, match=r"teacher is 'human'; name a scripted teacher"):
        label_recorded(found, tmp_path / "store", _preferences(teacher="human"))
    found.rewards[0, 0] = np.nan
    with pytest.raises(SettingError, match="needs the true rewards; some steps have none"):
        label_recorded(found, tmp_path / "store", _preferences())


@pytest.mark.slow
def test_the_command_needs_neither_ray_nor_an_environment(tmp_path: Path) -> None:
    _recorded(tmp_path / "steps.npz")
    program = (
        "import sys; from rlhf_ray.cli.label import run; "
        "run('steps.npz --store labels --teacher mistake --preferences.selection entropy+k_center --comparisons 8 "
        "--length 5 --reward-model.initial-updates 5 --reward-model.updates 5 --preferences.rounds 2'.split()); "
        "print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["labels: 8 comparisons of 64 clips of 5 steps", "False"]


def test_the_command_says_how_many_stored_answers_count(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5))
    label_recorded(found, "labels", _preferences(comparisons=6))
    for asked, more in ((6, "nothing more is asked"), (8, "asking for 2 more")):
        run(["steps.npz", "--store", "labels", "--teacher", "oracle", "--length", "5", "--comparisons", str(asked)])
        printed = capsys.readouterr().out
        assert f"labels: 6 stored comparisons count towards --comparisons={asked}; {more}" in printed
        assert f"labels: {asked} comparisons of" in printed


PAIRS = some_comparisons(200).pairs


def _answers(settings: PreferenceSettings, number: int = 0, seed: int = 0) -> Comparisons:
    committed: list[Comparisons] = []
    ScriptedGatherer(committed.append, settings, seed).ask(number, PAIRS)
    return joined(committed)


def test_the_oracle_answers_by_true_return_and_commits_its_answers() -> None:
    answers = _answers(PreferenceSettings(teacher="oracle"))
    assert same_fragments(answers.pairs.left, PAIRS.left)
    assert answers.pairs.ids == PAIRS.ids
    assert set(answers.annotators) == {"oracle"}
    better = PAIRS.left.returns() > PAIRS.right.returns()
    assert np.array_equal(answers.preferences, better.astype(np.float32))


def test_asking_again_gives_the_same_answers_even_after_a_restart() -> None:
    settings = PreferenceSettings(teacher="stochastic", rationality=0.1)
    first, second, again = (_answers(settings, number).preferences for number in (1, 2, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, _answers(settings, 1, seed=1).preferences)


def test_a_slow_teacher_commits_each_answer_when_it_is_there_and_answers_as_a_quick_one_would() -> None:
    committed: list[tuple[float, int]] = []
    started = time.monotonic()

    def commit(answers: Comparisons) -> None:
        committed.append((time.monotonic() - started, len(answers)))

    few = Comparisons(PAIRS, np.zeros(200, np.float32))[:4].pairs
    ScriptedGatherer(commit, PreferenceSettings(answer_seconds=0.05), 0).ask(0, few)
    assert [count for _, count in committed] == [1] * 4
    assert all(at >= 0.05 * (i + 1) for i, (at, _) in enumerate(committed))
    slow = _answers(PreferenceSettings(teacher="stochastic", rationality=0.1, answer_seconds=1e-6), 3)
    assert np.array_equal(
        slow.preferences, _answers(PreferenceSettings(teacher="stochastic", rationality=0.1), 3).preferences
    )


def test_the_time_of_an_answer_is_log_normal_with_the_mean_of_the_settings() -> None:
    settings = PreferenceSettings(answer_seconds=4.0, answer_spread=0.8)
    n = 200_000
    waits = answer_waits(settings, n, np.random.default_rng(0))
    assert (waits > 0).all()
    assert abs(waits.mean() - 4.0) < 4 * 4.0 * np.sqrt((np.exp(0.64) - 1) / n)
    logs = np.log(waits)
    assert abs(logs.mean() - (np.log(4.0) - 0.32)) < 4 * 0.8 / np.sqrt(n)
    assert abs(logs.std() - 0.8) < 4 * 0.8 / np.sqrt(2 * n)
    same = answer_waits(PreferenceSettings(answer_seconds=4.0), 9, np.random.default_rng(0))
    assert np.array_equal(same, np.full(9, 4.0))


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_pairs_that_nobody_is_there_for_are_neither_answered_nor_skipped(mode: Any) -> None:
    committed: list[Comparisons] = []
    skipped: list[str] = []
    settings = PreferenceSettings(teacher="population", annotators=("oracle@5", "guessing@2"), mode=mode)
    gatherer = ScriptedGatherer(
        committed.append, settings, 0, lambda pairs, names: skipped.extend([*pairs.ids, *names])
    )
    gatherer.ask(0, dataclasses.replace(PAIRS[:20], answered={"oracle": 1}))
    assert Counter(joined(committed).annotators) == {"oracle": 4, "guessing": 2}
    assert gatherer.deserted
    assert not skipped
    # Pairs that were drawn before those answers were counted: the asynchronous gatherer knows its own.
    gatherer.ask(1, dataclasses.replace(PAIRS[20:40], answered={"oracle": 1}))
    again = {"oracle": 4, "guessing": 2} if mode == "synchronous" else {}
    assert Counter(joined(committed).annotators) == Counter({"oracle": 4, "guessing": 2}) + Counter(again)


class _Panel:
    """Two annotators, in turn; every third pair is skipped."""

    name = "panel"

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> Answers:
        number = np.arange(len(pairs))
        said = np.where(number % 3 == 0, np.nan, number % 2).astype(np.float32)
        return Answers(said, tuple("ab"[i % 2] for i in number))


@pytest.mark.parametrize("seconds", [0.0, 1e-6])
def test_skips_and_several_annotators_are_stored_as_such(seconds: float) -> None:
    committed: list[Comparisons] = []
    skipped: list[tuple[str, str]] = []

    def skip(pairs: Pairs, annotators: Sequence[str]) -> None:
        skipped.extend(zip(pairs.ids, annotators, strict=True))

    panel: Any = _Panel()
    settings = PreferenceSettings(teacher=panel, answer_seconds=seconds)
    ScriptedGatherer(committed.append, settings, 0, skip).ask(0, PAIRS[:12])
    answers = joined(committed)
    kept = [i for i in range(12) if i % 3]
    assert answers.pairs.ids == tuple(PAIRS.ids[i] for i in kept)
    assert answers.annotators == tuple("ab"[i % 2] for i in kept)
    assert answers.preferences.tolist() == [i % 2 for i in kept]
    assert skipped == [(PAIRS.ids[i], "ab"[i % 2]) for i in range(0, 12, 3)]


@pytest.mark.parametrize(
    "said",
    [
        np.array([0.5, 2.0]),
        np.array([[0.5, 0.5]]),
        Answers(np.zeros(2, np.float32), ("a",)),
        None,
        ["left", "right"],
        ["1", "0"],
        [[1, 0], 1],
    ],
)
def test_answers_that_are_none_are_one_line(said: Any) -> None:
    class Rude:
        name = "rude"

        def answer(self, pairs: Pairs, rng: np.random.Generator) -> Any:
            return said

    rude: Any = Rude()
    with pytest.raises(SettingError, match=r"teacher is 'rude', and for 2 pairs it answered .*NaN to skip it"):
        ScriptedGatherer(lambda answers: None, PreferenceSettings(teacher=rude), 0).ask(0, PAIRS[:2])


class Rescaling:
    """A teacher that works in place."""

    name = "rescaling"

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> Any:
        for side in (pairs.left, pairs.right):
            side.rewards[:] -= 100.0
            side.observations[:] = 0
            side.actions[:] = 0
        return (pairs.left.returns() > pairs.right.returns()).astype(np.float32)


def test_a_teacher_that_changes_what_it_is_shown_changes_no_stored_pair() -> None:
    before = some_comparisons(200).pairs
    answers = _answers(PreferenceSettings(teacher=name_of(Rescaling)))
    assert same_fragments(answers.pairs.left, before.left)
    assert same_fragments(PAIRS.right, before.right)
    assert np.array_equal(answers.preferences, before.left.returns() > before.right.returns())
