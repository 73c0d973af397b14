"""Which spaces are supported, and views: observations and actions of other spaces as arrays."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.views import action_view_of
from rlhf_ray.envs import Viewed, check_spaces, notes, view_of, viewed
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import RewardModelSettings
from tests.envs.worlds import Gives

VECTOR = spaces.Box(-1.0, 2.0, (3,))
COLOUR = spaces.Box(0, 255, (20, 24, 3), np.uint8)
FLOAT = spaces.Box(0.0, 1.0, (20, 24, 3))


def _channels_first(space: spaces.Box) -> spaces.Box:
    return spaces.Box(np.moveaxis(space.low, -1, -3), np.moveaxis(space.high, -1, -3), dtype=space.dtype.type)


def _stack(space: spaces.Box, n: int) -> spaces.Box:
    return spaces.Box(np.stack([space.low] * n), np.stack([space.high] * n), dtype=space.dtype.type)


SEEN = [
    spaces.Dict({"b": VECTOR, "a": spaces.Discrete(3, start=1), "c": spaces.Tuple([spaces.MultiBinary(2)])}),
    spaces.Dict({"camera": _channels_first(FLOAT), "other": COLOUR, "speed": spaces.Box(-4.0, 4.0, (2,))}),
    spaces.Dict({"camera": COLOUR, "speed": spaces.Box(-np.inf, np.inf, (1,)), "kind": spaces.Discrete(3, start=2)}),
    spaces.Dict({"a": COLOUR, "in": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-1e9, 1e9, (2,))])}),
    _channels_first(COLOUR),
    FLOAT,
    _stack(COLOUR, 4),
    _stack(_channels_first(FLOAT), 2),
    _stack(spaces.Box(0, 255, (20, 24), np.uint8), 4),
    spaces.Box(0, 255, (20, 24), np.uint8),
    _stack(VECTOR, 4),
    spaces.Box(-1.0, 1.0, ()),
    spaces.MultiDiscrete([2, 3]),
    spaces.Box(0, 1, (4,), np.bool_),
]


@pytest.mark.parametrize("space", SEEN, ids=lambda space: str(space)[:40])
def test_what_is_seen_is_supported_and_the_same_alone_and_in_a_batch(space: gym.Space[Any]) -> None:
    view = view_of(space)
    check_spaces(view.space, spaces.Discrete(2), "Some-v0")
    several = batch_space(space, 3)
    several.seed(0)
    batch = several.sample()
    seen = view.see(batch)
    assert seen.dtype == view.space.dtype
    for i, observation in enumerate(gym.vector.utils.iterate(several, batch)):
        assert view.space.contains(one := view.see(observation))
        assert np.array_equal(one, seen[i])


@pytest.mark.parametrize(
    "space",
    [
        VECTOR,
        COLOUR,
        spaces.Box(0, 255, (9,), np.uint8),
        spaces.Discrete(4),
        spaces.Text(3),
        spaces.Box(-np.inf, np.inf, (20, 24, 3)),
        spaces.Box(0, 255, (9, 9, 3), np.uint8),
        spaces.Box(-1e30, 1e30, (20, 24, 3)),
        spaces.Dict({"camera": COLOUR, "small": spaces.Box(0, 255, (16, 16, 3), np.uint8)}),
    ],
    ids=lambda space: str(space)[:40],
)
def test_what_needs_no_view_or_has_none_stays(space: gym.Space[Any]) -> None:
    assert view_of(space) is None


def test_the_numbers_of_a_dict_come_in_its_order() -> None:
    view = view_of(spaces.Dict({"b": VECTOR, "a": spaces.Discrete(3, start=1)}))
    # gymnasium sorts the names of a Dict
    assert view.see({"b": np.array([5.0, 6.0, 7.0]), "a": 3}).tolist() == [0, 0, 1, 5, 6, 7]
    assert view.space.low.tolist() == [0, 0, 0, -1, -1, -1]


def test_a_stack_of_images_has_the_newest_last_and_each_pixel_in_its_place() -> None:
    rng = np.random.default_rng(0)
    stack = rng.integers(0, 256, (4, 20, 24, 3), dtype=np.uint8)
    view = view_of(_stack(COLOUR, 4))
    assert np.array_equal(view.see(stack)[..., -3:], stack[-1])
    assert np.array_equal(view.see(stack)[..., :3], stack[0])
    first = view_of(_stack(_channels_first(COLOUR), 4))
    assert np.array_equal(first.see(np.moveaxis(stack, -1, 1)), view.see(stack))


def test_float_images_become_bytes_between_their_bounds() -> None:
    view = view_of(spaces.Box(-1.0, 1.0, (16, 16, 1)))
    image = np.zeros((16, 16, 1), np.float32)
    image[0, :3, 0] = -1.0, 1.0, 7.0
    assert view.see(image)[0, :4, 0].tolist() == [0, 255, 255, 128]


def test_numbers_beside_an_image_are_channels_of_their_own() -> None:
    space = spaces.Dict({"camera": COLOUR, "speed": spaces.Box(np.array([-4.0, 0.0]), np.array([4.0, 1.0]))})
    view = view_of(space)
    image = np.random.default_rng(0).integers(0, 256, COLOUR.shape, dtype=np.uint8)
    seen = view.see({"camera": image, "speed": np.array([4.0, 0.2], np.float32)})
    assert seen.shape == (20, 24, 5)
    assert (seen[..., 0] == 255).all()
    assert (seen[..., 1] == 51).all()
    assert np.array_equal(seen[..., 2:], image)


def remembers(actions: gym.Space[Any]) -> Gives:
    return Gives(VECTOR, lambda step: VECTOR.sample(), actions)


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (spaces.Discrete(3, start=5), 2, 7),
        (spaces.MultiBinary(3), np.array([1, 0, 1]), [1, 0, 1]),
        (spaces.Box(np.array([0, -1]), np.array([2, 1]), dtype=np.int64), np.array([2, 0]), [2, -1]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([1, 2, 3, 4]), [[1, 2], [3, 4]]),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), np.array([0, 2]), [1, 1]),
        (spaces.Box(-1.0, 1.0, (2, 2)), np.array([0.0, 0.5, 1.0, -1.0], np.float32), [[0.0, 0.5], [1.0, -1.0]]),
    ],
)
def test_actions_reach_the_environment_as_its_own(space: gym.Space[Any], given: Any, expected: Any) -> None:
    inner = remembers(space)
    env = viewed(inner)
    check_spaces(env.observation_space, env.action_space, "Some-v0")
    env.step(given)
    assert space.contains(inner.action)
    assert np.array_equal(inner.action, expected)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.MultiBinary(3),
        spaces.Box(-2, 1, (2, 2), np.int32),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.Box(-1.0, 1.0, (2, 2)),
    ],
)
def test_a_batch_of_actions_is_one_of_actions_and_seen_as_it_was(space: gym.Space[Any]) -> None:
    view = action_view_of(space)
    ours = [view.space.sample() for _ in range(5)]
    theirs = view.act(np.stack(ours))
    for one, other in zip(theirs, ours, strict=True):
        np.testing.assert_array_equal(one, view.act(other))
        assert space.contains(one)
    np.testing.assert_array_equal(view.see(theirs), np.stack(ours))


def test_whole_numbers_without_end_are_no_choices() -> None:
    assert action_view_of(spaces.Box(0, 2**31 - 1, (2,), np.int32)) is None


def test_an_environment_that_needs_no_view_is_not_wrapped() -> None:
    env = remembers(spaces.MultiDiscrete([2, 3]))
    assert viewed(env) is env
    assert isinstance(viewed(remembers(spaces.MultiBinary(2))), Viewed)


def test_discrete_parts_beside_an_image_are_one_hot_channels() -> None:
    view = view_of(
        spaces.Dict({"camera": COLOUR, "kind": spaces.Discrete(3, start=2), "mode": spaces.MultiDiscrete([2, 2])})
    )
    camera = COLOUR.sample()
    seen = view.see({"camera": camera, "kind": 4, "mode": np.array([1, 0])})
    assert seen[7, 9, :7].tolist() == [0, 0, 255, 0, 255, 255, 0]
    assert np.array_equal(seen[..., 7:], camera)


def test_numbers_beside_an_image_are_not_lost_in_formal_bounds() -> None:
    low, high = np.array([-2.0, -1e6, -np.inf, 0.0]), np.array([2.0, 1e6, np.inf, np.inf])
    view = view_of(spaces.Dict({"camera": COLOUR, "speed": spaces.Box(low, high, dtype=np.float64)}))
    camera = COLOUR.sample()

    def of(*speed: float) -> list[int]:
        seen: list[int] = view.see({"camera": camera, "speed": np.array(speed)})[0, 0, :-3].tolist()
        return seen

    # The first by its bounds; the others squashed: s / (1 + |s|) of log 2 is .409, of log(1e6 + 1) .932.
    assert of(1.0, 1e6, -1.0, 1.0) == [191, 246, 75, 180]
    assert of(1.0, 0.3, 0.0, 0.0) == [191, 154, 128, 128]


def test_formal_bounds_of_actions_do_not_scale_them() -> None:
    low, high = np.array([[-np.finfo(np.float32).max, -1.0]], np.float32), np.array([[1e38, 1.0]], np.float32)
    env = remembers(spaces.Box(low, high))
    seen = viewed(env)
    assert seen.action_space == spaces.Box(np.array([-np.inf, -1.0]), np.array([np.inf, 1.0]), dtype=np.float32)
    seen.step(np.array([3.0, 2.0], np.float32))
    assert env.action.tolist() == [[3.0, 1.0]]  # cut to what the environment declares
    assert "actions" in notes(seen)[0]
    sane = viewed(remembers(spaces.Box(-1000.0, 1000.0, (1,))))
    assert sane.action_space == spaces.Box(-1000.0, 1000.0, (1,))
    assert notes(sane) == []


PAGE = Path(__file__).parents[2] / "docs" / "environments.md"

PLAIN = spaces.Box(-1, 1, (3,))
IMAGE = spaces.Box(0, 255, (64, 64, 3), np.uint8)
DISCRETE = spaces.Discrete(5)


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (PLAIN, DISCRETE),
        (IMAGE, DISCRETE),
        (spaces.Box(0, 255, (16, 16, 12), np.uint8), DISCRETE),
        (spaces.Box(0, 255, (128,), np.uint8), DISCRETE),
        (spaces.Box(-np.inf, np.inf, (4,), np.float64), spaces.Box(-np.inf, np.inf, (2,))),
        (PLAIN, spaces.Box(-2, 2, (1,))),
        (PLAIN, spaces.MultiDiscrete([2, 3])),
    ],
)
def test_supported_spaces_pass(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    check_spaces(observation_space, action_space, "Some-v0")


OBSERVATIONS = [
    (spaces.Dict({"a": PLAIN}), "FlattenObservation"),
    (spaces.Discrete(16), "FlattenObservation"),
    (spaces.Dict({"image": IMAGE, "name": spaces.Text(4)}), "TransformObservation"),
    (spaces.Dict({"image": IMAGE, "map": spaces.Box(0, 255, (16, 20, 1), np.uint8)}), "images of one size"),
    (spaces.Box(-1, 1, (2, 2)), "FlattenObservation"),
    (spaces.Box(-1, 1, ()), "FlattenObservation"),
    (spaces.Box(0, 255, (64, 64), np.uint8), "GrayscaleObservation"),
    (spaces.Box(0, 255, (3, 64, 64), np.uint8), "channels last"),
    (spaces.Box(0, 255, (3, 64, 64), np.float32), "channels last"),
    (spaces.Box(0, 1, (64, 64, 3), np.float32), "uint8"),
    (spaces.Box(0, 255, (8, 8, 3), np.uint8), "ResizeObservation"),
    (spaces.Box(0, 1, (4,), np.bool_), "TransformObservation"),
]
ACTIONS = [
    (spaces.Tuple([DISCRETE]), "one action per combination"),
    (spaces.MultiDiscrete([2, 3], start=[1, 0]), "Viewed"),
    (spaces.MultiBinary(3), "Viewed"),
    (spaces.Discrete(3, start=1), "Number the actions from 0 and add 1"),
    (spaces.Box(-1, 1, (2, 2)), "TransformAction"),
    (spaces.Box(0, 3, (2,), np.int64), "TransformAction"),
]


@pytest.mark.parametrize(
    ("seen", "done", "wrong", "remedy"),
    [
        *((space, DISCRETE, space, remedy) for space, remedy in OBSERVATIONS),
        *((PLAIN, space, space, remedy) for space, remedy in ACTIONS),
    ],
)
def test_unsupported_spaces_are_named_with_the_environment_and_the_remedy(seen, done, wrong, remedy):
    with pytest.raises(ValueError, match=remedy) as raised:
        check_spaces(seen, done, "Some-v0")
    for said in ("'Some-v0'", str(wrong), "Supported are"):
        assert said in str(raised.value)


def test_is_image() -> None:
    assert is_image(IMAGE)
    assert not is_image(PLAIN)
    assert not is_image(spaces.Box(0, 1, (64, 64, 3), np.float32))
    assert not is_image(DISCRETE)


def fits(side: int, policy: str, reward: str) -> bool:
    space: Any = spaces.Box(0, 255, (side, side, 3), np.uint8)
    try:
        check_spaces(space, DISCRETE, "Small-v0")
        ActorCriticNetwork(space, DISCRETE, PolicyShape(policy))
        RewardEnsemble(space, DISCRETE, RewardModelSettings(network=reward, hidden=(4,), ensemble_size=1))
    except (SettingError, ValueError):
        return False
    return True


@pytest.mark.parametrize(
    ("least", "policy", "reward"), [(36, "auto", "auto"), (20, "small", "auto"), (16, "small", "mlp")]
)
def test_the_page_names_the_smallest_images(least: int, policy: str, reward: str) -> None:
    assert fits(least, policy, reward)
    assert not fits(least - 1, policy, reward)
    assert f"{least}x{least}" in PAGE.read_text()
