"""Attribution: every method on every kind of reward, its checks, and faults that others' code has."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution import FIELDS, METHODS, Background, input_effects, part_effects
from rlhf_ray.interpret.reward.attribution.checks import Judge, rank_correlation
from rlhf_ray.interpret.reward.attribution.drawing import draw, scale_of
from rlhf_ray.interpret.reward.attribution.gradcam import last_convolutions
from rlhf_ray.interpret.reward.attribution.gradients import IntegratedGradients, gap
from rlhf_ray.interpret.reward.regions import regions_of
from rlhf_ray.interpret.reward.steps import attribution as section
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import CallableReward, EnsembleReward, ImitationReward, TableReward, TorchReward
from rlhf_ray.settings import RewardModelSettings
from tests.interpret.contexts import run_step

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
DISCRETE, CONTINUOUS = gym.spaces.Discrete(3), gym.spaces.Box(-2, 2, (2,), np.float32)
ALL = RewardModelSettings(use_next_state=True, use_done=True, ensemble_size=2)


def image(channels):
    return gym.spaces.Box(0, 255, (24, 20, channels), np.uint8)


def ensemble(observations, actions):
    torch.manual_seed(0)
    return EnsembleReward(RewardEnsemble(observations, actions, ALL))


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
GRADIENTS = {"saliency", "input_x_gradient", "integrated_gradients", "smoothgrad"}
IMAGES = {"occlusion_blur", "occlusion_inpaint", "perturbation"}
ALWAYS = {"occlusion_typical", "occlusion_donor"}


def steps_for(reward, n=40, seed=0):
    rng = np.random.default_rng(seed)
    spaces = (reward.observation_space, reward.action_space, reward.observation_space)
    for space in spaces:
        space.seed(seed)
    before, actions, after = (np.stack([space.sample() for _ in range(n)]) for space in spaces)
    return Transitions(before, actions, after, rng.random(n) < 0.3, rng.random(n), np.arange(n) // 8, np.arange(n) % 8)


def background_for(reward, **more):
    regions = None
    if isinstance(reward.observation_space, gym.spaces.Box):
        regions = regions_of(reward.observation_space, patches=3)
    return Background(reward, steps_for(reward), regions, **more)


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
    background = background_for(KINDS[kind]())
    steps = background.data[:2]
    fitting = {name for name, method in METHODS.items() if method.unsuitable(background) is None}
    images = "channels" in kind or "images" in kind
    cam = {"grad_cam"} if images else set()
    assert (
        fitting
        == ALWAYS | (GRADIENTS if background.reward.differentiable else set()) | (IMAGES if images else set()) | cam
    )
    for name in fitting:
        method = METHODS[name]
        quick = dataclasses.replace(method, lattice=3) if name == "perturbation" else method
        maps = quick(background, steps)
        assert list(maps) == background.inputs, name
        for of, values in maps.items():
            assert values.shape == getattr(steps, FIELDS[of]).shape, name
            assert np.isfinite(values).all(), name
        assert any(np.abs(values).sum() > 0 for values in maps.values()), name
        assert background.part_sums(maps).shape == (2, len(background.part_names))
    assert draw(background, steps, ["one", "two"], maps, True, "so").startswith(b"\x89PNG")


def test_integrated_gradients_integrate():
    background = background_for(Quadratic(VECTOR))
    steps = background.data[:5]
    maps = IntegratedGradients()(background, steps)
    way = steps.next_observations - background.typical("next_state")
    assert np.allclose(
        maps["next_state"], way * (steps.next_observations + background.typical("next_state")), atol=1e-4
    )
    assert gap(background, steps, maps).max() < 1e-3 * background.spread


def test_the_gap_falls_with_the_points_of_integration():
    background = background_for(ensemble(VECTOR, CONTINUOUS))
    gaps = [
        gap(background, background.data, IntegratedGradients().with_points(background, background.data, n)).max()
        for n in (2, 8, 64)
    ]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.03 * background.spread  # small inputs curve the path: symlog


def test_occlusion_is_captums():
    from captum.attr import FeatureAblation

    background = background_for(ensemble(VECTOR, CONTINUOUS))
    steps, inputs = background.data[:4], background.reward.tensors(background.data[:4])
    fours = [torch.arange(3)[None], torch.arange(3, 5)[None], torch.arange(5, 8)[None], torch.tensor([8])]
    # Our typical end of an episode is none at all, as a boolean must be.
    baselines = [of.detach() for of in background.typical_tensors()]
    baselines[3] = torch.zeros(1)
    theirs = FeatureAblation(background.reward.forward).attribute(inputs, tuple(baselines), feature_mask=tuple(fours))
    ours = METHODS["occlusion_typical"](background, steps)
    for name, of in zip(background.inputs, theirs, strict=True):
        assert np.allclose(ours[name], of.numpy(), atol=1e-5), name


def test_images_are_scaled_once_and_frames_share_one_scale():
    """An image's maps are in units of the reward: no 255 too many, and a dim frame stays dim."""
    background = background_for(Quadratic(image(3), unit=255.0))
    steps = background.data[:2]
    dim = steps.next_observations.copy()
    dim[1] //= 10
    steps = steps.with_(next_observations=dim)
    maps = METHODS["input_x_gradient"](background, steps)
    sums = background.part_sums(maps).sum(1)
    assert np.allclose(sums, 2.0 * background.reward.of(steps), rtol=1e-4)
    saliency = METHODS["saliency"](background, steps)["next_state"]
    assert np.allclose(saliency, 2.0 * steps.next_observations / 255.0**2 * background.scales()[2].numpy(), rtol=1e-4)
    peaks = np.abs(maps["next_state"].sum(-1)).max((1, 2))
    assert peaks[1] < 0.05 * peaks[0]
    assert scale_of(maps) == peaks[0]


def test_maps_of_each_frame_do_not_depend_on_the_others():
    background = background_for(ensemble(image(4), DISCRETE))
    for name in ("saliency", "grad_cam", "occlusion_typical", "perturbation"):
        one, three = (METHODS[name](background, background.data[:n])["state"][0] for n in (1, 3))
        assert np.allclose(one, three, rtol=1e-3, atol=1e-7), name


def test_grad_cam_uses_each_members_last_convolution():
    reward = ensemble(image(3), DISCRETE)
    names = {id(layer): name for name, layer in reward.layers().items()}
    last = [names[id(layer)] for layer in last_convolutions(reward, steps_for(reward))]
    assert last == ["networks.convolutions.0.2", "networks.convolutions.1.2"]


def test_interventions_find_what_a_callable_uses():
    background = background_for(CallableReward(a_callable, VECTOR, DISCRETE))
    effects = dict(zip(background.part_names, part_effects(background, background.data).size.mean(0), strict=True))
    used = {"feature 0 of the next state", "feature 1 of the state", "the end of the episode"}
    assert {name for name, effect in effects.items() if effect > 0} == used
    whole = input_effects(background, background.data)
    assert whole["action"].max() == 0.0
    assert np.allclose(whole["done"], 1.0)
    with pytest.raises(SettingError, match="fill is 'blur', which needs images"):
        part_effects(background, background.data, "blur")


def test_a_map_that_any_network_gives_is_crossed_out():
    class ShowsTheData:
        name, title, signed, complete = "data", "Data", False, False

        def __call__(self, background, steps):
            return {name: np.abs(getattr(steps, FIELDS[name]).astype(float)) for name in background.inputs}

    background = background_for(ensemble(VECTOR, CONTINUOUS))
    judge = Judge(background, background.data[:8], updates=5)
    judged = judge.judge(ShowsTheData())
    assert [check.passed for check in judged.checks[:2]] == [False, False]
    assert "untrained networks look alike (rank correlation 1.00)" in judged.crossed_out
    trusted = judge.judge(METHODS["occlusion_donor"])
    assert trusted.checks[-1].value > 0.8
    assert trusted.infidelity < 1e-9


def test_a_constant_reward_has_maps_of_zeros_and_a_plain_sentence():
    reward = ensemble(VECTOR, DISCRETE)
    with torch.no_grad():
        for weight in reward.module.parameters():
            weight.zero_()
    background = background_for(reward)
    for name in ALWAYS | GRADIENTS:
        assert all((of == 0).all() for of in METHODS[name](background, background.data[:3]).values()), name
    found = run_step(section, Subject(reward, background.data, regions=background.regions))
    assert (
        found.statements[0].text == "The reward is the same for every step: it looks at nothing, and all maps are zero."
    )


def test_the_section_says_what_is_ignored_and_is_the_same_twice():
    reward = CallableReward(a_callable, VECTOR, DISCRETE)
    subject = Subject(reward, steps_for(reward, 200), regions=regions_of(VECTOR), effort=0.5)
    found, again = run_step(section, subject), run_step(section, subject)
    assert any(
        each.kind == "ignores"
        and each.text.startswith(
            "The action hardly matters: exchanging it for another step's changes the reward by 0.00 of"
        )
        for each in found.statements
    )
    assert any("feature 0 of the next state" in each.text for each in found.statements if each.kind == "rewards")
    assert [p.image for p in found.pictures] == [p.image for p in again.pictures]
    assert found.values == again.values
    assert {picture.name for picture in found.pictures} == ALWAYS


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
    background = background_for(reward)
    above = background.data.next_observations[:, 0] > 0.0
    judge = Judge(background, background.data[above != (background.typical("next_state")[0] > 0.0)])
    judged = judge.judge(METHODS["saliency"])
    assert judged.crossed_out.startswith("It ranks the parts otherwise")
    trust = section.gradient_against_intervention(background, judge, {"saliency": judged.maps})
    assert trust.ablation > 0.6
    assert trust.gradient < 0.05
    assert trust.check().says.startswith("Don't trust the gradient")
    assert section.GradientTrust(trust.ablation, 0.5).check().says == ""


def test_rank_correlation_of_a_constant_is_zero():
    assert rank_correlation(np.zeros(5), np.arange(5.0)) == 0.0
    assert rank_correlation(np.arange(5.0), np.arange(5.0) ** 3) == pytest.approx(1.0)
