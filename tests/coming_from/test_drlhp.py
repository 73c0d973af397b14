"""Rows of the page for those who come from drlhp, whose code is not installed: what it does is written here anew."""

from __future__ import annotations

import gzip
import importlib
import logging
import math
import pickle
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray import tune_configs
from rlhf_ray.cli import store as store_command
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.train import Train
from rlhf_ray.data.answers import ANSWERS
from rlhf_ray.labelling.question import Shown
from rlhf_ray.queries.fitting import fit
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.rllib.ppo import PreferencePPOConfig, apply_ppo
from rlhf_ray.settings import PPOSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from tests.coming_from.pages import DRLHP, ROWS, given, named, note, pool_of, row_of, spans
from tests.made_up import CHOICES, some_comparisons, some_fragments
from tests.reward import test_networks_built_in
from tests.store import test_exchange

ARGUMENTS, OPTIONS = "Arguments of", "Options of"
STATIC = Path(__file__).parents[2] / "rlhf_ray" / "labelling" / "static"


def of(words: str, preset: str = "pendulum") -> Train:
    defaults = Train(**vars(tune_configs.load(preset).experiment))
    return parse_arguments(Train, f"rlhf-ray train {preset}", words.split(), defaults)


@pytest.mark.parametrize(("answers", "passes"), [(70, 3), (32, 50)])
def test_the_first_fit_takes_as_many_passes(answers: int, passes: int) -> None:
    """drlhp's wrapper calls ``train`` so often, and each call goes through all answers, in batches of 32."""
    for heading, option in ((ARGUMENTS, "n_initial_training_steps"), (OPTIONS, "n_initial_epochs")):
        (name,) = named(DRLHP, heading, option)
        theirs = passes * answers / 32  # gradient steps; drlhp's last batch of a pass may be smaller
        assert given(name, passes, batch_size=32).first_updates(answers) == math.ceil(theirs)


def test_segments_are_one_step_shorter_than_frames(tmp_path: Path) -> None:
    (name,) = named(DRLHP, ARGUMENTS, "segment_length")
    test_exchange.test_what_drlhp_saved_can_be_imported(tmp_path, True, 4)
    held = PreferenceStore(tmp_path / "store").load()
    assert held is not None
    length = held.pairs.left.length
    assert length == 25 - 1  # of 25 frames
    assert given(name, length).resolved(horizon=None, total_env_steps=1000).length == length


def test_networks() -> None:
    """`net_cnn`, and for the features of moving dot three layers of 64 units."""
    name = row_of(DRLHP, ARGUMENTS, "reward_predictor_network").ours[1]
    assert spans(name) == ("reward_model.network=paper_cnn",)
    test_networks_built_in.test_the_papers_network_is_the_papers()
    assert note(DRLHP, ARGUMENTS, "reward_predictor_network")[-1] == "mlp"
    features = gym.spaces.Box(0, 1, (3,), np.float32)
    network = given(spans(name)[0].partition("=")[0], "mlp", hidden=(64, 64, 64), use_action=False, ensemble_size=1)
    shapes = [tuple(of.shape[1:]) for of in RewardEnsemble(features, CHOICES, network).networks.parameters()]
    assert shapes[::2] == [(3, 64), (64, 64), (64, 64), (64, 1)]


def test_dropout_and_batch_norm_are_off_after_a_fit_and_on_in_it() -> None:
    """One forward pass for both sides of a pair: their masks differ, as drlhp found necessary."""
    dropout, norm = named(DRLHP, OPTIONS, "dropout")
    options = {dropout.partition(".")[2]: 0.5, norm.partition(".")[2]: True}
    features = gym.spaces.Box(-10, 10, (3,), np.float32)
    (rate,) = named(DRLHP, OPTIONS, "reward_predictor_learning_rate")
    settings = given(rate, 1e-2, hidden=(32,), ensemble_size=1, **options)
    trainer = RewardTrainer(settings, features, CHOICES, held_out_share=0.0, seed=0)
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-2
    trainer.comparisons.add(some_comparisons(20, actions=CHOICES))
    clips = some_fragments(1, actions=CHOICES)
    both = trainer.ensemble.encode(clips[np.array([0, 0])])  # the same clip on both sides
    with trainer.ensemble.training_mode(torch.Generator().manual_seed(0)):
        left, right = trainer.ensemble.networks(both)[0]
    assert not torch.allclose(left, right)
    before = {name: of.clone() for name, of in trainer.ensemble.networks.named_buffers() if "running" in name}
    trainer.fit(3)
    after = dict(trainer.ensemble.networks.named_buffers())
    assert before
    assert all(not torch.equal(of, after[name]) for name, of in before.items())


def test_the_newest_segments_are_kept() -> None:
    for heading, option in ((ARGUMENTS, "max_pref_interface_segs"), (OPTIONS, "max_segs")):
        (name,) = named(DRLHP, heading, option)
        pool, ring = pool_of(given(name, 6, length=5, start_share=0.0), PreferenceSettings()), []
        for version in range(4):
            clips = some_fragments(4, seed=version)
            pool.add(CutFragments(0, version, clips, 0, ()))
            ring = [*ring, *clips.ids()][-6:]  # as their circular buffer
        pairs = pool.propose(15, 0, None)[1]
        assert pairs is not None
        assert {*pairs.left.ids(), *pairs.right.ids()} == set(ring)


def test_options_are_the_commands(tmp_path: Path) -> None:
    teacher, prefs, rewards, policy, folder = (
        named(DRLHP, OPTIONS, option)[0]
        for option in (
            "synthetic_prefs",
            "load_prefs_dir",
            "load_reward_predictor_ckpt_dir",
            "load_policy_ckpt_dir",
            "log_dir",
        )
    )
    (true,) = note(DRLHP, OPTIONS, "train_policy_with_original_rewards")
    found = of(f"{teacher} human {prefs} labels {policy} other {folder} here")
    assert (found.teacher, found.start.labels, found.start.policy_from) == ("human", "labels", "other")
    assert str(found.run_dir) == "here"
    assert of(true).true_reward
    assert of(f"{rewards} fitted").start.reward_from == "fitted"
    for heading, option, ours in (
        (ARGUMENTS, "prefs_dir", prefs),
        (ARGUMENTS, "pretrained_reward_predictor_dir", rewards),
        (ARGUMENTS, "log_dir", folder),
        (ARGUMENTS, "synthetic_prefs", teacher),
    ):
        assert spans(row_of(DRLHP, heading, option).ours[1]) == (ours,), option
    default, people = note(DRLHP, OPTIONS, "synthetic_prefs")
    assert of("").preferences.teacher == default
    assert of(f"{teacher} {people}").teacher == "human"
    (every,) = named(DRLHP, OPTIONS, "policy_ckpt_interval")
    (seed,), (steps,) = named(DRLHP, OPTIONS, "seed"), named(DRLHP, OPTIONS, "million_timesteps")
    some = of(f"--{every.replace('_', '-')} 4 --{seed} 9 --{steps.replace('_', '-')} 7000")
    assert (some.checkpoint_every, some.seed, some.total_env_steps) == (4, 9, 7000)
    assert spans(row_of(DRLHP, ARGUMENTS, "reward_predictor_ckpt_interval").ours[1]) == (every,)


def test_environments_in_parallel() -> None:
    copies, runners = named(DRLHP, OPTIONS, "n_envs")
    config = PreferencePPOConfig()
    apply_ppo(config, PPOSettings(**{copies.partition(".")[2]: 3, runners.partition(".")[2]: 2}))
    assert (config.num_envs_per_env_runner, config.num_env_runners) == (3, 2)


@pytest.mark.parametrize("theirs", ["MovingDotNoFrameskip-v0", "PongNoFrameskip-v4", "EnduroNoFrameskip-v4"])
def test_presets(theirs: str) -> None:
    (command,) = named(DRLHP, OPTIONS, theirs)
    task = tune_configs.load(command.split()[-1]).experiment.environment
    assert theirs.partition("NoFrameskip")[0] in task
    assert named(DRLHP, OPTIONS, "env") == ("environment",)


def test_rounds_and_held_out_answers() -> None:
    (rounds,) = named(DRLHP, ARGUMENTS, "reward_predictor_refresh_interval")
    (share,) = named(DRLHP, ARGUMENTS, "validation_interval")
    (first,) = set(spans(row_of(DRLHP, ARGUMENTS, "n_initial_prefs").ours[1]))
    preferences = given(rounds, 5, **{share.partition(".")[2]: 0.2, first.partition(".")[2]: 40}, comparisons=100)
    assert (preferences.rounds, preferences.first_comparisons) == (5, 40)
    trainer = RewardTrainer(
        given("reward_model.hidden", (8,)),
        gym.spaces.Box(-10, 10, (3,), np.float32),
        CHOICES,
        held_out_share=preferences.held_out_share,
        seed=0,
    )
    trainer.comparisons.add(some_comparisons(100, actions=CHOICES))
    report = trainer.fit(1)
    assert report.held_out == pytest.approx(20, abs=16)  # four standard errors
    assert 0 <= report.held_out_accuracy <= 1
    assert row_of(DRLHP, ARGUMENTS, "reward_database_refresh_interval").ours[0] == "–"
    trainer.comparisons.add(some_comparisons(7, actions=CHOICES, seed=1))
    assert trainer.fit(1).comparisons == 107  # nothing to refresh


def test_the_loggers_are_pythons() -> None:
    loggers = note(DRLHP, ARGUMENTS, "reward_predictor_log_level")
    assert loggers == ("logging", "rlhf_ray.wrappers", "rlhf_ray.reward", "rlhf_ray.labelling")
    for of_package, module in (("wrappers", "learning"), ("reward", "trainer"), ("labelling", "desk")):
        made = importlib.import_module(f"rlhf_ray.{of_package}.{module}").logger
        level = logging.getLogger(f"rlhf_ray.{of_package}")
        level.setLevel(logging.ERROR)
        try:
            assert made.getEffectiveLevel() == logging.ERROR
        finally:
            level.setLevel(logging.NOTSET)


def test_keys_have_the_answers_of_theirs() -> None:
    """L, R, E and nothing: left, right, 0.5 each, and a pair that is dropped."""
    (row,) = [row for row in ROWS if row.page == DRLHP and "on [the page]" in row.ours[0] and "←" in row.ours[0]]
    shown = re.findall(r"←|→|↓|\bx\b", row.ours[0])
    source = (STATIC / "keys.js").read_text()
    actions = dict(re.findall(r'^  (\w+): \{ text: t\("[^"]*"\), keys: \["(\w+)"', source, re.MULTILINE))
    answers = actions | {kind.name: kind.keys[0] for kind in ANSWERS.values()}
    names = {"←": "ArrowLeft", "→": "ArrowRight", "↓": "ArrowDown", "x": "x"}
    meant = [next(answer for answer, key in answers.items() if key == names[each]) for each in shown]
    assert meant == ["left", "right", "equal", "incomparable"]
    shown_pair = Shown("a", "b", swapped=False)
    assert [shown_pair.preference(answer) for answer in meant] == [1.0, 0.0, 0.5, None]
    assert {"undo", "skip", "flag"} <= set(answers)


def test_a_reward_is_fitted_to_what_drlhp_saved(tmp_path: Path) -> None:
    """Frames alone, so that the action can't be an input."""
    assert named(DRLHP, OPTIONS, "pretrain_reward_predictor") == ("rlhf-ray fit",)
    (row,) = [
        row for row in ROWS if row.page == DRLHP and row.heading == "Workflows" and row.ours[0] == "`rlhf-ray fit`"
    ]
    assert row.theirs == ()
    rng = np.random.default_rng(0)
    frames = [list(rng.integers(0, 256, (7, 20, 20, 4), np.uint8)) for _ in range(12)]
    database = test_exchange.PrefDB()
    vars(database)["segments"] = dict(enumerate(frames))
    vars(database)["prefs"] = [(i, i + 6, (1.0, 0.0)) for i in range(6)]
    (tmp_path / "train.pkl.gz").write_bytes(gzip.compress(pickle.dumps(database)))
    store_command.run(["import", str(tmp_path / "labels"), str(tmp_path / "train.pkl.gz")])
    space = gym.spaces.Box(0, 255, (20, 20, 4), np.uint8)
    small = {"hidden": (8,), "ensemble_size": 1, "initial_updates": 30}
    reward, report = fit(
        tmp_path / "labels", space, CHOICES, RewardModelSettings(use_action=False, **small), held_out_share=0.0
    )
    assert report.comparisons == 6
    assert report.train_accuracy == 1.0
    assert (reward.observation_space, reward.action_space) == (space, CHOICES)
    steps = rng.integers(0, 256, (1, 20, 20, 4), np.uint8)
    rewards = [reward.predict(steps, np.array([action]), steps, np.zeros(1, bool)) for action in range(4)]
    assert len({float(of[0]) for of in rewards}) == 1
