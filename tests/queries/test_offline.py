"""Scripted labels of recorded behaviour, without an environment."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from rlhf_ray.cli.label import run
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.queries.offline import label_recorded, load_recorded
from rlhf_ray.queries.selection import SELECTIONS
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.teachers import TEACHERS
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, same_comparisons, some_fragments

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
    assert labels is not None
    assert tally.held == len(labels) == 8
    better = labels.pairs.left.returns() > labels.pairs.right.returns()
    assert np.array_equal(labels.preferences, better.astype(np.float32))


@pytest.mark.parametrize("teacher", [*TEACHERS.parts, "stochastic+skip"])
def test_every_teacher_labels(teacher: str, tmp_path: Path) -> None:
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5))
    tally = label_recorded(found, tmp_path / "store", _preferences(teacher=teacher))
    assert tally.held == 8
    assert teacher == "population" or set(tally.by_annotator) == {teacher}


@pytest.mark.parametrize("selection", [*SELECTIONS.parts, "entropy+k_center"])
def test_every_selection_chooses_and_the_same_arguments_give_the_same_labels(selection: str, tmp_path: Path) -> None:
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5))
    stores = [PreferenceStore(tmp_path / name) for name in ("one", "again")]
    for store in stores:
        assert label_recorded(found, store, _preferences(selection=selection), MODEL).held == 8
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
        assert label_recorded(found, tmp_path / "store", _preferences(comparisons=comparisons)).held == held
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
    assert label_recorded(found, tmp_path / "store", _preferences(selection="disagreement"), model).held == 8


def test_the_reward_model_of_a_selection_is_fitted_as_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []
    real = RewardTrainer.fit

    def watched(self: RewardTrainer, updates: int, **rest: Any) -> Any:
        fits.append((updates, rest["unlabelled"], {name for pair in store.pairs() for name in pair}, len(store)))
        return real(self, updates, **rest)

    monkeypatch.setattr(RewardTrainer, "fit", watched)
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5, pool=12))
    model = RewardModelSettings(hidden=(8,), updates=5, initial_epochs=6, batch_size=3, methods=("surf",))
    store = PreferenceStore(tmp_path / "store")
    label_recorded(found, store, _preferences(selection="entropy", comparisons=20), model)
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
    assert label_recorded(below, tmp_path / "other", _preferences(selection="entropy"), MODEL).held == 8
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


def test_the_command_says_how_many_stored_answers_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = load_recorded(_recorded(tmp_path / "steps.npz"), FragmentSettings(length=5))
    label_recorded(found, "labels", _preferences(comparisons=6))
    for asked, more in ((6, "nothing more is asked"), (8, "asking for 2 more")):
        run(["steps.npz", "--store", "labels", "--teacher", "oracle", "--length", "5", "--comparisons", str(asked)])
        printed = capsys.readouterr().out
        assert f"labels: 6 stored comparisons count towards --comparisons={asked}; {more}" in printed
        assert f"labels: {asked} comparisons of" in printed
