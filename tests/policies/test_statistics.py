"""The running normalisation of a policy's observations."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.soft_actor_critic import SoftActorCriticNetwork
from rlhf_ray.policies.statistics import ObservationStatistics

SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(2)


def test_batch_by_batch_is_all_at_once() -> None:
    rng = np.random.default_rng(0)
    every = rng.normal([5.0, -1.0, 300.0], [2.0, 0.01, 40.0], (5_000, 3)).astype(np.float32)
    statistics = ObservationStatistics(3)
    new = torch.as_tensor(every[:4])
    assert torch.equal(statistics(new), new)  # nothing seen yet
    for part in np.split(every, [1, 10, 700, 3_000]):
        statistics.observe(torch.as_tensor(part))
    by_hand = (every - every.mean(0, dtype=np.float64)) / every.std(0, dtype=np.float64)
    assert statistics(torch.as_tensor(every)).numpy() == pytest.approx(by_hand, abs=1e-2)
    assert int(statistics.count) == 5_000


def test_constant_features_and_outliers_stay_finite_and_small() -> None:
    statistics = ObservationStatistics(1)
    statistics.observe(torch.full((100, 1), 7.0))
    assert statistics(torch.tensor([[7.0], [8.0], [-1e9]])).flatten().tolist() == [0, 10, -10]


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_networks_outputs_do_not_depend_on_scale_and_offset_once_normalised(memory: str) -> None:
    torch.manual_seed(0)
    shape = PolicyShape(memory=memory, normalize_observations=True)  # type: ignore[arg-type]
    network, other = (ActorCriticNetwork(SPACE, ACTIONS, shape) for _ in range(2))
    other.load_state_dict(network.state_dict())
    seen = torch.randn(500, 3)
    assert network.statistics is not None
    assert other.statistics is not None
    network.statistics.observe(seen)
    other.statistics.observe(1000 * seen - 7)

    def outputs(of: ActorCriticNetwork, observations: torch.Tensor) -> torch.Tensor:
        features = of.encode(observations)
        return of.decide(features, of.remember(features, of.initial_memory(len(features))))[0]

    assert torch.allclose(outputs(network, seen), outputs(other, 1000 * seen - 7), atol=1e-3)
    assert "statistics.mean" in network.state_dict()  # saved with the policy
    assert not any("statistics" in name for name, _ in network.named_parameters())


def test_actor_and_critics_of_sac_see_normalised_observations() -> None:
    torch.manual_seed(0)
    network, other = (SoftActorCriticNetwork(SPACE, ACTIONS, (8,), 0.1, True) for _ in range(2))
    plain = SoftActorCriticNetwork(SPACE, ACTIONS, (8,), 0.1)
    other.load_state_dict(network.state_dict())
    seen = torch.randn(500, 3)
    for of, observations in ((network, seen), (other, 1000 * seen - 7)):
        assert of.statistics is not None
        of.statistics.observe(observations)
    for compute in (
        lambda of, x: of.distribution(x),
        lambda of, x: of.values(of.critics, x, x),
        lambda of, x: of.act(x)[0],
    ):
        assert torch.allclose(compute(network, seen), compute(other, 1000 * seen - 7), atol=1e-3)
        assert not torch.allclose(compute(network, seen), compute(network, 1000 * seen - 7), atol=1e-3)
    assert not any("statistics" in name for name in plain.state_dict())
    before = {name: value for name, value in plain.state_dict().items() if name != "clamps_log_std"}
    plain.load_state_dict(before)  # weights of earlier versions
    assert float(plain.clamps_log_std) == 0


def test_without_it_a_network_has_the_weights_of_before_and_images_refuse_it() -> None:
    assert not any("statistics" in name for name in ActorCriticNetwork(SPACE, ACTIONS, PolicyShape()).state_dict())
    images = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    with pytest.raises(SettingError, match=r"ppo\.normalize_observations is True, but the observations .* are images"):
        ActorCriticNetwork(images, ACTIONS, PolicyShape(normalize_observations=True))
