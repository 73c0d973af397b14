"""Attribution methods on every kind of reward and agent, beside captum and closed forms; their pictures; faults of others' code."""

import dataclasses
import io

import gymnasium as gym
import numpy as np
import pytest
import torch
from PIL import Image

from rlhf_ray.agents.episodes import draw_moments
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import questions
from rlhf_ray.interpret.agent.questions import AgentQuestion
from rlhf_ray.interpret.attribution import METHODS, attribute, contributions, make_methods
from rlhf_ray.interpret.attribution.drawing import draw, largest, overlay, saturating, strip
from rlhf_ray.interpret.attribution.faithfulness import curves, rank_correlation
from rlhf_ray.interpret.attribution.gradients import IntegratedGradients, last_convolutions
from rlhf_ray.interpret.attribution.interventions import input_effects, part_effects
from rlhf_ray.interpret.attribution.question import Method
from rlhf_ray.interpret.effects.regions import regions_of
from rlhf_ray.interpret.reward.question import RewardQuestion
from rlhf_ray.interpret.reward.steps import attribution as section
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward, ImitationReward, TableReward, TorchReward
from tests.interpret.agent import worlds
from tests.interpret.agent.worlds import LinearAgent, network_agent, random_episodes
from tests.interpret.contexts import ensemble_of, run_step, steps_of

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
DISCRETE, CONTINUOUS = gym.spaces.Discrete(3), gym.spaces.Box(-2, 2, (2,), np.float32)


def image(channels):
    return gym.spaces.Box(0, 255, (24, 20, channels), np.uint8)


def ensemble(observations, actions):
    return ensemble_of(observations, actions, use_done=True)


def of_imitation(observations, actions):
    nets = pytest.importorskip("imitation.rewards.reward_nets")
    make = nets.CnnRewardNet if len(observations.shape) == 3 else nets.BasicRewardNet
    return ImitationReward(make(observations, actions, use_next_state=True, use_done=True))


def a_callable(observations, actions, next_observations, terminated):
    return next_observations[:, 0] * 3.0 - observations[:, 1] + terminated


KINDS = {
    "vectors, discrete": lambda: ensemble(VECTOR, DISCRETE),
    "vectors, continuous": lambda: ensemble(VECTOR, CONTINUOUS),
    **{f"{c} channels": lambda c=c: ensemble(image(c), CONTINUOUS if c == 4 else DISCRETE) for c in (1, 4, 12)},
    "imitation, vectors": lambda: of_imitation(VECTOR, CONTINUOUS),
    "imitation, images": lambda: of_imitation(image(3), DISCRETE),
    "table": lambda: TableReward(np.arange(60.0).reshape(4, 15)),
    "callable": lambda: CallableReward(a_callable, VECTOR, DISCRETE),
}
GRADIENTS = {"saliency", "input_x_gradient", "difference_x_gradient", "integrated_gradients", "smoothgrad"}
IMAGES = {"occlusion_blur", "occlusion_inpaint", "perturbation"}
ALWAYS = {"occlusion_typical", "occlusion_donor"}
EVERY = make_methods(METHODS.parts)


def steps_for(reward, n=40, seed=0):
    rng = np.random.default_rng(seed)
    spaces = (reward.observation_space, reward.action_space, reward.observation_space)
    for space in spaces:
        space.seed(seed)
    before, actions, after = (np.stack([space.sample() for _ in range(n)]) for space in spaces)
    return steps_of(before, after, actions=actions, ends=rng.random(n) < 0.3, rewards=rng.random(n), length=8)


def question_for(reward):
    regions = None
    if isinstance(reward.observation_space, gym.spaces.Box):
        regions = regions_of(reward.observation_space, patches=3)
    return RewardQuestion(reward, steps_for(reward), regions)


class Quadratic(TorchReward):
    """The reward is the sum of squares of the next observation, over its unit."""

    def __init__(self, space, unit=1.0):
        super().__init__(torch.nn.Linear(1, 1))
        self.name, self.unit = "quadratic", unit
        self.observation_space, self.action_space = space, DISCRETE
        self.inputs = frozenset(("next_state",))

    def member_tensor(self, observations, actions, next_observations, terminated):
        return (next_observations / self.unit).square().flatten(1).sum(1)[None]


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_that_fits_maps_every_input(kind):
    question = question_for(KINDS[kind]())
    steps = question.data[:2]
    fitting = {name for name, method in EVERY.items() if method.why_not(question) is None}
    images = IMAGES | {"grad_cam"} if "channels" in kind or "images" in kind else set()
    assert fitting == ALWAYS | (GRADIENTS if question.reward.differentiable else set()) | images
    for name in fitting:
        method = dataclasses.replace(EVERY[name], lattice=3) if name == "perturbation" else EVERY[name]
        maps = attribute(method, question, steps)  # which checks shapes and numbers
        assert any(np.abs(values).sum() > 0 for values in maps.values()), name
        assert question.part_sums(maps).shape == (2, len(question.part_names))
    assert draw(question, steps, ["one", "two"], maps, True, "so").startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("memory", "space", "actions"),
    [("none", worlds.IMAGE, worlds.DISCRETE), ("gru", worlds.IMAGE, worlds.BOX),
     ("lstm", worlds.VECTOR, worlds.DISCRETE)],
    ids=["images", "images, gru", "vectors, lstm"],
)  # fmt: skip
def test_every_method_on_every_agent(name, memory, space, actions):
    quantity = questions.action_mean(actions, 0) if actions is worlds.BOX else questions.value()
    question, moments = asked(network_agent(space, actions, memory), quantity)
    if EVERY[name].why_not(question) is not None:
        assert name in IMAGES | {"grad_cam"}
        assert space is worlds.VECTOR
        return
    found = attribute(EVERY[name], question, moments)
    assert np.abs(found["frame"]).max() > 0
    assert ("memory" in found) == (memory != "none")
    again = attribute(EVERY[name], question, moments)
    assert all(np.array_equal(of, again[source]) for source, of in found.items())


def asked(agent, quantity=None, count=5, **more):
    moments = draw_moments(agent, random_episodes(agent), count, np.random.default_rng(0), ahead=3)
    return AgentQuestion(agent, quantity or questions.value(), **more).against(moments), moments


def test_integrated_gradients_integrate():
    question = question_for(Quadratic(VECTOR))
    steps = question.data[:5]
    maps = IntegratedGradients().attribute(question, steps)
    usual = question.usual("next_state")
    way = steps.next_observations - usual
    assert np.allclose(maps["next_state"], way * (steps.next_observations + usual), atol=1e-4)
    assert question.gap(steps, maps).max() < 1e-3 * question.unit


def test_integrated_gradients_of_an_agent_are_complete():
    question, moments = asked(network_agent(), questions.chosen_action(worlds.DISCRETE), count=8)
    found = IntegratedGradients().attribute(question, moments)
    sums = sum(of.reshape(8, -1).sum(1) for of in found.values())
    with torch.no_grad():
        typical = {name: of.expand(8, *of.shape[1:]) for name, of in question.typical.items()}
        change = (question.ask(moments) - question.ask(moments, typical)).double().numpy()
    assert np.abs(change).max() > 0.1
    assert np.abs(sums - change).max() <= 0.03 * np.abs(change).max()
    assert np.allclose(question.gap(moments, found), np.abs(sums - change), atol=1e-6)


def test_occlusion_is_captums():
    from captum.attr import FeatureAblation

    question = question_for(ensemble(VECTOR, CONTINUOUS))
    steps, inputs = question.data[:4], question.reward.tensors(question.data[:4])
    fours = [torch.arange(3)[None], torch.arange(3, 5)[None], torch.arange(5, 8)[None], torch.tensor([8])]
    # Our typical end of an episode is none at all, as a boolean must be.
    baselines = [of.detach() for of in question.typical.values()]
    baselines[3] = torch.zeros(1)
    theirs = FeatureAblation(question.reward.forward).attribute(inputs, tuple(baselines), feature_mask=tuple(fours))
    ours = EVERY["occlusion_typical"].attribute(question, steps)
    for name, of in zip(question.names, theirs, strict=True):
        assert np.allclose(ours[name], of.numpy(), atol=1e-5), name


def test_occlusion_of_a_linear_agent_is_weight_times_difference():
    agent = LinearAgent()
    question, moments = asked(agent)
    found = EVERY["occlusion_typical"].attribute(question, moments)
    exact = EVERY["difference_x_gradient"].attribute(question, moments)
    v, e, m = (agent.m[name].numpy() for name in "vEM")
    for name, weights in (("frame", v @ e), ("memory", v @ m)):
        difference = (question.inputs(moments)[name] - question.typical[name]).double().numpy()
        assert np.allclose(found[name], difference * weights, atol=1e-5)
        assert np.allclose(found[name], exact[name], atol=1e-5)


def test_images_are_scaled_once_and_frames_share_one_scale():
    """An image's maps are in units of the reward: no 255 too many, and a dim frame stays dim."""
    question = question_for(Quadratic(image(3), unit=255.0))
    steps = question.data[:2]
    dim = steps.next_observations.copy()
    dim[1] //= 10
    steps = steps.with_(next_observations=dim)
    maps = EVERY["input_x_gradient"].attribute(question, steps)
    sums = question.part_sums(maps).sum(1)
    assert np.allclose(sums, 2.0 * question.reward.of(steps), rtol=1e-4)
    saliency = EVERY["saliency"].attribute(question, steps)["next_state"]
    slopes = 2.0 * steps.next_observations / 255.0**2
    assert np.allclose(saliency, slopes * question.scales["next_state"].numpy(), rtol=1e-4)
    peaks = np.abs(maps["next_state"].sum(-1)).max((1, 2))
    assert peaks[1] < 0.05 * peaks[0]
    assert largest(maps) == peaks[0]


def test_maps_of_each_frame_do_not_depend_on_the_others():
    question = question_for(ensemble(image(4), DISCRETE))
    for name in ("saliency", "grad_cam", "occlusion_typical", "perturbation"):
        one, three = (EVERY[name].attribute(question, question.data[:n])["state"][0] for n in (1, 3))
        assert np.allclose(one, three, rtol=1e-3, atol=1e-7), name


def test_grad_cam_uses_each_members_last_convolution():
    reward = ensemble(image(3), DISCRETE)
    names = {id(layer): name for name, layer in reward.layers().items()}
    last = [names[id(layer)] for layer in last_convolutions(question_for(reward))]
    assert last == ["networks.convolutions.0.2", "networks.convolutions.1.2"]


def test_interventions_find_what_a_callable_uses():
    question = question_for(CallableReward(a_callable, VECTOR, DISCRETE))
    effects = dict(zip(question.part_names, part_effects(question, question.data).size.mean(0), strict=True))
    used = {"feature 0 of the next state", "feature 1 of the state", "the end of the episode"}
    assert {name for name, effect in effects.items() if effect > 0} == used
    whole = input_effects(question, question.data)
    assert whole["action"].max() == 0.0
    assert np.allclose(whole["done"], 1.0)
    with pytest.raises(SettingError, match="fill is 'blur', which needs images"):
        part_effects(question, question.data, "blur")


def test_a_map_that_any_network_gives_is_crossed_out():
    class ShowsTheData(Method):
        signed = False

        def attribute(self, question, moments):
            return {name: np.abs(of.astype(float)) for name, of in question.arrays(moments).items()}

    question = question_for(ensemble(VECTOR, CONTINUOUS))
    judge = section.Judge(question, question.data[:8], updates=5)
    judged = judge.judge(ShowsTheData())
    assert [check.passed for check in judged.checks[:2]] == [False, False]
    assert judged.checks[0].value == pytest.approx(1.0)
    assert "untrained networks look alike" in judged.crossed_out
    trusted = judge.judge(EVERY["occlusion_donor"])
    assert trusted.checks[-1].value > 0.8
    assert trusted.infidelity < 1e-9


def test_a_constant_reward_has_maps_of_zeros():
    reward = ensemble(VECTOR, DISCRETE)
    with torch.no_grad():
        for weight in reward.module.parameters():
            weight.zero_()
    question = question_for(reward)
    for name in ALWAYS | GRADIENTS:
        assert all((of == 0).all() for of in contributions(EVERY[name], question, question.data[:3]).values()), name
    found = run_step(section, Subject(reward, question.data, regions=question.regions))
    assert found.skipped == "The reward is the same on all steps."


def test_a_gradient_that_misses_what_matters_is_not_to_be_trusted():
    class Step(TorchReward):
        """Steps with feature 0, slides with the others a little: the gradient sees only the slide."""

        def __init__(self):
            super().__init__(torch.nn.Linear(1, 1))
            self.name, self.observation_space, self.action_space = "step", VECTOR, DISCRETE
            self.inputs = frozenset(("next_state",))

        def member_tensor(self, observations, actions, next_observations, terminated):
            return (torch.sigmoid(2000.0 * next_observations[:, 0]) + 0.01 * next_observations[:, 1:].sum(1))[None]

    reward = Step()
    question = question_for(reward)
    above = question.data.next_observations[:, 0] > 0.0
    judge = section.Judge(question, question.data[above != (question.usual("next_state")[0] > 0.0)])
    judged = judge.judge(EVERY["saliency"])
    assert judged.crossed_out.startswith("It ranks the parts otherwise")
    trust = section.gradient_against_intervention(question, judge, {"saliency": judged.maps})
    assert trust.ablation > 0.6
    assert trust.gradient < 0.05
    assert trust.check().remedy.startswith("The gradient misses")
    assert section.GradientTrust(trust.ablation, 0.5).check().remedy == ""


def test_the_order_of_a_linear_agents_map_is_better_than_random_ones():
    question, moments = asked(LinearAgent(), count=20)
    maps = EVERY["occlusion_typical"].attribute(question, moments)["memory"]
    found = curves(question, moments, {"right": maps, "wrong": 1.0 / maps}, np.random.default_rng(0), "memory")
    assert found["right"].faithful
    assert found["right"].areas["deletion"] > found["right"].areas["random_deletion"]
    assert not found["wrong"].faithful
    of_frame = EVERY["saliency"].attribute(question, moments)["frame"]
    frame = curves(question, moments, {"frame": of_frame}, np.random.default_rng(0), "frame")["frame"]
    assert frame.deletion[0] == 0
    assert frame.insertion[-1] == 0
    assert frame.random_deletion.shape == (10, 4)


def test_rank_correlation_of_a_constant_is_zero():
    assert rank_correlation(np.zeros(5), np.arange(5.0)) == 0.0
    assert rank_correlation(np.arange(5.0), np.arange(5.0) ** 3) == pytest.approx(1.0)


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
    assert saturating(np.array([-1.0, 0.0, 3.0])) == 10.0
    assert saturating(np.zeros(3)) == 1.0


def test_strips_are_pictures_of_images_and_vectors():
    rng = np.random.default_rng(0)
    for shape in ((1, 2, 16, 16, 3), (1, 2, 5)):
        maps, frames = rng.normal(size=shape), rng.integers(0, 256, shape).astype(np.uint8)
        one, other = (
            strip(frames, maps, ["one"], ["now", "+1"], "value", faded=np.array([[False, x]])) for x in (True, False)
        )
        assert one[:4] == b"\x89PNG"
        assert one != other


def test_a_strip_that_is_not_trusted_is_crossed_out_with_its_reason():
    frames = np.full((1, 2, 16, 16, 3), 128, np.uint8)
    maps = np.zeros(frames.shape)
    trusted, not_trusted = (
        np.asarray(Image.open(io.BytesIO(strip(frames, maps, ["one"], ["now", "+1"], crossed_out=why)))).astype(int)
        for why in (None, "random orders are as good")
    )
    red = [
        (image[..., 0] > image[..., 2] + 80) & (image[..., 0] > image[..., 1] + 80) for image in (trusted, not_trusted)
    ]
    assert not_trusted.shape[0] > trusted.shape[0], "the reason stands below"
    assert red[1][:, : red[1].shape[1] // 2].sum() > 20 * (red[0][:, : red[0].shape[1] // 2].sum() + 1)
