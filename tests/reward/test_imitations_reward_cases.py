"""The cases of imitation's tests of reward nets, run through the adapters: our reward as its ``RewardNet``, its nets as ours.

After tests/rewards/test_reward_nets.py and test_reward_wrapper.py of imitation 1.0.1.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.functions import load_reward
from rlhf_ray.reward.networks import make_network
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import CHOICES, FORCES, some_comparisons

nets = pytest.importorskip("imitation.rewards.reward_nets", reason="the extra 'imitation'")
norms = pytest.importorskip("imitation.util.networks")
serialize = pytest.importorskip("imitation.rewards.serialize")
theirs = pytest.importorskip("imitation.testing.reward_nets")

from rlhf_ray.reward.functions.reward_net import LearnedRewardNet  # noqa: E402 (needs imitation)

ENV2D = (gym.spaces.Box(-1.0, 1.0, (5, 5)), gym.spaces.Discrete(2))
PICTURES = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
SPACES: dict[str, tuple[gym.spaces.Box, gym.Space[Any]]] = {
    "CartPole-v1": (gym.make("CartPole-v1").observation_space, gym.make("CartPole-v1").action_space),  # type: ignore[dict-item]
    "Pendulum-v1": (gym.make("Pendulum-v1").observation_space, gym.make("Pendulum-v1").action_space),  # type: ignore[dict-item]
    "Env2D": ENV2D,
    "several choices": (gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.MultiDiscrete([2, 3])),
    "images, choices": (PICTURES, CHOICES),
    "images, forces": (PICTURES, FORCES),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "input norm": {"normalize_inputs": "running"},
    "EMA input norm": {"normalize_inputs": "ema"},
    "dropout": {"use_next_state": True, "dropout": 0.3},
    "done": {"use_done": True},
    "shaped": {"network": "shaped"},
    "states alone": {"use_action": False, "ensemble_size": 1},
    "deviation": {"deviation_weight": -0.5},
}
"""Settings of ours for their ``REWARD_NET_KWARGS`` and ``MAKE_REWARD_NET``."""

ZEROS = (np.zeros((10, 5, 5)), np.zeros((10, 1), int), np.zeros((10, 5, 5)), np.zeros(10, bool))
"""Their ``numpy_transitions``: float64 states, and Discrete actions with an axis too many."""


def learned(spaces: tuple[gym.spaces.Box, gym.Space[Any]], seed: int = 0, **options: Any) -> LearnedRewardNet:
    """A reward of ours as their net, with normalisers that are not 0 and 1."""
    torch.manual_seed(seed)
    model = RewardEnsemble(*spaces, RewardModelSettings(**{"hidden": (3,), "ensemble_size": 3, **options}))
    model.reward_mean += 0.3 + seed
    model.reward_std *= 2.0
    return LearnedRewardNet(model)


def steps_in(spaces: tuple[gym.Space[Any], gym.Space[Any]], n: int = 10) -> tuple[Any, ...]:
    for space in spaces:
        space.seed(0)
    states, later = (np.array([spaces[0].sample() for _ in range(n)]) for _ in range(2))
    return states, np.array([spaces[1].sample() for _ in range(n)]), later, np.arange(n) % 3 == 0


def numbers_of(net: LearnedRewardNet) -> LearnedRewardNet:
    """A net whose members return the numbers that their output bias has."""
    with torch.no_grad():
        for each in net.parameters():
            each.zero_()
    net.ensemble.reward_mean.zero_()
    net.ensemble.reward_std.fill_(1.0)
    return net


def constant(*values: float) -> LearnedRewardNet:
    """A net with one member per value, which returns it everywhere (their ``MockRewardNet``)."""
    net = numbers_of(learned(ENV2D, ensemble_size=len(values), normalize_inputs="none"))
    net.ensemble.reward_mean -= torch.tensor(values)
    return net


@pytest.mark.parametrize("spaces", SPACES)
@pytest.mark.parametrize("options", OPTIONS)
def test_reward_valid(options: str, spaces: str) -> None:
    net, steps = learned(SPACES[spaces], **OPTIONS[options]), steps_in(SPACES[spaces])
    wanted = net.ensemble.predict(*steps)
    assert wanted.std() > 0
    for predict in (net.predict, net.predict_processed):
        rewards = predict(*steps)
        assert isinstance(rewards, np.ndarray)
        assert (rewards.shape, rewards.dtype) == ((10,), np.float32)
        np.testing.assert_allclose(rewards, wanted, rtol=1e-5)
    rewards = net.predict_th(*steps)
    assert isinstance(rewards, torch.Tensor)
    assert not rewards.requires_grad
    np.testing.assert_allclose(rewards, wanted, rtol=1e-5)
    forward = net(*net.preprocess(*steps))
    assert (forward.shape, forward.requires_grad) == ((10,), True)
    np.testing.assert_allclose(forward.detach(), wanted, rtol=1e-3, atol=1e-5)
    normed = nets.NormalizedRewardNet(net, norms.RunningNorm)
    np.testing.assert_allclose(normed.predict(*steps), wanted, rtol=1e-5)
    normed.predict_processed(*steps, update_stats=True)  # from here on, the statistics are those of the batch
    last = normed.predict_processed(*steps, update_stats=False)
    np.testing.assert_allclose(last, (wanted - wanted.mean()) / np.sqrt(wanted.var() + 1e-5), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spaces", SPACES)
@pytest.mark.parametrize("normalised", [True, False])
def test_serialize_identity(spaces: str, normalised: bool, tmp_path: Path) -> None:
    net: Any = learned(SPACES[spaces])
    if normalised:
        net = nets.NormalizedRewardNet(net, norms.RunningNorm)
        net.predict_processed(*steps_in(SPACES[spaces]))
    torch.save(net, tmp_path / "reward.pt")
    loaded = torch.load(tmp_path / "reward.pt", weights_only=False)
    assert (loaded.observation_space, loaded.action_space) == SPACES[spaces]
    steps = steps_in(SPACES[spaces])
    np.testing.assert_array_equal(loaded.predict(*steps), net.predict(*steps))
    np.testing.assert_array_equal(
        loaded.predict_processed(*steps, update_stats=False), net.predict_processed(*steps, update_stats=False)
    )
    copied: Any = learned(SPACES[spaces], seed=1)
    copied.load_state_dict((net.base if normalised else net).state_dict())
    np.testing.assert_array_equal(copied.predict(*steps), net.predict(*steps))


@pytest.mark.parametrize(
    "kind", ["RewardNet_normalized", "RewardNet_unnormalized", "RewardNet_unshaped", "RewardNet_shaped"]
)
def test_their_load_reward_reads_it(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", partial(torch.load, weights_only=False))  # imitation 1.0.1 relies on it
    net, steps = learned(ENV2D), steps_in(ENV2D)
    wanted = net.predict(*steps)
    whole: Any = net
    if "normalized" in kind:
        whole = nets.NormalizedRewardNet(net, norms.RunningNorm)
        whole.predict_processed(*steps)
    if kind == "RewardNet_shaped":
        whole = nets.ShapedRewardNet(net, nets.BasicPotentialMLP(ENV2D[0], (8,)), 0.99)
    torch.save(whole, tmp_path / "reward.pt")
    found = serialize.load_reward(kind, str(tmp_path / "reward.pt"), mock.Mock())(*steps)
    assert found.shape == (10,)
    if kind in ("RewardNet_unnormalized", "RewardNet_unshaped"):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    else:
        np.testing.assert_allclose(found, whole.predict_processed(*steps, update_stats=False), rtol=1e-5)
        assert np.abs(found - wanted).max() > 1e-3


def test_zeros_as_their_tests_give_them() -> None:
    net = learned(ENV2D)
    assert net.predict(*ZEROS).shape == (10,)
    flat = (ZEROS[0], ZEROS[1][:, 0], *ZEROS[2:])
    np.testing.assert_array_equal(net.predict(*ZEROS), net.predict(*flat))
    np.testing.assert_allclose(net(*net.preprocess(*ZEROS)).detach(), net.predict(*flat), rtol=1e-4)
    mean, variance = net.predict_reward_moments(*ZEROS)
    assert mean.shape == variance.shape == (10,)


def test_reward_ensemble_predict_reward_moments() -> None:
    for make in (lambda *of: nets.RewardEnsemble(*ENV2D, [constant(value) for value in of]), constant):
        mean, variance = make(0.0, 0.0).predict_reward_moments(*ZEROS)
        assert not mean.any()
        assert not variance.any()
        mean, variance = make(3.0, -1.0).predict_reward_moments(*ZEROS)
        np.testing.assert_allclose(mean, 1)
        np.testing.assert_allclose(variance, 8)  # unbiased


def test_ensemble_errors_if_there_are_too_few_members() -> None:
    for members in range(2):
        with pytest.raises(ValueError, match="at least 2"):
            nets.RewardEnsemble(*ENV2D, [constant(0.0) for _ in range(members)])
    mean, variance = constant(2.0).predict_reward_moments(*ZEROS)  # ours may have one
    np.testing.assert_allclose(mean, 2)
    assert not variance.any()


@pytest.mark.parametrize("inside", [True, False])
def test_add_std_reward_wrapper(inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = constant(3.0, -1.0) if inside else nets.RewardEnsemble(*ENV2D, [constant(3.0), constant(-1.0)])
    wrapped = nets.AddSTDRewardWrapper(net, default_alpha=0.1)
    np.testing.assert_allclose(wrapped.predict_processed(*ZEROS), 1 + 0.1 * np.sqrt(8), rtol=1e-6)
    np.testing.assert_allclose(wrapped.predict_processed(*ZEROS, alpha=-0.5), 1 - 0.5 * np.sqrt(8), rtol=1e-6)
    np.testing.assert_allclose(wrapped.predict(*ZEROS), 1, rtol=1e-6)
    monkeypatch.setattr(torch, "load", partial(torch.load, weights_only=False))
    torch.save(wrapped, tmp_path / "reward.pt")
    loaded = serialize.load_reward("RewardNet_std_added", str(tmp_path / "reward.pt"), mock.Mock(), alpha=-0.5)
    np.testing.assert_allclose(loaded(*ZEROS), 1 - 0.5 * np.sqrt(8), rtol=1e-6)


def test_shaped_reward_net() -> None:
    shaped = nets.ShapedRewardNet(constant(0.0), lambda states: torch.full((len(states),), 10.0), 0.9)
    forward = shaped(*shaped.preprocess(*ZEROS))
    for rewards in (
        forward.detach(),
        shaped.predict_th(*ZEROS),
        shaped.predict(*ZEROS),
        shaped.predict_processed(*ZEROS),
    ):
        np.testing.assert_allclose(rewards, -1, rtol=1e-6)
    ended = (*ZEROS[:3], np.ones(10, bool))  # the potential after the end is 0
    np.testing.assert_allclose(shaped.predict(*ended), -10, rtol=1e-6)


def test_forward_wrapper_cannot_be_applied_predict_processed_wrapper() -> None:
    with pytest.raises(ValueError, match="ForwardWrapper cannot be applied on top of PredictProcessedWrapper"):
        nets.ShapedRewardNet(nets.NormalizedRewardNet(constant(0.0), norms.RunningNorm), torch.nn.Identity(), 0.99)


def test_predict_processed_takes_the_wrappers_arguments() -> None:
    net = learned(ENV2D)
    np.testing.assert_array_equal(net.predict_processed(*ZEROS, update_stats=True, foobar=42), net.predict(*ZEROS))
    normed = nets.NormalizedRewardNet(net, norms.RunningNorm)
    assert normed.predict_processed(*ZEROS, foobar=42).shape == (10,)
    assert (normed.device, normed.dtype) == (net.device, net.dtype) == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("layer", ["none", "running"])
def test_training_regression(layer: str) -> None:
    net = learned(SPACES["CartPole-v1"], normalize_inputs=layer)
    normed = nets.NormalizedRewardNet(net, norms.RunningNorm)
    optimizer = torch.optim.SGD(normed.parameters(), lr=1e-3)
    steps = steps_in(SPACES["CartPole-v1"], 100)
    steps = (np.clip(steps[0], -3, 3), steps[1], np.clip(steps[2], -3, 3), steps[3])
    targets, losses = torch.as_tensor(steps[0][:, 0]), []
    normed.predict_processed(*steps)  # the first call has no statistics yet
    for _ in range(20):
        rewards = normed(*normed.preprocess(*steps))
        np.testing.assert_allclose(rewards.detach(), normed.predict(*steps), rtol=1e-3, atol=1e-4)
        assert not np.allclose(normed.predict_processed(*steps), normed.predict(*steps), atol=1e-3)
        loss = ((rewards - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


THEIR_SPACES = {name: SPACES[name] for name in ("CartPole-v1", "Pendulum-v1", "Env2D", "several choices")}
MAKE: dict[str, Any] = {
    "BasicRewardNet": partial(nets.BasicRewardNet, hid_sizes=(3,)),
    "BasicShapedRewardNet": partial(nets.BasicShapedRewardNet, reward_hid_sizes=(3,), potential_hid_sizes=(3,)),
    "make_ensemble": partial(theirs.make_ensemble, num_members=2, hid_sizes=(3,)),
}
"""Their ``MAKE_REWARD_NET``."""
KWARGS: tuple[dict[str, Any], ...] = (
    {},
    {"normalize_input_layer": norms.RunningNorm},
    {"normalize_input_layer": norms.EMANorm},
    {"use_next_state": True, "dropout_prob": 0.3},
    {"use_done": True},
)
IMAGE_KWARGS: tuple[dict[str, Any], ...] = (
    {},
    {"use_next_state": True, "use_action": False},
    {"dropout_prob": 0.3},
    {"use_done": True, "use_action": True},
    {"use_done": True, "use_action": False},
)
MADE: list[Any] = []
"""What `their_net` returns."""


def their_net(observation_space: Any, action_space: Any) -> Any:
    """Make the net of the case, as a function of the user's own does."""
    return MADE[0](observation_space, action_space)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__(__name__))


def check_as_ours(make: Any, spaces: tuple[gym.spaces.Box, gym.Space[Any]], normalised: bool, tmp_path: Path) -> None:
    """Their net as our network gives what theirs predicts, learns, is saved and comes back."""

    def made(*of: Any) -> Any:
        net = make(*of)
        ensemble = hasattr(net, "members")
        return nets.NormalizedRewardNet(net, norms.RunningNorm) if normalised and not ensemble else net

    MADE[:] = [made]
    settings = RewardModelSettings(network=f"{__name__}:their_net", ensemble_size=2, learning_rate=1e-3)
    torch.manual_seed(0)
    model = RewardEnsemble(*spaces, settings)
    steps = steps_in(spaces)
    inner = [each.net for each in model.networks.networks]
    wanted = np.stack([net.predict(*steps) for net in inner])
    arguments = [torch.as_tensor(of) for of in steps]
    np.testing.assert_allclose(model.member_rewards(*arguments), wanted, rtol=1e-4, atol=1e-6)
    assert not np.allclose(wanted[0], wanted[1])
    trainer = RewardTrainer(settings, *spaces, held_out_share=0.0, seed=0)
    batch = some_comparisons(8, 3, observations=spaces[0], actions=spaces[1])
    trainer.comparisons.add(batch)
    before = trainer.ensemble.state()
    trainer.fit(3)
    assert any(
        not np.array_equal(before[name], value) for name, value in trainer.ensemble.state().items() if "weight" in name
    )
    trainer.ensemble.save(tmp_path)
    rewards = trainer.ensemble.predict(*steps)
    np.testing.assert_array_equal(RewardEnsemble.load(tmp_path).predict(*steps), rewards)
    np.testing.assert_allclose(
        LearnedRewardNet(trainer.ensemble).predict_processed(*steps), rewards, rtol=1e-6
    )  # and back


@pytest.mark.parametrize("kwargs", range(len(KWARGS)))
@pytest.mark.parametrize("make", MAKE)
def test_their_nets_serve_here(make: str, kwargs: int, tmp_path: Path) -> None:
    for number, spaces in enumerate(THEIR_SPACES):
        check_as_ours(partial(MAKE[make], **KWARGS[kwargs]), THEIR_SPACES[spaces], number % 2 == 0, tmp_path / spaces)


def test_fits_of_nets_with_dropout_repeat() -> None:
    """The masks come from the trainer's own generator: a resumed run draws the same, whatever else draws from torch's."""
    MADE[:] = [partial(nets.BasicRewardNet, hid_sizes=(30,), dropout_prob=0.5)]
    fitted = []
    for seed in (0, 1):
        torch.manual_seed(5)
        settings = RewardModelSettings(network=f"{__name__}:their_net", ensemble_size=1)
        trainer = RewardTrainer(settings, *ENV2D, held_out_share=0.0, seed=0)
        trainer.comparisons.add(some_comparisons(8, 3, observations=ENV2D[0], actions=ENV2D[1]))
        torch.manual_seed(seed)
        trainer.fit(3)
        fitted.append(trainer.ensemble.predict(*ZEROS))
    np.testing.assert_array_equal(*fitted)


@pytest.mark.parametrize("kwargs", range(len(IMAGE_KWARGS)))
def test_their_cnns_serve_here(kwargs: int, tmp_path: Path) -> None:
    make = partial(
        nets.CnnRewardNet, hid_channels=(3, 3, 3), kernel_size=3, padding=0, stride=3, **IMAGE_KWARGS[kwargs]
    )
    check_as_ours(make, (PICTURES, CHOICES), kwargs % 2 == 0, tmp_path)


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (gym.spaces.Box(0, 255, (36, 36, 3), np.float32), CHOICES),
        (gym.spaces.Box(0, 254, (36, 36, 3), np.uint8), CHOICES),
        (gym.spaces.Box(1, 255, (36, 36, 3), np.uint8), CHOICES),
        (gym.spaces.Box(0, 255, (36, 36), np.uint8), CHOICES),
        (PICTURES, gym.spaces.MultiDiscrete([2, 2])),
    ],
)
def test_cnn_reward_net_input_validation(space: gym.spaces.Box, actions: gym.Space[Any]) -> None:
    settings = RewardModelSettings(network="imitation.rewards.reward_nets:CnnRewardNet")
    with pytest.raises(
        SettingError, match=r"reward_model\.network is 'imitation\.rewards\.reward_nets:CnnRewardNet'"
    ) as raised:
        make_network(space, actions, settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("wrapped", [True, False])
def test_their_saved_rewards_are_read(wrapped: bool, tmp_path: Path) -> None:
    """Their ``test_serialize_identity``, with our ``load_reward``, which runs no code from the file."""
    for name, spaces in THEIR_SPACES.items():
        net = nets.BasicRewardNet(*spaces, hid_sizes=(3,), normalize_input_layer=norms.RunningNorm)
        whole = nets.NormalizedRewardNet(net, norms.RunningNorm) if wrapped else net
        steps = steps_in(spaces)
        whole.predict_processed(*steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(whole, tmp_path / f"{name}.pt")
        found = load_reward(tmp_path / f"{name}.pt")
        with torch.no_grad():
            whole.eval()
            wanted = whole.predict_processed(*steps, update_stats=False)
        np.testing.assert_allclose(found(*steps), wanted, rtol=1e-5, atol=1e-6)
