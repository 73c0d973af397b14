"""Rewards learned by supervision: rare rewards with each balance; adversarial training against the reward's own visualisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.calibrations import Row
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs.planted import BLOCK, SIDE, PlantedImage
from rlhf_ray.interpret.reward.visualisation import VisualisationSettings, visualise
from rlhf_ray.reward.supervised import SupervisedReport, fit_to_rewards
from rlhf_ray.reward.supervised.checks import check_steps
from rlhf_ray.settings import Balance, RewardModelSettings, SupervisedSettings

IMAGES, TEST_SHARE = 8_000, 0.25
MODEL = RewardModelSettings(
    network="pooled_cnn",
    convolutions=(8, 16, 16),
    activation="relu",
    use_state=False,
    use_action=False,
    use_next_state=True,
    ensemble_size=1,
    bootstrap=False,
)
EPOCHS: dict[Balance, int] = {"none": 1, "sampler": 2, "inverse_frequency": 5, "drop_zeros": 2}
"""Enough for each balance; weighted losses need more, because few batches have a positive."""


def planted(n: int, share: float, seed: int) -> Transitions:
    """Images of an agent and a coin at random places, in episodes of 20. In ``share`` of the images, they touch and earn 1."""
    rng = np.random.default_rng(seed)
    wanted = rng.permutation(n) < round(share * n)
    places = rng.integers(0, SIDE - BLOCK + 1, (60 * n, 2, 2))
    apart = np.abs(places[:, 0] - places[:, 1]).max(1)
    touching, distant = places[(apart <= BLOCK) & (apart > 0)], places[apart > BLOCK]
    env = PlantedImage()
    pairs = np.where(wanted[:, None, None], touching[:n], distant[:n])
    stones = rng.integers(0, SIDE - 1, (n, 2))
    images = np.stack(
        [
            env.observe(tuple(agent), tuple(coin), tuple(stone))
            for (agent, coin), stone in zip(pairs, stones, strict=True)
        ]
    )
    return Transitions(
        images, np.zeros(n, np.int64), images, np.zeros(n, bool), wanted * 1.0, np.arange(n) // 20, np.arange(n) % 20
    )


def fitted(
    steps: Transitions, seed: int, balance: Balance, epochs: int, adversarial_rounds: int = 0
) -> SupervisedReport:
    """Fit the convolutions to ``steps``. Each adversarial round is another epoch."""
    env = PlantedImage()
    settings = SupervisedSettings(
        balance=balance,
        test_share=TEST_SHARE,
        epochs=epochs,
        batch_size=32 if adversarial_rounds else 64,
        learning_rate=4e-3,
        adversarial_rounds=adversarial_rounds,
    )
    made = VisualisationSettings(steps=30)
    return fit_to_rewards(
        steps,
        env.observation_space,  # type: ignore[arg-type]
        env.action_space,
        MODEL,
        settings,
        seed=seed,
        visualise=lambda reward, drawn: visualise(reward, steps[:300], drawn, count=8, settings=made),
    )[1]


def rows(seeds: Sequence[int]) -> list[Row]:
    """B1: 1 % of the rewards are not zero. A22: visualisations lose their score. T1: bytes and floats never mix."""
    found = [row for seed in seeds for row in _rare(seed)]
    found += [_adversarial(seed) for seed in seeds]
    return [*found, _types()]


def _rare(seed: int) -> list[Row]:
    steps = planted(IMAGES, 0.01, seed)
    found = []
    for balance in (of for of in EPOCHS if of != "none"):
        report = fitted(steps, seed, balance, EPOCHS[balance])
        found.append(
            Row(
                "B1",
                f"1 % positives, balance {balance}, seed {seed}",
                _figures(report),
                "balanced AUC > 0.95; constant baseline beside the error",
                report.balanced_auc > 0.95,
            )
        )
    plain = fitted(steps, seed, "none", EPOCHS["none"])
    near_zero = plain.test_error < 0.02
    found.append(
        Row(
            "B1",
            f"1 % positives, no balance, short fit, seed {seed}",
            _figures(plain) | {"passes": float(plain.learned)},
            "mean squared error < 0.02, and the report does not call that learned",
            near_zero and not plain.learned,
        )
    )
    return found


def _adversarial(seed: int) -> Row:
    report = fitted(planted(3_000, 0.3, seed), seed, "none", 12, adversarial_rounds=6)
    of = report.adversarial
    assert of is not None
    return Row(
        "A22",
        f"adversarial training against its own visualisations, seed {seed}",
        {
            "fresh before": round(of.fresh_before, 3),
            "fresh after": round(of.fresh_after, 3),
            "held out before": round(of.held_out_before, 3),
            "held out after": round(of.held_out_after, 3),
            "AUC before": round(of.auc_before, 4),
            "AUC after": round(of.auc_after, 4),
        },
        "score of fresh visualisations at most half, AUC loses at most 0.01",
        of.fresh_after <= of.fresh_before / 2 and of.auc_after >= of.auc_before - 0.01,
    )


def _types() -> Row:
    steps = planted(40, 0.5, 0)
    refused = []
    for kind, scale in ((np.float32, 1 / 255), (np.float64, 1.0), (np.int64, 1)):
        try:
            env = PlantedImage()
            wrong = steps.with_(next_observations=(steps.next_observations * scale).astype(kind))
            check_steps(wrong, env.observation_space, env.action_space)  # type: ignore[arg-type]
        except SettingError:
            refused.append(np.dtype(kind).name)
    return Row("T1", "images of another type among bytes are refused", ", ".join(refused), "all 3", len(refused) == 3)


def _figures(report: SupervisedReport) -> dict[str, float]:
    return {
        "balanced AUC": round(report.balanced_auc, 4),
        "error": round(report.test_error, 5),
        "error of a constant": round(report.constant_error, 5),
    }
