"""Gradients of MLP ensembles without autograd; convolutions in gradient steps: in bfloat16 and in small passes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray import optim
from rlhf_ray.data.comparisons import Changes
from rlhf_ray.reward import RewardEnsemble, RewardTrainer, fused
from rlhf_ray.reward.fused import FusedMLPs
from rlhf_ray.reward.networks import cnn, make_network
from rlhf_ray.reward.networks.mixed import GAIN
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, some_comparisons
from tests.reward.fits import trainer_of

KINDS: list[dict[str, Any]] = [
    {},
    {"ensemble_size": 1, "activation": "tanh", "normalize_inputs": "none", "weight_decay": 0.0},
    {"activation": "relu", "hidden": (8,), "discount": 0.9, "use_next_state": True, "use_done": True},
    {"hidden": (8, 6, 4), "label_noise": 0.2, "adaptive_l2": True},
    {"largest_log_odds": 0.01, "annotator_rationality": True},
    {"loss": "label_smoothing", "label_noise": 0.3},
    {"ensemble_size": 2, "early_stopping": 2, "window": 40, "normalize_inputs": "ema"},
]


def a_trainer(settings: dict[str, Any], actions: Any = FORCES, length: int = 150) -> RewardTrainer:
    of = RewardModelSettings(**{"batch_size": 20, "weight_decay": 0.01, "use_action": True} | settings)
    return trainer_of(of, some_comparisons(90, length, actions=actions), held_out_share=0.2, actions=actions)


def by_autograd(*arguments: Any) -> RewardTrainer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedMLPs, "fits", staticmethod(lambda networks, settings: False))
        return a_trainer(*arguments)


@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("actions", [FORCES, CHOICES], ids=["forces", "choices"])
def test_fits_come_to_the_same_as_with_autograd(settings: dict[str, Any], actions: Any) -> None:
    fused, other = a_trainer(settings, actions), by_autograd(settings, actions)
    for updates in (1, 6):
        mine, theirs = fused.fit(updates), other.fit(updates)
        # Not the mean reward: no comparison depends on the last layer's bias, and with autograd, rounding errors move it.
        for name in ("train_loss", "held_out_loss", "disagreement", "reward_std"):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), rel=5e-3, abs=1e-5, nan_ok=True), name
        assert mine.gradient_steps == theirs.gradient_steps
    moved = torch.cat([of.flatten() for of in fused.ensemble.networks.parameters()])
    assert other._fused is None
    assert torch.equal(moved, fused._fused.flat.values)


@pytest.mark.parametrize("settings", KINDS[:4], ids=str)
def test_one_gradient_is_autograds(settings: dict[str, Any]) -> None:
    """Not only up to Adam, which hides a factor."""
    fused, other = a_trainer(settings), by_autograd(settings)
    fused.fit(0), other.fit(0)
    for trainer in (fused, other):
        trainer._step = lambda: None
        trainer.l2 = None
        trainer.fit(1)
    mine = torch.cat([of.grad.flatten() for of in fused.ensemble.networks.parameters() if of.grad is not None])
    theirs = torch.cat([of.grad.flatten() for of in other.ensemble.networks.parameters() if of.grad is not None])
    assert theirs.abs().max() > 1e-3
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5 * GAIN)


def test_a_state_goes_from_one_to_the_other() -> None:
    fused, other = a_trainer({}), by_autograd({})
    fused.fit(5)
    changes = _everything(fused)
    other.load_state(fused.state(), changes)
    back = a_trainer({})
    back.load_state(other.state(), changes)
    again = fused.fit(7)
    for trainer in (other, back):
        report = trainer.fit(7)
        assert report.train_loss == pytest.approx(again.train_loss, rel=1e-4)
    assert back.fit(0).train_loss == fused.fit(0).train_loss  # bit for bit


@pytest.mark.parametrize(
    "settings", [{"dropout": 0.1}, {"batch_norm": True}, {"methods": ("surf",)}, {"output": "probability"}]
)
def test_what_it_cannot_do_is_left_to_autograd(settings: dict[str, Any]) -> None:
    assert a_trainer(settings)._fused is None


def _everything(trainer: RewardTrainer) -> Any:
    held = some_comparisons(90, 150, actions=FORCES)
    assert [list(key) for key in trainer.comparisons.keys] == [list(key) for key in held.keys]
    return Changes(comparisons=held, withdrawn=(), last=0, weights={})


def test_fits_are_the_same_bits_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    in_threads = []

    def fitted(cores: int, worth: int) -> tuple[Any, torch.Tensor]:
        monkeypatch.setattr(optim, "usable_cores", lambda: cores)
        monkeypatch.setattr(fused, "WORTH_A_THREAD", worth)
        monkeypatch.setattr(
            optim, "_pool", lambda threads, process: in_threads.append(threads) or ThreadPoolExecutor(threads)
        )
        trainer = a_trainer({"hidden": (8, 6)}, length=300)  # three parts in each minibatch
        return trainer.fit(9).train_loss, torch.cat([of.flatten() for of in trainer.ensemble.networks.parameters()])

    alone = fitted(1, 0)
    assert not in_threads
    for cores in (2, 5):
        loss, weights = fitted(cores, 0)
        assert loss == alone[0]
        assert torch.equal(weights, alone[1])
        assert set(in_threads) == {cores}
        in_threads.clear()
    fitted(5, 10**9)
    assert not in_threads


LARGER = gym.spaces.Box(0, 255, (48, 48, 3), np.uint8)

WITH_IMAGES: list[dict[str, Any]] = [
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
@pytest.mark.parametrize("settings", WITH_IMAGES, ids=str)
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
