"""That the benchmark compares like with like: both arms really train, and take the same steps to the same weights."""

import numpy as np
import pytest
import torch

pytest.importorskip("imitation", reason="the benchmark's other arm is the extra 'imitation'")

from benchmarks.reward_training import ARMS, BATCH, made_up, measure, new_networks, our_trainer
from rlhf_ray.reward import trainer as trainer_module
from rlhf_ray.reward.networks import StackedLinear

SAME = ("gradient_steps", "parameters", "optimizer", "lr", "betas", "eps", "weight_decay", "amsgrad")


@pytest.mark.parametrize("members", [1, 3])
def test_both_arms_train_the_same_networks_equally_long(members: int) -> None:
    row = measure(members, 5, rounds=1, count=2 * BATCH, epochs=6)
    for name in ARMS:
        arm = row[name]
        assert arm["loss"] < arm["loss_before"] - 0.02
        assert arm["gradient_steps"] == 12
        assert arm["parameters"] == members * (6 * 32 + 32 + 32 * 32 + 32 + 32 + 1)
        assert arm["lr"] == 1e-3
        assert np.shape(arm["seconds"]) == (1, 2)
    assert {field: row["ours"][field] for field in SAME} == {field: row["imitation"][field] for field in SAME}
    assert abs(row["ours"]["loss"] - row["imitation"]["loss"]) < 0.1
    low, high = row["ratio"]["interval_95"]
    assert 0 < low <= row["ratio"]["median"] <= high


def test_both_arms_reach_the_same_weights_where_each_batch_holds_all_comparisons() -> None:
    comparisons = made_up(BATCH, 5)
    (network,) = new_networks(1, seed=0)
    trainer = our_trainer([network])
    trainer.add(comparisons)
    trainer.fit(20)
    ARMS["imitation"](comparisons, [network], 20, 0)  # trains the network itself
    # Not the last bias: it moves both fragments' returns alike, so that its gradient is rounding error.
    after = list(our_trainer([network]).ensemble.networks.parameters())[:-1]
    before = list(our_trainer(new_networks(1, seed=0)).ensemble.networks.parameters())
    for ours, theirs, start in zip(trainer.ensemble.networks.parameters(), after, before, strict=False):
        # The mean: Adam makes whole steps of gradients that are nearly 0, where rounding decides.
        assert float((ours - theirs).detach().abs().mean()) < 1e-4
        assert float((ours - start).detach().abs().mean()) > 5e-3


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("part", [1, 70, 8192])
def test_gradients_are_those_of_a_loop_over_pairs(members: int, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "BACKWARD_STEPS", part)  # comparisons one by one, a few at a time, all at once
    comparisons = made_up(7, 5)
    networks = new_networks(members, seed=0)
    trainer = our_trainer(networks)
    trainer.add(comparisons)
    assert trainer._data is not None
    trainer._backward(trainer._data, torch.tensor([5, 0, 3]))
    ours = [layer for layer in trainer.ensemble.modules() if isinstance(layer, StackedLinear)]
    for member, network in enumerate(networks):
        loss = torch.zeros(())
        for i in (5, 0, 3):
            returns = []
            for side in (comparisons.pairs.left, comparisons.pairs.right):
                seen, done = side.observations[i, :-1], side.actions[i]
                returns.append(network(*network.preprocess(seen, done, seen, np.zeros(5))).sum())
            chance = torch.sigmoid(returns[0] - returns[1])
            chosen = chance if comparisons.preferences[i] == 1.0 else 1.0 - chance
            loss = loss - trainer._data.weights[member, i] * chosen.log() / 3
        loss.backward()  # type: ignore[no-untyped-call]
        theirs = [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.weight.grad is not None
            assert mine.bias.grad is not None
            assert other.weight.grad is not None
            torch.testing.assert_close(mine.weight.grad[member].T, other.weight.grad, atol=1e-6, rtol=1e-4)
            torch.testing.assert_close(mine.bias.grad[member, 0], other.bias.grad, atol=1e-6, rtol=1e-4)
