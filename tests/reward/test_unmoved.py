"""Asking a reward moves nothing: neither its statistics, nor what it is given, however it is wrapped.

And memory of a pass is bounded, whoever wrote the network: rewards of many steps are those of few, in passes of a bounded size.
"""

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import CallableReward, EnsembleReward, ImitationReward, RewardFunction
from rlhf_ray.reward.functions.shaped import ShapedReward
from rlhf_ray.reward.unmoved import NUMBERS, passes, steps_at_once
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import some_comparisons
from tests.reward.fits import trainer_of

nets = pytest.importorskip("imitation.rewards.reward_nets")
networks = pytest.importorskip("imitation.util.networks")

VECTOR, ACTIONS = gym.spaces.Box(-2, 2, (4,), np.float32), gym.spaces.Discrete(3, start=0)
TORQUES = gym.spaces.Box(-1, 1, (2,), np.float32)
PIXELS = gym.spaces.Box(0, 255, (3, 14, 12), np.uint8)


def steps_in(observations=VECTOR, actions=ACTIONS, n=40, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    kind = observations.dtype
    frames = rng.integers(0, 256, (n + 1, *observations.shape)) if kind == np.uint8 else None
    seen = (rng.normal(size=(n + 1, *observations.shape)) * scale if frames is None else frames).astype(kind)
    discrete = isinstance(actions, gym.spaces.Discrete)
    acted = rng.integers(actions.n, size=n) if discrete else rng.uniform(-1, 1, (n, *actions.shape)).astype("f4")
    at = np.arange(n)
    return Transitions(seen[:-1], acted, seen[1:], at % 10 == 9, rng.normal(size=n), at // 10, at % 10)


def basic(observations=VECTOR, actions=ACTIONS, **options):
    return nets.BasicRewardNet(observations, actions, use_next_state=True, use_done=True, **options)


def normalised(net, norm=networks.RunningNorm):
    return nets.NormalizedRewardNet(net, norm)


def ensemble(*members):
    return nets.RewardEnsemble(members[0].observation_space, members[0].action_space, members)


NESTED = {
    "normalised": lambda: normalised(basic()),
    "normalised by a moving average": lambda: normalised(basic(), networks.EMANorm),
    "normalised twice": lambda: normalised(normalised(basic()), networks.EMANorm),
    "ensemble of normalised": lambda: ensemble(normalised(basic()), normalised(basic())),
    "deviation over an ensemble of normalised": lambda: nets.AddSTDRewardWrapper(
        ensemble(*(normalised(basic()) for _ in range(3))), default_alpha=-0.4
    ),
    "normalised deviation": lambda: normalised(
        nets.AddSTDRewardWrapper(ensemble(normalised(basic()), basic()), default_alpha=0.7)
    ),
    "normalised ensemble, shaped members": lambda: normalised(
        ensemble(nets.BasicShapedRewardNet(VECTOR, ACTIONS), nets.BasicShapedRewardNet(VECTOR, ACTIONS))
    ),
    "normalised inputs": lambda: normalised(basic(normalize_input_layer=networks.RunningNorm)),
    "continuous actions": lambda: normalised(basic(actions=TORQUES)),
    "channels first": lambda: normalised(nets.CnnRewardNet(PIXELS, ACTIONS, use_next_state=True, hwc_format=False)),
}


@pytest.mark.parametrize("kind", NESTED)
def test_a_reward_of_imitation_does_not_depend_on_earlier_calls(kind):
    torch.manual_seed(0)
    net = NESTED[kind]()
    spaces = net.observation_space, net.action_space
    for seed in range(3):  # as its training moves its statistics
        steps = steps_in(*spaces, seed=10 + seed, scale=3.0)
        net.predict_processed(steps.observations, steps.actions, steps.next_observations, steps.terminated)
    reward = ImitationReward(net)
    steps, other = steps_in(*spaces), steps_in(*spaces, seed=1, scale=30.0)
    state = {name: value.clone() for name, value in reward.module.state_dict().items()}
    first = reward.of(steps)
    for _ in range(3):
        reward.of(other)
        reward.members_of(other)
        reward.members(other.observations, other.actions, other.next_observations, other.terminated)
        reward.forward(*reward.tensors(other))
    assert np.array_equal(reward.of(steps), first)
    assert all(torch.equal(value, state[name]) for name, value in reward.module.state_dict().items())
    # What gradients explain is the same reward.
    assert np.allclose(reward.forward(*reward.tensors(steps)).numpy(), first, atol=1e-4)
    inputs = [each.requires_grad_() for each in reward.tensors(steps)]
    slopes = torch.autograd.grad(reward.forward(*inputs).sum(), inputs[:3], allow_unused=True)
    assert any(slope is not None and slope.abs().sum() > 0 for slope in slopes)


def test_the_deviation_of_normalised_members_is_what_their_formulas_say():
    torch.manual_seed(0)
    members = [normalised(basic()) for _ in range(3)]
    steps = steps_in()
    arguments = (steps.observations, steps.actions, steps.next_observations, steps.terminated)
    expected = []
    for number, member in enumerate(members):
        norm = member.normalize_output_layer
        norm.running_mean.fill_(0.3 * number)
        norm.running_var.fill_(4.0 + number)
        expected.append((member.base.predict(*arguments) - 0.3 * number) / np.sqrt(4.0 + number + norm.eps))
    reward = ImitationReward(nets.AddSTDRewardWrapper(ensemble(*members), default_alpha=-0.5))
    wanted = np.mean(expected, 0) - 0.5 * np.std(expected, 0, ddof=1)
    assert np.allclose(reward.of(steps), wanted, atol=1e-5)
    assert np.allclose(reward.forward(*reward.tensors(steps)).numpy(), wanted, atol=1e-5)


class Counting(torch.nn.Module):
    """A network whose output depends on how often it was asked: in buffers, parameters, attributes and draws."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.norm = torch.nn.BatchNorm1d(4)
        self.calls, self.seen = 0, [0.0]
        self.register_buffer("total", torch.zeros(()))
        self.mean = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, observations, actions, next_observations, terminated):
        self.calls += 1
        self.total += 1
        self.seen.append(float(self.seen[-1] + 1))
        self.mean.lerp_(observations.float().mean(0).detach(), 0.5)
        value = self.layer(self.norm.train()(observations.float()) + self.mean).squeeze(-1)
        return value + self.calls + self.total + self.seen[-1] + torch.rand(())


class OfTheirOwn(RewardFunction):
    """A user's subclass, with a network that was never put into evaluation mode."""

    def __init__(self):
        self.name, self.observation_space, self.action_space = "own", VECTOR, ACTIONS
        self.network = Counting()

    def members(self, observations, actions, next_observations, terminated):
        given = [torch.as_tensor(each) for each in (observations, actions, next_observations, terminated)]
        with torch.no_grad():
            return self.network(*given).double().numpy()[None]


class RunningMean:
    """A plain object that keeps a mean."""

    def __init__(self):
        self.mean = np.zeros(4)

    def __call__(self, observations, actions, next_observations, terminated):
        self.mean += 0.5 * (observations.mean(0) - self.mean)
        return (observations - self.mean).sum(1)


def with_arrays(network, observations, actions, next_observations, terminated):
    with torch.no_grad():
        return network(torch.as_tensor(observations), None, None, None).numpy()


def in_a_closure():
    network = Counting()
    return CallableReward(lambda *step: with_arrays(network, *step), VECTOR, ACTIONS)


KEEPING_STATE = {
    "a subclass": OfTheirOwn,
    "an object": lambda: CallableReward(RunningMean(), VECTOR, ACTIONS),
    "a closure": in_a_closure,
    "bound": lambda: CallableReward(functools.partial(with_arrays, Counting()), VECTOR, ACTIONS),
    "a method": lambda: CallableReward(normalised(basic()).predict_processed, VECTOR, ACTIONS),
    "in an ensemble": lambda: EnsembleReward(
        RewardEnsemble(VECTOR, ACTIONS, RewardModelSettings(network=Counting, ensemble_size=2))
    ),
}


@pytest.mark.parametrize("kind", KEEPING_STATE)
def test_a_part_of_a_users_own_keeps_its_state(kind):
    torch.manual_seed(0)
    reward = KEEPING_STATE[kind]()
    steps, other = steps_in(), steps_in(seed=1, scale=9.0)
    first = reward.of(steps)
    reward.of(other)
    assert np.array_equal(reward.of(steps), first)


def test_an_ensemble_of_ours_does_not_move_in_training_either():
    made = RewardEnsemble(VECTOR, ACTIONS, RewardModelSettings(network=Counting, ensemble_size=1))
    steps, other = steps_in(), steps_in(seed=1, scale=9.0)
    arguments = [(of.observations, of.actions, of.next_observations, of.terminated) for of in (steps, other)]
    first = made.predict(*arguments[0])
    made.predict(*arguments[1])
    assert np.array_equal(made.predict(*arguments[0]), first)


# What they are given


def pure(observations, actions, next_observations, terminated):
    return np.maximum(next_observations[:, 1] - 0.1, 0) * 3.0 + (actions == 2) - 2.0 * terminated


def in_place(observations, actions, next_observations, terminated):
    next_observations -= np.float32(0.1)
    np.maximum(next_observations, 0, out=next_observations)
    observations[:] = 0
    value = next_observations[:, 1] * 3.0 + (actions == 2) - 2.0 * terminated
    actions[:], terminated[:] = 0, True
    return value


class Halving(torch.nn.Module):
    """A step network that works in place."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, observations, actions, next_observations, terminated):
        next_observations.mul_(0.5)
        actions.mul_(0)
        return (next_observations * self.weight).sum(-1) + terminated.logical_not_().float()


class HalvingNet(nets.RewardNet):
    """The same for imitation."""

    def __init__(self):
        super().__init__(VECTOR, ACTIONS)
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, state, action, next_state, done):
        next_state.mul_(0.5)
        return (next_state * self.weight).sum(-1)


def halved(observations, actions, next_observations, terminated):
    return 0.5 * next_observations.sum(1)


def kept(steps):
    return [np.array(getattr(steps, name)) for name in ("observations", "actions", "next_observations", "terminated")]


IN_PLACE = {
    "a function": (lambda: CallableReward(in_place, VECTOR, ACTIONS), pure),
    "a network": (
        lambda: EnsembleReward(RewardEnsemble(VECTOR, ACTIONS, RewardModelSettings(network=Halving, ensemble_size=3))),
        lambda *step: halved(*step) + 1.0 - step[3],
    ),
    "a network of imitation": (lambda: ImitationReward(HalvingNet()), halved),
    "its ensemble": (lambda: ImitationReward(ensemble(HalvingNet(), HalvingNet(), HalvingNet())), halved),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_a_reward_that_changes_its_inputs_is_the_reward_of_what_it_was_given(kind):
    make, right = IN_PLACE[kind]
    reward, steps = make(), steps_in()
    before = kept(steps)
    for _ in range(2):
        assert np.allclose(reward.of(steps), right(*before), atol=1e-5)
    if reward.differentiable:
        inputs = [each.requires_grad_() for each in reward.tensors(steps)]
        output = reward.forward(*inputs)
        assert np.allclose(output.detach().numpy(), right(*before), atol=1e-5)
        slope = torch.autograd.grad(output.sum(), inputs[2])[0]
        assert np.allclose(slope.numpy(), 0.5)
    assert all(np.array_equal(mine, now) for mine, now in zip(before, kept(steps), strict=True))


def test_a_shaped_reward_gets_the_potential_of_what_it_was_given():
    from rlhf_ray.reward.functions.shaped import LinearPotential

    potential = LinearPotential(np.array([1.0, 2.0, 0.0, -1.0]))
    made = [ShapedReward(CallableReward(f, VECTOR, ACTIONS), potential, 0.9) for f in (pure, in_place)]
    steps = steps_in()
    assert np.allclose(made[0].of(steps), made[1].of(steps))


def test_an_ensemble_leaves_a_callers_batch_alone():
    made = RewardEnsemble(VECTOR, TORQUES, RewardModelSettings(network=Halving, ensemble_size=2))
    steps = steps_in(actions=TORQUES)
    before = kept(steps)
    made.predict(steps.observations, steps.actions, steps.next_observations, steps.terminated)
    assert all(np.array_equal(mine, now) for mine, now in zip(before, kept(steps), strict=True))


LATER = gym.spaces.Discrete(4, start=2)
PICTURES = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
AT_ONCE = NUMBERS // (32 * 32 * 3)
SEEN: list[int] = []


class Watched(nn.Module):
    """Notes how many steps it sees in a pass; its reward is the picture's mean."""

    def __init__(self, observation_space: Any, action_space: Any):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, observations: Any, actions: Any, next_observations: Any, terminated: Any) -> Any:
        SEEN.append(len(observations))
        return self.scale * observations.flatten(1).float().mean(1)


@pytest.fixture(autouse=True)
def forgotten() -> None:
    SEEN.clear()


def pictures(n: int) -> tuple[Any, ...]:
    frames = np.random.default_rng(0).integers(0, 256, (n + 1, 32, 32, 3), np.uint8)
    return frames[:-1], np.full(n, 2), frames[1:], np.zeros(n, bool)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 100])
def test_passes_hold_each_step_once_and_in_order(n: int) -> None:
    space = gym.spaces.Box(0, 1, (NUMBERS // 8,))
    parts = passes(n, space)
    assert np.concatenate([np.arange(n)[part] for part in parts]).tolist() == list(range(n))
    assert all(part.stop - part.start == 8 for part in parts)


def test_a_step_larger_than_a_pass_is_a_pass() -> None:
    assert steps_at_once(gym.spaces.Box(0, 1, (NUMBERS + 1,))) == steps_at_once(gym.spaces.Discrete(3), 1) == 1


def test_a_network_of_a_users_own_predicts_and_fits_in_bounded_passes() -> None:
    settings = RewardModelSettings(network=f"{__name__}:Watched", ensemble_size=1)
    spaces: Any = {"observations": PICTURES, "actions": LATER}
    trainer = trainer_of(settings, some_comparisons(90, **spaces), **spaces)
    assert 2 * AT_ONCE < 2 * 5 * 90  # a batch of all is more than a pass
    trainer.fit(3)
    steps = pictures(3 * AT_ONCE + 1)
    assert max(SEEN) <= AT_ONCE
    SEEN.clear()
    rewards = trainer.ensemble.predict(*steps)
    assert SEEN == [AT_ONCE, AT_ONCE, AT_ONCE, 1]
    means = steps[0].reshape(len(steps[0]), -1).mean(1)
    np.testing.assert_allclose(np.corrcoef(rewards, means)[0, 1], 1.0, atol=1e-6)


def test_a_networks_fit_in_passes_is_the_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted() -> RewardEnsemble:
        torch.manual_seed(0)
        settings = RewardModelSettings(network=f"{__name__}:Watched", ensemble_size=2)
        spaces: Any = {"observations": PICTURES, "actions": LATER}
        trainer = trainer_of(settings, some_comparisons(20, **spaces), **spaces)
        trainer.fit(5)
        return trainer.ensemble

    whole = fitted()
    assert max(SEEN) == 200
    monkeypatch.setattr("rlhf_ray.reward.unmoved.NUMBERS", 20 * 32 * 32 * 3)
    SEEN.clear()
    cut = fitted()
    assert max(SEEN) == 20
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_a_function_and_a_network_of_imitations_predict_in_bounded_passes() -> None:
    steps = pictures(2 * AT_ONCE + 3)

    def brightness(observations: Any, *_: Any) -> Any:
        SEEN.append(len(observations))
        return observations.reshape(len(observations), -1).mean(1)

    rewards = CallableReward(brightness, PICTURES, LATER)(*steps)
    assert SEEN == [AT_ONCE, AT_ONCE, 3]
    np.testing.assert_array_equal(rewards, brightness(steps[0]))

    net = nets.CnnRewardNet(PICTURES, gym.spaces.Discrete(4))
    widths: list[int] = []
    reward = ImitationReward(net)
    reward.module.register_forward_hook(lambda _module, inputs, _output: widths.append(len(inputs[0])))
    predicted = reward(*steps)
    assert widths == [AT_ONCE, AT_ONCE, 3]
    np.testing.assert_allclose(predicted, net.predict_processed(*steps), rtol=1e-5, atol=1e-6)
