"""The reward network that mixes an MLP and an additive model, and how the answers weigh the two."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.annotators import AROUND, RATES, TEMPERATURES, USUAL, _prior, log_evidence
from rlhf_ray.reward.comparison_set import bootstrap_weights
from rlhf_ray.reward.networks import CNN, MLP, MixedMLP, make_network
from rlhf_ray.reward.networks.mixed import FARTHEST, GAIN, PER_INPUT, SHARES, WIDTH, basis
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_comparisons
from tests.reward.fits import trainer_of

WIDE = gym.spaces.Box(-np.inf, np.inf, (10,), np.float32)
Reward = Callable[[Any], Any]


def additive(states: Any) -> Any:
    return -np.abs(states[..., 0]) - np.abs(states[..., 1] - 0.5)


def product(states: Any) -> Any:
    return 2 * states[..., 0] * states[..., 1]


def fitted(reward: Reward, wrong: float, seed: int, network: str = "auto") -> RewardTrainer:
    """A fit to 300 answers about clips of random states, of which a share is wrong."""
    made = some_comparisons(300, 5, seed=seed, observations=WIDE)
    left, right = (reward(side.observations[:, :-1]).sum(1) for side in (made.pairs.left, made.pairs.right))
    flipped = np.random.default_rng(seed).random(300) < wrong
    answers = Comparisons(made.pairs, ((left > right) ^ flipped).astype(np.float32))
    trainer = trainer_of(RewardModelSettings(network=network, use_action=False), answers, observations=WIDE, seed=seed)
    trainer.fit(400)
    return trainer


def correlation(trainer: RewardTrainer, reward: Reward) -> float:
    states = np.random.default_rng(99).normal(size=(2000, 10)).astype(np.float32)
    nothing = np.zeros((2000, *(FORCES.shape or ())), np.float32)
    learned = trainer.ensemble.predict(states, nothing, states, np.zeros(2000, bool))
    return float(np.corrcoef(learned, reward(states))[0, 1])


@pytest.mark.parametrize(("reward", "wrong"), [(additive, 0.2), (additive, 0.0), (product, 0.0)])
def test_the_answers_choose_what_predicts_them(reward: Reward, wrong: float) -> None:
    """Of a reward that is a sum of functions, the additive model; of a product, which no sum comes near, the MLP."""
    shares, mixed, plain = [], [], []
    for seed in range(3):
        trainer = fitted(reward, wrong, seed)
        shares.append(float(trainer.ensemble.networks.share))
        mixed.append(correlation(trainer, reward))
        plain.append(correlation(fitted(reward, wrong, seed, "mlp"), reward))
    if reward is additive:
        assert np.mean(shares) > (0.3 if wrong else 0.6)
        assert np.mean(mixed) > np.mean(plain) + 0.03
    else:
        assert np.mean(shares) < 0.15
        assert np.mean(mixed) > np.mean(plain) - 0.03


def test_auto_is_mixed_where_answers_are_left_out() -> None:
    def kind(space: gym.spaces.Box = VECTORS, **settings: Any) -> type:
        return type(make_network(space, FORCES, RewardModelSettings(**settings)))

    assert kind() is MixedMLP
    assert kind(bootstrap=False) is kind(ensemble_size=1) is kind(network="mlp") is MLP
    assert kind(IMAGES) is CNN
    assert kind(network="mixed", bootstrap=False) is MixedMLP
    assert not isinstance(make_network(VECTORS, FORCES, RewardModelSettings(output="probability")), MixedMLP)


def test_an_additive_model_is_a_sum_of_functions_of_one_input_each() -> None:
    torch.manual_seed(0)
    network = make_network(VECTORS, CHOICES, RewardModelSettings(normalize_inputs="none"))
    torch.nn.init.normal_(network.functions)
    torch.nn.init.normal_(network.scales)
    features = torch.randn(4, 3, network.inputs)
    _, found = network.parts({"features": features}).view(2, 3, 4, 3)
    places = np.linspace(-FARTHEST, FARTHEST, PER_INPUT - 1)
    weights = GAIN * (network.functions * network.scales[:, :, None]).detach().numpy()
    for member, clip, step in itertools.product(range(3), range(4), range(3)):
        total = 0.0
        for number, value in enumerate(features[clip, step].numpy()):
            own = weights[member, number]
            total += own[0] * value + sum(
                of * np.tanh((value - place) / WIDTH) for of, place in zip(own[1:], places, strict=True)
            )
        assert found[member, clip, step].item() == pytest.approx(total, abs=1e-3)
    both = features[0].clone()
    both[0, 1] = both[1, 1]  # changing one input changes the same amount, whatever the others are
    changed = (basis(both) - basis(features[0])) @ network.additive.T
    only = basis(features[0, :, 1:2][[1, 0, 2]]) - basis(features[0, :, 1:2])
    expected = only @ network.additive.view(3, network.inputs, PER_INPUT)[:, 1].T
    torch.testing.assert_close(changed[0], expected[0], rtol=1e-4, atol=1e-3)


def test_a_share_is_one_of_standard_deviations() -> None:
    network = make_network(VECTORS, FORCES, RewardModelSettings())
    parts = (
        torch.randn(6, 400, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 2, 3, 10, 20, 30.0])[:, None]
    )
    scales = parts.std(1)
    for share in SHARES:
        network.weigh(share, scales)
        scale = (1 - share) * scales[:3] + share * scales[3:]
        by_hand = (1 - share) * parts[:3] / scales[:3, None] + share * parts[3:] / scales[3:, None]
        torch.testing.assert_close(network.mixed(parts), by_hand * scale[:, None])
    network.weigh(0.5, torch.zeros(6))  # before the first gradient step an additive model is 0
    assert torch.isfinite(network.mixed(parts)).all()


def test_the_share_is_the_mean_of_its_posterior() -> None:
    network = make_network(VECTORS, FORCES, RewardModelSettings())
    parts = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    logs = {0.0: -100.0, 0.25: -98.0, 0.5: -95.0, 0.75: -94.0, 1.0: -93.5}
    network.choose(parts, lambda rewards: logs[float(network.share)])
    chances = np.exp(list(logs.values()))
    assert float(network.share) == pytest.approx(float(chances @ list(logs) / chances.sum()), rel=1e-5)
    assert network.evidence == pytest.approx(6.5)
    network.choose(parts, lambda rewards: 0.0)  # nothing is known
    assert float(network.share) == 0.5


def test_the_evidence_is_the_sum_over_error_rates_and_temperatures() -> None:
    rng = np.random.default_rng(0)
    differences, unseen = rng.normal(0.5, 1, (3, 40)), rng.random((3, 40)) < 0.4
    keys = [(str(row), "anna" if row % 3 else "bert") for row in range(40)]
    scaled = differences / np.sqrt((differences**2)[unseen].mean())
    total = 0.0
    for temperature in TEMPERATURES:
        prior = np.exp(-((np.log(temperature) - np.log(USUAL)) ** 2) / (2 * AROUND**2))
        for whom in ("anna", "bert"):
            product = np.ones(len(RATES))
            for row in range(40):
                if keys[row][1] == whom and unseen[:, row].any():
                    right = (1 / (1 + np.exp(-scaled[unseen[:, row], row] / temperature))).mean()
                    product *= (1 - RATES) * right + RATES * (1 - right)
            prior *= product @ _prior()
        total += prior
    assert log_evidence(differences, unseen, keys) == pytest.approx(np.log(total), rel=1e-5)
    assert log_evidence(differences, np.zeros_like(unseen), keys) == 0.0


def test_each_part_is_fitted_by_itself() -> None:
    """The first gradient of an additive model, at 0, is known in closed form; the MLP's is the one that it has alone."""
    comparisons = some_comparisons(40, 5)
    settings = RewardModelSettings(batch_size=40, label_noise=0.0, weight_decay=0.0)
    mixed, plain = (trainer_of(dataclasses.replace(settings, network=of), comparisons) for of in ("mixed", "mlp"))
    plain.ensemble.load_state(_of_mlp(mixed))
    mixed.fit(1), plain.fit(1)
    for one, other in zip(mixed.ensemble.networks.head.parameters(), plain.ensemble.networks.parameters(), strict=True):
        assert torch.equal(one, other)
    features = mixed.ensemble.networks.features_of(mixed.comparisons.stacked.flat_inputs(images=False))
    sums = basis(features).sum(1).view(40, 2, -1)
    slopes = (0.5 - mixed.comparisons.stacked.preferences) * torch.as_tensor(
        bootstrap_weights(comparisons.pairs.ids, 3)
    )
    expected = GAIN * slopes @ (sums[:, 0] - sums[:, 1]) / 40
    average = mixed.optimizer.state[mixed.ensemble.networks.functions]["exp_avg"]  # a tenth of the first gradient
    torch.testing.assert_close(10 * average.flatten(1), expected, rtol=1e-3, atol=1e-3)


def _of_mlp(mixed: RewardTrainer) -> dict[str, Any]:
    """The state of a mixed ensemble, without what an MLP has not."""
    gone = ("networks.functions", "networks.scales", "networks.weights", "networks.share")
    return {name: value for name, value in mixed.ensemble.state().items() if name not in gone}
