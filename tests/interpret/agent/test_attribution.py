"""Attribution of an agent's quantities: methods, moments, object removal, colours."""

import numpy as np
import pytest
import torch

from rlhf_ray.agents.moments import draw_moments, moments_of
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.attribution import methods, quantities
from rlhf_ray.interpret.agent.attribution.drawing import overlay, scale_of, strip
from rlhf_ray.interpret.agent.attribution.estimators import against_differences
from rlhf_ray.interpret.agent.attribution.faithfulness import agreement, concentration, curves
from rlhf_ray.interpret.agent.attribution.methods import METHODS, Reference, through_time
from rlhf_ray.interpret.agent.attribution.objects import by_painting, patch_beside, repaint
from rlhf_ray.interpret.agent.attribution.question import Question
from tests.interpret.agent.linear_world import (
    BOX,
    DISCRETE,
    IMAGE,
    VECTOR,
    LinearAgent,
    LinearWorld,
    network_agent,
    random_episodes,
)


def asked(agent, quantity=None, count=5, context=1, ahead=3, **more):
    episodes = random_episodes(agent)
    moments = draw_moments(agent, episodes, count, np.random.default_rng(0), context=context, ahead=ahead)
    return Question(agent, quantity or quantities.value(), **more), moments, episodes


def test_moments_repeat_the_first_observation_before_the_start_and_the_last_after_the_end():
    agent = network_agent()
    episodes = random_episodes(agent)
    moments = moments_of(agent, episodes, np.array([0, 1]), np.array([0, 6]), context=3, ahead=2)
    assert np.array_equal(moments.observations[0].numpy(), np.repeat(episodes.observations[0, :1], 3, 0))
    assert not moments.actions[0].any()
    assert moments.actions[1].sum() == 2
    assert np.array_equal(moments.observations[1].numpy(), episodes.observations[1, 4:7])
    assert np.array_equal(moments.memory.numpy(), episodes.memory[[0, 1], [0, 6]])
    # Row 1 has 7 steps: one follows, then nothing but its last observation.
    assert np.array_equal(moments.following[1].numpy(), episodes.observations[1, [7, 7]])
    assert moments.given[1].sum(1).tolist() == [1, 0]
    assert moments.rewards[1, 1] == 0
    later = moments_of(agent, episodes, np.array([0]), np.array([2]), ahead=2)
    assert later.ended.tolist() == [[1, 0]], "episode 0 terminates with its third step"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("memory", "space", "actions"),
    [("none", IMAGE, DISCRETE), ("gru", IMAGE, BOX), ("lstm", VECTOR, DISCRETE)],
    ids=["images", "images, gru", "vectors, lstm"],
)
def test_every_method_on_every_agent(name, memory, space, actions):
    agent = network_agent(space, actions, memory)
    question, moments, _ = asked(agent, quantities.advantage())
    found = METHODS[name](question, moments, Reference.of(question, moments), 0)
    assert found.maps["frame"].shape == (5, *space.shape)
    assert np.abs(found.maps["frame"]).max() > 0
    assert ("memory" in found.maps) == (memory != "none")
    assert all(np.isfinite(of).all() for of in found.maps.values())
    assert found.about["estimator"] == "recording"
    assert found.about["quantity"] == "advantage"
    again = METHODS[name](question, moments, Reference.of(question, moments), 0)
    assert all(np.array_equal(of, again.maps[source]) for source, of in found.maps.items())


def test_integrated_gradients_are_complete():
    question, moments, _ = asked(network_agent(), quantities.log_odds(DISCRETE, 1), count=8)
    found = methods.integrated_gradients(question, moments, Reference.of(question, moments))
    sums = sum(of.reshape(8, -1).sum(1) for of in found.maps.values())
    reference = Reference.of(question, moments)
    with torch.no_grad():
        typical = {name: of.expand(8, *of.shape[1:]) for name, of in reference.typical.items()}
        change = (question.ask(moments) - question.ask(moments, typical)).double().numpy()
    assert np.abs(change).max() > 0.1
    assert np.abs(sums - change).max() <= 0.03 * np.abs(change).max()
    assert np.allclose(found.gap, np.abs(sums - change), atol=1e-6)


def test_log_odds_of_a_linear_policy_have_the_sign_of_its_weights():
    agent = network_agent(VECTOR, DISCRETE, "none")
    question, moments, _ = asked(agent, quantities.log_odds(DISCRETE, [0, 2]))
    logits = question.rollout(moments, {}).logits[:, 0]
    shares = logits.softmax(1)
    expected = torch.log((shares[:, 0] + shares[:, 2]) / shares[:, 1])
    assert torch.allclose(question.ask(moments), expected, atol=1e-5)
    chosen = Question(agent, quantities.chosen_action(DISCRETE)).ask(moments)
    best = shares.max(1).values
    assert torch.allclose(chosen, torch.log(best / (1 - best)), atol=1e-4)
    for wrong in ([], [0, 1, 2], 7):
        with pytest.raises(SettingError):
            quantities.log_odds(DISCRETE, wrong)
    with pytest.raises(SettingError, match="mean of a dimension"):
        quantities.log_odds(BOX, 0)
    with pytest.raises(SettingError, match="no dimension 2"):
        quantities.action_mean(BOX, 2)


def test_the_advantage_of_the_recording_is_the_td_error():
    agent = network_agent()
    episodes = random_episodes(agent)
    moments = moments_of(agent, episodes, np.array([0, 1]), np.array([2, 2]), ahead=1)
    found = Question(agent, quantities.advantage(0.9)).ask(moments).detach().numpy()
    rewards, values = episodes.rewards[:2, 2], episodes.values[:2]
    assert np.allclose(found, [rewards[0] - values[0, 2], rewards[1] + 0.9 * values[1, 3] - values[1, 2]], atol=1e-5)


def test_occlusion_of_a_linear_agent_is_weight_times_difference():
    agent = LinearAgent()
    question, moments, _ = asked(agent)
    reference = Reference.of(question, moments)
    found = methods.occlusion(question, moments, reference)
    v, e, m = (agent.m[name].numpy() for name in "vEM")
    for name, weights in (("frame", v @ e), ("memory", v @ m)):
        difference = (question.inputs(moments)[name] - reference.typical[name]).double().numpy()
        assert np.allclose(found.maps[name], difference * weights, atol=1e-5)
        exact = methods.gradient_x_input(question, moments, reference).maps[name]
        assert np.allclose(found.maps[name], exact, atol=1e-5)


def test_gradients_by_the_memory_agree_with_differences():
    """AT16, on a network without training."""
    question, moments, _ = asked(network_agent())
    assert against_differences(question, moments).max() <= 1e-2


def test_the_past_of_the_recording_matters_through_the_agents_memory_alone():
    question, moments, _ = asked(network_agent(), steps=2)
    found = through_time(question, moments, Reference.of(question, moments), samples=2)
    assert found["observations"].shape == (5, 3, 16, 16, 3)
    assert found["memory"].shape == (5, 3, 8)
    assert (np.abs(found["observations"]).reshape(5, 3, -1).max(2) > 0).all()
    cut = Question(question.agent, question.quantity, steps=2, cut=frozenset(["memory"]))
    without = through_time(cut, moments, Reference.of(cut, moments))
    assert not without["observations"][:, :2].any()
    assert without["observations"][:, 2].any()
    with pytest.raises(SettingError, match="3 steps ahead, but 4"):
        Question(question.agent, question.quantity, steps=4).ask(moments)


def test_the_worlds_memory_takes_the_frames_place():
    with pytest.raises(SettingError, match="takes the frame's place"):
        Question(LinearAgent(), quantities.value(), world=LinearWorld(), sources=("frame", "world"))
    question, moments, _ = asked(LinearAgent(), context=2, steps=2, world=LinearWorld(), sources=("world", "memory"))
    found = methods.gradient(question, moments, Reference.of(question, moments))
    assert found.maps["world"].shape == (5, 5)
    assert found.about["estimator"] == "straight_through"


def test_objects_are_painted_over_with_what_is_beside_them():
    frame = np.zeros((1, 8, 8, 3), np.uint8)
    frame[:, 5:] = 200
    frame[:, 5:, 3:5] = 0  # a pit in the ground
    frame[:, 3:5, 6] = 90  # a saw above it
    pit, saw = np.zeros((1, 8, 8), bool), np.zeros((1, 8, 8), bool)
    pit[:, 5:, 3:5], saw[:, 3:5, 6] = True, True
    assert (repaint(frame, pit)[0, 5:] == 200).all()
    assert (repaint(frame, saw)[0, :5] == 0).all()
    moved = patch_beside(saw, saw | pit, np.random.default_rng(0))
    assert moved.sum() == 2
    assert not (moved & (saw | pit)).any()


def test_removing_an_object_by_paint_changes_what_the_agent_reads_and_nothing_without_objects():
    question, moments, _ = asked(network_agent())
    masks = np.zeros((5, 16, 16), bool)
    masks[:3, 4:6, 4:6] = True
    found = by_painting(question, moments, {"block": masks}, np.random.default_rng(0))
    assert np.isfinite(found.changes["block"][:3]).all()
    assert np.isnan(found.changes["block"][3:]).all()
    assert (np.abs(found.changes["block"][:3]) > 0).all()
    assert (np.abs(found.control["block"][:3]) > 0).all()


def test_a_large_value_has_the_full_colour_and_no_weaker_one():
    """A cast to bytes wraps: 5 times the mean was full, 6 times nearly none."""
    maps = np.zeros((1, 4, 4))
    maps[0, :2] = 1.0
    maps[0, 2, :4] = np.array([5.0, 6.0, 50.0, -6.0])
    frames = np.full((1, 4, 4, 3), 128, np.uint8)
    drawn = overlay(frames, maps, scale=5.0).astype(int)[0]
    assert np.array_equal(drawn[2, 0], drawn[2, 1])
    assert np.array_equal(drawn[2, 1], drawn[2, 2])
    red, blue = drawn[2, 1], drawn[2, 3]
    assert red[0] - red[2] > 60
    assert blue[2] - blue[0] > 60
    assert abs(drawn[3, 0][0] - drawn[3, 0][2]) == 0, "no colour where there is nothing"
    assert not np.ptp(overlay(frames, maps, 5.0, np.array([True])), axis=-1).any(), "no colour beyond the valid horizon"
    assert scale_of(np.array([-1.0, 0.0, 3.0])) == 10.0
    assert scale_of(np.zeros(3)) == 1.0


def test_strips_are_pictures_of_images_and_vectors():
    rng = np.random.default_rng(0)
    for shape in ((1, 2, 16, 16, 3), (1, 2, 5)):
        maps, frames = rng.normal(size=shape), rng.integers(0, 256, shape).astype(np.uint8)
        one, other = (
            strip(frames, maps, ["one"], ["now", "+1"], "value", faded=np.array([[False, x]])) for x in (True, False)
        )
        assert one[:4] == b"\x89PNG"
        assert one != other


def test_the_order_of_a_linear_agents_map_is_better_than_random_ones():
    question, moments, _ = asked(LinearAgent(), count=20)
    reference = Reference.of(question, moments)
    maps = methods.occlusion(question, moments, reference).maps["memory"]
    found = curves(
        question, moments, {"right": maps, "wrong": 1.0 / maps}, reference, np.random.default_rng(0), "memory"
    )
    assert found["right"].faithful
    assert found["right"].areas["deletion"] > found["right"].areas["random_deletion"]
    assert not found["wrong"].faithful
    of_frame = methods.gradient(question, moments, reference).maps["frame"]
    frame = curves(question, moments, {"frame": of_frame}, reference, np.random.default_rng(0))["frame"]
    assert frame.deletion[0] == 0
    assert frame.insertion[-1] == 0
    assert frame.random_deletion.shape == (10, 4)


def test_agreement_and_concentration():
    real = np.array([1.0, -2.0, 3.0, np.nan, 0.1])
    found = agreement(np.array([2.0, -1.0, 5.0, 1.0, -0.1]), real)
    assert found.count == 4
    assert found.sign == 1.0
    assert found.rank == 1.0
    assert agreement(np.array([1.0]), np.array([1.0])) is None
    maps, masks = np.ones((2, 4, 4)), np.zeros((2, 4, 4), bool)
    masks[0, 0, 0] = True
    maps[0, 0, 0] = 16.0
    shares = concentration(maps, masks)
    assert np.isclose(shares[0], 16 / 31 * 16)
    assert np.isnan(shares[1])
