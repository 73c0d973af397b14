"""Gradients of MLP ensembles without autograd: the same as autograd's."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from rlhf_ray import optim
from rlhf_ray.data.comparisons import Changes
from rlhf_ray.reward import RewardTrainer, fused
from rlhf_ray.reward.fused import FusedMLPs
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
    of = RewardModelSettings(batch_size=20, **settings)
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
    assert fused._fused is not None
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
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


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
    return Changes(held=held, withdrawn=(), last=0, weights={})


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
