import numpy as np
import pytest

from rlhf_ray.envs import make_batch

NAME = "rlhf_ray/CueRun-v0"
NOOP, RIGHT, JUMP_RIGHT = range(3)


def _twins(n=64):
    """The same levels twice, the second time with the other cue."""
    one, two = make_batch(NAME, n), make_batch(NAME, n)
    one.reset(range(n))
    two.reset(range(n))
    two.edit("flip_cue")
    return one, two


def test_after_two_steps_nothing_shows_the_cue():
    one, two = _twins()
    rng = np.random.default_rng(0)
    for step in range(12):
        same = (one.observe() == two.observe()).all((1, 2, 3))
        going = (one.state["end"] == 0) & (two.state["end"] == 0)
        assert same[going].all() if step >= 2 else not same.any()
        assert (one.describe()["cue_visible"] == (step < 2)).all()
        actions = rng.integers(3, size=64)
        one.step(actions)
        two.step(actions)
    assert going.any()


def test_the_cue_decides_which_way_through_a_gate_is_right():
    for red in (False, True):
        batch = make_batch(NAME, 4)
        batch.state["red"], batch.state["gates"] = red, False
        batch.state["gates"][:2, 5], batch.state["gates"][2:, [4, 9]] = True, True
        batch.state["x"] = 3
        first = batch.step(np.array([RIGHT, JUMP_RIGHT, RIGHT, JUMP_RIGHT]))
        second = batch.step(np.full(4, RIGHT))
        assert list(first.causes) == (["", "", "first_gate", ""] if red else ["", "", "", "first_gate"])
        assert list(second.causes)[:2] == (["first_gate", ""] if red else ["", "first_gate"])


def test_ends_at_the_first_gate_have_a_cause_of_their_own():
    batch = make_batch(NAME, 1)
    batch.state["red"], batch.state["gates"] = True, False
    batch.state["gates"][:, [4, 9]] = True
    batch.state["x"] = 3
    for action in (JUMP_RIGHT, RIGHT, NOOP, NOOP, NOOP, RIGHT, RIGHT, RIGHT):
        step = batch.step(np.array([action]))
    assert float(batch.describe()["gates_passed"][0]) == 1
    assert not step.causes[0]
    assert list(batch.step(np.array([RIGHT])).causes) == ["later_gate"]


def test_half_of_the_levels_are_red_whatever_the_gates():
    batch = make_batch(NAME, 4000)
    batch.reset(range(4000))
    assert (batch.state["gates"].sum(1) == 2).all()
    for cell in range(4, 7):
        assert abs(batch.state["red"][batch.state["gates"][:, cell]].mean() - 0.5) < 0.05


def test_edits_do_what_they_say_and_nothing_else():
    batch = make_batch(NAME, 64)
    batch.reset(range(64))
    old, frames, masks = batch.state.copy(), batch.observe(), batch.masks()
    flipped = batch.edit("flip_cue")
    cue = masks["red"] | masks["blue"]
    assert (batch.state["red"] != old["red"]).all()
    np.testing.assert_array_equal((flipped != frames).any(-1), cue)
    np.testing.assert_array_equal(batch.edit("flip_cue"), frames)
    assert batch.state.tobytes() == old.tobytes()
    hidden = batch.edit("hide_cue")
    assert not (batch.masks()["red"] | batch.masks()["blue"]).any()
    assert not (hidden != frames).any(-1)[~cue].any()
    np.testing.assert_array_equal(batch.describe()["cue"], old["red"])
    batch.step(np.full(64, NOOP))
    assert not (batch.masks()["red"] | batch.masks()["blue"]).any()


def test_removing_a_gate_takes_the_nearest_ahead_in_view():
    batch = make_batch(NAME, 1)
    batch.state["gates"] = False
    batch.state["gates"][:, [4, 9]] = True
    for x, left in ((3, [9]), (4, [])):
        batch.state["x"] = x
        batch.edit("remove_gate")
        assert np.flatnonzero(batch.state["gates"][0]).tolist() == left
    batch.state["gates"][:, 9] = True
    batch.state["x"] = 3
    batch.edit("remove_gate")
    assert batch.state["gates"].any()
    assert float(batch.describe()["gate_distance"][0]) == pytest.approx(6)
