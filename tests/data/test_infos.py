"""Tests of what environments say beside the reward: success by episode, and means by step, each computed by hand."""

import numpy as np
import pytest

from rlhf_ray.data.infos import Infos


def test_an_episode_succeeded_if_any_of_its_own_steps_says_so() -> None:
    infos, nobody = Infos(2), np.zeros(2, bool)
    assert infos.see({"success": np.array([1.0, 0.0])}, nobody) is not None
    ended = infos.see({"success": np.array([0.0, 0.0])}, np.array([True, True]))
    assert ended is not None
    assert ended.tolist() == [True, False]
    # The step after an end starts the next episode: what it says is of no episode's step.
    infos.see({"success": np.array([0.0, 1.0])}, nobody)
    ended = infos.see({"success": np.array([0.0, 0.0])}, np.array([True, True]))
    assert ended is not None
    assert ended.tolist() == [False, False]


def test_masks_of_gymnasium_say_which_copies_speak() -> None:
    infos = Infos(3)
    said = {"is_success": np.array([True, True, False]), "_is_success": np.array([True, False, True])}
    ended = infos.see(said, np.ones(3, bool))
    assert ended is not None
    assert ended.tolist() == [True, False, False]
    assert Infos(1).see({"cause": np.array(["saw"], object)}, np.ones(1, bool)) is None


def test_means_are_over_the_real_steps_since_the_last_call() -> None:
    infos = Infos(2)
    infos.see({"speed": np.array([1.0, 3.0]), "level_seed": np.array([7, 8])}, np.array([True, False]))
    infos.see({"speed": np.array([100.0, 5.0])}, np.zeros(2, bool))  # the first copy starts its next episode
    assert infos.means() == {"speed": pytest.approx((1 + 3 + 5) / 3)}
    assert infos.means() == {}
