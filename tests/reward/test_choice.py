"""What the answers choose: weight decay, and whether the reward sees the action."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.choice import (
    DECAYS,
    FEWEST,
    GROWTH,
    RATES,
    TEMPERATURES,
    Choice,
    Chooser,
    _log_likelihoods,
    simplest,
)
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, some_comparisons
from tests.reward.fits import same, trainer_of

AUTO = RewardModelSettings(normalize_inputs="none", hidden=(16,), weight_decay="auto", use_action="auto")


def answered(n: int, *, by_action: bool, wrong: float = 0.0, actions: Any = FORCES) -> Comparisons:
    """Answers that depend on the action alone, or on the state alone; a share of them wrong."""
    given = some_comparisons(n, length=8, actions=actions)
    sides = (given.pairs.left, given.pairs.right)
    sums = [
        (side.actions.astype(float).reshape(n, -1) if by_action else side.observations[:, :-1, 0]).sum(1)
        for side in sides
    ]
    turned = np.random.default_rng(0).random(n) < wrong
    return replace(given, preferences=((sums[0] > sums[1]) != turned).astype(np.float32))


def chosen(comparisons: Comparisons, settings: RewardModelSettings = AUTO, actions: Any = FORCES) -> Choice:
    trainer = trainer_of(settings, comparisons, actions=actions)
    trainer.fit(1)
    return trainer.chooser.chosen


@pytest.mark.parametrize("actions", [FORCES, CHOICES], ids=["forces", "choices"])
def test_the_action_is_an_input_if_the_answers_depend_on_it(actions: Any) -> None:
    assert chosen(answered(200, by_action=True, actions=actions), actions=actions).use_action
    assert not chosen(answered(200, by_action=False, actions=actions), actions=actions).use_action


def test_wrong_answers_choose_stronger_decay() -> None:
    decays = [chosen(answered(300, by_action=False, wrong=wrong)).weight_decay for wrong in (0.0, 0.35)]
    assert decays[0] < decays[1]


def test_what_the_settings_say_is_not_chosen() -> None:
    comparisons = answered(200, by_action=False)
    assert chosen(comparisons, replace(AUTO, weight_decay=0.3, use_action=True)) == Choice(0.3, True)
    assert chosen(comparisons, replace(AUTO, use_action=True)).use_action
    assert chosen(comparisons, replace(AUTO, weight_decay=0.3)) == Choice(0.3, False)


def test_few_answers_choose_nothing_and_later_ones_again() -> None:
    chooser = Chooser(AUTO)
    assert chooser.chosen == Choice(DECAYS[-1], True)
    assert not chooser.due(FEWEST - 1)
    assert chooser.due(FEWEST)
    chooser.load_state({"weight_decay": 1.0, "use_action": False, "answers": 100})
    assert not chooser.due(int(100 * GROWTH) - 1)
    assert chooser.due(int(100 * GROWTH))
    assert chosen(answered(FEWEST - 1, by_action=True)) == Choice(DECAYS[-1], True)


def test_an_action_left_out_changes_no_reward_at_any_fit() -> None:
    trainer = trainer_of(AUTO, answered(200, by_action=False))
    for _ in range(3):
        trainer.fit(5)
        observations = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
        ended = np.zeros(50, bool)
        one, other = (
            trainer.ensemble.predict(observations, np.full((50, 2), force, np.float32), observations, ended)
            for force in (-2.0, 2.0)
        )
        assert np.array_equal(one, other)
        assert one.std() > 0


def test_a_resumed_fit_keeps_the_choice_to_the_bit() -> None:
    comparisons = answered(200, by_action=False)
    trainer = trainer_of(AUTO, comparisons)
    trainer.fit(5)
    again = trainer_of(AUTO)
    again.load_state(trainer.state(), Changes(comparisons=comparisons, withdrawn=(), last=0, weights={}))
    assert again.chooser.chosen == trainer.chooser.chosen
    for _ in range(2):
        for one in (trainer, again):
            one.fit(5)
        assert same(trainer, again)


def test_a_setting_changed_on_the_way_counts_more_than_what_was_chosen() -> None:
    comparisons = answered(200, by_action=False)
    trainer = trainer_of(replace(AUTO, weight_decay=0.3), comparisons)
    trainer.fit(5)
    again = trainer_of(replace(AUTO, weight_decay=2.0, use_action=True))
    again.load_state(trainer.state(), Changes(comparisons=comparisons, withdrawn=(), last=0, weights={}))
    assert again.optimizer.param_groups[0]["weight_decay"] == 2.0
    assert again.chooser.chosen == Choice(2.0, True)


def test_another_choice_takes_a_first_fits_steps() -> None:
    trainer = trainer_of(replace(AUTO, initial_updates=70), answered(200, by_action=False))
    assert [trainer.fit(5).gradient_steps for _ in range(2)] == [5, 5]  # the first fit's are the caller's
    trainer.chooser.load_state({"weight_decay": 10.0, "use_action": True, "answers": 0})
    assert [trainer.fit(5).gradient_steps for _ in range(2)] == [70, 5]


def test_the_simplest_within_one_standard_error() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    best = rng.normal(size=400)
    for shift, first in ((0.5, 0), (2.0, 1)):  # in standard errors of the difference
        noise = (noise - noise.mean()) / noise.std()
        likelihoods = np.stack([best - noise - shift / np.sqrt(400), best])
        assert simplest(likelihoods) == first


def test_a_likelihood_is_that_of_the_best_rate_and_temperature() -> None:
    preferred = np.random.default_rng(0).normal(0.5, 2.0, 60)
    best = max(
        (
            [np.log((1 - rate) / (1 + np.exp(-x / at)) + rate / (1 + np.exp(x / at))) for x in preferred]
            for at in TEMPERATURES
            for rate in RATES
        ),
        key=sum,
    )
    np.testing.assert_allclose(_log_likelihoods(preferred), best, rtol=1e-9)


def test_networks_that_are_not_mlps_keep_what_holds_at_first() -> None:
    trainer = RewardTrainer(replace(AUTO, network="gru"), *_spaces(), held_out_share=0.0, seed=0)
    trainer.comparisons.add(answered(100, by_action=False))
    trainer.fit(1)
    assert trainer.chooser.chosen == Choice(0.01, True)
    assert trainer.optimizer.param_groups[0]["weight_decay"] == 0.01


def _spaces() -> Any:
    trainer = trainer_of(AUTO)
    return trainer.ensemble.observation_space, trainer.ensemble.action_space
