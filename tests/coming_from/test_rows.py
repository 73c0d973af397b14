"""What rows of the pages for those who come from imitation and drlhp claim: the counterpart that a row names does what theirs does.

The names of ours come from the pages' rows, so a wrong mapping fails; where another test has the comparison, it is called.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.labelling.camera import picture
from rlhf_ray.labelling.kept_films import Films
from rlhf_ray.queries.label_rates import make_rate
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.stacked import StackedComparisons
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    from_json,
)
from tests.coming_from.pages import DRLHP, IMITATION, given, named, pool_of
from tests.made_up import FORCES, VECTORS, some_comparisons, some_fragments

pc = pytest.importorskip("imitation.algorithms.preference_comparisons", reason="the extra 'imitation'")
nets = pytest.importorskip("imitation.rewards.reward_nets")
norms = pytest.importorskip("imitation.util.networks")

from tests.queries import test_imitations_preference_cases as preference_cases  # noqa: E402 (needs imitation)


def depends(model: RewardEnsemble) -> list[bool]:
    """Whether the reward depends on state, action, next state and done."""
    steps = [torch.randn(8, 3), torch.rand(8, 2), torch.randn(8, 3), torch.zeros(8, dtype=torch.bool)]
    found = []
    for i in range(4):
        others = list(steps)
        others[i] = ~steps[i] if i == 3 else steps[i] + 1
        found.append(not torch.equal(model.raw_rewards(*steps), model.raw_rewards(*others)))
    return found


@pytest.mark.parametrize("flag", ["use_state", "use_action", "use_next_state", "use_done"])
@pytest.mark.parametrize("heading", ["BasicRewardNet`, `CnnRewardNet", "ShapedRewardNet"])
def test_inputs(flag: str, heading: str) -> None:
    names = named(IMITATION, heading, flag)
    (name,) = [name for name in names if name.endswith(flag)]
    flags = ("use_state", "use_action", "use_next_state", "use_done")
    off = {f"use_{of}": False for of in ("state", "action", "next_state", "done")}
    del off[flag]
    model = RewardEnsemble(VECTORS, FORCES, given(name, True, **off))
    assert depends(model) == [of == flag for of in flags]
    net = nets.BasicRewardNet(VECTORS, FORCES, **{of: of == flag for of in flags})
    size = {"use_state": 3, "use_action": 2, "use_next_state": 3, "use_done": 1}[flag]
    assert next(net.parameters()).shape[1] == size == model.networks.inputs


@pytest.mark.parametrize(
    ("heading", "option"), [("build_mlp", "hid_sizes"), ("BasicShapedRewardNet", "reward_hid_sizes")]
)
def test_layers(heading: str, option: str) -> None:
    (name,) = named(IMITATION, heading, option)
    shapes = [
        of.shape[1:]
        for of in RewardEnsemble(VECTORS, FORCES, given(name, (7, 5))).networks.parameters()
        if of.dim() == 3 and of.shape[1] > 1  # no biases
    ]
    theirs = [of.shape for of in nets.BasicRewardNet(VECTORS, FORCES, hid_sizes=(7, 5)).parameters() if of.dim() == 2]
    assert sorted(map(sorted, shapes)) == sorted(map(sorted, theirs))


def test_dropout_and_activation() -> None:
    model = RewardEnsemble(VECTORS, FORCES, given(named(IMITATION, "build_mlp", "dropout_prob")[0], 0.3))
    steps = (torch.randn(50, 3), torch.rand(50, 2), torch.randn(50, 3), torch.zeros(50, dtype=torch.bool))
    inputs = model.networks.encode(torch.stack([steps[0], steps[2]], 1), steps[1][:, None], steps[3])
    with model.training_mode(torch.Generator().manual_seed(0)):
        drawn = [model.networks(inputs) for _ in range(2)]
    assert not torch.equal(*drawn)
    torch.manual_seed(0)
    one = RewardEnsemble(VECTORS, FORCES, given(named(IMITATION, "build_mlp", "activation")[0], "tanh"))
    torch.manual_seed(0)
    other = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(activation="relu"))
    assert not torch.equal(one.raw_rewards(*steps), other.raw_rewards(*steps))


def test_running_norm() -> None:
    (name,) = named(IMITATION, "RunningNorm", "RunningNorm")
    model = RewardEnsemble(VECTORS, FORCES, given(name, None, use_action=False))
    clips = some_fragments(30)
    model.observe(model.encode(clips), 5)
    norm, seen = norms.RunningNorm(3), torch.as_tensor(clips.observations[:, :-1].reshape(-1, 3))
    norm.train()
    norm(seen)
    norm.eval()
    ours = model.networks.normalise(model.encode(clips)["features"]).reshape(-1, 3)
    np.testing.assert_allclose(ours, norm(seen), rtol=1e-2, atol=1e-2)
    (ema,) = named(IMITATION, "RunningNorm", "EMANorm")
    slow = RewardEnsemble(VECTORS, FORCES, given(ema, None, use_action=False))
    for scale in (1, 100):
        for of in (model, slow):
            of.observe({"features": scale * model.encode(clips)["features"]}, 5)
    features = [of.networks.normalise(model.encode(clips)["features"]) for of in (model, slow)]
    assert not np.allclose(*(of.numpy() for of in features))  # the average moves on, the mean over all does not


def test_deviation() -> None:
    name = named(IMITATION, "AddSTDRewardWrapper", "default_alpha")[0]
    members = named(IMITATION, "AddSTDRewardWrapper", "members")[0]
    n, alpha = 4, 0.7
    model = RewardEnsemble(VECTORS, FORCES, given(name, alpha * math.sqrt(n / (n - 1)), **{members.split(".")[1]: n}))
    from rlhf_ray.reward.functions.reward_net import LearnedRewardNet

    plain = RewardEnsemble(VECTORS, FORCES, RewardModelSettings(ensemble_size=n))
    plain.load_state({**model.state(), "deviation_weight": np.float32(0)})
    steps = (np.ones((6, 3), np.float32), np.random.default_rng(0).random((6, 2)).astype(np.float32))
    arguments = (*steps, steps[0], np.zeros(6, bool))
    theirs = nets.AddSTDRewardWrapper(LearnedRewardNet(plain), default_alpha=alpha).predict_processed(*arguments)
    np.testing.assert_allclose(model.predict(*arguments), theirs, rtol=1e-4)


def test_shaping_discount() -> None:
    network = named(IMITATION, "ShapedRewardNet", "BasicShapedRewardNet")[0]
    (name,) = named(IMITATION, "ShapedRewardNet", "discount_factor")
    model = RewardEnsemble(VECTORS, FORCES, given(name, 0.9, network=network.partition("=")[2]))
    clips = some_fragments(4)
    encoded = model.encode(clips)
    base = model.networks.base(
        model.networks.base.encode(*map(torch.as_tensor, (clips.observations, clips.actions, clips.terminated)))
    )
    states = torch.as_tensor(clips.observations)
    actions = torch.zeros(4, 6, 2)
    longer = torch.cat([states, states[:, -1:]], 1)
    potential = model.networks.potential(
        model.networks.potential.encode(longer, actions, torch.zeros(4, dtype=torch.bool))
    )
    after = potential[..., 1:].clone()
    after[..., -1] *= torch.as_tensor(~clips.terminated)
    torch.testing.assert_close(model.networks(encoded), base + 0.9 * after - potential[..., :-1])


def test_preference_model() -> None:
    assert named(IMITATION, "PreferenceModel", "noise_prob")[0] == "reward_model.label_noise"
    assert named(IMITATION, "`PreferenceModel`", "discount_factor") == ("reward_model.discount",)


def test_threshold() -> None:
    (name,) = named(IMITATION, "`PreferenceModel`", "threshold")
    plain, differences = SimpleNamespace(rationality=1.0), torch.tensor([-9.0, 0.5, 9.0])
    clipped = StackedComparisons.log_odds(plain, differences, torch.arange(3), given(name, 2.0).largest_log_odds)  # type: ignore[arg-type]
    theirs = pc.PreferenceModel(nets.BasicRewardNet(VECTORS, FORCES), threshold=2.0)
    for difference, ours in zip((-9.0, 0.5, 9.0), torch.sigmoid(clipped), strict=True):
        wanted = theirs.probability(torch.tensor([difference]), torch.tensor([0.0]))
        assert float(ours) == pytest.approx(float(wanted), rel=1e-5)


NAMES: dict[tuple[str, str], str] = {
    ("`PreferenceComparisons`", "comparison_queue_size"): "reward_model.window",
    ("`PreferenceDataset`", "max_size"): "reward_model.window",
    ("WeightDecayRegularizer", "WeightDecayRegularizer"): "reward_model.weight_decay",
    ("IntervalParamScaler", "tolerable_interval"): "reward_model.l2_interval",
    ("IntervalParamScaler", "scaling_factor"): "reward_model.l2_factor",
    ("`NormalizedRewardNet`", "NormalizedRewardNet"): "reward_model.normalize_outputs",
    ("SyntheticGatherer", "temperature"): "preferences.rationality",
    ("SyntheticGatherer", "discount_factor"): "preferences.teacher_discount",
    ("SyntheticGatherer", "SyntheticGatherer"): "preferences.teacher=stochastic",
    ("SyntheticGatherer", "sample"): "preferences.teacher=soft",
    ("PreferenceDataset", "PreferenceDataset"): "PreferenceStore",
    ("`save`, `load`", "save"): "rlhf-ray convert",
    ("train_preference_comparisons", "agent_path"): "--policy-from",
    ("`environment`", "policy.normalize_running"): "ppo.normalize_observations",
    ("`environment`", "rl.sac"): "agent=sac",
    ("ExplorationWrapper", "switch_prob"): "fragments.switch_probability",
    ("ExplorationWrapper", "ExplorationWrapper"): "fragments.random_action_share",
}
"""Our first name in rows whose claim other tests show: test_imitations_preference_cases.py, test_sb3.py and others."""


@pytest.mark.parametrize("case", NAMES, ids=lambda case: case[1])
def test_rows_that_other_tests_show(case: tuple[str, str]) -> None:
    assert named(IMITATION, *case)[0] == NAMES[case]


@pytest.mark.slow
def test_uncertainty_on(monkeypatch: pytest.MonkeyPatch) -> None:
    names = named(IMITATION, "ActiveSelectionFragmenter", "uncertainty_on")
    for theirs, ours in zip(("logit", "probability", "label"), names, strict=True):
        preference_cases.test_active_fragmenter(theirs, ours.partition("=")[2], monkeypatch)


def test_fragment_sample_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = named(IMITATION, "ActiveSelectionFragmenter", "fragment_sample_factor")
    pool = pool_of(FragmentSettings(length=5), given(name, 3, selection="k_center"))
    pool.add(CutFragments(0, 0, some_fragments(40), 0, ()))
    seen = []

    def choose(_: Any, candidates: Any, count: int, rng: Any) -> Any:
        drawn = candidates.index
        seen.append(len(drawn))
        return drawn[:count]

    monkeypatch.setattr("rlhf_ray.queries.pool.choose", choose)
    assert pool.propose(4, 0, None)[0] == 4
    assert seen == [12]


def test_transition_oversampling() -> None:
    """A pool of 2 f n fragments, from which n pairs are drawn, holds the steps that imitation samples with factor f."""
    names = named(IMITATION, "`PreferenceComparisons`", "transition_oversampling")
    assert names == ("fragments.pool", "fragments.initial_env_steps")
    factor, pairs, length = 3, 4, 5
    steps = math.ceil(factor * 2 * pairs * length)  # as in PreferenceComparisons.train
    size = 2 * factor * pairs
    pool = pool_of(given(names[0], size, length=length, start_share=0.0), PreferenceSettings())
    for version in range(4):
        pool.add(CutFragments(0, version, some_fragments(10, length, seed=version), 0, ()))
    assert pool.report().fragments == size
    assert size * length == steps
    proposed = pool.propose(pairs, 0, None)[1]
    assert proposed is not None
    newest = {name for version in (1, 2, 3) for name in some_fragments(10, length, seed=version).ids()}
    assert set(proposed.left.ids()) | set(proposed.right.ids()) <= newest
    first = given(names[1], steps, length=length).resolved(horizon=200, total_env_steps=10_000)
    assert first.initial_env_steps == steps


@pytest.mark.slow
def test_schedules() -> None:
    names = named(IMITATION, "`PreferenceComparisons`", "query_schedule")
    times = np.linspace(0, 1, 2001)
    for name in names[:3]:
        schedule = name.partition("=")[2]
        rate = np.array([pc.QUERY_SCHEDULES[schedule](t) for t in times])
        shares = np.concatenate([[0], np.cumsum((rate[1:] + rate[:-1]) / 2)])
        ours = [make_rate(schedule, 1.0).share(t) for t in times]  # imitation's have a steepness of 1
        np.testing.assert_allclose(ours, shares / shares[-1], atol=1e-4)
    assert names[3:] == ("preferences.steepness",)


def test_rounds_and_first_comparisons() -> None:
    (rounds,) = named(IMITATION, "`PreferenceComparisons`", "num_iterations")
    (first,) = named(IMITATION, "`PreferenceComparisons`", "initial_comparison_frac")
    schedule = LabelSchedule(given(rounds, 7, comparisons=100))
    assert schedule.rounds == 7
    of = given(first, 0.1, comparisons=100, rounds=7, schedule="constant")
    assert LabelSchedule(of).due_in_round(0) == int(0.1 * 100)
    assert LabelSchedule(of).due_in_round(7) == 100
    epochs = named(IMITATION, "`PreferenceComparisons`", "initial_epoch_multiplier")
    assert given(epochs[0], 4, batch_size=32).first_updates(64) == 4 * 64 / 32
    assert given(epochs[1], 123).first_updates(64) == 123


def test_fragment_length_and_updates() -> None:
    (name,) = named(IMITATION, "`PreferenceComparisons`", "fragment_length")
    assert given(name, 12).resolved(horizon=None, total_env_steps=1000).length == 12
    (rate,) = named(IMITATION, "BasicRewardTrainer", "lr")
    (batch,) = named(IMITATION, "BasicRewardTrainer", "batch_size")
    of = given(rate, 0.25, **{batch.partition(".")[2]: 3})
    trainer = RewardTrainer(of, VECTORS, FORCES, held_out_share=0.0, seed=0)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.25
    trainer.comparisons.add(some_comparisons(9))
    assert [len(part) for part in trainer._batches(torch.arange(9), 5)] == [3, 3, 3]


# drlhp


def test_what_people_see() -> None:
    arguments = "Arguments of"
    observation = np.broadcast_to(np.arange(4, dtype=np.uint8), (16, 16, 4))
    of = given(named(DRLHP, arguments, "channels")[0], 1)
    assert picture(observation, of.channels)[0, 0].tolist() == [3, 3, 3]
    zoom = given(named(DRLHP, arguments, "zoom_ratio")[0], 4).zoom
    films = Films(zoom=zoom)
    films.put_images("a" * 64, np.zeros((2, 16, 16, 3), np.uint8))
    assert films.info("a" * 64).zoom == 4


def test_options_of_run() -> None:
    options = "Options of"
    assert given(named(DRLHP, options, "n_initial_epochs")[0], 2, batch_size=8).first_updates(32) == 8
    for option, attribute in (("dropout", "dropout"), ("batchnorm", "batch_norm")):
        names = named(DRLHP, options, option)
        assert f"reward_model.{attribute}" in names
    (window,) = named(DRLHP, options, "max_prefs")
    assert window == named(DRLHP, "Arguments of", "max_prefs_in_db")[0] == "reward_model.window"
    (pool,) = named(DRLHP, options, "max_segs")
    small = pool_of(given(pool, 10, length=5), PreferenceSettings())
    for version in range(3):
        small.add(CutFragments(0, version, some_fragments(10, seed=version), 0, ()))
    assert small.report().fragments == 10
    first = named(DRLHP, options, "n_initial_prefs")[0]
    assert LabelSchedule(given(first, 30, comparisons=100)).due_in_round(0) == 30
    entropy, rate = named(DRLHP, options, "ent_coef")
    made = PPOSettings(**{entropy.partition(".")[2]: 0.02, rate.partition(".")[2]: 0.5})
    (final,) = named(DRLHP, options, "lr_zero_million_timesteps")
    from rlhf_ray.rllib.ppo import PreferencePPOConfig, apply_ppo

    config = PreferencePPOConfig()
    apply_ppo(config, PPOSettings(**{**vars(made), final.partition(".")[2]: 0.0}), 1000)
    assert config.entropy_coeff == 0.02
    assert config.lr == [[0, 0.5], [1000, 0.0]]


def test_names_of_experiments_are_settings() -> None:
    """Names without a group, such as ``total_env_steps``, are fields of the experiment."""
    for option in ("seed", "million_timesteps", "env"):
        (name,) = named(DRLHP, "Options of", option)
        assert name in vars(Experiment())
    assert (
        from_json(PreferenceSettings, {}).teacher
        == named(DRLHP, "Arguments of", "synthetic_prefs")[0].partition("=")[2]
    )
