"""Reward networks of imitation as ours, and ours as theirs: the numbers are those of the other side's own calls.

The cases are those of its tests/rewards/test_reward_nets.py and test_reward_wrapper.py (imitation 1.0.1).
"""

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.likelihood import log_likelihood_loss
from rlhf_ray.reward.networks import make_network
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_comparisons, some_fragments, steps_of
from tests.reward.fits import trainer_of

nets = pytest.importorskip("imitation.rewards.reward_nets", reason="the extra 'imitation'")
norms = pytest.importorskip("imitation.util.networks")
serialize = pytest.importorskip("imitation.rewards.serialize")
pc = pytest.importorskip("imitation.algorithms.preference_comparisons")

from rlhf_ray.reward.functions.reward_net import LearnedRewardNet  # noqa: E402 (needs imitation)
from tests.queries.test_imitations_preference_cases import pairs_of  # noqa: E402

LATER = gym.spaces.Discrete(4, start=2)
NETS = "imitation.rewards.reward_nets:"


def normed(observation_space: Any, action_space: Any) -> Any:
    return nets.BasicRewardNet(observation_space, action_space, normalize_input_layer=norms.RunningNorm)


def normalised(observation_space: Any, action_space: Any) -> Any:
    return nets.NormalizedRewardNet(normed(observation_space, action_space), norms.EMANorm)


def ensemble(observation_space: Any, action_space: Any, alpha: float = 0.0) -> Any:
    of = [nets.BasicRewardNet(observation_space, action_space, use_done=True) for _ in range(3)]
    return nets.AddSTDRewardWrapper(nets.RewardEnsemble(observation_space, action_space, of), default_alpha=alpha)


def optimistic(observation_space: Any, action_space: Any) -> Any:
    return ensemble(observation_space, action_space, 1.0)


def with_dropout(observation_space: Any, action_space: Any) -> Any:
    return nets.BasicRewardNet(observation_space, action_space, hid_sizes=(30,), dropout_prob=0.5)


class Custom(nets.RewardNet):  # type: ignore[misc, name-defined]
    """As somebody writes it for imitation: it relies on one-hot actions."""

    def __init__(self, observation_space: Any, action_space: Any):
        super().__init__(observation_space, action_space)
        self.layer = nn.Linear(4, 1)

    def forward(self, state: Any, action: Any, next_state: Any, done: Any) -> Any:
        return self.layer(action).squeeze(-1) + next_state.flatten(1).sum(1)


KINDS: dict[str, tuple[str, gym.spaces.Box, gym.Space[Any]]] = {
    "basic": (f"{NETS}BasicRewardNet", VECTORS, FORCES),
    "basic, choices": (f"{NETS}BasicRewardNet", VECTORS, LATER),
    "cnn": (f"{NETS}CnnRewardNet", IMAGES, LATER),
    "basic on images": (f"{NETS}BasicRewardNet", IMAGES, FORCES),
    "shaped": (f"{NETS}BasicShapedRewardNet", VECTORS, LATER),
    "input norm": (f"{__name__}:normed", VECTORS, FORCES),
    "output norm": (f"{__name__}:normalised", VECTORS, FORCES),
    "ensemble": (f"{__name__}:ensemble", VECTORS, LATER),
    "a user's own": (f"{__name__}:Custom", VECTORS, LATER),
}


def settings_for(name: str, **changes: Any) -> RewardModelSettings:
    return RewardModelSettings(network=name, ensemble_size=3, **changes)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this file importable by name, as a user's own module is."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__(__name__))


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_gives_what_imitation_predicts(kind: str) -> None:
    name, observations, actions = KINDS[kind]
    network = make_network(observations, actions, settings_for(name))
    assert len(network.networks) == 3
    clips = some_fragments(4, observations=observations, actions=actions)
    with torch.no_grad():
        rewards = network(network.encode(*map(torch.as_tensor, (clips.observations, clips.actions, clips.terminated))))
    start = 2 if actions is LATER else 0
    wanted = np.stack([each.net.predict(*steps_of(clips, start)) for each in network.networks])
    np.testing.assert_allclose(rewards.flatten(1).numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert np.std(wanted) > 0


@pytest.mark.parametrize("kind", ["basic, choices", "input norm", "ensemble"])
def test_it_learns_from_comparisons_is_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    name, observations, actions = KINDS[kind]
    batch = some_comparisons(60, observations=observations, actions=actions)
    trainer = trainer_of(settings_for(name, learning_rate=3e-3), batch, observations=observations, actions=actions)
    report = trainer.fit(150)
    assert report.train_accuracy > 0.9
    before = trainer.ensemble.state()
    arguments = steps_of(batch.pairs.left)
    rewards = trainer.ensemble.predict(*arguments)
    assert all(np.array_equal(value, before[of]) for of, value in trainer.ensemble.state().items())
    if kind == "input norm":  # the statistics are those of the fragments, whose values are not zeros
        assert 0.5 < before["networks.networks.0.net.mlp.normalize_input.running_var"][:3].mean() < 2
    trainer.ensemble.save(tmp_path / "reward")
    np.testing.assert_array_equal(RewardEnsemble.load(tmp_path / "reward").predict(*arguments), rewards)


def test_fits_of_nets_with_dropout_repeat() -> None:
    """The masks come from the trainer's own generator: a resumed run draws the same, whatever else draws from torch's."""
    fitted = []
    batch = some_comparisons(8, 3)
    for seed in (0, 1):
        torch.manual_seed(5)
        trainer = trainer_of(settings_for(f"{__name__}:with_dropout"), batch)
        torch.manual_seed(seed)
        trainer.fit(3)
        fitted.append(trainer.ensemble.predict(*steps_of(batch.pairs.left)))
    np.testing.assert_array_equal(*fitted)


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        (f"{__name__}:ensemble", 2, r"ensemble of 3, but reward_model.ensemble_size is 2: set it to 3"),
        (f"{__name__}:optimistic", 3, r"adds 1 standard deviations, but .*: set it to 1.225"),
        (f"{NETS}NormalizedRewardNet", 3, "making it raised TypeError"),
    ],
)
def test_an_ensemble_of_another_size_or_deviation_gets_the_remedy(name: str, size: int, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        make_network(VECTORS, FORCES, RewardModelSettings(network=name, ensemble_size=size))


PICTURES = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)


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
    with pytest.raises(SettingError, match=rf"reward_model\.network is '{NETS}CnnRewardNet'") as raised:
        make_network(space, actions, settings_for(f"{NETS}CnnRewardNet"))
    assert "\n" not in str(raised.value)


def of_env(name: str) -> tuple[Any, Any]:
    env = gym.make(name)
    return env.observation_space, env.action_space


SPACES: dict[str, tuple[gym.spaces.Box, gym.Space[Any]]] = {
    "CartPole-v1": of_env("CartPole-v1"),
    "Pendulum-v1": of_env("Pendulum-v1"),
    "Env2D": (gym.spaces.Box(-1.0, 1.0, (5, 5)), gym.spaces.Discrete(2)),
    "later choices": (VECTORS, LATER),
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


def learned(spaces: tuple[gym.spaces.Box, gym.Space[Any]], **options: Any) -> LearnedRewardNet:
    """A reward of ours as their net, with normalisers that are not 0 and 1."""
    torch.manual_seed(0)
    model = RewardEnsemble(*spaces, RewardModelSettings(**{"hidden": (3,), "ensemble_size": 3, **options}))
    model.reward_mean += 0.3
    model.reward_std *= 2.0
    return LearnedRewardNet(model)


def steps_in(spaces: tuple[gym.Space[Any], gym.Space[Any]], n: int = 10) -> tuple[Any, ...]:
    for space in spaces:
        space.seed(0)
    states, later = (np.array([spaces[0].sample() for _ in range(n)]) for _ in range(2))
    return states, np.array([spaces[1].sample() for _ in range(n)]), later, np.arange(n) % 3 == 0


@pytest.mark.parametrize("spaces", SPACES)
@pytest.mark.parametrize("options", OPTIONS)
def test_our_reward_is_a_reward_net(options: str, spaces: str) -> None:
    net, steps = learned(SPACES[spaces], **OPTIONS[options]), steps_in(SPACES[spaces])
    wanted = net.ensemble.predict(*steps)
    assert wanted.std() > 0
    for predict in (net.predict, net.predict_processed):
        rewards = predict(*steps)
        assert (type(rewards), rewards.shape, rewards.dtype) == (np.ndarray, (10,), np.float32)
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


def test_its_moments_are_those_over_the_members() -> None:
    net, steps = learned(SPACES["Pendulum-v1"]), steps_in(SPACES["Pendulum-v1"])
    mean, variance = net.predict_reward_moments(*steps)
    members = net.ensemble.member_rewards(*map(torch.as_tensor, steps)).numpy()
    np.testing.assert_allclose(variance, members.var(0, ddof=1), rtol=1e-4, atol=1e-7)
    above = nets.AddSTDRewardWrapper(net, default_alpha=2.0).predict_processed(*steps)
    np.testing.assert_allclose(above, mean + 2 * np.sqrt(variance), rtol=1e-5)


@pytest.mark.parametrize(
    "kind", ["RewardNet_normalized", "RewardNet_unnormalized", "RewardNet_unshaped", "RewardNet_shaped"]
)
def test_their_load_reward_reads_it(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", partial(torch.load, weights_only=False))  # imitation 1.0.1 relies on it
    spaces = SPACES["Env2D"]
    net, steps = learned(spaces), steps_in(spaces)
    wanted = net.predict(*steps)
    whole: Any = net
    if "normalized" in kind:
        whole = nets.NormalizedRewardNet(net, norms.RunningNorm)
        whole.predict_processed(*steps)
    if kind == "RewardNet_shaped":
        whole = nets.ShapedRewardNet(net, nets.BasicPotentialMLP(spaces[0], (8,)), 0.99)
    torch.save(whole, tmp_path / "reward.pt")
    found = serialize.load_reward(kind, str(tmp_path / "reward.pt"), mock.Mock())(*steps)
    if kind in ("RewardNet_unnormalized", "RewardNet_unshaped"):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    else:
        np.testing.assert_allclose(found, whole.predict_processed(*steps, update_stats=False), rtol=1e-5)
        assert np.abs(found - wanted).max() > 1e-3


@pytest.mark.parametrize(("noise", "discount"), [(0.0, 1.0), (0.1, 1.0), (0.0, 0.8), (0.3, 0.9)])
def test_the_loss_of_a_network_of_imitation_is_imitations(noise: float, discount: float) -> None:
    model = RewardEnsemble(VECTORS, FORCES, settings_for(f"{NETS}BasicRewardNet", discount=discount))
    batch = some_comparisons(9)
    returns = [torch.as_tensor(model.fragment_returns(of)) for of in (batch.pairs.left, batch.pairs.right)]
    ours = log_likelihood_loss(returns[0] - returns[1], torch.as_tensor(batch.preferences), noise).mean(1)
    pairs = pairs_of(batch.pairs)
    for member, loss in zip(model.networks.networks, ours.tolist(), strict=True):
        theirs = pc.PreferenceModel(member.net, noise_prob=noise, discount_factor=discount)
        with torch.no_grad():
            wanted = float(pc.CrossEntropyRewardLoss().forward(pairs, batch.preferences, theirs).loss)
        assert loss == pytest.approx(wanted, rel=1e-4)


def test_imitation_trains_our_reward_and_its_environments_take_it() -> None:
    from imitation.rewards.reward_wrapper import RewardVecEnvWrapper
    from stable_baselines3.common.vec_env import DummyVecEnv

    observations, actions = SPACES["Pendulum-v1"]
    net = learned((observations, actions), hidden=(64, 64), ensemble_size=1)
    batch = some_comparisons(40, observations=observations, actions=actions)
    dataset = pc.PreferenceDataset()
    pairs = pairs_of(batch.pairs)
    dataset.push(pairs, batch.preferences)
    preferences = pc.PreferenceModel(net)
    loss = pc.CrossEntropyRewardLoss()
    before = loss.forward(pairs, batch.preferences, preferences).loss.item()
    chances = preferences(pairs)[0].detach().numpy()
    returns = [
        net.predict(*steps_of(of)).reshape(of.rewards.shape).sum(1) for of in (batch.pairs.left, batch.pairs.right)
    ]
    np.testing.assert_allclose(chances, 1 / (1 + np.exp(returns[1] - returns[0])), rtol=1e-3)
    pc.BasicRewardTrainer(preferences, loss, rng=np.random.default_rng(0), epochs=10, lr=1e-2).train(dataset)
    assert loss.forward(pairs, batch.preferences, preferences).loss.item() < 0.8 * before
    for function in (net.predict_processed, net.ensemble.predict):  # as a network, and as a plain function
        venv = RewardVecEnvWrapper(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), function)
        first = venv.reset()
        second, rewards, dones, _ = venv.step(np.zeros((1, 1), np.float32))
        np.testing.assert_allclose(rewards, function(first, np.zeros((1, 1), np.float32), second, dones), rtol=1e-6)
