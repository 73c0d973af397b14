import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.fragments import Fragments, Trajectory, cut_fragments
from tests.made_up import CHOICES, IMAGES, same_fragments, some_fragments


def _trajectory(number: int, steps: int, *, terminated: bool = False, start: int = 0) -> Trajectory:
    """One whose every number tells where it comes from: its trajectory, and the step in it."""
    at = 1000.0 * number + np.arange(steps + 1)
    return Trajectory(
        observations=np.stack([at, -at], axis=1).astype(np.float32),
        actions=(at[:-1] + 0.25)[:, None].astype(np.float32),
        rewards=at[:-1] + 0.5,
        terminated=terminated,
        start=start,
    )


def _source(fragments: Fragments) -> list[tuple[int, int]]:
    """The trajectory and the step in it at which each fragment begins."""
    return [divmod(int(at), 1000) for at in fragments.observations[:, 0, 0]]


def _cut(trajectories: list[Trajectory], seed: int = 0, **changes: Any) -> Fragments | None:
    arguments: dict[str, Any] = {"length": 4, "count": 10, "start_share": 0.0, "policy_version": 3} | changes
    return cut_fragments(trajectories, rng=np.random.default_rng(seed), **arguments)


TRAJECTORIES = st.lists(st.tuples(st.integers(0, 15), st.booleans(), st.sampled_from([0, 0, 7])), max_size=6).map(
    lambda rows: [_trajectory(i, steps, terminated=end, start=start) for i, (steps, end, start) in enumerate(rows)]
)


@given(TRAJECTORIES, st.integers(1, 6), st.integers(1, 40), st.floats(0, 1), st.integers(0, 99))
def test_every_fragment_is_a_slice_of_one_episode_and_no_two_are_the_same(
    trajectories, length, count, start_share, seed
):
    fragments = _cut(trajectories, seed, length=length, count=count, start_share=start_share)
    windows = sum(max(0, len(t) - length + 1) for t in trajectories)
    if windows == 0:
        assert fragments is None
        return
    assert len(fragments) == min(count, windows)
    assert fragments.length == length
    assert (fragments.policy_versions == 3).all()
    places = _source(fragments)
    assert len(set(places)) == len(places)
    for i, (number, first) in enumerate(places):
        assert same_fragments(fragments[i : i + 1], trajectories[number].window(first, length, 3))
    beginnings = sum(t.start == 0 and len(t) >= length for t in trajectories)
    taken_from_beginnings = sum(int(start) == 0 for start in fragments.starts)
    assert taken_from_beginnings >= min(round(count * start_share), beginnings)


@given(TRAJECTORIES, st.integers(1, 6), st.integers(1, 40), st.integers(0, 99))
def test_apart_no_more_are_cut_than_fit_side_by_side(trajectories, length, count, seed):
    fragments = _cut(trajectories, seed, length=length, count=count, apart=True)
    windows, steps = sum(max(0, len(t) - length + 1) for t in trajectories), sum(map(len, trajectories))
    assert (0 if fragments is None else len(fragments)) == min(count, windows, int(np.ceil(steps / length)))


def test_every_window_is_equally_likely_so_that_long_trajectories_give_more_fragments():
    trajectories = [_trajectory(0, 5), _trajectory(1, 10), _trajectory(2, 3), _trajectory(3, 20)]
    rng = np.random.default_rng(0)
    counts: dict[tuple[int, int], int] = {}
    for _ in range(2600):
        fragments = cut_fragments(trajectories, length=4, count=2, start_share=0.0, policy_version=0, rng=rng)
        for place in _source(fragments):
            counts[place] = counts.get(place, 0) + 1
    windows = [(i, first) for i, t in enumerate(trajectories) for first in range(max(0, len(t) - 3))]
    assert set(counts) == set(windows)
    expected = 2 * 2600 / len(windows)
    chi_square = sum((counts[window] - expected) ** 2 / expected for window in windows)
    assert chi_square < 50  # 25 degrees of freedom: exceeded by chance once in 500


def test_start_share_takes_that_share_from_the_beginnings_of_episodes_not_of_stretches():
    fragments = _cut([_trajectory(i, 900) for i in range(40)], count=40, start_share=0.25)
    assert ((fragments.starts == 0).sum(), (fragments.starts > 0).sum()) == (10, 30)
    fragments = _cut([_trajectory(0, 50, start=30), _trajectory(1, 50)], count=10, start_share=1.0)
    assert len(fragments) == 10
    assert (fragments.starts == 0).sum() == 1
    assert _source(fragments).count((1, 0)) == 1


def test_fragments_are_copies_of_the_same_dtypes_so_that_a_rollout_buffer_may_be_used_again():
    source = some_fragments(1, 10, observations=IMAGES, actions=CHOICES)
    trajectory = Trajectory(source.observations[0], source.actions[0], source.rewards[0].astype(np.float32), False)
    fragments = _cut([trajectory])
    before = fragments.ids()
    for array in (trajectory.observations, trajectory.actions, trajectory.rewards):
        array[:] = 99
    assert fragments.ids() == before
    kinds = [array.dtype for array in vars(fragments).values()]
    assert kinds == [np.uint8, np.int64, np.float64, np.bool_, np.int64, np.int64]


def test_ids_depend_on_content_and_not_on_where_or_when_a_clip_was_made():
    clips = some_fragments(3)
    elsewhere = dataclasses.replace(clips, starts=clips.starts + 1, policy_versions=clips.policy_versions + 1)
    in_other_memory = dataclasses.replace(clips, observations=np.asfortranarray(clips.observations))
    of_other_reward = dataclasses.replace(clips, rewards=np.full_like(clips.rewards, np.nan))
    assert clips.ids() == elsewhere.ids() == in_other_memory.ids() == of_other_reward.ids()
    assert clips[::-1].ids() == clips.ids()[::-1]
    assert len(set(clips.ids())) == 3
    assert all(len(name) == 64 and int(name, 16) >= 0 for name in clips.ids())


@pytest.mark.parametrize("name", ["observations", "actions", "terminated"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_ids_change_with_any_single_number_of_the_content(name, place):
    clips = some_fragments(1)
    changed: npt.NDArray[Any] = getattr(clips, name).copy()
    number = changed.reshape(-1)[0 if place == "first" else -1]
    changed.reshape(-1)[0 if place == "first" else -1] = ~number if name == "terminated" else number + 1
    assert dataclasses.replace(clips, **{name: changed}).ids() != clips.ids()


def test_concatenate_joins_in_order_and_getitem_takes_apart_again():
    one, two = some_fragments(2, seed=1), some_fragments(3, seed=2)
    both = Fragments.concatenate([one, two])
    assert both.ids() == one.ids() + two.ids()
    assert same_fragments(both[:2], one)
    assert same_fragments(both[np.array([2, 3, 4])], two)
    assert same_fragments(both[np.array([False, False, True, True, True])], two)
    assert both[np.array([4, 0, 0])].ids() == [both.ids()[i] for i in (4, 0, 0)]
    assert both.nbytes == one.nbytes + two.nbytes
    with pytest.raises(ValueError, match=r"\[4, 5\]"):
        Fragments.concatenate([some_fragments(1, 5), some_fragments(1, 4)])


@pytest.mark.parametrize("name", ["observations", "actions", "terminated", "starts", "policy_versions"])
def test_arrays_that_do_not_belong_together_are_refused(name):
    clips = some_fragments(3)
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(clips, **{name: getattr(clips, name)[:2]})
    if name in ("observations", "actions"):
        with pytest.raises(ValueError, match=name):
            dataclasses.replace(clips, **{name: getattr(clips, name)[:, 1:]})
