"""Feature visualisation and the distance from the data."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.layers import hidden_layers
from rlhf_ray.interpret.reward.manifold import Manifold, total_variation
from rlhf_ray.interpret.reward.steps import visualisation as section
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.visualisation import (
    Objective,
    VisualisationSettings,
    fourier,
    moved,
    optimise,
    visualise,
)
from rlhf_ray.reward.functions import CallableReward, NotDifferentiableError, TableReward
from rlhf_ray.reward.functions.shaped import ScaledReward
from tests.interpret.contexts import ensemble_of, run_step, steps_of, why_not

ACTIONS = gym.spaces.Discrete(3)
QUICK = VisualisationSettings(steps=8)


def ensemble(space, **changes):
    return ensemble_of(space, ACTIONS, hidden=(8,), **changes)


def image_space(side, channels):
    return gym.spaces.Box(0, 255, (side, side + 3, channels), np.uint8)


def images(channels=3, side=20, n=60):
    """Steps that move a bright block by a few pixels."""
    rng = np.random.default_rng(0)
    frames = np.full((n + 1, side, side + 3, channels), 40, np.uint8)
    at = rng.integers(0, side - 5)
    for frame in frames:
        at = int(np.clip(at + rng.integers(-4, 5), 0, side - 5))
        frame[at : at + 5, 3:8] = 220
    return steps_of(frames[:-1], frames[1:], actions=rng.integers(0, 3, n), length=10)


def vectors(n=200, size=4):
    rng = np.random.default_rng(0)
    before = rng.standard_normal((n, size)).astype(np.float32)
    after = before + 0.1 * rng.standard_normal((n, size)).astype(np.float32)
    return steps_of(before, after, actions=rng.integers(0, 3, n), length=10)


@pytest.mark.parametrize("channels", [1, 5])
def test_images_of_any_channels_rise_and_fall(channels):
    reward, data = ensemble(image_space(20, channels)), images(channels)
    manifold = Manifold(data, ("state", "next_state"), 0)
    for regularised in (False, True):
        settings = replace(QUICK, best_action=True, regularised=regularised)
        high, low = (optimise(reward, data, 0, Objective(low=low), 2, settings, manifold) for low in (False, True))
        assert high.rewards.min() > reward.of(data).mean() > low.rewards.max()
        assert high.steps.observations.dtype == np.uint8
        assert high.steps.next_observations.shape == (2, 20, 23, channels)
    again = optimise(reward, data, 0, Objective(low=True), 2, settings, manifold)
    assert np.array_equal(again.steps.observations, low.steps.observations)


def test_inputs_do_not_depend_on_the_scale_of_the_reward():
    """The gradient is in standard deviations of the reward, however small they are; a power of two rounds nothing."""
    reward, data = ensemble(gym.spaces.Box(-4, 4, (4,)), ensemble_size=1), vectors()
    tiny = ScaledReward(reward, 2.0**-50, 0.0)
    assert 0 < tiny.of(data).std() < 1e-12
    first, second = (optimise(each, data, 0, Objective(), 3, QUICK) for each in (reward, tiny))
    np.testing.assert_allclose(first.steps.observations, second.steps.observations, atol=1e-5)
    assert np.abs(first.steps.observations - data.observations.mean(0)).max() > 0.5


def test_only_the_frames_that_it_sees_change_and_the_rest_is_data():
    reward, data = ensemble(image_space(20, 3), use_next_state=False), images()
    made = optimise(reward, data, 0, settings=replace(QUICK, steps=3), count=2).steps
    known = {frame.tobytes() for frame in data.next_observations}
    assert all(frame.tobytes() in known for frame in made.next_observations)
    assert not any(frame.tobytes() in known for frame in made.observations)


def test_a_factor_is_visualised_along_its_direction():
    """Not along the unit of the same number."""
    reward, data = ensemble(image_space(20, 3)), images()
    layer = hidden_layers(reward)[0]
    direction = np.zeros(layer.channels)
    direction[[3, 5]] = 0.6, -0.8
    settings = replace(QUICK, regularised=False, steps=40)
    along = Objective(layer, direction)
    factor, unit = (
        optimise(reward, data, 0, objective, 2, settings).steps
        for objective in (along, Objective(layer, np.eye(layer.channels)[0]))
    )
    values = layer.activations(reward, factor).mean((2, 3)) @ direction
    assert np.allclose(along.of(reward, factor), values, atol=1e-5)
    assert values.mean() > along.of(reward, data).max()
    assert values.mean() > along.of(reward, unit).mean() + 1e-3


def test_every_made_up_input_can_be_rated_and_fits_the_environment():
    """Visualisations for adversarial training have the data's types and range, as steps of the data's shape."""
    for space, data in ((image_space(20, 4), images(4)), (gym.spaces.Box(-9, 9, (4,), np.float32), vectors())):
        reward = ensemble(space)
        made = visualise(reward.module, data, 0, count=3, settings=QUICK)
        assert made.observations.dtype == data.observations.dtype
        assert all(space.contains(frame) for frame in (*made.observations, *made.next_observations))
        assert np.isnan(made.rewards).all()
        assert reward.of(Transitions.concatenate([data[:2], made])).shape == (5,)
        if made.observations.dtype == np.uint8:
            assert made.observations.max() > 1  # in 0 to 255, not in 0 to 1


def test_vectors_stay_in_the_data_and_follow_the_reward():
    space, data = gym.spaces.Box(-9, 9, (4,), np.float32), vectors()
    reward = ensemble(space)
    manifold = Manifold(data, ("state", "next_state"))
    near = optimise(reward, data, 0, count=4, settings=replace(QUICK, steps=80), manifold=manifold)
    free = optimise(reward, data, 0, count=4, settings=VisualisationSettings(80, regularised=False), manifold=manifold)
    assert near.rewards.mean() > reward.of(data).mean() + reward.of(data).std()
    assert (near.steps.observations <= data.observations.max(0) + 1e-5).all()
    assert np.mean([each.density for each in near.distances]) < 0.5 * np.mean([each.density for each in free.distances])
    assert all(free.off)


def test_grids_of_codes_change_by_whole_cells_and_need_no_gradients():
    rng = np.random.default_rng(0)
    n, space = 80, gym.spaces.Box(0, 3, (12,), np.float32)
    frames = rng.integers(0, 2, (n, 12)).astype(np.float32)
    frames[np.arange(n), rng.integers(0, 12, n)] = 3.0
    data = steps_of(frames, actions=rng.integers(0, 3, n), length=10)
    goals = CallableReward(lambda o, a, x, d: (x == 3).sum(1) - 2.0 * o[:, 0], space, ACTIONS)
    made = optimise(goals, data, 0, count=3)
    assert set(np.unique(made.steps.next_observations)) <= {0.0, 1.0, 3.0}
    assert (made.rewards >= 4).all()  # four cells, one goal each
    smooth = CallableReward(lambda o, a, x, d: o[:, 0], gym.spaces.Box(-9, 9, (4,), np.float32), ACTIONS)
    with pytest.raises(NotDifferentiableError, match="no gradients"):
        optimise(smooth, vectors(), 0)


def test_the_manifold_knows_data_noise_and_blur():
    data = images(n=200)
    manifold = Manifold(data, ("next_state",), 0)
    assert manifold.held_out_off < 0.15
    rng = np.random.default_rng(1)
    noise = data[:4].with_(next_observations=rng.integers(0, 256, (4, 20, 23, 3), np.uint8))
    blur = data[:4].with_(next_observations=np.full((4, 20, 23, 3), 60, np.uint8))
    assert all("total variation" in each.reasons[0] and each.neighbour > 1 for each in manifold.judge(noise))
    assert all("smoother" in each.reasons[0] for each in manifold.judge(blur))
    assert np.mean([each.off for each in manifold.judge(data[50:150])]) < 0.15
    board = (np.indices((4, 4)).sum(0) % 2 * 255).astype(np.uint8)[None, :, :, None]
    assert total_variation(board)[0] == 2.0  # a checkerboard, the most there is


def test_fourier_starts_where_it_is_told_and_a_still_transformation_keeps_all():
    start = torch.rand(2, 16, 17, 4) * 0.8 + 0.1
    assert torch.allclose(fourier(start)[1](), start, atol=1e-4)
    assert torch.allclose(moved(start, torch.Generator().manual_seed(0), 1e-8, 0, 0), start, atol=1e-4)


def test_the_section_says_where_it_does_not_apply():
    table = Subject(TableReward(np.zeros((3, 2))), steps_of(np.zeros(30, int)))
    assert "table" in why_not(section, table)
    space = gym.spaces.Box(-9, 9, (4,), np.float32)
    blind = CallableReward(lambda o, a, n, d: 1.0 * a, space, ACTIONS, inputs=["action"])
    assert why_not(section, Subject(blind, vectors())) == "The reward sees no observations."


@pytest.mark.slow
def test_the_section_of_vectors_images_and_constants():
    space = gym.spaces.Box(-9, 9, (4,), np.float32)
    reward = ensemble(space)
    found = run_step(section, Subject(reward, vectors(), regions=regions_of(space), effort=0.1))
    assert len(found.tables) == 2
    assert all(check.value is not None for check in found.checks)
    space = image_space(20, 3)
    found = run_step(section, Subject(ensemble(space), images(), regions=regions_of(space), effort=0.05))
    assert [picture.name for picture in found.pictures] == ["rated_high", "rated_low"]
    assert found.pictures[0].image.startswith(b"\x89PNG")
    constant = CallableReward(lambda o, a, n, d: np.ones(len(d)), space, ACTIONS)
    assert "constant" in (run_step(section, Subject(constant, images())).skipped or "")
