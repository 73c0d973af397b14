"""Memory of a pass is bounded, whoever wrote the network: rewards of many steps are those of few, in passes of a bounded size."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.functions.imitation import ImitationReward
from rlhf_ray.reward.functions.plain import CallableReward
from rlhf_ray.reward.unmoved import NUMBERS, passes
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import some_comparisons

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


def test_a_network_of_a_users_own_predicts_and_fits_in_bounded_passes() -> None:
    settings = RewardModelSettings(network=f"{__name__}:Watched", ensemble_size=1)
    trainer = RewardTrainer(settings, PICTURES, LATER, held_out_share=0.0, seed=0)
    comparisons = some_comparisons(90, observations=PICTURES, actions=LATER)
    assert 2 * AT_ONCE < 2 * 5 * 90  # a batch of all is more than a pass
    trainer.comparisons.add(comparisons)
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
        trainer = RewardTrainer(settings, PICTURES, LATER, held_out_share=0.0, seed=0)
        trainer.comparisons.add(some_comparisons(20, observations=PICTURES, actions=LATER))
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
    nets = pytest.importorskip("imitation.rewards.reward_nets", reason="the extra 'imitation'")
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
