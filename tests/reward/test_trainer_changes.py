"""Several annotators, answers that change or are taken back, and weights: what the trainer makes of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.reward.comparison_set import NothingToFitError
from tests.made_up import CHOICES, IMAGES, joined, some_comparisons
from tests.reward.test_trainer import SMALL, _held_out, _same, _trainer, _without_time


def _answered(comparisons: Comparisons, annotator: str, preferences: Any = None) -> Comparisons:
    preferences = comparisons.preferences if preferences is None else preferences.astype(np.float32)
    return Comparisons(comparisons.pairs, preferences, (annotator,) * len(comparisons))


@pytest.mark.parametrize("spaces", [{}, {"observations": IMAGES, "actions": CHOICES}], ids=["mlp", "cnn"])
def test_what_was_withdrawn_and_changed_is_as_if_it_had_never_been_otherwise(spaces: dict[str, Any]) -> None:
    comparisons = _answered(some_comparisons(12, 3, **spaces), "anna")
    last = _answered(some_comparisons(2, 3, seed=5, **spaces), "bert")
    trainer, other = _trainer(SMALL, comparisons, **spaces), _trainer(SMALL, **spaces)
    flipped = _answered(comparisons, "anna", 1 - comparisons.preferences)
    trainer.comparisons.add(flipped[np.array([8, 3])])
    trainer.comparisons.withdraw(
        [comparisons.keys[i] for i in (0, 4, 5, 11)] + [("nobody", "anna"), (comparisons.pairs.ids[1], "bert")]
    )
    preferences = np.where(np.isin(np.arange(12), [3, 8]), flipped.preferences, comparisons.preferences)
    kept = np.array([1, 2, 3, 6, 7, 8, 9, 10])
    other.comparisons.add(_answered(comparisons, "anna", preferences)[kept])
    assert trainer.comparisons.keys == other.comparisons.keys == [comparisons.keys[i] for i in kept]
    for one in (trainer, other):
        one.fit(5)
        one.comparisons.add(last)
    assert _without_time(trainer.fit(5)) == _without_time(other.fit(5))
    assert _same(trainer, other)


def test_two_peoples_answers_to_one_pair_are_two_comparisons_held_out_and_drawn_together() -> None:
    comparisons = some_comparisons(40)
    trainer = _trainer(SMALL, _answered(comparisons, "anna"), held_out_share=0.3)
    trainer.comparisons.add(_answered(comparisons, "bert", 1 - comparisons.preferences))
    report = trainer.fit(1)
    assert report.comparisons == 80
    assert report.held_out == 2 * sum(name in _held_out(trainer) for name in comparisons.pairs.ids)
    assert trainer.comparisons.stacked is not None
    assert torch.equal(trainer.comparisons.stacked.weights[:, :40], trainer.comparisons.stacked.weights[:, 40:])


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("window", [None, 8])
def test_an_annotator_of_weight_0_is_left_out(share: float, window: int | None) -> None:
    settings = dataclasses.replace(SMALL, window=window)
    good, bad = _answered(some_comparisons(20), "anna"), some_comparisons(15, seed=1)
    reports, trainers = [], []
    for answers in (bad.preferences, 1 - bad.preferences, np.full(15, 0.5)):
        trainer = _trainer(settings, good[:15], held_out_share=share)
        trainer.comparisons.add(_answered(bad, "bert", answers))
        trainer.comparisons.add(good[15:])
        trainer.comparisons.weigh({"bert": 0.0, "nobody": 7.0})
        reports.append(_without_time(trainer.fit(8)) | {"ties": None})
        trainers.append(trainer)
    assert reports[0] == reports[1] == reports[2]
    assert _same(trainers[0], trainers[1])
    assert reports[0]["comparisons"] == "35"  # and still there
    without = _trainer(settings, good, held_out_share=share)
    without.fit(8)
    weights = [one.ensemble.state()["networks.head.layers.0.weight"] for one in (without, trainers[0])]
    assert np.array_equal(*weights)  # all but the normalisers, which see the clips
    trainers[0].comparisons.weigh({})
    trainers[0].fit(8)
    trainers[1].fit(8)
    assert not _same(trainers[0], trainers[1])


def test_a_weight_multiplies_the_loss() -> None:
    comparisons = some_comparisons(12)
    anna, bert = _answered(comparisons[:6], "anna"), _answered(comparisons[6:], "bert")
    gradients = []
    for weight in (0.0, 1.0, 2.0, 3.0):
        settings = dataclasses.replace(SMALL, batch_size=100, weight_decay=0.0, bootstrap=False)
        trainer = _trainer(settings, joined([anna, bert]))
        trainer.comparisons.weigh({"bert": weight})
        trainer.fit(1)
        first = next(iter(trainer.ensemble.networks.parameters()))
        scale = 6 if weight == 0.0 else 12  # the mean is over the comparisons that count
        gradients.append(scale * trainer.optimizer.state[first]["exp_avg"].numpy())
    for later, sooner in ((2, 1), (3, 2)):
        step = gradients[later] - gradients[sooner]
        assert np.allclose(step, gradients[1] - gradients[0], rtol=1e-3, atol=1e-5)
        assert np.abs(step).max() > 1e-3


def test_where_nothing_counts_there_is_nothing_to_fit() -> None:
    comparisons = _answered(some_comparisons(3), "anna")
    trainer = _trainer(SMALL, comparisons)
    trainer.comparisons.weigh({"anna": 0.0})
    with pytest.raises(NothingToFitError, match="All 3 comparisons are from annotators of weight 0"):
        trainer.fit(1)
    trainer.comparisons.withdraw(comparisons.keys)
    with pytest.raises(NothingToFitError, match="no comparisons to fit"):
        trainer.fit(1)
    trainer.comparisons.apply(Changes(9, comparisons))
    assert trainer.fit(1).comparisons == 3


def test_a_restored_trainer_misses_nothing_that_was_withdrawn(caplog: pytest.LogCaptureFixture) -> None:
    comparisons = _answered(some_comparisons(4), "anna")
    trainer, restored = _trainer(SMALL, comparisons), _trainer(SMALL, seed=5)
    trainer.comparisons.weigh({"bert": 2.0})
    trainer.fit(2)
    restored.load_state(trainer.state(), Changes(9, comparisons[1:], (comparisons.keys[0],), {"bert": 3.0}))
    assert (restored.comparisons.keys, restored.comparisons.weights) == (comparisons.keys[1:], {"bert": 3.0})
    assert caplog.text == ""
    trainer.comparisons.apply(Changes(9, None, (comparisons.keys[0],), {"bert": 3.0}))
    assert _without_time(trainer.fit(3)) == _without_time(restored.fit(3))
    assert _same(trainer, restored)
    restored.load_state(trainer.state(), Changes(9, None, tuple(comparisons.keys)))
    assert restored.comparisons.keys == []
    assert _same(trainer, restored)
    restored.load_state(trainer.state(), Changes(9, comparisons, (), {"bert": 3.0}))
    assert restored.comparisons.weights == {"bert": 3.0}
