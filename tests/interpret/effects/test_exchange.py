"""Effects, where a reward differs, and worlds that there can be: known by construction."""

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.planted_causes.environments import KEYS, RANDOM, played
from rlhf_ray.envs.gridworld import AGENT, GOAL, OBJECTS
from rlhf_ray.interpret.effects.edits import object_codes, world_edits
from rlhf_ray.interpret.effects.exchange import (
    DIFFERENCE,
    LEARNED,
    TRUE,
    Order,
    StepPairs,
    associations,
    levelled,
    nudged,
    told_by,
)
from rlhf_ray.interpret.effects.parts import StepPart
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.effects.tree import columns_of, difference_tree
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import steps_of

SPACE, ACTIONS = gym.spaces.Box(-9, 9, (4,), np.float64), gym.spaces.Discrete(3)


def steps(count=2000, length=20, seed=0):
    """Independent normal features, so that effects have closed forms."""
    rng = np.random.default_rng(seed)
    seen, after = rng.normal(size=(2, count, 4))
    ends, actions = np.arange(count) % length == length - 1, rng.integers(0, 3, count)
    return steps_of(seen, after, actions=actions, rewards=seen[:, 0], ends=ends, length=length)


def reward_of(function):
    return CallableReward(function, SPACE, ACTIONS)


def part(*features):
    mask = np.isin(np.arange(4), features)
    return StepPart("part", mask, mask)


def effect(learned, true, change, count=4000):
    exchange = StepPairs(reward_of(learned), true and reward_of(true), steps(), count, np.random.default_rng(1))
    return exchange.effects([change])[0].figures


def first(o, a, p, d):
    return o[:, 0]


@pytest.mark.parametrize(
    ("learned", "features", "expected"),
    [
        (first, [0], 1.0),
        (first, [1, 2, 3], 0.0),
        (lambda o, a, p, d: np.exp(5 * o[:, 0]), [0], 1.0),
        (lambda o, a, p, d: np.sign(o[:, 1] * o[:, 2]), [1], 1.0),
        # Of the sum of two equal terms' order, each has half, but for the curve of the ranks: 1 - 6/pi asin(1/4) for normal ones.
        (lambda o, a, p, d: o[:, 0] + o[:, 1], [0], 1 - 6 / np.pi * np.arcsin(0.25)),
        (lambda o, a, p, d: o[:, 0] + 3 * o[:, 1], [0], 1 - 6 / np.pi * np.arcsin(0.45)),
    ],
)
def test_the_share_of_the_order_is_that_of_the_closed_form(learned, features, expected):
    found = effect(learned, None, part(*features))[LEARNED]
    assert found.mean == pytest.approx(expected, abs=0.06)
    assert found.low - 1e-9 <= expected <= found.high + 1e-9


def test_the_difference_is_zero_for_equal_orders_and_four_times_for_opposite_ones():
    same = effect(lambda o, a, p, d: np.exp(o[:, 0]) - 7, first, part(0))
    assert (same[DIFFERENCE].mean, same[DIFFERENCE].high) == (0.0, 0.0)
    opposite = effect(lambda o, a, p, d: -o[:, 0], first, part(0))
    assert opposite[DIFFERENCE].mean == pytest.approx(4.0, abs=1e-9)
    other = effect(lambda o, a, p, d: o[:, 1], first, part(1))
    assert other[DIFFERENCE].mean == other[LEARNED].mean == pytest.approx(1.0)
    assert other[TRUE].mean == 0.0


def test_a_rare_flaw_is_the_only_difference():
    def flawed(o, a, p, d):
        return np.where((o[:, 3] > 2.2) & (a == 2), -9, o[:, 0])

    figures = {at: effect(flawed, first, part(at))[DIFFERENCE] for at in (1, 2, 3)}
    assert figures[3].low > 0
    assert figures[1].high == figures[2].high == 0.0


def test_next_states_actions_and_ends_are_parts():
    action, end = StepPart("a", action=np.ones((), bool)), StepPart("d", done=True)
    after = StepPart("p", next_state=np.ones(4, bool))
    assert effect(lambda o, a, p, d: a, None, action)[LEARNED].mean == pytest.approx(1.0)
    assert effect(lambda o, a, p, d: d, None, end)[LEARNED].mean == pytest.approx(1.0)
    assert effect(lambda o, a, p, d: p[:, 2], None, after)[LEARNED].mean == pytest.approx(1.0)
    assert effect(lambda o, a, p, d: o[:, 2], None, after)[LEARNED].mean == 0.0


def test_intervals_hold_the_effect_on_new_data():
    """95 % intervals over 8 episodes of 25 steps hold the closed form in nearly all of 60 data sets."""
    expected, held = 1 - 6 / np.pi * np.arcsin(0.25), 0
    for seed in range(60):
        data = steps(200, 25, seed)
        exchange = StepPairs(
            reward_of(lambda o, a, p, d: o[:, 0] + o[:, 1]), None, data, 1500, np.random.default_rng(seed)
        )
        found = exchange.effects([part(0)])[0].figures[LEARNED]
        held += found.low <= expected <= found.high
    assert held >= 50


def test_a_constant_reward_has_no_order_to_lose():
    found = effect(lambda o, a, p, d: np.zeros(len(o)), first, part(0))
    assert found[LEARNED].mean == 0.0
    assert found[DIFFERENCE].mean == found[TRUE].mean == pytest.approx(1.0)


def test_noise_is_lost_by_a_hair_and_a_smooth_reward_is_not():
    for function, low, high in ((lambda o, a, p, d: np.sin(1e7 * o[:, 0]), 0.8, 1.2), (first, 0.0, 0.001)):
        pairs = StepPairs(reward_of(function), None, steps(), 2000, np.random.default_rng(1))
        hair = pairs.hair(np.random.default_rng(2))
        assert low <= hair.figures[LEARNED].mean <= high


def test_a_hair_moves_numbers_a_little_and_codes_not_at_all():
    data = steps(200)
    codes = data.with_(observations=np.round(data.observations), next_observations=np.round(data.next_observations))
    assert nudged(codes, codes, np.random.default_rng(0)).observations.tolist() == codes.observations.tolist()
    moved = nudged(data, data, np.random.default_rng(0)).observations - data.observations
    assert 0.005 < moved.std() < 0.02


def test_order_is_the_share_of_smaller_ones():
    values = np.array([3.0, 1.0, 1.0, 2.0])
    assert Order(values)(np.array([0.0, 1.0, 2.5, 3.0, 9.0])).tolist() == [0.0, 0.25, 0.75, 0.875, 1.0]


def test_rare_levels_are_drawn_as_often_as_common_ones():
    values = np.array([0.0] * 990 + [1.0] * 10)
    chances = levelled([values])
    assert chances[values == 1].sum() == pytest.approx((0.5 + 0.01) / 2)
    assert chances.sum() == pytest.approx(1.0)


def test_what_goes_with_it_is_the_correlation_ratio():
    data = steps(4000)
    rows = {row.name: row.figures for row in associations(data.steps * 1.0, data.observations[:, 0], data)}
    time = rows["the step of the episode"]
    assert time[LEARNED].mean == pytest.approx(1.0, abs=0.02)
    assert abs(time[TRUE].mean) < 0.02
    levels, values = np.repeat(np.arange(4), 500), np.random.default_rng(0).normal(size=2000)
    assert abs(told_by(levels, values)) < 0.01
    # The variance of the levels beside the noise's.
    assert told_by(levels, levels + values) == pytest.approx(1.25 / 2.25, abs=0.05)


def test_steps_outside_a_rewards_domain_are_left_out_and_counted():
    """The exchanged feature is negative in half of the pairs, where the logarithm is no number; the rest is its sole input."""
    data = steps()
    positive = data.with_(observations=np.abs(data.observations))
    pairs = StepPairs(reward_of(lambda o, a, p, d: np.log(o[:, 0])), None, positive, 2000, np.random.default_rng(0))
    other = positive.observations * np.where(np.arange(2000) % 2, 1, -1)[:, None]
    found = pairs.effect("shifted", lambda own, donor: donor.with_(observations=other[: len(donor)] * 1.0))
    assert pairs.outside["shifted"] == pytest.approx(0.5)
    assert 0.8 < found.figures[LEARNED].mean < 1.2


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


def test_every_edit_leaves_one_agent_and_changes_what_it_says():
    data = played(KEYS)
    edits = dict(world_edits(data, OBJECTS, np.random.default_rng(0)))
    for name, change in edits.items():
        after = change(data, data)
        for frames in (after.observations, after.next_observations):
            assert ((frames == AGENT).sum(1) == 1).all(), name
    assert not any(name.startswith("the agent is not") or name == "the agent is there once more" for name in edits)
    gone = edits["the goal is not there"](data, data)
    assert not (gone.observations == GOAL).any()
    vanished = edits["the goal disappears in the step"](data, data)
    assert (vanished.observations == data.observations).all()
    assert not (vanished.next_observations == GOAL).any()
    twice = edits["the goal is there once more"](data, data)
    assert ((twice.observations == GOAL).sum(1) == (data.observations == GOAL).sum(1) + 1).all()


def test_objects_are_all_codes_but_free_cells_and_walls_that_never_move():
    assert set(object_codes(played(RANDOM))) == {AGENT, GOAL}
