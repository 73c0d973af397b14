"""Reward networks of imitation as ours, and ours as theirs: the numbers are those of the other side's own calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlhf_ray.data.fragments import Fragments
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.likelihood import log_likelihood_loss
from rlhf_ray.reward.networks import make_network
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import FORCES, IMAGES, VECTORS, some_comparisons, some_fragments

nets = pytest.importorskip("imitation.rewards.reward_nets", reason="the extra 'imitation'")
norms = pytest.importorskip("imitation.util.networks")

LATER = gym.spaces.Discrete(4, start=2)
NETS = "imitation.rewards.reward_nets:"


def normed(observation_space: Any, action_space: Any) -> Any:
    return nets.BasicRewardNet(observation_space, action_space, normalize_input_layer=norms.RunningNorm)


def normalised(observation_space: Any, action_space: Any) -> Any:
    return nets.NormalizedRewardNet(normed(observation_space, action_space), norms.EMANorm)


def ensemble(observation_space: Any, action_space: Any) -> Any:
    of = [nets.BasicRewardNet(observation_space, action_space, use_done=True) for _ in range(3)]
    return nets.AddSTDRewardWrapper(nets.RewardEnsemble(observation_space, action_space, of), default_alpha=0.0)


def optimistic(observation_space: Any, action_space: Any) -> Any:
    return nets.AddSTDRewardWrapper(ensemble(observation_space, action_space).base, default_alpha=1.0)


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


def steps_of(clips: Fragments, start: int = 0) -> tuple[Any, ...]:
    n, length = clips.rewards.shape
    done = np.zeros((n, length), bool)
    done[:, -1] = clips.terminated
    flat = (clips.observations[:, :-1], clips.actions - start, clips.observations[:, 1:], done)
    return tuple(of.reshape(n * length, *of.shape[2:]) for of in flat)


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
    trainer = RewardTrainer(settings_for(name, learning_rate=3e-3), observations, actions, held_out_share=0.0, seed=0)
    trainer.comparisons.add(batch)
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


def test_an_ensemble_of_another_size_or_deviation_gets_the_remedy() -> None:
    with pytest.raises(SettingError, match=r"ensemble of 3, but reward_model.ensemble_size is 2: set it to 3"):
        make_network(VECTORS, FORCES, RewardModelSettings(network=f"{__name__}:ensemble", ensemble_size=2))
    with pytest.raises(SettingError, match=r"adds 1 standard deviations, but .*: set it to 1.225"):
        make_network(VECTORS, FORCES, settings_for(f"{__name__}:optimistic"))
    with pytest.raises(SettingError, match="making it raised TypeError"):
        make_network(VECTORS, FORCES, settings_for(f"{NETS}NormalizedRewardNet"))


@pytest.fixture(params=[(VECTORS, FORCES), (VECTORS, LATER), (IMAGES, LATER)], ids=["forces", "choices", "images"])
def ours(request: Any) -> RewardEnsemble:
    torch.manual_seed(0)
    model = RewardEnsemble(*request.param, RewardModelSettings(use_next_state=True, use_done=True, ensemble_size=3))
    model.reward_mean += 0.3
    model.reward_std *= 2.0
    return model


def test_our_reward_is_a_reward_net(ours: RewardEnsemble) -> None:
    from rlhf_ray.reward.functions.reward_net import LearnedRewardNet

    net = LearnedRewardNet(ours)
    steps = steps_of(some_fragments(5, observations=ours.observation_space, actions=ours.action_space))
    wanted = ours.predict(*steps)
    assert isinstance(net, nets.RewardNet)
    for predict in (net.predict, net.predict_processed, nets.AddSTDRewardWrapper(net).predict_processed):
        np.testing.assert_allclose(predict(*steps), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(net.predict_th(*steps).numpy(), wanted)
    np.testing.assert_allclose(net(*net.preprocess(*steps)).detach().numpy(), wanted, rtol=1e-4, atol=1e-5)
    mean, variance = net.predict_reward_moments(*steps)
    members = ours.member_rewards(*map(torch.as_tensor, steps)).numpy()
    np.testing.assert_allclose(variance, members.var(0, ddof=1), rtol=1e-4, atol=1e-7)
    above = nets.AddSTDRewardWrapper(net, default_alpha=2.0).predict_processed(*steps)
    np.testing.assert_allclose(above, mean + 2 * np.sqrt(variance), rtol=1e-5)


def trajectories_of(clips: Fragments) -> list[Any]:
    """As imitation's fragments."""
    from imitation.data.types import TrajectoryWithRew

    arrays = (clips.observations, clips.actions, clips.terminated, clips.rewards)
    return [TrajectoryWithRew(o, a, None, bool(end), r) for o, a, end, r in zip(*arrays, strict=True)]


@pytest.mark.parametrize(("noise", "discount"), [(0.0, 1.0), (0.1, 1.0), (0.0, 0.8), (0.3, 0.9)])
def test_the_loss_of_a_network_of_imitation_is_imitations(noise: float, discount: float) -> None:
    pc = pytest.importorskip("imitation.algorithms.preference_comparisons")
    model = RewardEnsemble(VECTORS, FORCES, settings_for(f"{NETS}BasicRewardNet", discount=discount))
    batch = some_comparisons(9)
    returns = [torch.as_tensor(model.fragment_returns(of)) for of in (batch.pairs.left, batch.pairs.right)]
    ours = log_likelihood_loss(returns[0] - returns[1], torch.as_tensor(batch.preferences), noise).mean(1)
    pairs = list(zip(*(trajectories_of(of) for of in (batch.pairs.left, batch.pairs.right)), strict=True))
    for member, loss in zip(model.networks.networks, ours.tolist(), strict=True):
        theirs = pc.PreferenceModel(member.net, noise_prob=noise, discount_factor=discount)
        with torch.no_grad():
            wanted = float(pc.CrossEntropyRewardLoss().forward(pairs, batch.preferences, theirs).loss)
        assert loss == pytest.approx(wanted, rel=1e-4)


def test_imitation_trains_our_reward_and_its_environments_take_it() -> None:
    pc = pytest.importorskip("imitation.algorithms.preference_comparisons")
    from imitation.rewards.reward_wrapper import RewardVecEnvWrapper
    from stable_baselines3.common.vec_env import DummyVecEnv

    from rlhf_ray.reward.functions.reward_net import LearnedRewardNet

    env = gym.make("Pendulum-v1")
    torch.manual_seed(0)
    assert isinstance(env.observation_space, gym.spaces.Box)
    model = RewardEnsemble(env.observation_space, env.action_space, RewardModelSettings(ensemble_size=1))
    net = LearnedRewardNet(model)
    batch = some_comparisons(40, observations=env.observation_space, actions=env.action_space)
    dataset = pc.PreferenceDataset()
    pairs = list(zip(*(trajectories_of(of) for of in (batch.pairs.left, batch.pairs.right)), strict=True))
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
    for function in (net.predict_processed, model.predict):  # as a network, and as a plain function
        venv = RewardVecEnvWrapper(DummyVecEnv([lambda: gym.make("Pendulum-v1")]), function)
        first = venv.reset()
        second, rewards, dones, _ = venv.step(np.zeros((1, 1), np.float32))
        np.testing.assert_allclose(rewards, function(first, np.zeros((1, 1), np.float32), second, dones), rtol=1e-6)
