"""Regions and effects name the parts of a Dict, and numbers beside its images are regions of their own."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from rlhf_ray.data.spaces import names_in, planes_in, space_from_json, space_to_json, take_names
from rlhf_ray.data.views import view_of
from rlhf_ray.interpret.attribution import METHODS
from rlhf_ray.interpret.attribution.drawing import draw
from rlhf_ray.interpret.effects.parts import BackgroundColour
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.question import RewardQuestion
from rlhf_ray.interpret.reward.steps.effects import measure
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import steps_of

CAMERA = Box(0, 255, (16, 16, 3), np.uint8)
SEEN = view_of(Dict({"camera": CAMERA, "speed": Box(-1, 1, (1,)), "goal": Box(-1, 1, (2,))})).space
PLANES = ("goal[0]", "goal[1]", "speed")


def driving(n=240):
    """Steps of random numbers and of a square somewhere before a grey background."""
    rng = np.random.default_rng(0)
    frames = np.full((n + 1, 16, 16, 6), 40, np.uint8)
    frames[..., :3] = rng.integers(0, 256, (n + 1, 1, 1, 3))
    for frame, (row, column) in zip(frames, rng.integers(0, 12, (n + 1, 2)), strict=True):
        frame[row : row + 4, column : column + 4, 3:] = (255, 220, 0)
    return steps_of(frames[:-1], frames[1:], rewards=np.full(n, np.nan), length=24)


def test_regions_are_the_patches_of_the_images_and_each_number_beside_them():
    regions = regions_of(SEEN)
    assert regions.names[-3:] == PLANES
    assert regions.names[0] == "camera, rows 0-1, columns 0-1"
    assert (regions.masks.sum(0) == 1).all()
    assert np.prod(regions.layout) + regions.planes == len(regions) == 67


def test_vectors_are_named_by_their_parts_and_names_are_saved():
    space = view_of(Dict({"door": Discrete(2), "arm": Dict({"at": Box(-1, 1, (2,))})})).space
    assert regions_of(space).names == ("arm.at[0]", "arm.at[1]", "door=0", "door=1")
    for each in (space, SEEN):
        back = space_from_json(space_to_json(each))
        assert (names_in(back), planes_in(back)) == (names_in(each), planes_in(each))
        plain = Box(each.low, each.high, dtype=each.dtype.type)
        take_names(plain, each)
        assert names_in(plain) == names_in(each)
    assert regions_of(Box(-1, 1, (2,))).names == ("feature 0", "feature 1")


def test_a_background_has_no_numbers():
    steps = driving()
    mask = np.ones(SEEN.shape, bool)
    painted = BackgroundColour("", mask, mask, planes=3).exchange(steps[:9], steps[9:18])
    assert (painted.observations == steps[:9].observations).all()


def test_a_reward_of_a_number_names_it():
    reward = CallableReward(lambda o, a, n, d: n[:, 0, 0, 2].astype(float), SEEN, gym.spaces.Discrete(2))
    subject = Subject(reward, driving(), effort=0.1)
    moving = [row.name for row in measure(subject).inputs if row.figures["learned"].mean > 0.1]
    assert moving == ["speed"]
    question, shown = RewardQuestion(reward, subject.data, subject.regions), subject.data[:2]
    assert question.planes == PLANES
    maps = METHODS.make("occlusion_donor").attribute(question, shown)
    moved = maps["next_state"].sum((0, 1, 2))
    assert moved[2] != 0
    assert not np.delete(moved, 2).any()
    assert draw(question, shown, ["a", "b"], maps, True)[:4] == b"\x89PNG"
