"""The cases of imitation's tests of preferences, run through the adapters and on our counterparts.

After tests/algorithms/test_preference_comparisons.py and tests/test_regularization.py of imitation 1.0.1: gatherers,
selection, trainers and regularisation.
"""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.queries.selection import SELECTIONS, Candidates
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.teachers import TEACHERS
from tests.made_up import FORCES, VECTORS, some_comparisons, some_fragments, steps_of
from tests.reward.fits import trainer_of

pc = pytest.importorskip("imitation.algorithms.preference_comparisons", reason="the extra 'imitation'")
nets = pytest.importorskip("imitation.rewards.reward_nets")
regularizers = pytest.importorskip("imitation.regularization.regularizers")
types = pytest.importorskip("imitation.data.types")

from rlhf_ray.reward.functions.reward_net import LearnedRewardNet  # noqa: E402 (needs imitation)


def trajectories_of(clips: Fragments) -> list[Any]:
    arrays = (clips.observations, clips.actions, clips.terminated, clips.rewards)
    return [types.TrajectoryWithRew(o, a, None, bool(end), r) for o, a, end, r in zip(*arrays, strict=True)]


def pairs_of(pairs: Pairs) -> list[Any]:
    return list(zip(trajectories_of(pairs.left), trajectories_of(pairs.right), strict=True))


def learned(seed: int = 0, observations: gym.spaces.Box = VECTORS, actions: Any = FORCES, **options: Any) -> Any:
    torch.manual_seed(seed)
    settings = RewardModelSettings(**{"hidden": (8,), "ensemble_size": 2, **options})
    return LearnedRewardNet(RewardEnsemble(observations, actions, settings))


@pytest.mark.parametrize("discount", [1.0, 0.7])
def test_synthetic_gatherer(discount: float) -> None:
    batch = some_comparisons(300)
    settings = PreferenceSettings(rationality=1 / 0.4, teacher_discount=discount)
    rng = np.random.default_rng(0)

    def theirs(**options: Any) -> Any:
        gatherer = pc.SyntheticGatherer(discount_factor=discount, rng=np.random.default_rng(0), **options)
        return gatherer(pairs_of(batch.pairs))

    chances = theirs(temperature=0.4, sample=False)
    soft = TEACHERS.make("soft", settings=settings).answer(batch.pairs, rng)
    np.testing.assert_allclose(soft, chances, rtol=1e-4)
    oracle = TEACHERS.make("oracle", settings=settings).answer(batch.pairs, rng)
    np.testing.assert_array_equal(oracle, theirs(temperature=0))
    np.testing.assert_array_equal(oracle, TEACHERS.make("oracle", settings=settings).answer(batch.pairs, rng))
    drawn = np.mean([TEACHERS.make("stochastic", settings=settings).answer(batch.pairs, rng) for _ in range(400)], 0)
    assert np.abs(drawn - chances).max() < 0.12  # four standard errors of 400 answers are 0.1
    ties = Pairs(batch.pairs.left, batch.pairs.left, batch.pairs.ids)
    assert set(TEACHERS.make("oracle", settings=settings).answer(ties, rng)) == {0.5}


@pytest.mark.parametrize(
    ("uncertainty", "selection"),
    [("logit", "disagreement_logits"), ("probability", "disagreement"), ("label", "disagreement_labels")],
)
def test_active_fragmenter(uncertainty: str, selection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours ranks pairs as theirs does, on the same members."""
    members = [nets.BasicRewardNet(VECTORS, FORCES) for _ in range(3)]
    monkeypatch.setattr(nets, "made", lambda: nets.RewardEnsemble(VECTORS, FORCES, members), raising=False)
    ours = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(network="imitation.rewards.reward_nets:made"))
    clips = some_fragments(20)
    index = np.array([(i, j) for i in range(20) for j in range(i)])
    fragmenter = pc.ActiveSelectionFragmenter(
        pc.PreferenceModel(nets.RewardEnsemble(VECTORS, FORCES, members)),
        pc.RandomFragmenter(rng=np.random.default_rng(0)),
        2,
        uncertainty,
    )
    wanted = []
    for pair in index:
        rewards = [
            torch.as_tensor(np.stack([net.predict(*steps_of(clips[[k]])) for net in members], 1)) for k in pair.tolist()
        ]
        wanted.append(fragmenter.variance_estimate(*rewards))
    candidates = Candidates(index, clips, ours.fragment_returns(clips), 5, index[:0])
    chosen = SELECTIONS.make(selection)
    scores = chosen.score(candidates, np.random.default_rng(0))
    order = np.argsort(wanted, kind="stable")
    assert np.std(wanted) > 0
    assert np.all(np.diff(np.asarray(scores)[order]) >= -1e-6)


def dataset_of(batch: Comparisons) -> Any:
    dataset = pc.PreferenceDataset()
    dataset.push(pairs_of(batch.pairs), batch.preferences)
    return dataset


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2])
def test_their_regularisation_fits_our_reward(p: int, tmp_path: Path) -> None:
    """What `docs/from_imitation.md` says to do for another ``p``: fit with their trainer, and save what it fitted."""
    norms = []
    for strength in (1e-6, 0.3):
        net = learned(ensemble_size=1)
        factory = regularizers.LpRegularizer.create(initial_lambda=strength, lambda_updater=None, val_split=None, p=p)
        trainer = pc.BasicRewardTrainer(
            pc.PreferenceModel(net),
            pc.CrossEntropyRewardLoss(),
            rng=np.random.default_rng(0),
            epochs=30,
            lr=1e-2,
            regularizer_factory=factory,
        )
        trainer.train(dataset_of(some_comparisons(24)))
        net.ensemble.save(tmp_path / f"{strength}")
        fitted = RewardEnsemble.load(tmp_path / f"{strength}")
        np.testing.assert_array_equal(*(of.predict(*ZERO_STEPS) for of in (fitted, net)))
        norms.append(sum(float(of.abs().pow(p).sum()) for of in fitted.networks.parameters()))
    assert norms[1] < 0.5 * norms[0]


ZEROS = np.zeros((2, 3), np.float32)
ZERO_STEPS = (ZEROS, ZEROS[:, :2], ZEROS, np.zeros(2, bool))


def test_the_trainer_uses_the_interval_and_the_factor() -> None:
    settings = RewardModelSettings(
        hidden=(8,), adaptive_l2=True, l2_interval=(1e6, 1e7), l2_factor=4.0, ensemble_size=1
    )
    trainer = trainer_of(settings, some_comparisons(40), held_out_share=0.5)
    coefficients: list[float] = []
    trainer.fit(4, after_pass=lambda losses: coefficients.append(losses.l2))
    assert coefficients[:3] == pytest.approx([1e-4, 1e-4, 1e-4 / 4])  # from the second pass on


def test_weight_decay_regularizer() -> None:
    """Both take lr · λ of each weight away, besides the gradient."""
    weights = []
    for decay in (0.0, 0.5):
        torch.manual_seed(0)
        settings = RewardModelSettings(
            hidden=(8,), weight_decay=decay, learning_rate=0.01, ensemble_size=1, bootstrap=False
        )
        trainer = trainer_of(settings, some_comparisons(8))
        before = [of.detach().clone() for of in trainer.ensemble.networks.parameters()]
        trainer.fit(1)
        weights.append([of.detach().clone() for of in trainer.ensemble.networks.parameters()])
    for start, free, decayed in zip(before, *weights, strict=True):
        torch.testing.assert_close(free - decayed, 0.01 * 0.5 * start, atol=1e-6, rtol=1e-3)


def test_rewards_stay_as_they_are_without_output_normalisation() -> None:
    batch = some_comparisons(20)
    models = []
    for normalised in (True, False):
        torch.manual_seed(0)
        settings = RewardModelSettings(hidden=(8,), normalize_outputs=normalised)
        trainer = trainer_of(settings, batch)
        trainer.fit(10)
        models.append(trainer.ensemble)
    arguments = [torch.as_tensor(of) for of in steps_of(batch.pairs.left)]
    raw = models[1].raw_rewards(*arguments)
    torch.testing.assert_close(models[1].member_rewards(*arguments), raw)
    torch.testing.assert_close(models[0].raw_rewards(*arguments), raw)
    normed = models[0].member_rewards(*arguments)
    assert not torch.allclose(normed, raw, atol=0.05)
