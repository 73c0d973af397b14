import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Changes, Comparisons, side_of, stable_uniform
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward import trainer as trainer_module
from rlhf_ray.reward.comparison_set import bootstrap_weights
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store.answers import Presses
from tests.made_up import (
    CHOICES,
    FORCES,
    IMAGES,
    VECTORS,
    beats,
    joined,
    more_right,
    opposite,
    right_about,
    some_comparisons,
    steps_of,
)
from tests.reward.fits import same, trainer_of

SMALL = RewardModelSettings(hidden=(8,), batch_size=8, normalize_inputs="none")
CERTAIN = dataclasses.replace(SMALL, label_noise=0.0)
"""Takes answers for certain: estimates of errors depend on all members and on held-out answers."""


def _without_time(report: FitReport) -> dict[str, Any]:
    return {name: str(value) for name, value in vars(report).items() if name != "seconds"}


def _raw_rewards(trainer: RewardTrainer, comparisons: Comparisons) -> Any:
    """Reward before normalisation, ``[members, n, 2, length]`` float64."""
    sides = []
    for side in (comparisons.pairs.left, comparisons.pairs.right):
        rewards = trainer.ensemble.raw_rewards(*map(torch.as_tensor, steps_of(side)))
        sides.append(rewards.double().numpy().reshape(-1, *side.rewards.shape))
    return np.stack(sides, axis=2)


def _losses(rewards: Any, preferences: Any, settings: RewardModelSettings) -> Any:
    """The formula, written out: ``[members, n]`` from ``[members, n, 2, length]``."""
    returns = (rewards * settings.discount ** np.arange(rewards.shape[-1])).sum(-1)
    chance = 1 / (1 + np.exp(returns[..., 1] - returns[..., 0]))
    left = settings.label_noise / 2 + (1 - settings.label_noise) * chance
    return -(preferences * np.log(left) + (1 - preferences) * np.log(1 - left))


def _some_ties(comparisons: Comparisons, every: int = 4) -> Comparisons:
    preferences = comparisons.preferences.copy()
    preferences[::every] = 0.5
    return Comparisons(comparisons.pairs, preferences)


def test_a_fit_that_comes_to_no_numbers_says_so() -> None:
    def nothing(return_difference: torch.Tensor, preferences: torch.Tensor, label_noise: float) -> torch.Tensor:
        return return_difference * torch.nan

    settings = dataclasses.replace(SMALL, loss=nothing)  # type: ignore[arg-type]
    trainer = trainer_of(settings, some_comparisons(20))
    with pytest.raises(
        SettingError, match=r"learning_rate is 0\.\d+, and after 3 gradient steps the rewards are NaN or inf.*nothing"
    ):
        trainer.fit(3)


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("label_noise", [0.0, 0.2])
def test_the_report_says_what_the_formula_says_of_the_fitted_model(label_noise: float, discount: float) -> None:
    settings = dataclasses.replace(
        SMALL, label_noise=label_noise, discount=discount, use_done=True, use_next_state=True
    )
    comparisons = _some_ties(some_comparisons(40, 6))
    trainer = trainer_of(settings, comparisons, held_out_share=0.3)
    report = trainer.fit(20)
    mean_rewards = _raw_rewards(trainer, comparisons).mean(0, keepdims=True)
    losses = _losses(mean_rewards, comparisons.preferences, settings)[0]
    differences = (mean_rewards[0] * discount ** np.arange(6)).sum(-1)
    right = (differences[:, 0] > differences[:, 1]) == (comparisons.preferences > 0.5)
    held_out = np.array([name in _held_out(trainer) for name in comparisons.pairs.ids])
    decided = comparisons.preferences != 0.5
    assert 0 < held_out.sum() < 40
    assert report.comparisons == 40
    assert report.held_out == held_out.sum()
    assert report.ties == 10
    assert report.gradient_steps == 20
    assert report.train_loss == pytest.approx(losses[~held_out].mean(), rel=1e-4)
    assert report.held_out_loss == pytest.approx(losses[held_out].mean(), rel=1e-4)
    assert report.held_out_log_likelihood == pytest.approx(-report.held_out_loss, rel=1e-4)
    assert report.train_accuracy == pytest.approx(right[~held_out & decided].mean())
    assert report.held_out_accuracy == pytest.approx(right[held_out & decided].mean())
    assert report.reward_std == pytest.approx(_raw_rewards(trainer, comparisons).reshape(3, -1).std(1).mean(), rel=1e-2)
    assert report.reward_mean == pytest.approx(_raw_rewards(trainer, comparisons).mean(), abs=1e-4)
    returns = (_raw_rewards(trainer, comparisons) * discount ** np.arange(6)).sum(-1)
    chance = 1 / (1 + np.exp(returns[..., 1] - returns[..., 0]))
    assert report.disagreement == pytest.approx(chance.std(0).mean(), rel=1e-4)
    assert report.held_out_decided == (held_out & decided).sum()
    left = int((comparisons.preferences > 0.5).sum())
    assert report.chosen == {"anonymous": Presses(left, 30 - left, 10)}


def test_choices_are_each_annotators_newest_as_shown_and_one_member_has_no_disagreement() -> None:
    pairs = some_comparisons(120).pairs
    answers = np.where(np.arange(120) < 40, 1.0, 0.0).astype(np.float32)
    answers[80:] = 0.5
    names, swapped = ("ada", "bob") * 60, (False, True, True, False) * 30
    sides, others = (tuple(map(side_of, given, swapped)) for given in (answers, 1 - answers))
    said = Comparisons(pairs, answers, names, sides)
    trainer = trainer_of(dataclasses.replace(SMALL, ensemble_size=1), said[np.arange(80)])
    report = trainer.fit(1)
    assert report.chosen == {"ada": Presses(20, 20), "bob": Presses(20, 20)}
    assert np.isnan(report.disagreement)
    trainer.comparisons.add(said[np.arange(80, 120)])
    assert trainer.fit(1).chosen == {"ada": Presses(15, 15, 20), "bob": Presses(15, 15, 20)}
    keys = dict(zip(said.keys, said.chosen, strict=True))
    trainer.comparisons.withdraw([key for key, side in keys.items() if key[1] == "ada" and side != "left"])
    trainer.comparisons.add(
        Comparisons(pairs, 1 - answers, names, others)[np.arange(1)]
    )  # ada's first answer, corrected
    trainer.comparisons.weigh({"bob": 0.0})
    assert trainer.fit(1).chosen == {"ada": Presses(19, 1), "bob": Presses()}


def _held_out(trainer: RewardTrainer) -> set[str]:
    return {
        name
        for name, _ in trainer.comparisons.keys
        if stable_uniform([name], "held out")[0] < trainer.comparisons.held_out_share
    }


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("label_noise", [0.0, 0.2])
@pytest.mark.parametrize("part", [8192, 40])
def test_the_gradient_is_that_of_the_bootstrapped_mean_loss(monkeypatch, label_noise, discount, part):
    monkeypatch.setattr(trainer_module, "BACKWARD_STEPS", part)  # the smaller one takes the batch in many parts
    settings = RewardModelSettings(
        network="mlp",
        hidden=(4,),
        activation="tanh",
        normalize_inputs="none",
        batch_size=100,
        label_noise=label_noise,
        discount=discount,
        weight_decay=0.0,
    )
    comparisons = _some_ties(some_comparisons(12, 5))
    weights = bootstrap_weights(comparisons.pairs.ids, 3)
    trainer = trainer_of(settings, comparisons)
    begin = trainer.ensemble.state()

    def loss() -> float:
        losses = _losses(_raw_rewards(trainer, comparisons), comparisons.preferences, settings)
        return float((losses * weights).mean(1).sum())

    trainer.fit(1)
    for parameter in trainer.ensemble.networks.parameters():
        # After its first step Adam's average of the gradients is a tenth of the first one.
        gradient = trainer.optimizer.state[parameter]["exp_avg"] / (1 - 0.9)
        for place in (0, parameter.numel() // 2, parameter.numel() - 1):
            around = []
            for step in (1e-2, -1e-2):
                trainer.ensemble.load_state(begin)
                with torch.no_grad():
                    parameter.view(-1)[place] += step
                around.append(loss())
            numeric = (around[0] - around[1]) / 2e-2
            assert gradient.reshape(-1)[place].item() == pytest.approx(numeric, rel=2e-2, abs=2e-3)


def test_what_is_held_out_does_not_influence_the_weights_at_all() -> None:
    comparisons = some_comparisons(40)
    trainer = trainer_of(CERTAIN, comparisons, held_out_share=0.3)
    held_out = np.array([name in _held_out(trainer) for name in comparisons.pairs.ids])
    trainer.fit(20)
    for where, alike in ((held_out, True), (~held_out, False)):
        flipped = np.where(where, 1 - comparisons.preferences, comparisons.preferences)
        other = trainer_of(CERTAIN, Comparisons(comparisons.pairs, flipped), held_out_share=0.3)
        other.fit(20)
        assert same(trainer, other) == alike


def test_what_is_held_out_stays_so_when_comparisons_arrive_in_another_order() -> None:
    comparisons = some_comparisons(60)
    all_at_once = trainer_of(SMALL, comparisons, held_out_share=0.25).fit(1)
    bit_by_bit = trainer_of(SMALL, held_out_share=0.25)
    for i in reversed(range(0, 60, 7)):
        bit_by_bit.comparisons.add(comparisons[i : i + 7])
    report = bit_by_bit.fit(1)
    assert report.held_out == all_at_once.held_out
    assert 5 <= report.held_out <= 25


@pytest.mark.parametrize("n", [1, 30])
def test_each_member_has_mean_0_and_standard_deviation_1_over_all_stored_steps(n: int) -> None:
    comparisons = some_comparisons(n, 25)
    trainer = trainer_of(SMALL, comparisons, held_out_share=0.3)
    trainer.fit(10)
    rewards = _raw_rewards(trainer, comparisons).reshape(3, -1)
    normalised = (rewards - trainer.ensemble.reward_mean.numpy()[:, None]) / trainer.ensemble.reward_std.numpy()[
        :, None
    ]
    assert np.abs(normalised.mean(1)).max() < 1e-4
    assert np.abs(normalised.std(1, ddof=1) - 1).max() < 1e-3


def test_the_best_twentieth_of_the_fragments_is_that_of_the_published_rewards() -> None:
    some = some_comparisons(60, 7, seed=3)
    trainer = trainer_of(SMALL, some, held_out_share=0.1)
    best = trainer.fit(20).best_fragments
    earned = [
        trainer.ensemble.predict(*steps_of(side)).reshape(60, 7).mean(1) for side in (some.pairs.left, some.pairs.right)
    ]
    assert best == pytest.approx(np.quantile(earned, 0.95), abs=1e-5)
    raw = trainer_of(dataclasses.replace(SMALL, normalize_outputs=False), some, held_out_share=0.1)
    assert np.isnan(raw.fit(20).best_fragments)


def test_a_window_leaves_out_all_but_the_newest_comparisons() -> None:
    old, new = some_comparisons(20, seed=1), some_comparisons(12, seed=2)
    other = dataclasses.replace(old, preferences=1 - old.preferences)
    trainers = []
    for first in (old, other):
        trainer = trainer_of(dataclasses.replace(CERTAIN, window=12), joined([first, new]))
        report = trainer.fit(5)
        assert report.comparisons == 32
        trainers.append(trainer)
    assert same(*trainers)  # whatever the old ones said
    trainers[0].comparisons.add(some_comparisons(3, seed=3))
    trainers[0].fit(5)
    assert not same(*trainers)
    everything = trainer_of(CERTAIN, joined([old, new]))
    everything.fit(5)
    assert not same(everything, trainers[1])


def test_a_fit_takes_exactly_the_updates_it_is_told_whatever_the_batches() -> None:
    for n, batch_size, updates in ((3, 32, 7), (20, 8, 4), (16, 8, 5), (1, 1, 1)):
        trainer = trainer_of(dataclasses.replace(SMALL, batch_size=batch_size), some_comparisons(n))
        trainer.fit(updates)
        (steps,) = {int(moments["step"]) for moments in trainer.optimizer.state.values()}
        assert steps == updates


def test_adding_twice_changes_nothing() -> None:
    comparisons = some_comparisons(12)
    once, twice = trainer_of(SMALL, comparisons), trainer_of(SMALL, comparisons[:7])
    twice.comparisons.add(comparisons[3:])
    twice.comparisons.add(comparisons)
    assert twice.comparisons.keys == once.comparisons.keys == comparisons.keys
    once.fit(5)
    assert twice.fit(5).comparisons == 12
    assert same(once, twice)


def test_of_a_pair_that_is_twice_in_one_batch_the_later_answer_counts() -> None:
    comparisons = some_comparisons(2)
    both = joined([comparisons, Comparisons(comparisons.pairs, 1 - comparisons.preferences)])
    once, twice = trainer_of(SMALL, both[2:]), trainer_of(SMALL, both)
    assert twice.fit(3).comparisons == once.fit(3).comparisons == 2
    assert same(once, twice)


def test_where_chance_held_everything_out_all_of_it_is_fitted() -> None:
    trainer = trainer_of(SMALL, some_comparisons(3), held_out_share=0.999)
    before = trainer.ensemble.state()
    report = trainer.fit(30)
    assert report.held_out == 3
    assert report.train_accuracy == 1.0
    assert not np.array_equal(
        trainer.ensemble.state()["networks.head.layers.0.weight"], before["networks.head.layers.0.weight"]
    )


def test_a_constant_reward_is_normalised_to_numbers() -> None:
    trainer = trainer_of(
        RewardModelSettings(hidden=(8,), use_state=False, use_action=False, use_done=True), some_comparisons(2)
    )
    trainer.comparisons.add(some_comparisons(3, seed=1))
    with torch.no_grad():
        for parameter in trainer.ensemble.networks.parameters():
            parameter.zero_()
    trainer.fit(1)
    step = np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float32), np.ones((1, 3), np.float32), np.array([False])
    assert np.isfinite(trainer.ensemble.predict(*step)).all()


MASKED: dict[str, Any] = {"dropout": 0.4, "batch_norm": True}


@pytest.mark.parametrize(
    ("spaces", "changes"),
    [({}, {}), ({}, MASKED), ({"observations": IMAGES, "actions": CHOICES}, {})],
    ids=["mlp", "dropout", "cnn"],
)
def test_a_restored_trainer_goes_on_bit_for_bit(spaces: dict[str, Any], changes: dict[str, Any]) -> None:
    comparisons = some_comparisons(12, 3, **spaces)
    settings = dataclasses.replace(SMALL, batch_size=5, **changes)
    uninterrupted = trainer_of(settings, comparisons[:7], **spaces)
    uninterrupted.fit(4)
    state = uninterrupted.state()  # and what follows may not reach into it
    uninterrupted.comparisons.add(comparisons[7:])
    expected = uninterrupted.fit(6)
    shuffled = comparisons[np.random.default_rng(0).permutation(12)]
    restored = trainer_of(settings, seed=99, **spaces)
    restored.load_state(state, Changes(1, shuffled))
    assert restored.comparisons.keys == comparisons.keys[:7]
    restored.comparisons.add(comparisons[7:])
    assert _without_time(restored.fit(6)) == _without_time(expected)
    assert same(restored, uninterrupted)
    again = trainer_of(settings, **spaces)
    again.load_state(state, Changes(1, shuffled))  # nor does the restored trainer
    again.comparisons.add(comparisons[7:])
    again.fit(6)
    assert same(again, uninterrupted)


def test_a_state_from_before_the_first_fit_can_be_restored() -> None:
    one = trainer_of(SMALL, seed=1)
    other = trainer_of(SMALL, seed=2)
    other.load_state(one.state(), Changes(0, None))
    comparisons = some_comparisons(5)
    for trainer in (one, other):
        trainer.comparisons.add(comparisons)
        trainer.fit(3)
    assert same(one, other)


@pytest.mark.parametrize("kept", [0, 2])
def test_comparisons_that_are_missing_for_a_state_are_told_of_and_the_others_are_enough(kept, caplog):
    comparisons = some_comparisons(3)
    trainer, restored = trainer_of(SMALL, comparisons), trainer_of(SMALL)
    trainer.fit(1)
    if kept == 0:
        with pytest.raises(ValueError, match="3 of the 3 comparisons"):
            restored.load_state(trainer.state(), Changes(0, None))
        return
    restored.load_state(trainer.state(), Changes(1, comparisons[:kept]))
    assert f"{3 - kept} of the 3 comparisons" in caplog.text
    assert same(restored, trainer)
    assert restored.fit(1).comparisons == kept


@pytest.mark.parametrize("changes", [{}, MASKED], ids=["plain", "dropout"])
def test_torchs_random_numbers_are_left_alone_and_not_used(changes: dict[str, Any]) -> None:
    comparisons, settings = some_comparisons(20), dataclasses.replace(SMALL, **changes)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = trainer_of(settings, comparisons)
    one.fit(5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    other = trainer_of(settings, comparisons)
    other.fit(5)
    assert same(one, other)


def test_a_fit_learns_a_linear_reward_from_200_comparisons() -> None:
    seen, unseen = some_comparisons(200, 10), some_comparisons(500, 10, seed=1)
    trainers = [trainer_of(RewardModelSettings(), seen, seed=seed) for seed in range(2)]
    for trainer in trainers:
        trainer.fit(200)
    assert beats(0.75, [right_about(seen, trainer.ensemble) for trainer in trainers])
    assert beats(0.75, [right_about(unseen, trainer.ensemble) for trainer in trainers])


def test_a_fit_learns_from_images() -> None:
    spaces: Any = {"observations": IMAGES, "actions": CHOICES}
    seen, unseen = some_comparisons(24, 3, **spaces), some_comparisons(200, 3, seed=1, **spaces)
    right: dict[bool, list[Any]] = {False: [], True: []}
    for seed in range(2):
        for turned, fits in right.items():
            trainer = trainer_of(SMALL, opposite(seen) if turned else seen, seed=seed, **spaces)
            trainer.fit(30)
            fits.append(right_about(unseen, trainer.ensemble))
    assert more_right(right[False], right[True])


ON_THE_CPU = RewardModelSettings(
    hidden=(8,), batch_size=8, use_next_state=True, use_done=True, discount=0.9, precision="float32"
)
ON_A_GPU = dataclasses.replace(ON_THE_CPU, gpus=1.0)
ON_BOTH = [(VECTORS, FORCES), (IMAGES, CHOICES)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named_with_the_remedy() -> None:
    with pytest.raises(SettingError, match=r"reward_model\.gpus is 0\.5.*sees no GPU.*set it to 0.*CUDA build"):
        RewardTrainer(dataclasses.replace(ON_THE_CPU, gpus=0.5), VECTORS, FORCES, held_out_share=0.0, seed=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(("observations", "actions"), ON_BOTH)
def test_a_fit_on_the_gpu_is_that_on_the_cpu_but_for_rounding(observations: object, actions: object) -> None:
    comparisons = some_comparisons(40, observations=observations, actions=actions)  # type: ignore[arg-type]
    here, there = (
        RewardTrainer(settings, observations, actions, held_out_share=0.2, seed=0)  # type: ignore[arg-type]
        for settings in (ON_THE_CPU, ON_A_GPU)
    )
    for trainer in (here, there):
        trainer.comparisons.add(comparisons)
        trainer.fit(20)
    for name, value in here.ensemble.state().items():
        assert np.allclose(value, there.ensemble.state()[name], atol=1e-3), name
    here.load_state(there.state(), Changes(1, comparisons))  # states go from one to the other
    there.load_state(here.state(), Changes(1, comparisons))
    reports = [trainer.fit(20) for trainer in (here, there)]
    assert reports[0].train_loss == pytest.approx(reports[1].train_loss, abs=1e-3)


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ({"annotator_rationality": True, "adaptive_l2": True}, False),
        ({"discount": 0.9, "label_noise": 0.1, "use_done": True}, False),
        ({"methods": ("surf",)}, False),
        ({"methods": ("rime",), "dropout": 0.2}, False),
        *(({"network": name}, False) for name in ("per_action", "gru", "transformer", "shaped")),
        ({"use_done": True, "convolutions": (4,)}, True),
    ],
)
def test_fits_do_not_depend_on_torchs_default_dtype(settings: dict[str, Any], images: bool) -> None:
    spaces: dict[str, Any] = {
        "observations": IMAGES if images else VECTORS,
        "actions": CHOICES if settings.get("network") == "per_action" or images else FORCES,
    }

    def fitted(dtype: torch.dtype) -> tuple[RewardTrainer, list[dict[str, Any]]]:
        of = RewardModelSettings(hidden=(8,), batch_size=8, **settings)
        trainer = trainer_of(of, some_comparisons(12, **spaces), held_out_share=0.2, **spaces)
        torch.set_default_dtype(dtype)
        try:
            unlabelled = some_comparisons(6, seed=1, **spaces).pairs
            first = trainer.fit(5, unlabelled=unlabelled)
            trainer.comparisons.add(some_comparisons(6, seed=2, **spaces))
            return trainer, [_without_time(report) for report in (first, trainer.fit(5, unlabelled=unlabelled))]
        finally:
            torch.set_default_dtype(torch.float32)

    (plain, reports), (other, others) = fitted(torch.float32), fitted(torch.float64)
    assert same(plain, other)
    assert reports == others
