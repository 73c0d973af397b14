import numpy as np

from examples.worlds.static_bounce import sticky_actions
from rlhf_ray.envs import make_batch

NAME = "rlhf_ray/StaticBounce-v0"
NOOP, UP, RIGHT, DOWN, LEFT = range(5)


def test_the_enemy_bounces_and_is_back_after_14_steps():
    batch = make_batch(NAME, 64)
    batch.reset(range(64))
    first, places = batch.state["enemy"].copy(), []
    for _ in range(14):
        batch.step(np.full(64, NOOP))
        places.append(batch.state["enemy"].copy())
    np.testing.assert_array_equal(places[-1], first)
    moves = np.abs(np.diff(places, axis=0))
    assert (moves == 1).all()


def test_everything_that_matters_is_in_view():
    batch = make_batch(NAME, 64)
    batch.reset(range(64))
    for actions in sticky_actions(np.random.default_rng(0), 64, 40).T:
        about, masks = batch.describe(), batch.masks()
        for name in ("enemy", "coin"):
            seen = masks[name].any((1, 2))
            for axis, part in ((2, "row"), (1, "column")):
                place = masks[name].any(axis).argmax(1) // 2
                np.testing.assert_array_equal(about[f"{name}_{part}"][seen], place[seen])
        batch.step(actions)


def test_a_taken_coin_reappears_at_the_point_opposite_and_the_enemy_costs():
    batch = make_batch(NAME, 2)
    batch.state["agent"], batch.state["coin"] = (3, 3), (3, 4)
    batch.state["enemy"], batch.state["velocity"] = (2, 3), (1, 1)
    step = batch.step(np.array([RIGHT, DOWN]))
    assert step.rewards.tolist() == [0, 0]  # coin and enemy at once; neither
    assert batch.state["coin"].tolist() == [[4, 3], [3, 4]]
    batch.edit("remove_enemy", np.array([True, False]))
    assert batch.masks()["enemy"].any((1, 2)).tolist() == [False, True]
    assert np.isnan(batch.describe()["enemy_row"]).tolist() == [True, False]
    batch.edit("move_coin")
    assert batch.state["coin"].tolist() == [[3, 4], [4, 3]]
    batch.state["enemy"], batch.state["velocity"], batch.state["agent"] = (0, 0), (1, 1), (1, 1)
    assert batch.step(np.array([NOOP, NOOP])).rewards.tolist() == [0, -1]


def test_sticky_actions_stay_two_thirds_of_the_time():
    drawn = sticky_actions(np.random.default_rng(1), 200, 60)
    assert drawn.shape == (200, 60)
    assert abs((drawn[:, 1:] == drawn[:, :-1]).mean() - 0.68) < 0.02  # 1 - 0.4 * 4 / 5
    assert abs(np.bincount(drawn.ravel(), minlength=5) / drawn.size - 0.2).max() < 0.03
