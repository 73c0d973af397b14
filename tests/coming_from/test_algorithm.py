"""Rows of the page for those who come from imitation: the algorithm and its data, compared with imitation's own classes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.actors.ring import check_horizon
from rlhf_ray.cli import label
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.switching import Switching
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.likelihood import make_loss
from rlhf_ray.reward.regularisation import AdaptiveL2, PassLosses
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.store import PreferenceStore
from rlhf_ray.teachers import TEACHERS
from tests.coming_from.pages import IMITATION, given, named, note, pool_of
from tests.made_up import FORCES, VECTORS, some_comparisons, some_fragments

pc = pytest.importorskip("imitation.algorithms.preference_comparisons", reason="the extra 'imitation'")
nets = pytest.importorskip("imitation.rewards.reward_nets")
regularizers = pytest.importorskip("imitation.regularization.regularizers")
updaters = pytest.importorskip("imitation.regularization.updaters")
exploration = pytest.importorskip("imitation.policies.exploration_wrapper")
serialize = pytest.importorskip("imitation.data.serialize")

from tests.queries.test_imitations_preference_cases import pairs_of, trajectories_of  # noqa: E402

MODEL, FRAGMENTERS, TRAINERS = "`PreferenceModel`", "`Fragmenter`", "`BasicRewardTrainer`"
PLAIN: dict[str, Any] = {"hidden": (8,), "bootstrap": False, "normalize_outputs": False, "ensemble_size": 1}


def trainer_of(batch: Comparisons, held_out_share: float = 0.0, **changes: Any) -> RewardTrainer:
    of = RewardModelSettings(**{**PLAIN, **changes})
    trainer = RewardTrainer(of, VECTORS, FORCES, held_out_share=held_out_share, seed=0)
    trainer.comparisons.add(batch)
    return trainer


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_the_difference_of_two_returns_is_the_log_odds(discount: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named(IMITATION, MODEL, "PreferenceModel") == ("RewardEnsemble.fragment_returns",)
    (network,) = named(IMITATION, MODEL, "model")
    members = [nets.BasicRewardNet(VECTORS, FORCES) for _ in range(3)]
    monkeypatch.setattr(nets, "made", lambda: nets.RewardEnsemble(VECTORS, FORCES, members), raising=False)
    ours = RewardEnsemble(VECTORS, FORCES, given(network, "imitation.rewards.reward_nets:made", discount=discount))
    ours.reward_std.fill_(7.0)  # the agent's scale, not the likelihood's
    pairs = some_comparisons(5).pairs
    difference = ours.fragment_returns(pairs.left) - ours.fragment_returns(pairs.right)
    for net, log_odds in zip(members, difference, strict=True):
        with torch.no_grad():
            chances = pc.PreferenceModel(net, discount_factor=discount)(pairs_of(pairs))[0]
        np.testing.assert_allclose(1 / (1 + np.exp(-log_odds)), chances, rtol=1e-4)


def test_random_pairs_use_all_clips_before_one_again() -> None:
    """What `RandomFragmenter` warns of: it draws with replacement."""
    names = named(IMITATION, FRAGMENTERS, "RandomFragmenter")
    assert named(IMITATION, FRAGMENTERS, "warning_threshold") == ()
    pool = pool_of(FragmentSettings(length=5, start_share=0.0), given(names[0], None))
    clips = some_fragments(20)
    pool.add(CutFragments(0, 0, clips, 0, ()))
    theirs = pc.RandomFragmenter(rng=np.random.default_rng(0), warning_threshold=0)
    drawn = [of.obs.tobytes() for pair in theirs(trajectories_of(clips), 5, 10) for of in pair]
    assert len(set(drawn)) < 20
    asked: list[frozenset[str]] = []
    for number in range(18):
        pairs = pool.propose(10, number, None)[1]
        assert pairs is not None
        used = [*pairs.left.ids(), *pairs.right.ids()]
        if number == 0:
            assert set(used) == set(clips.ids())
        asked += [frozenset(pair) for pair in zip(pairs.left.ids(), pairs.right.ids(), strict=True)]
    assert len(set(asked)) == len(asked) == 180  # of 190
    assert all(len(pair) == 2 for pair in asked)


def test_active_selection_has_the_newest_reward_and_pairs_of_the_pool() -> None:
    assert named(IMITATION, FRAGMENTERS, "preference_model") == ("reward_model.ensemble_size",)
    assert named(IMITATION, FRAGMENTERS, "ActiveSelectionFragmenter") == ("preferences.selection",)
    assert named(IMITATION, FRAGMENTERS, "base_fragmenter") == ("fragments.pool",)


class Longest:
    """A selection of one's own: the pair whose first clip begins latest."""

    name, needs_reward = "longest", False

    def score(self, candidates: Any, rng: np.random.Generator) -> Any:
        return candidates.fragments.starts[candidates.index[:, 0]].astype(np.float64)


def test_a_fragmenter_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = named(IMITATION, FRAGMENTERS, "Fragmenter")
    assert (name.partition("=")[0],) == named(IMITATION, "`PreferenceComparisons`", "fragmenter")
    monkeypatch.setattr(pc, "Longest", Longest, raising=False)
    own = given(name.partition("=")[0], "imitation.algorithms.preference_comparisons:Longest", oversampling=100)
    pool = pool_of(FragmentSettings(length=5), own)
    clips = some_fragments(12)
    pool.add(CutFragments(0, 0, clips, 0, ()))
    pairs = pool.propose(1, 0, None)[1]
    assert pairs is not None
    assert pairs.left.starts[0] == clips.starts.max()


def test_exploration_steps_of_a_round() -> None:
    """The share that `AgentTrainer.sample` explores, of the steps that `PreferenceComparisons.train` asks it for."""
    (name,) = named(IMITATION, "`AgentTrainer`", "exploration_frac")
    fraction, factor, pairs, length = 0.25, 2, 10, 5
    theirs = int(fraction * (factor * 2 * pairs * length))
    steps = int(2 * factor * pairs * fraction * length)  # as the row says
    of = given(name, steps, length=length)
    assert of.resolved(horizon=200, total_env_steps=10_000, rounds=4).between_rounds_env_steps(False) == theirs == 50
    share = given(name, fraction, length=length).resolved(horizon=200, total_env_steps=10_000, rounds=4)
    assert share.between_rounds_env_steps(False) * 4 == fraction * 10_000


class Asked:
    """What `ExplorationWrapper` needs of an environment; random actions are 1, the policy's 0."""

    num_envs = 1

    class action_space:  # noqa: N801 (an attribute)
        seed = staticmethod(lambda of: None)
        sample = staticmethod(lambda: np.ones(1))

    observation_space = VECTORS


@pytest.mark.parametrize(("share", "switch"), [(0.5, 0.5), (0.3, 0.1), (0.7, 1.0)])
def test_random_actions_come_as_in_their_wrapper(share: float, switch: float) -> None:
    (random_prob,) = named(IMITATION, "`AgentTrainer`", "random_prob")
    (switch_prob,) = named(IMITATION, "`AgentTrainer`", "switch_prob")
    of = given(random_prob, share, **{switch_prob.partition(".")[2]: switch})
    theirs = exploration.ExplorationWrapper(
        lambda observations, state, start: (np.zeros((len(observations), 1)), state),
        Asked(),
        random_prob=share,
        switch_prob=switch,
        rng=np.random.default_rng(0),
    )
    here = Switching(of.random_action_share, of.switch_probability, np.random.default_rng(0))
    steps = 20_000
    taken = np.array([[theirs(np.zeros((1, 3)), None, None)[0].item(), here.random()] for _ in range(steps)])
    assert np.abs(taken.mean(0) - share).max() < 0.06  # four standard errors in the longest stretches
    changes = np.abs(np.diff(taken, axis=0)).mean(0)
    np.testing.assert_allclose(changes, 2 * share * (1 - share) * switch, atol=0.015)


def test_a_scripted_teacher_labels_a_folder_of_theirs(tmp_path: Path) -> None:
    assert named(IMITATION, "`TrajectoryDataset`", "TrajectoryDataset")[0] == "rlhf-ray label"
    assert named(IMITATION, "`TrajectoryDataset`", "trajectories")[0] == "rlhf-ray label"
    assert named(IMITATION, "`train_preference_comparisons`", "trajectory_path") == ("rlhf-ray fit",)
    assert "--teacher" in note(IMITATION, "`train_preference_comparisons`", "trajectory_path")
    serialize.save(tmp_path / "trajectories", trajectories_of(some_fragments(12, length=8)))
    words = f"{tmp_path / 'trajectories'} --store {tmp_path / 'labels'} --teacher oracle --comparisons 15 --length 4"
    label.run(words.split())
    held = PreferenceStore(tmp_path / "labels").load()
    assert held is not None
    theirs = pc.SyntheticGatherer(temperature=0, rng=np.random.default_rng(0))(pairs_of(held.pairs))
    assert held.pairs.left.length == 4
    np.testing.assert_array_equal(held.preferences, theirs)
    assert len(held) == 15
    assert 0 < held.preferences.mean() < 1


def test_returns_of_any_size_need_no_threshold() -> None:
    assert named(IMITATION, "SyntheticGatherer", "threshold") == ()
    clips = some_fragments(2)
    clips = dataclasses.replace(clips, rewards=np.stack([np.full(5, 1e6), np.full(5, -1e6)]))
    pairs = Pairs.of(clips, np.array([[0, 1], [1, 0], [0, 0]]))
    with np.errstate(all="raise"):
        chances = TEACHERS.make("soft", settings=PreferenceSettings()).answer(pairs, np.random.default_rng(0))
    theirs = pc.SyntheticGatherer(sample=False, threshold=50, rng=np.random.default_rng(0))(pairs_of(pairs))
    np.testing.assert_allclose(chances, theirs, atol=1e-20)


def test_what_is_committed_is_what_they_push(tmp_path: Path) -> None:
    assert named(IMITATION, "`PreferenceDataset`", "preference_collate_fn") == ("Comparisons",)
    batch = some_comparisons(4)
    dataset = pc.PreferenceDataset()
    dataset.push(pairs_of(batch.pairs), batch.preferences)
    PreferenceStore(tmp_path / "store").commit(batch, annotator="me")
    held = PreferenceStore(tmp_path / "store").load()
    assert held is not None
    fragments, preferences = pc.preference_collate_fn(list(dataset))
    np.testing.assert_array_equal(held.preferences, preferences)
    for side, of in enumerate((held.pairs.left, held.pairs.right)):
        for name, theirs in (("observations", "obs"), ("actions", "acts"), ("rewards", "rews")):
            np.testing.assert_array_equal(getattr(of, name), [getattr(pair[side], theirs) for pair in fragments])


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_report_has_their_loss_and_accuracy(noise: float) -> None:
    """Their loss, and their accuracy apart from ties, on our reward after the fit."""
    from rlhf_ray.reward.functions.reward_net import LearnedRewardNet

    loss = named(IMITATION, "`CrossEntropyRewardLoss`", "CrossEntropyRewardLoss")[0]
    assert named(IMITATION, "`LossAndMetrics`", "LossAndMetrics") == ("FitReport",)
    answers = some_comparisons(30).preferences.copy()
    answers[:3] = 0.5
    batch = dataclasses.replace(some_comparisons(30), preferences=answers)
    trainer = trainer_of(batch, label_noise=noise, loss=loss.partition("=")[2])
    report = trainer.fit(3)
    model = pc.PreferenceModel(LearnedRewardNet(trainer.ensemble), noise_prob=noise)
    with torch.no_grad():
        theirs = pc.CrossEntropyRewardLoss()(pairs_of(batch.pairs), answers, model)
        without = pc.CrossEntropyRewardLoss()(pairs_of(batch.pairs)[3:], answers[3:], model)
    assert report.train_loss == pytest.approx(float(theirs.loss), rel=1e-4)
    assert report.train_accuracy == pytest.approx(float(without.metrics["accuracy"]))
    assert report.ties == 3


def their_loss(return_difference: Any, preferences: Any, label_noise: Any) -> Any:
    """A loss of one's own: binary cross entropy, written as imitation's."""
    chances = 0.5 * label_noise + (1 - label_noise) / (1 + (-return_difference).exp())
    wanted = preferences.expand(chances.shape)
    return torch.nn.functional.binary_cross_entropy(chances, wanted, reduction="none")


def test_a_loss_of_ones_own_fits_as_the_built_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    name = named(IMITATION, "`CrossEntropyRewardLoss`", "RewardLoss")[0].partition("=")[0]
    assert named(IMITATION, TRAINERS, "loss") == (name,)
    monkeypatch.setattr(pc, "their_loss", their_loss, raising=False)
    of = given(name, "imitation.algorithms.preference_comparisons:their_loss")
    differences, answers = torch.tensor([[-1.0, 0.0, 2.0]]), torch.tensor([0.0, 0.5, 1.0])
    torch.testing.assert_close(make_loss(of)(differences, answers, 0.0), their_loss(differences, answers, 0.0))
    rewards = []
    for loss in (of.loss, "bradley_terry"):
        trainer = trainer_of(some_comparisons(20), loss=loss)
        trainer.fit(20)
        returns = trainer.ensemble.fragment_returns(some_fragments(6))[0]
        rewards.append(returns - returns.mean())  # comparisons say nothing of the level
    np.testing.assert_allclose(*rewards, rtol=1e-2, atol=1e-3)


def test_the_optimiser_and_the_number_of_its_steps() -> None:
    assert note(IMITATION, TRAINERS, "BasicRewardTrainer") == ()
    assert named(IMITATION, "`PreferenceComparisons`", "reward_trainer") == named(IMITATION, TRAINERS, "epochs")
    net = nets.BasicRewardNet(VECTORS, FORCES)
    theirs = pc.BasicRewardTrainer(
        pc.PreferenceModel(net), pc.CrossEntropyRewardLoss(), rng=np.random.default_rng(0), lr=0.25
    )
    for labels in (4, 40):
        trainer = trainer_of(some_comparisons(labels), learning_rate=0.25, batch_size=4)
        assert isinstance(trainer.optimizer, type(theirs.optim))
        for option in ("lr", "betas", "eps", "weight_decay"):
            assert trainer.optimizer.param_groups[0][option] == theirs.optim.param_groups[0][option]
        assert trainer.fit(7).gradient_steps == 7  # however many labels


def test_members_are_fitted_as_if_each_were_alone() -> None:
    size, bootstrap = named(IMITATION, TRAINERS, "EnsembleTrainer")
    assert bootstrap == "reward_model.bootstrap"
    batch, fitted = some_comparisons(20), []
    for seed in (1, 2):
        trainer = trainer_of(batch, **{size.partition(".")[2]: 2})
        with torch.no_grad():
            for each in trainer.ensemble.networks.parameters():
                each[0] += 0.1 * torch.randn(each[0].shape, generator=torch.Generator().manual_seed(seed))
        trainer.fit(15)
        fitted.append(trainer.ensemble.fragment_returns(some_fragments(6)))
    assert not np.allclose(fitted[0][0], fitted[1][0], rtol=1e-3)
    np.testing.assert_allclose(fitted[0][1], fitted[1][1], rtol=1e-4, atol=1e-5)


# Regularisation


def test_the_penalty_has_the_gradient_of_theirs() -> None:
    heading = "`LpRegularizer`"
    assert named(IMITATION, heading, "LpRegularizer") == named(IMITATION, heading, "initial_lambda")
    assert note(IMITATION, heading, "LpRegularizer")[-1] == "reward_model.weight_decay"
    torch.manual_seed(0)
    grads = []
    for ours in (True, False):
        weights = torch.nn.Parameter(torch.arange(1.0, 5.0))
        loss = (3 * weights).sum()
        if ours:
            loss.backward()
            AdaptiveL2(0.01).add_gradient([weights])
        else:
            optimizer = torch.optim.AdamW([weights])
            factory = regularizers.LpRegularizer.create(initial_lambda=0.01, val_split=None, p=2)
            factory(optimizer=optimizer, logger=pc.imit_logger.configure()).regularize_and_backward(loss)
        grads.append(weights.grad)
    torch.testing.assert_close(*grads)
    of = given(named(IMITATION, heading, "initial_lambda")[0], True, hidden=(8,))
    trainer = RewardTrainer(of, VECTORS, FORCES, held_out_share=0.1, seed=0)
    assert trainer.l2 is not None
    assert trainer.l2.coefficient == 0.0001  # as the row says


def test_another_p_with_their_trainer() -> None:
    assert named(IMITATION, "`LpRegularizer`", "p") == ()


def test_the_held_out_comparisons_stay_the_same() -> None:
    assert named(IMITATION, "`LpRegularizer`", "val_split") == ("preferences.held_out_share",)
    batch = some_comparisons(60)
    trainer = trainer_of(batch[:30], held_out_share=0.4)

    def held_out() -> set[str]:
        assert trainer.comparisons.stacked is not None
        return {
            key[0]
            for key, out in zip(trainer.comparisons.keys, trainer.comparisons.stacked.held_out.tolist(), strict=True)
            if out
        }

    first = held_out()
    trainer.fit(2)
    trainer.comparisons.add(batch[30:])
    assert held_out() & {key[0] for key in trainer.comparisons.keys[:30]} == first
    assert 0.2 < len(held_out()) / 60 < 0.6
    flipped = trainer_of(batch, held_out_share=0.4, label_noise=0.0)  # they do count for the estimate of wrong answers
    assert flipped.comparisons.stacked is not None
    flipped.comparisons.stacked.preferences[flipped.comparisons.stacked.held_out] = (
        1 - flipped.comparisons.stacked.preferences[flipped.comparisons.stacked.held_out]
    )
    other = trainer_of(batch, held_out_share=0.4, label_noise=0.0)
    for each in (flipped, other):
        each.fit(5)
    returns = [each.ensemble.fragment_returns(batch.pairs.left) for each in (flipped, other)]
    np.testing.assert_array_equal(*returns)  # no fit sees them


@pytest.mark.parametrize("held_out", [20, 200])
def test_the_updater_compares_means(held_out: int) -> None:
    """A held-out loss of twice the training loss is too much, however many comparisons are held out; theirs compares sums."""
    assert named(IMITATION, "`LambdaUpdater`", "IntervalParamScaler") == ("reward_model.adaptive_l2",)
    ours = AdaptiveL2(0.01)
    ours.adapt(PassLosses(1, 0.3, 0.6, 1.0, 1.0), held_out)
    assert ours.coefficient > 0.01
    batches = held_out / 32
    theirs = updaters.IntervalParamScaler(0.5, (1.1, 1.5))(0.01, 0.3 * 200 / 32, 0.6 * batches)
    assert (theirs > 0.01) == (held_out == 200)


def test_an_addition_to_the_fits_of_ones_own() -> None:
    assert named(IMITATION, "`LpRegularizer`", "RegularizerFactory") == ("reward_model.methods",)


def test_all_regularisations_named_are_there() -> None:
    names = named(IMITATION, TRAINERS, "regularizer_factory")
    values = {"adaptive_l2": True, "weight_decay": 0.5, "dropout": 0.4, "early_stopping": 1}
    assert [name.partition(".")[2] for name in names] == list(values)
    returns = []
    for name in (None, *values):
        trainer = trainer_of(some_comparisons(60), held_out_share=0.3, **({name: values[name]} if name else {}))
        report = trainer.fit(40)
        assert (report.gradient_steps < 40) <= (name == "early_stopping")
        returns.append(trainer.ensemble.fragment_returns(some_fragments(6)))
    for other in returns[1:4]:
        assert not np.allclose(returns[0], other, rtol=1e-4)


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("lengths", [(20,), (7, 20)])
def test_episodes_of_several_lengths_are_refused_as_theirs(allowed: bool, lengths: tuple[int, ...]) -> None:
    (name,) = named(IMITATION, "`PreferenceComparisons`", "allow_variable_horizon")
    theirs = pc.PreferenceComparisons.__new__(pc.PreferenceComparisons)
    theirs.allow_variable_horizon, theirs._horizon = allowed, None
    if allowed or len(lengths) == 1:
        theirs._check_fixed_horizon(lengths)
        check_horizon(lengths, given(name, allowed))
        return
    with pytest.raises(ValueError, match="horizon"):
        theirs._check_fixed_horizon(lengths)
    with pytest.raises(SettingError, match="fixed episode length"):
        check_horizon(lengths, given(name, allowed))
