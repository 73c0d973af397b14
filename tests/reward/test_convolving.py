"""Convolutions in gradient steps: in bfloat16 where the CPU has it, in passes that fit its cache."""

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray import optim
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.networks import cnn, make_network
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, some_comparisons
from tests.reward.fits import trainer_of

LARGER = gym.spaces.Box(0, 255, (48, 48, 3), np.uint8)

KINDS: list[dict[str, Any]] = [
    {"network": "cnn"},
    {"network": "cnn", "batch_norm": True, "use_next_state": True, "activation": "tanh"},
    {"network": "small_cnn", "use_action": False},
    {"network": "paper_cnn", "ensemble_size": 1},
    {"network": "nature"},
    {"network": "impala"},
]


def rewards_and_gradients(settings: dict[str, Any], precision: Any, *, together: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    network = make_network(LARGER, CHOICES, RewardModelSettings(precision=precision, **settings)).train()
    clips = some_comparisons(3, 4, observations=LARGER, actions=CHOICES).pairs.left
    parts = (torch.as_tensor(np.array(of)) for of in (clips.observations, clips.actions, clips.terminated))
    inputs = network.encode(*parts)
    with pytest.MonkeyPatch.context() as patch:
        if not together:
            patch.setattr(cnn, "members_of_images", one_by_one)
        rewards = network(inputs)
    rewards.pow(2).sum().backward()
    return rewards.detach(), torch.cat([of.grad.flatten() for of in network.parameters()])


def one_by_one(network: Any, frames: Any) -> Any:
    pixels = cnn.pixels_of(network.settings, frames)
    return torch.stack([convolve(pixels) for convolve in network.convolutions])


@pytest.mark.slow
@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_rewards_and_gradients_are_those_of_the_members_layers(settings: dict[str, Any]) -> None:
    rewards, gradients = rewards_and_gradients(settings, "float32", together=False)
    mine, of_mine = rewards_and_gradients(settings, "float32", together=True)
    torch.testing.assert_close(mine, rewards, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_mine, gradients, rtol=1e-3, atol=1e-4 * float(gradients.abs().max()))
    low, of_low = rewards_and_gradients(settings, "bfloat16", together=True)
    assert not torch.equal(low, mine)
    assert float((low - rewards).norm() / rewards.norm()) < 0.05
    assert float(torch.nn.functional.cosine_similarity(of_low, gradients, 0)) > 0.98


def test_rewards_outside_of_fits_are_float32_and_fits_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = some_comparisons(12, 4, observations=LARGER, actions=CHOICES)
    states = []
    for precision, seed in (("float32", 0), ("bfloat16", 0), ("bfloat16", 0), ("float32", 1)):
        settings = RewardModelSettings(hidden=(8,), precision=precision)  # type: ignore[arg-type]
        trainer = trainer_of(settings, comparisons, seed=seed, observations=LARGER, actions=CHOICES)
        before = trainer.ensemble.fragment_returns(comparisons.pairs.left)
        trainer.fit(3)
        states.append((before, trainer.ensemble.fragment_returns(comparisons.pairs.left)))
    assert all(np.array_equal(states[0][0], before) for before, _ in states[:3])
    assert np.array_equal(states[1][1], states[2][1])
    assert not np.array_equal(states[0][1], states[1][1])
    # No comparison depends on the mean. The precision counts less than the weights with which a fit begins.
    of, of_low, _, other = (after - after.mean(1, keepdims=True) for _, after in states)
    assert np.linalg.norm(of_low - of) < np.linalg.norm(other - of)


def test_passes_go_by_the_widest_layer() -> None:
    def that_fit(**settings: Any) -> int | None:
        return cnn.steps_that_fit(make_network(LARGER, CHOICES, RewardModelSettings(**settings)))

    assert that_fit(network="mlp") is None
    for network in ("cnn", "impala"):  # whose convolutions have none, but its head
        normalised = make_network(LARGER, CHOICES, RewardModelSettings(network=network, batch_norm=True))
        assert cnn.takes_averages(normalised)
        assert that_fit(network=network, batch_norm=True) == that_fit(network=network)
    assert that_fit(network="cnn", ensemble_size=1) == cnn.PASS_NUMBERS // (48 * 48 * 3)
    pooled = {"network": "pooled_cnn", "convolutions": (8, 32), "ensemble_size": 2}
    assert that_fit(**pooled) == cnn.PASS_NUMBERS // (48 * 48 * 64)
    assert RewardEnsemble(LARGER, CHOICES, RewardModelSettings(**pooled)).at_once == that_fit(**pooled)


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.5}, {"methods": ("surf",)}], ids=str)
def test_no_bit_of_a_fit_depends_on_the_cores(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cnn, "PASS_NUMBERS", 48 * 48 * 3 * 3 * 8)  # a comparison of 2 * 4 steps for each pass
    comparisons = some_comparisons(8, 4, observations=LARGER, actions=CHOICES)
    seen, threads = [], []
    for cores in (1, 3):
        monkeypatch.setattr(optim, "usable_cores", lambda cores=cores: cores)
        chosen = RewardModelSettings(network="cnn", hidden=(8,), batch_size=8, precision="float32", **settings)
        trainer = trainer_of(chosen, comparisons, seed=0, observations=LARGER, actions=CHOICES)
        losses, callers = trainer._losses, set()
        monkeypatch.setattr(
            trainer,
            "_losses",
            lambda *of, losses=losses, callers=callers: (callers.add(threading.get_ident()), losses(*of))[1],
        )
        trainer.fit(2, unlabelled=comparisons.pairs)
        returns = trainer.ensemble.fragment_returns(comparisons.pairs.left)
        seen.append([returns, *trainer.ensemble.state().values()])
        threads.append(callers - {threading.get_ident()})
    assert all(np.array_equal(one, other) for one, other in zip(*seen, strict=True))
    assert not threads[0]
    assert bool(threads[1]) == ("dropout" not in settings)  # whose masks threads would draw in any order
