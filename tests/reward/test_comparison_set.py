"""Several annotators, answers that change or are taken back, and weights: what the trainer makes of them."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.reward import comparison_set
from rlhf_ray.reward.comparison_set import NothingToFitError, UniqueFrames, bootstrap_weights
from rlhf_ray.store.answers import Presses
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, joined, some_comparisons
from tests.reward.fits import same, trainer_of
from tests.reward.test_trainer import CERTAIN, SMALL, _held_out, _without_time


def _answered(comparisons: Comparisons, annotator: str, preferences: Any = None) -> Comparisons:
    preferences = comparisons.preferences if preferences is None else preferences.astype(np.float32)
    return Comparisons(comparisons.pairs, preferences, (annotator,) * len(comparisons))


@pytest.mark.parametrize("spaces", [{}, {"observations": IMAGES, "actions": CHOICES}], ids=["mlp", "cnn"])
def test_what_was_withdrawn_and_changed_is_as_if_it_had_never_been_otherwise(spaces: dict[str, Any]) -> None:
    comparisons = _answered(some_comparisons(12, 3, **spaces), "anna")
    last = _answered(some_comparisons(2, 3, seed=5, **spaces), "bert")
    trainer, other = trainer_of(SMALL, comparisons, **spaces), trainer_of(SMALL, **spaces)
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
    assert same(trainer, other)


def test_two_peoples_answers_to_one_pair_are_two_comparisons_held_out_and_drawn_together() -> None:
    comparisons = some_comparisons(40)
    trainer = trainer_of(SMALL, _answered(comparisons, "anna"), held_out_share=0.3)
    trainer.comparisons.add(_answered(comparisons, "bert", 1 - comparisons.preferences))
    report = trainer.fit(1)
    assert report.comparisons == 80
    assert report.held_out == 2 * sum(name in _held_out(trainer) for name in comparisons.pairs.ids)
    assert torch.equal(trainer.comparisons.stacked.weights[:, :40], trainer.comparisons.stacked.weights[:, 40:])


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("window", [None, 8])
def test_an_annotator_of_weight_0_is_left_out(share: float, window: int | None) -> None:
    settings = dataclasses.replace(SMALL, window=window)
    good, bad = _answered(some_comparisons(20), "anna"), some_comparisons(15, seed=1)
    reports, trainers = [], []
    for answers in (bad.preferences, 1 - bad.preferences, np.full(15, 0.5)):
        trainer = trainer_of(settings, good[:15], held_out_share=share)
        trainer.comparisons.add(_answered(bad, "bert", answers))
        trainer.comparisons.add(good[15:])
        trainer.comparisons.weigh({"bert": 0.0, "nobody": 7.0})
        reports.append(_without_time(trainer.fit(8)) | {"ties": None})
        trainers.append(trainer)
    assert reports[0] == reports[1] == reports[2]
    assert same(trainers[0], trainers[1])
    assert reports[0]["comparisons"] == "35"  # and still there
    without = trainer_of(settings, good, held_out_share=share)
    without.fit(8)
    weights = [one.ensemble.state()["networks.head.layers.0.weight"] for one in (without, trainers[0])]
    # All but the normalisers, which see the clips. Sums round differently beside other clips.
    np.testing.assert_allclose(*weights, atol=1e-3)
    trainers[0].comparisons.weigh({})
    trainers[0].fit(8)
    trainers[1].fit(8)
    assert not same(trainers[0], trainers[1])


def test_only_the_newest_answers_of_each_count_as_presses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_set, "RECENT_ANSWERS", 2)
    answers = some_comparisons(6)
    said = Comparisons(
        answers.pairs, np.array([0.5, 1, 0, 0, 0, 0.5], np.float32), ("ada", "ada", "", "cy", "ada", "ada")
    )
    held = trainer_of(SMALL, said).comparisons
    held.withdraw([said.keys[2]])
    held.add(said[np.array([2])])
    counted = torch.tensor([0, 1, 3, 4, 5])  # without cy, the first but for ada's
    expected = {"ada": Presses(0, 1, 1), "cy": Presses(), "anonymous": Presses(0, 1)}
    assert held.presses(counted) == expected
    assert held.by_annotator({"cy": 2.0}, 1.0).tolist() == [1, 1, 2, 1, 1, 1]


def test_a_weight_multiplies_the_loss() -> None:
    comparisons = some_comparisons(12)
    anna, bert = _answered(comparisons[:6], "anna"), _answered(comparisons[6:], "bert")
    gradients = []
    for weight in (0.0, 1.0, 2.0, 3.0):
        settings = dataclasses.replace(SMALL, batch_size=100, weight_decay=0.0, bootstrap=False)
        trainer = trainer_of(settings, joined([anna, bert]))
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
    trainer = trainer_of(SMALL, comparisons)
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
    trainer, restored = trainer_of(SMALL, comparisons), trainer_of(SMALL, seed=5)
    trainer.comparisons.weigh({"bert": 2.0})
    trainer.fit(2)
    restored.load_state(trainer.state(), Changes(9, comparisons[1:], (comparisons.keys[0],), {"bert": 3.0}))
    assert (restored.comparisons.keys, restored.comparisons.weights) == (comparisons.keys[1:], {"bert": 3.0})
    assert caplog.text == ""
    trainer.comparisons.apply(Changes(9, None, (comparisons.keys[0],), {"bert": 3.0}))
    assert _without_time(trainer.fit(3)) == _without_time(restored.fit(3))
    assert same(trainer, restored)
    restored.load_state(trainer.state(), Changes(9, None, tuple(comparisons.keys)))
    assert restored.comparisons.keys == []
    assert same(trainer, restored)
    restored.load_state(trainer.state(), Changes(9, comparisons, (), {"bert": 3.0}))
    assert restored.comparisons.weights == {"bert": 3.0}


@pytest.mark.parametrize("switch", [{"bootstrap": False}, {"ensemble_size": 1}])
def test_without_bootstrap_every_comparison_counts_once(monkeypatch, switch):
    settings = dataclasses.replace(SMALL, network="mlp", **switch)
    comparisons = some_comparisons(10)
    plain = trainer_of(settings, comparisons)
    plain.fit(5)
    monkeypatch.setattr(
        comparison_set, "bootstrap_weights", lambda ids, members: np.ones((members, len(ids)), np.float32)
    )
    ones = trainer_of(dataclasses.replace(settings, bootstrap=True, ensemble_size=settings.ensemble_size), comparisons)
    ones.fit(5)
    assert same(plain, ones)


def test_each_members_sample_is_four_fifths_of_the_comparisons_and_adds_little_noise() -> None:
    ids = [str(i) for i in range(20_000)]
    weights = bootstrap_weights(ids, 3)
    assert weights.shape == (3, 20_000)
    assert weights.dtype == np.float32
    assert set(weights.ravel().tolist()) == {0.0, 1.25}
    assert np.abs((weights > 0).mean(1) - 0.8).max() < 4 * np.sqrt(0.8 * 0.2 / 20_000)
    assert np.abs(np.corrcoef(weights) - np.eye(3)).max() < 0.03
    # The variance of a mean of weighted gradients, times that of plain ones.
    assert (weights**2).mean() / weights.mean() ** 2 == pytest.approx(1.25, abs=0.01)


def test_bootstrap_weights_stay_when_comparisons_are_added_or_reordered() -> None:
    ids = [str(i) for i in range(50)]
    weights = bootstrap_weights(ids, 2)
    assert np.array_equal(bootstrap_weights(ids[:20], 2), weights[:, :20])
    assert np.array_equal(bootstrap_weights(ids[::-1], 2), weights[:, ::-1])
    assert np.array_equal(bootstrap_weights(ids, 5)[:2], weights)


@pytest.mark.parametrize(("observations", "actions"), [(VECTORS, FORCES), (IMAGES, CHOICES)])
def test_members_do_not_touch_each_other(monkeypatch, observations, actions):
    comparisons = some_comparisons(10, 3, observations=observations, actions=actions)
    states = []
    for factor in (1.0, 3.0):

        def weights(ids: Any, members: int, factor: float = factor) -> Any:
            drawn = bootstrap_weights(ids, members)
            drawn[1] *= np.arange(len(ids)) ** factor
            return drawn

        monkeypatch.setattr(comparison_set, "bootstrap_weights", weights)
        # Without an estimate of errors, and of the additive models' share, for which members judge each other's comparisons.
        settings = dataclasses.replace(CERTAIN, network="mlp" if observations is VECTORS else "cnn")
        trainer = trainer_of(settings, comparisons, observations=observations, actions=actions)
        trainer.fit(5)
        states.append(trainer.ensemble.state())
    one, other = states
    for name in one:
        if name.startswith("networks.convolutions"):
            same = np.array_equal(one[name], other[name])
            assert same == (not name.startswith("networks.convolutions.1.")), name
        elif one[name].ndim:  # one value per member
            assert np.array_equal(one[name][[0, 2]], other[name][[0, 2]]), name
            if name != "networks.head.layers.2.bias":  # no comparison depends on the last bias
                assert not np.array_equal(one[name][1], other[name][1]), name


def images(n: int, seed: int = 0) -> torch.Tensor:
    """``[n, 2, 4, 20, 20, 3]``; every comparison has the second image of the first one, twice."""
    pairs = some_comparisons(n, 3, observations=IMAGES, actions=CHOICES, seed=seed).pairs
    both = np.stack([pairs.left.observations, pairs.right.observations], 1)
    both[:, :, 1:3] = both[0, 0, 1]
    return torch.as_tensor(both)


def test_what_is_taken_out_is_what_was_put_in() -> None:
    first, more = images(5), images(4, seed=1)
    frames = UniqueFrames(first)
    assert frames.nbytes < 0.6 * first.nbytes
    frames.extend(more)
    everything = torch.cat([first, more])
    assert len(frames) == 9
    for rows in ([0], [8, 0, 3], list(range(9))):
        assert torch.equal(frames.index_select(0, torch.tensor(rows)), everything[rows])
    before = frames.nbytes
    frames.extend(first)
    assert frames.nbytes - before == frames._index[:5].nbytes


def test_what_is_not_kept_is_forgotten_and_can_come_again() -> None:
    everything = images(8)
    frames = UniqueFrames(everything)
    frames.keep([1, 4, 5])
    assert torch.equal(frames.index_select(0, torch.arange(3)), everything[[1, 4, 5]])
    assert len(frames._frames) == len(frames._rows) == 1 + 3 * 4
    frames.extend(everything[:2])
    assert torch.equal(frames.index_select(0, torch.arange(5)), everything[[1, 4, 5, 0, 1]])
