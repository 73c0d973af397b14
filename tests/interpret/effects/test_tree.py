"""The tree finds where a reward differs: the place, its share and its sign are known by construction."""

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.effects.tree import columns_of, difference_tree
from tests.interpret.effects.test_exchange import ACTIONS, SPACE, steps


def tree(change):
    data = steps(4000)
    true = data.observations[:, 0]
    return difference_tree(change(data, true), true, data, regions_of(SPACE), ACTIONS)


def test_a_hole_has_its_bounds_its_share_and_its_sign():
    found = tree(lambda data, true: np.where((data.observations[:, 3] > 1.5) & (data.actions == 2), -9.0, true))
    hole = [leaf for leaf in found.leaves if leaf.difference.high < -0.2]
    assert found.leaves[0] in hole
    assert all("feature 3 > 1.5" in leaf.path and "action" in leaf.path for leaf in hole)
    assert sum(leaf.share for leaf in hole) == pytest.approx(0.0668 / 3, abs=0.01)


def test_equal_orders_have_no_tree():
    assert tree(lambda data, true: np.exp(true)) is None


def test_a_bonus_for_the_end_is_one():
    leaves = tree(lambda data, true: true + 9.0 * data.terminated).leaves
    ends = ("whether the step ends the episode > 0.5", "the step of the episode > 18.5")  # the same steps here
    bonus = [leaf for leaf in leaves if leaf.path.startswith(ends)]
    assert leaves[0] in bonus
    assert sum(leaf.share for leaf in bonus) == pytest.approx(0.05)
    assert sum(leaf.share * leaf.difference.mean for leaf in bonus) / 0.05 == pytest.approx(0.5, abs=0.05)


def test_choices_and_state_columns_can_be_split_on():
    data = steps(100)
    data = data.with_(columns={"state.lamp_lit": data.actions == 1, "policy": data.actions})
    columns = columns_of(data, regions_of(SPACE), gym.spaces.Discrete(3))
    assert {"the action", "whether the action is 2", "lamp lit", "the step of the episode"} <= set(columns)
    assert "policy" not in columns
