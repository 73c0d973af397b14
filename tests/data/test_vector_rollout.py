"""VectorRollout: which rows belong to which episode."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.vector_rollout import Infos, VectorRollout, with_plain_success


def rollout(ended: list[list[int]], begins_with_reset: list[bool], starts: list[int], steps: int = 6) -> VectorRollout:
    """Copies whose episodes end at these rows; the row after each is a reset."""
    copies = len(ended)
    real, truncated = np.ones((steps, copies), bool), np.zeros((steps, copies), bool)
    real[0] = ~np.array(begins_with_reset)
    for copy, rows in enumerate(ended):
        for row in rows:
            truncated[row, copy] = True
            if row + 1 < steps:
                real[row + 1, copy] = False
    number = np.arange((steps + 1) * copies, dtype=np.float32).reshape(steps + 1, copies, 1)
    rewards = number[:-1, :, 0].astype(np.float64)
    actions: Any = number[:-1].copy()
    return VectorRollout(
        number, actions, rewards.astype(np.float32), rewards, ~real & False, truncated, real, np.array(starts), 3
    )


def test_pieces_are_the_rows_between_resets():
    of = rollout([[2], [], [5], [0], [4]], [False, True, False, False, False], [4, 9, 0, 7, 0])
    rows_of = [[slice(0, 3), slice(4, 6)], [slice(1, 6)], [slice(0, 6)], [slice(0, 1), slice(2, 6)], [slice(0, 5)]]
    assert of.pieces() == [(copy, rows) for copy, pieces in enumerate(rows_of) for rows in pieces]
    assert len(of) == of.env_steps() == int(of.real.sum()) == sum(rows.stop - rows.start for _, rows in of.pieces())
    assert of.episode_lengths() == (7, 6, 8, 5)


def test_trajectories_have_the_observation_after_their_last_step():
    of = rollout([[2], []], [False, True], [4, 9])
    first, second, third = of.trajectories(of.actions)
    assert [each.start for each in (first, second, third)] == [4, 0, 0]
    assert first.observations[:, 0].tolist() == [0, 2, 4, 6]
    assert second.observations[:, 0].tolist() == [8, 10, 12]
    assert third.observations[:, 0].tolist() == [3, 5, 7, 9, 11, 13]
    assert [len(each) for each in (first, second, third)] == [3, 2, 5]
    assert np.shares_memory(first.observations, of.observations)


def test_an_episode_succeeded_if_any_of_its_own_steps_says_so():
    infos, nobody = Infos(2, "Park"), np.zeros(2, bool)
    infos.see({"success": np.array([1.0, 0.0])}, nobody)
    assert infos.see({"success": np.array([0.0, 0.0])}, np.array([True, True])).tolist() == [True, False]
    # The step after an end starts the next episode: what it says is of no episode's step.
    infos.see({"success": np.array([0.0, 1.0])}, nobody)
    assert infos.see({"success": np.array([0.0, 0.0])}, np.array([True, True])).tolist() == [False, False]


def test_masks_of_gymnasium_say_which_copies_speak():
    infos = Infos(3, "Park")
    said = {"is_success": np.array([True, True, False]), "_is_success": np.array([True, False, True])}
    assert infos.see(said, np.ones(3, bool)).tolist() == [True, False, False]
    assert infos.known
    silent = Infos(1, "Park")
    silent.see({"cause": np.array(["saw"], object)}, np.ones(1, bool))
    assert not silent.known
    # An environment that says "_success" itself: its value is not the mask of "success".
    own = {"success": np.array([True]), "_success": np.array([False]), "__success": np.array([True])}
    assert Infos(1, "Park").see(own, np.ones(1, bool)).tolist() == [True]


RAGGED = [[1], [1, 2]]


@pytest.mark.parametrize(
    ("value", "succeeded"),
    [
        *(
            (yes, True)
            for yes in (True, 1, 1.0, np.bool_(True), np.float32(1), np.array([1.0]), np.array(True), [True])
        ),
        *((no, False) for no in (False, 0, -0.0, np.bool_(False), np.array([0.0]), np.array([[0]]))),
        *((unknown, None) for unknown in (float("nan"), None, np.array([np.nan]), np.array([None]))),
        *((odd, "odd") for odd in ("no", "yes", "", 0.5, -1, 2, {}, {"a": 1}, [], [1, 1], RAGGED, np.ones(2), b"1")),
    ],
)
def test_success_is_true_false_unknown_or_named_alone_and_among_copies(value, succeeded, caplog):
    name, odd = f"Park-{value!r}", succeeded == "odd"
    with caplog.at_level(logging.WARNING):
        plain = with_plain_success({"success": value, "x": 1}, name)
        again = with_plain_success({"success": value, "x": 1}, name)
    assert [record.getMessage().count(name) for record in caplog.records] == [1] * odd  # one line, once
    assert plain["x"] == 1
    assert ("success" in plain) == ("success" in again) == isinstance(succeeded, bool)
    assert plain.get("success") == (succeeded if isinstance(succeeded, bool) else None)

    # Beside a copy that says False, in the array that gymnasium makes.
    copies, together = gym.vector.VectorEnv[Any, Any, Any](), dict[str, Any]()
    copies.num_envs = 2
    for copy, said in enumerate([{"success": False}, plain]):
        together = copies._add_info(together, said, copy)
    infos = Infos(2, name)
    assert infos.see(together, np.ones(2, bool)).tolist() == [False, succeeded is True]

    # As a vector environment of its own may say it.
    column = np.empty(1, object)
    column[0] = value
    alone = Infos(1, name)
    assert alone.see({"success": column}, np.ones(1, bool)).tolist() == [succeeded is True]
    assert alone.known == isinstance(succeeded, bool)


@pytest.mark.parametrize("odd", ["no", {"a": np.ones(2)}, np.ones((2, 3)), np.ones(3), 1.0])
def test_successes_of_copies_in_an_odd_shape_are_unknown_and_named(odd, caplog):
    infos = Infos(2, f"Parks-{odd!r}")
    for _ in range(2):
        assert infos.see({"success": odd}, np.ones(2, bool)).tolist() == [False, False]
    assert not infos.known
    assert len(caplog.records) == 1
    infos.see({}, np.zeros(2, bool))  # the next episodes begin
    assert infos.see({"success": np.array([[1.0], [0.0]])}, np.ones(2, bool)).tolist() == [True, False]
    assert infos.known


def test_means_are_over_the_real_steps_since_the_last_call():
    infos = Infos(2, "Park")
    infos.see({"speed": np.array([1.0, 3.0]), "level_seed": np.array([7, 8])}, np.array([True, False]))
    infos.see({"speed": np.array([100.0, 5.0])}, np.zeros(2, bool))  # the first copy starts its next episode
    infos.see({"speed": np.array([np.nan, np.nan])}, np.zeros(2, bool))  # NaN: not known
    assert infos.means() == {"speed": pytest.approx((1 + 3 + 5) / 3)}
    assert infos.means() == {}
