"""Rewards that are no functions of a step, and gradients of something else: planted, with the size of the difference known."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.reward.consistency import check_function, consistency, gradients_are_own
from rlhf_ray.interpret.reward.question import RewardQuestion
from rlhf_ray.interpret.reward.steps.header import function_checks
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward, ImitationReward, TorchReward
from tests.interpret.contexts import steps_of

SPACE, ACTIONS = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def data(space=SPACE, n=120):
    rng = np.random.default_rng(0)
    top = np.minimum(space.high, 255)
    seen = (rng.random((n + 1, *space.shape)) * (top - space.low) + space.low).astype(space.dtype)
    return steps_of(seen[:-1], seen[1:], actions=rng.integers(2, size=n), ends=rng.random(n) < 0.2)


def of_function(function):
    return CallableReward(function, SPACE, ACTIONS, "planted")


def with_module(*layers):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 16), *layers, torch.nn.Linear(16, 1)).train()

    def reward(observations, actions, next_observations, terminated):
        with torch.no_grad():
            return module(torch.as_tensor(observations)).squeeze(1).numpy()

    return reward, module


class Counting:
    """Adds a hundredth for each call before."""

    def __init__(self):
        self.calls = -1

    def __call__(self, observations, actions, next_observations, terminated):
        self.calls += 1
        return observations[:, 0] + 0.01 * self.calls


def in_place(observations, actions, next_observations, terminated):
    observations *= 2
    next_observations[:] = 0
    return observations[:, 0]


def test_a_function_is_one():
    steps = data()
    plain = consistency(of_function(lambda o, a, n, d: 1e8 + o[:, 0].astype(float) * 1e-3), steps)
    assert (plain.again, plain.alone, plain.elsewhere, plain.remembers, plain.fault) == (0.0, 0.0, 0.0, 0.0, "")
    assert plain.changes == ()
    check_function(of_function(lambda o, a, n, d: 0.0 * o[:, 0]), steps)


def test_random_numbers_are_told_when_it_is_asked_again():
    noisy = of_function(lambda o, a, n, d: o[:, 0] + np.random.standard_normal(len(o)))
    found = consistency(noisy, data())
    assert found.fault == "again"
    assert 1.0 < found.again < 10.0  # the noise is most of the reward; 64 differences of two draws
    said = "'planted' is not a function of a step: asked twice .* draw no random numbers"
    with pytest.raises(SettingError, match=said):
        check_function(noisy, data())


@pytest.mark.parametrize("layer", [torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(16)], ids=["dropout", "norm"])
def test_a_network_in_training_mode_is_told_by_its_layer_and_left_as_it_is(layer):
    function, module = with_module(layer)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = consistency(of_function(function), data())
    assert found.fault == "alone"
    assert found.training == (type(layer).__name__,)
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in before.items())
    with pytest.raises(SettingError, match=rf"in training mode: {type(layer).__name__}; call \.eval\(\)") as refusal:
        check_function(of_function(function), data())
    assert "\n" not in str(refusal.value)
    module.eval()
    assert consistency(of_function(function), data()).fault == ""


def test_what_depends_on_the_batch_is_told_with_its_size():
    steps = data()
    found = consistency(of_function(lambda o, a, n, d: o[:, 0] - o[:, 0].mean()), steps)
    assert found.fault == "alone"
    first = steps.observations[:, 0]
    assert found.alone == pytest.approx(np.abs(first).max() / first.std(), rel=0.1)


def test_what_remembers_or_changes_its_inputs_is_warned_of_and_explained_nevertheless():
    steps = data()
    found = consistency(of_function(Counting()), steps)
    assert found.fault == ""
    assert found.remembers == pytest.approx(0.01 / steps.observations[:, 0].std(), rel=0.01)
    before = steps.observations.copy()
    found = consistency(of_function(in_place), steps)
    assert found.changes == ("state", "next_state")
    assert found.fault == ""
    assert np.array_equal(steps.observations, before)
    assert [(check.name, check.passed) for check in function_checks(found)] == [
        ("the same step, the same reward", True),
        ("inputs stay as they are", None),
    ]


class Scaled(TorchReward):
    """The reward is clipped where it is used, and not in `forward`."""

    name, observation_space, action_space = "scaled", SPACE, ACTIONS

    def member_tensor(self, observations, actions, next_observations, terminated):
        return self.module(observations).squeeze(1)[None]


class Clipped(Scaled):
    def members(self, observations, actions, next_observations, terminated):
        return np.minimum(super().members(observations, actions, next_observations, terminated), 0.2)


class Failing(Scaled):
    def forward(self, observations, actions, next_observations, terminated):
        raise RuntimeError("no gradients here")


@pytest.mark.parametrize(("kind", "own"), [(Scaled, True), (Clipped, False), (Failing, False)])
def test_gradients_of_another_function_are_left_out(kind, own):
    torch.manual_seed(0)
    reward, steps = kind(torch.nn.Linear(3, 1)), data()
    assert gradients_are_own(reward, steps) == own
    why = RewardQuestion(reward, steps, Subject(reward, steps).regions).why_no_gradients()
    assert (why is None) == own


IMAGES = {
    "channels last": (gym.spaces.Box(0, 255, (12, 16, 3), np.uint8), True),
    "channels first": (gym.spaces.Box(0, 255, (3, 16, 12), np.uint8), False),
    "8 pixels": (gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), True),
    "up to 64": (gym.spaces.Box(0, 64, (8, 8, 3), np.uint8), None),
    "up to 1": (gym.spaces.Box(0, 1, (3, 8, 8), np.float32), None),
    "vectors": (SPACE, None),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_networks_of_imitation_are_explained_as_they_are_used(kind):
    nets = pytest.importorskip("imitation.rewards.reward_nets")
    norms = pytest.importorskip("imitation.util.networks")
    space, last = IMAGES[kind]

    def net():
        if last is None:
            return nets.BasicRewardNet(space, ACTIONS, use_next_state=True)
        return nets.CnnRewardNet(space, ACTIONS, hwc_format=last, use_next_state=True)

    def normalised():
        outer = nets.NormalizedRewardNet(net(), norms.RunningNorm)
        outer.normalize_output_layer.update_stats(torch.randn(50) * 3 + 2)
        return outer

    torch.manual_seed(0)
    ensemble = nets.RewardEnsemble(space, ACTIONS, [normalised() for _ in range(3)])
    steps = data(space, 40)
    arrays = steps.observations, steps.actions, steps.next_observations, steps.terminated
    for network in (net(), normalised(), ensemble, nets.AddSTDRewardWrapper(ensemble, default_alpha=-0.5)):
        reward = ImitationReward(network)
        found = consistency(reward, steps)
        assert (found.fault, found.training) == ("", ())
        with torch.no_grad():
            explained = reward.forward(*reward.tensors(steps)).numpy()
        assert np.allclose(explained, reward.of(steps), atol=1e-4)
        assert reward.inputs == {"state", "action", "next_state"}
        assert np.allclose(reward.of(steps), network.predict_processed(*arrays, update_stats=False), atol=1e-6)


def test_rewards_that_are_not_finite_are_counted():
    states = np.arange(120, dtype=np.float32).reshape(40, 3)
    reward = of_function(lambda o, a, p, d: np.where(o[:, 0] % 30 == 9, np.nan, o[:, 1]))
    with pytest.raises(SettingError, match="on 4 of 40 steps, the first of them number 3 "):
        check_function(reward, steps_of(states))
