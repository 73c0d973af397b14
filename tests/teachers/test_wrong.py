"""Teachers that are wrong in a way of their own."""

import dataclasses

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import TEACHERS, Guessing, HumanLike, Inverted, Oracle, SimulatedTeacher, Stochastic, Systematic
from tests.made_up import IMAGES, some_fragments
from tests.teachers.pairs import near, pairs_of


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _turned(pairs: Pairs) -> Pairs:
    return dataclasses.replace(pairs, left=pairs.right, right=pairs.left)


def test_close_pairs_are_decided_by_the_feature_and_all_others_by_the_return() -> None:
    margins = np.random.default_rng(5).uniform(-0.3, 0.3, 2000)
    pairs = pairs_of((40.0 * margins).tolist(), 40.0)
    answers = Systematic().answer(pairs, _rng())
    assert answers.dtype == np.float32
    first = [
        side.observations.reshape(2000, 3, -1)[:, :, 0].astype(np.float64).mean(1) for side in (pairs.left, pairs.right)
    ]
    close = np.abs(margins) < 0.1
    assert 500 < close.sum() < 900
    assert np.array_equal(answers[close], (first[0] > first[1])[close])
    assert np.array_equal(answers[~close], (margins > 0)[~close])
    assert near(float((answers == (margins > 0))[close].mean()), 0.5, int(close.sum()))  # the feature says nothing


def test_systematic_errors_are_the_same_every_time_and_on_either_side() -> None:
    pairs = pairs_of([0.05, -0.05, 0.0] * 200)
    answers = Systematic().answer(pairs, _rng())
    assert np.array_equal(answers, Systematic().answer(pairs, _rng(1)))
    assert np.array_equal(answers, 1 - Systematic().answer(_turned(pairs), _rng(2)))
    one_by_one = [float(Systematic().answer(pairs[i : i + 1], _rng(i))[0]) for i in range(len(pairs))]
    assert answers.tolist() == one_by_one
    drawn = _rng()
    Systematic().answer(pairs, drawn)
    assert drawn.random() == _rng().random()


def test_another_margin_and_another_feature() -> None:
    pairs = pairs_of([0.5, -0.5, 2.0, -2.0])
    by_reward = Systematic("ada", margin=1.0, feature=lambda of: -of.rewards)  # the opposite of the return
    assert by_reward.answer(pairs, _rng()).tolist() == [0.0, 1.0, 1.0, 0.0]
    assert Systematic(margin=0.0).answer(pairs, _rng()).tolist() == [1.0, 0.0, 1.0, 0.0]
    blind = Systematic(margin=1.0, feature=lambda of: np.zeros((len(of), 1)))
    assert blind.answer(pairs, _rng()).tolist() == [0.5, 0.5, 1.0, 0.0]
    with pytest.raises(SettingError, match=r"margin of the annotator ada is -1.0; it must be 0 or more"):
        Systematic("ada", margin=-1.0)


def test_the_brighter_images_win() -> None:
    clips = some_fragments(2, 2, observations=IMAGES)
    dark, bright = (np.full_like(clips.observations[:1], value) for value in (3, 4))
    bright[..., 0, 0, 0] = 0  # one number says nothing
    clips = dataclasses.replace(clips, observations=np.concatenate([dark, bright]), rewards=np.zeros((2, 2)))
    assert Systematic().answer(Pairs(clips[:1], clips[1:], ("a",)), _rng()).tolist() == [0.0]


def test_an_inverted_teacher_answers_the_opposite_and_leaves_ties_and_skips() -> None:
    pairs = pairs_of([2.0, -1.0, 0.0])
    inverted = TEACHERS.make("inverted", settings=PreferenceSettings())
    assert inverted.name == "inverted"
    assert np.asarray(inverted.answer(pairs, _rng())).tolist() == [0.0, 1.0, 0.5]
    human = pairs_of([0.02] * 1000)
    said, opposite = HumanLike().answer(human, _rng()), Inverted(HumanLike()).answer(human, _rng())
    assert np.isnan(said).any()
    assert np.array_equal(opposite, 1 - said, equal_nan=True)


def test_an_inverted_teacher_discounts_as_the_oracle_does() -> None:
    pairs = pairs_of([0.0])
    pairs.left.rewards[:] = [[1.0, 0.0]]
    pairs.right.rewards[:] = [[0.0, 1.1]]
    for discount, oracle in ((1.0, 0.0), (0.5, 1.0)):
        settings = PreferenceSettings(teacher_discount=discount)
        made = [TEACHERS.make(name, settings=settings).answer(pairs, _rng()) for name in ("oracle", "inverted")]
        assert [float(np.asarray(each)[0]) for each in made] == [oracle, 1 - oracle]


def test_guessing_is_a_coin_that_needs_no_true_rewards() -> None:
    pairs = pairs_of([float("nan")] * 20_000)
    guessing = TEACHERS.make("guessing", settings=PreferenceSettings())
    assert isinstance(guessing, Guessing)
    answers = guessing.answer(pairs, _rng())
    assert answers.dtype == np.float32
    assert set(answers.tolist()) == {0.0, 1.0}
    assert near(float(answers.mean()), 0.5, 20_000)
    assert np.array_equal(answers, guessing.answer(pairs, _rng()))


@pytest.mark.parametrize("teacher", [Oracle(), Stochastic(1.0), HumanLike(), Systematic(), Inverted()])
def test_a_clip_without_true_rewards_is_an_error(teacher: SimulatedTeacher) -> None:
    with pytest.raises(ValueError, match="true reward"):
        teacher.answer(pairs_of([1.0, float("nan")]), _rng())


@pytest.mark.parametrize("name", ["human_like", "systematic", "inverted", "guessing"])
def test_they_cannot_be_joined(name: str) -> None:
    with pytest.raises(SettingError, match=f"'{name}' can't be joined by"):
        TEACHERS.make(f"stochastic+{name}", settings=PreferenceSettings())
