"""The cases of imitation's tests of reward nets, run through the adapters: our reward as its ``RewardNet``, its nets as ours.

After tests/rewards/test_reward_nets.py and test_reward_wrapper.py of imitation 1.0.1.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.networks import make_network
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import CHOICES, FORCES, some_comparisons

nets = pytest.importorskip("imitation.rewards.reward_nets", reason="the extra 'imitation'")
norms = pytest.importorskip("imitation.util.networks")
serialize = pytest.importorskip("imitation.rewards.serialize")

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


MADE: list[Any] = []
"""What `their_net` returns."""


def their_net(observation_space: Any, action_space: Any) -> Any:
    """Make the net of the case, as a function of the user's own does."""
    return MADE[0](observation_space, action_space)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__(__name__))


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
