"""The policy network: nothing in it is idle."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape, actions
from rlhf_ray.policies.encoders import ObservationStatistics
from rlhf_ray.policies.network import normalising, outputs_of
from rlhf_ray.policies.soft_actor_critic import SoftActorCriticNetwork

VECTOR, IMAGE = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
ACTIONS = {"discrete": gym.spaces.Discrete(3), "box": gym.spaces.Box(-1.0, 1.0, (2,))}


@pytest.mark.parametrize("acts", ACTIONS)
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("network", ["mlp", "small", "nature", "impala"])
def test_every_parameter_gets_a_gradient(network: str, memory: Any, acts: str) -> None:
    torch.manual_seed(0)
    seen = VECTOR if network == "mlp" else IMAGE
    shape = PolicyShape(network, hidden=(8, 8), features=16, memory=memory, memory_units=6)
    policy = ActorCriticNetwork(seen, ACTIONS[acts], shape)
    memories, total = policy.initial_memory(2), torch.zeros(())
    for _ in range(2):
        features = policy.encode(torch.as_tensor(np.stack([seen.sample() for _ in range(2)])))
        memories = policy.remember(features, memories)
        outputs, values = policy.decide(features, memories)
        total = total + (outputs - 1.0).square().sum() + values.square().sum()
    total.backward()
    idle = [name for name, of in policy.named_parameters() if of.grad is None or not of.grad.abs().max() > 0]
    assert idle == []


def test_observations_that_are_no_vector_name_the_wrapper_that_helps() -> None:
    seen: Any = gym.spaces.Dict({"seen": VECTOR, "actions": gym.spaces.Discrete(3)})
    with pytest.raises(SettingError, match=r"not Dict.*FlattenObservation"):
        ActorCriticNetwork(seen, ACTIONS["box"], PolicyShape("mlp"))


def test_discrete_samples_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drawn = actions.sample(
        probabilities.log().expand(4000, 4), gym.spaces.Discrete(4), torch.Generator().manual_seed(0)
    )
    assert (drawn.bincount(minlength=4) / 4000 - probabilities).abs().max() < 0.03


def test_continuous_samples_have_mean_and_deviation() -> None:
    logits = torch.tensor([1.0, -2.0, -1.0, 0.5]).expand(4000, 4)
    drawn = actions.sample(logits, gym.spaces.Box(-9.0, 9.0, (2,)), torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), logits[0, :2], atol=0.1, rtol=0.0)
    torch.testing.assert_close(drawn.std(0), logits[0, 2:].exp(), atol=0.0, rtol=0.05)


SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO = gym.spaces.Discrete(2)


def normalised(every: Any) -> Any:
    """Observations ``[n, size]`` by what is seen of them and of their symlogs, number by number, in float64."""
    every, result = np.asarray(every, np.float64), np.empty(np.shape(every))
    for number, column in enumerate(every.T):
        parts = []
        for part, widest in ((column, np.inf), (np.sign(column) * np.log1p(np.abs(column)), 1.0)):
            mean, deviation = part.mean(), part.std()
            zero = mean - deviation if mean > deviation else mean + deviation if mean < -deviation else 0.0
            parts.append((part - zero) / min(deviation, widest))
        result[:, number] = np.mean(parts, 0)
    return result


def test_batch_by_batch_is_all_at_once() -> None:
    rng = np.random.default_rng(0)
    every = rng.normal([5.0, -1.0, 300.0], [2.0, 0.01, 40.0], (5_000, 3)).astype(np.float32)
    statistics = ObservationStatistics(3)
    new = torch.as_tensor(every[:4])
    assert torch.equal(statistics(new), new)  # nothing seen yet
    np.testing.assert_array_equal(normalising(statistics)(every[:4]), every[:4])
    for part in np.split(every, [1, 10, 700, 3_000]):
        statistics.observe(torch.as_tensor(part))
    assert statistics(torch.as_tensor(every)).numpy() == pytest.approx(normalised(every), abs=1e-2)
    np.testing.assert_allclose(normalising(statistics)(every), statistics(torch.as_tensor(every)), atol=1e-4)
    assert int(statistics.count) == 5_000


@pytest.mark.parametrize("falls", [(-20.0, 20.0), (0.0, 40.0)])
def test_far_numbers_leave_near_ones_their_place_and_half_of_their_differences(falls: tuple[float, float]) -> None:
    """As after CartPole's fall, to both sides or to one, when a policy still has to tell a tenth of a radian."""
    statistics = ObservationStatistics(1)
    statistics.observe(torch.cat([torch.linspace(*falls, 900), torch.linspace(-0.2, 0.2, 100)])[:, None])
    low, zero, high = statistics(torch.tensor([[-0.1], [0.0], [0.1]])).flatten().tolist()
    assert high - low > 0.5 * 0.19
    assert abs(zero) < 1.1


def test_the_statistics_of_another_library_are_mean_and_deviation() -> None:
    statistics, seen = ObservationStatistics(2), 3 * torch.randn(1_000, 2) + 50
    statistics.observe(seen)
    statistics.symlogs.zero_()
    by_hand = (seen - seen.mean(0)) / seen.std(0, correction=0)
    torch.testing.assert_close(statistics(seen), by_hand, atol=1e-3, rtol=0)
    np.testing.assert_allclose(normalising(statistics)(seen.numpy()), by_hand, atol=1e-3)


def test_constant_features_and_outliers_stay_finite_and_small() -> None:
    statistics = ObservationStatistics(1)
    statistics.observe(torch.full((100, 1), 7.0))
    assert statistics(torch.tensor([[7.0], [8.0], [-1e9]])).flatten().tolist() == pytest.approx([1, 10, -10], abs=1e-2)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_network_takes_normalised_observations(memory: str) -> None:
    torch.manual_seed(0)
    network = ActorCriticNetwork(SPACE, TWO, PolicyShape(memory=memory, normalize_observations=True))  # type: ignore[arg-type]
    plain = ActorCriticNetwork(SPACE, TWO, PolicyShape(memory=memory))  # type: ignore[arg-type]
    plain.load_state_dict({n: v for n, v in network.state_dict().items() if "statistics" not in n})
    seen = 30 * torch.randn(500, 3) - 7
    assert network.statistics is not None
    network.statistics.observe(seen)

    def outputs(of: ActorCriticNetwork, observations: torch.Tensor) -> torch.Tensor:
        features = of.encode(observations)
        return of.decide(features, of.remember(features, of.initial_memory(len(features))))[0]

    assert torch.allclose(outputs(network, seen), outputs(plain, torch.as_tensor(normalised(seen))), atol=1e-3)
    assert "statistics.mean" in network.state_dict()  # saved with the policy
    assert not any("statistics" in name for name, _ in network.named_parameters())


def test_actor_and_critics_of_sac_see_normalised_observations() -> None:
    torch.manual_seed(0)
    network = SoftActorCriticNetwork(SPACE, TWO, (8,), 0.1, True)
    plain = SoftActorCriticNetwork(SPACE, TWO, (8,), 0.1)
    plain.load_state_dict({n: v for n, v in network.state_dict().items() if "statistics" not in n})
    seen = 30 * torch.randn(500, 3) - 7
    assert network.statistics is not None
    network.statistics.observe(seen)
    for compute in (
        lambda of, x: of.distribution(x),
        lambda of, x: of.values(of.critics, x, x),
        lambda of, x: of.act(x)[0],
    ):
        of_normalised = compute(plain, torch.as_tensor(normalised(seen), dtype=torch.float32))
        assert torch.allclose(compute(network, seen), of_normalised, atol=1e-3)
        assert not torch.allclose(compute(plain, seen), of_normalised, atol=1e-3)


def test_without_it_a_network_has_the_weights_of_before_and_images_have_none() -> None:
    assert not any("statistics" in name for name in ActorCriticNetwork(SPACE, TWO, PolicyShape()).state_dict())
    images = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    network = ActorCriticNetwork(images, TWO, PolicyShape(normalize_observations=True))
    assert not any("statistics" in name for name in network.state_dict())


MOST = np.finfo(np.float32).max
LOW, HIGH = np.array([-2, -1e6, -np.inf, 0, -5], np.float32), np.array([4, 1e6, np.inf, MOST, np.inf], np.float32)


def _features(network: ActorCriticNetwork | SoftActorCriticNetwork, seen: torch.Tensor) -> torch.Tensor:
    return network.scaled(seen).detach()


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_numbers_with_formal_bounds_are_scaled_by_what_was_seen_and_others_by_their_bounds(agent: str) -> None:
    space = gym.spaces.Box(LOW, HIGH)
    network = (
        ActorCriticNetwork(space, TWO, PolicyShape())
        if agent == "ppo"
        else SoftActorCriticNetwork(space, TWO, (8,), 0.1)
    )
    rng = np.random.default_rng(0)
    seen = torch.as_tensor(
        rng.normal(0, [1, 0.7, 50, 3, 2], (4_000, 5)) + np.array([0, 0, 0, 1e3, 0]), dtype=torch.float32
    )
    for part in seen.split(500):
        network.observe(part)
    features = _features(network, seen)
    expected = seen.clone()
    expected[:, 0] = (seen[:, 0] - 1) / 3  # by its bounds
    expected[:, 1] = seen[:, 1] / 2  # the power of two that is 2 to 4 deviations of 0.7 wide
    expected[:, 3] = seen[:, 3] / 8 - 125  # and of 3; 1,000 is 125 of these
    assert torch.allclose(features, expected, atol=1e-4)


@pytest.mark.parametrize("bound", [1e6, float(MOST)])
def test_formal_bounds_hide_nothing_that_narrow_ones_show(bound: float) -> None:
    torch.manual_seed(0)
    wide, narrow = (ActorCriticNetwork(gym.spaces.Box(-b, b, (3,)), TWO, PolicyShape()) for b in (bound, 2.0))
    wide.load_state_dict(wide.state_dict() | narrow.state_dict())
    seen = torch.rand(1_000, 3) * 2 - 1
    wide.observe(seen)
    assert torch.allclose(_features(wide, seen), _features(narrow, seen), atol=1e-6)
    assert outputs_of(wide)(seen.numpy()) == pytest.approx(outputs_of(narrow)(seen.numpy()), abs=1e-6)


def test_sane_bounds_give_the_same_bits_and_the_same_weights_as_ever() -> None:
    space, seen = gym.spaces.Box(np.float32(-4.8), np.float32(7.3), (3,)), torch.randn(64, 3)
    network = ActorCriticNetwork(space, TWO, PolicyShape())
    low, high = space.low, space.high
    by_hand = (seen - torch.as_tensor((low + high) / 2.0)) / torch.as_tensor((high - low) / 2.0)
    network.observe(seen)
    assert torch.equal(_features(network, seen), by_hand)
    assert not any("formal" in name or "statistics" in name for name in network.state_dict())


def test_nothing_overflows_in_the_widest_bounds_before_anything_was_seen() -> None:
    most = np.finfo(np.float64).max
    space = gym.spaces.Box(np.array([-most, 0, -most]), np.array([most, most, 1e300]), dtype=np.float64)
    network = ActorCriticNetwork(space, TWO, PolicyShape())
    assert torch.isfinite(_features(network, torch.ones(2, 3))).all()
