import numpy as np
import pytest

from examples.worlds.runner import BEHIND, HEIGHTS, STANDING
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_batch

NAME = "rlhf_ray/MiniRun-v0"
LEFT, RIGHT, NOOP, JUMP, JUMP_RIGHT = range(5)


def _level(n=1, *, saws=(), pits=(), coin=20, x=6):
    """Copies of one level, drawn by hand."""
    batch = make_batch(NAME, n)
    state = batch.state
    state["saw"], state["pit"], state["coin"], state["x"] = False, False, coin, x
    state["saw"][:, list(saws)] = state["pit"][:, list(pits)] = True
    return batch


def _go(batch, *actions):
    for action in actions:
        step = batch.step(np.full(batch.n, action))
    return step


def test_the_two_frames_at_the_top_of_a_jump_look_alike_and_so_do_rising_and_falling():
    batch = _level(saws=[9], pits=[4])
    frames = [_go(batch, action).observations[0] for action in (JUMP, NOOP, NOOP, NOOP, NOOP)]
    np.testing.assert_array_equal(frames[1], frames[2])
    np.testing.assert_array_equal(frames[0], frames[3])
    assert (frames[0] != frames[1]).any()
    assert (frames[4] != frames[3]).any()


def test_a_jump_takes_five_steps_and_can_be_steered():
    batch = _level()
    seen = []
    for action in (JUMP_RIGHT, JUMP, RIGHT, LEFT, NOOP):
        _go(batch, action)
        about = {name: float(values[0]) for name, values in batch.describe().items()}
        seen.append((about["x"], about["height"], about["jump_phase"], about["first_apex"]))
    np.testing.assert_array_equal(
        seen, [(7, 1, 1, np.nan), (7, 2, 2, 1), (8, 2, 3, 0), (7, 1, 4, np.nan), (7, 0, 0, np.nan)]
    )


@pytest.mark.parametrize(
    ("level", "actions", "cause", "reward"),
    [
        ({"saws": [7]}, [RIGHT], "saw", 0),
        ({"pits": [7]}, [RIGHT], "pit", 0),
        ({"pits": [7, 8]}, [JUMP_RIGHT, RIGHT, RIGHT, RIGHT, RIGHT], "", 0),
        ({"saws": [11]}, [JUMP_RIGHT, RIGHT, RIGHT, RIGHT, RIGHT], "saw", 0),
        ({"saws": [11]}, [JUMP_RIGHT, RIGHT, RIGHT, RIGHT, NOOP], "", 0),
        ({"coin": 7}, [RIGHT], "coin", 10),
        ({"coin": 8}, [JUMP_RIGHT, JUMP_RIGHT], "coin", 10),
        ({}, [NOOP] * 60, "timeout", 0),
    ],
)
def test_what_ends_an_episode(level, actions, cause, reward):
    batch = _level(**level)
    step = _go(batch, *actions)
    assert (list(step.causes), step.rewards.tolist()) == ([cause], [reward])
    assert bool(step.truncated[0]) == (cause == "timeout")
    assert bool(step.terminated[0]) == (cause in ("saw", "pit", "coin"))


def test_levels_have_three_to_five_free_cells_between_hazards_and_the_coin_is_uniform():
    batch = make_batch(NAME, 3000)
    batch.reset(range(3000))
    coins = np.bincount(batch.state["coin"], minlength=24)
    assert (coins[:5] == 0).all()
    assert abs(coins[5:] - 3000 / 19).max() < 60
    rows = np.arange(3000)
    blocked = batch.state["saw"] | batch.state["pit"]
    assert not blocked[rows, batch.state["coin"]].any()
    assert not blocked[:, :3].any()
    assert blocked[:, 3:6].any(1).mean() > 0.9
    state = make_batch(NAME, 500, coin="end").state
    free = [np.diff(np.flatnonzero(row["saw"] | row["pit"])) - 1 for row in state]
    gaps = np.concatenate(free)
    assert set(gaps.tolist()) == {0, 3, 4, 5}
    assert (state["coin"] == 23).all()


def test_describe_agrees_with_the_picture():
    batch = make_batch(NAME, 200)
    batch.reset(range(200))
    rng = np.random.default_rng(0)
    for _ in range(10):
        about, masks = batch.describe(), batch.masks()
        near = slice(2 * (BEHIND + 1), 2 * (BEHIND + 4))
        going = np.array([not cause for cause in batch.ended_by()])
        for kind in ("saw", "pit"):
            np.testing.assert_array_equal(about[f"{kind}_ahead"][going], masks[kind][:, :, near].any((1, 2))[going])
        shown = masks["coin"].any((1, 2))
        np.testing.assert_array_equal(about["coin_visible"][going], shown[going])
        column = masks["coin"].any(1).argmax(1) // 2 - BEHIND
        np.testing.assert_array_equal(about["coin_distance"][going & shown], column[going & shown])
        row = masks["agent"].any(2).argmax(1) // 2
        np.testing.assert_array_equal(about["height"][going], (STANDING - row)[going])
        batch.step(batch.expert(rng))


@pytest.mark.parametrize(
    ("edit", "field", "before", "after"),
    [
        ("remove_saw", "saw", [5, 9, 11], [5, 11]),
        ("remove_pit", "pit", [4, 7, 8, 10], [4, 10]),
        ("remove_saw", "saw", [5, 6, 12], [5, 6, 12]),
        ("remove_pit", "pit", [12, 13], [12, 13]),
    ],
)
def test_removing_takes_the_nearest_in_view_and_nothing_else(edit, field, before, after):
    batch = _level(**{f"{field}s": before})
    old = batch.state.copy()
    seen = batch.masks()[field].copy()
    frames = [batch.observe(), batch.edit(edit)]
    assert np.flatnonzero(batch.state[field][0]).tolist() == after
    for name in batch.state.dtype.names:
        if name != field:
            np.testing.assert_array_equal(batch.state[name], old[name])
    assert not (frames[0] != frames[1]).any(-1)[~seen].any()


def test_edits_of_the_coin():
    batch = _level(n=2, coin=9, saws=[21])
    old = batch.observe()
    np.testing.assert_array_equal(batch.edit("move_coin", np.array([False, True]))[0], old[0])
    assert batch.state["coin"].tolist() == [9, 22]
    batch.edit("remove_coin")
    assert not batch.masks()["coin"].any()
    about = batch.describe()
    assert np.isnan(about["coin_distance"]).all()
    assert not about["coin_visible"].any()
    batch.edit("move_coin")
    assert batch.state["coin"].tolist() == [-1, -1]
    assert _go(batch, *[RIGHT] * 14).rewards.sum() == 0


def test_length_and_coin_are_options():
    batch = make_batch(NAME, 100, length=48)
    batch.reset(range(100))
    assert batch.state["coin"].max() > 40
    with pytest.raises(SettingError, match="length of MiniRun is 3; it must be at least 12"):
        make_batch(NAME, 1, length=3)
    with pytest.raises(SettingError, match="coin of MiniRun"):
        make_batch(NAME, 1, coin="nowhere")
    assert HEIGHTS.tolist() == [0, 1, 2, 2, 1]
