"""Rows of the page for those who come from imitation: its scripts, compared with its configurations and SB3's algorithms."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray import tune_configs
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.train import Train
from rlhf_ray.data.metrics import metric_of
from rlhf_ray.policies.network import image_encoder
from rlhf_ray.rllib import PreferencePPO, PreferenceSAC
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.ppo import PreferencePPOConfig, apply_ppo
from rlhf_ray.runs.trackers import TRACKERS
from rlhf_ray.settings import Experiment, PPOSettings, SACSettings
from tests.coming_from.pages import IMITATION, ROWS, named, note, row_of, spans
from tests.made_up import Walk

pytest.importorskip("imitation", reason="the extra 'imitation'")
sb3 = pytest.importorskip("stable_baselines3")
torch_layers = pytest.importorskip("stable_baselines3.common.torch_layers")

from tests.policies import test_sb3  # noqa: E402 (needs SB3)

SCRIPT, PARTS = "`train_preference_comparisons`", "`environment`"


@pytest.fixture(scope="module")
def configurations() -> Any:
    """The script's experiment: its defaults, and its named configurations."""
    return importlib.import_module(
        "imitation.scripts.config.train_preference_comparisons"
    ).train_preference_comparisons_ex


def of(words: str) -> Train:
    return parse_arguments(Train, "rlhf-ray train pendulum", words.split(), Train())


PRESETS = [
    row
    for row in ROWS
    if row.page == IMITATION and SCRIPT in row.heading and re.fullmatch(r"`rlhf-ray train [a-z0-9_]+`", row.ours[0])
]


def test_there_are_presets() -> None:
    assert len(PRESETS) == 9


@pytest.mark.parametrize("row", PRESETS, ids=str)
def test_a_preset_has_the_task_of_theirs(row: Any, configurations: Any) -> None:
    (command,) = spans(row.ours[0])
    ours = tune_configs.load(command.split()[-1]).experiment.environment
    for name in row.theirs:
        theirs = configurations.named_configs[name]()["environment"]["gym_id"]
        (task,) = re.findall(r"(\w+)-v\d", theirs)
        assert task in ours, f"{name}: {theirs} is no {ours}"
    if "episodes of fixed length" in row.ours[-1]:
        assert configurations.named_configs[row.theirs[0]]()["allow_variable_horizon"]
        assert "Fixed" in ours


def test_active_selection_is_what_their_script_selects_by_default(configurations: Any) -> None:
    (defaults,) = [config() for config in configurations.configurations if not config.args]
    logit, *others = named(IMITATION, "`ActiveSelectionFragmenter`", "uncertainty_on")
    assert defaults["uncertainty_on"] == "logit"
    assert named(IMITATION, SCRIPT, "active_selection") == (logit,)
    assert named(IMITATION, SCRIPT, "uncertainty_on") == (logit, *others)


def test_agents_are_algorithms_and_environments_are_given_as_theirs() -> None:
    agents = named(IMITATION, "`PreferenceComparisons`", "trajectory_generator")
    assert (*agents, "HumanPreferencesEnv") == named(IMITATION, "`AgentTrainer`", "algorithm")
    assert named(IMITATION, PARTS, "policy.sac") == agents[1:]
    for agent, algorithm in zip(agents, (PreferencePPO, PreferenceSAC), strict=True):
        config = preference_config(Experiment(agent=agent.partition("=")[2]))  # type: ignore[arg-type]
        assert config.algo_class is algorithm
    given = [named(IMITATION, PARTS, f"environment.{option}") for option in ("gym_id", "num_vec", "parallel")]
    assert named(IMITATION, "`AgentTrainer`", "venv") == tuple(name for names in given for name in names)


def test_trajectories_are_converted_by_one_command() -> None:
    """Which `test_rows` tries for ``save`` and ``load``."""
    assert named(IMITATION, "Other scripts", "convert_trajs") == named(IMITATION, "`save`, `load`", "save")[:1]


def test_learned_returns_are_metrics() -> None:
    assert named(IMITATION, "`RewardVecEnvWrapper`", "episode_rewards") == ()
    assert metric_of("learned_return_mean") is not None
    assert metric_of("learned_returns_mean") is None


SAME = [
    (SCRIPT, "active_selection_oversampling", "`ActiveSelectionFragmenter`", "fragment_sample_factor"),
    (PARTS, "reward.add_std_alpha", "`AddSTDRewardWrapper`", "default_alpha"),
    (PARTS, "reward.ensemble_size", "`AddSTDRewardWrapper`", "members"),
    (PARTS, "reward.reward_ensemble", "`AddSTDRewardWrapper`", "RewardEnsemble"),
    (PARTS, "reward.normalize_input_disable", "`RunningNorm`", "normalize_input_layer"),
    (PARTS, "reward.normalize_output_disable", "`NormalizedRewardNet`", "NormalizedRewardNet"),
    (PARTS, "reward.net_kwargs", "`BasicRewardTrainer`", "preference_model"),
    (PARTS, "rl.sac", PARTS, "policy.sac"),
    (PARTS, "rl.fast", SCRIPT, "fast"),
    (PARTS, "rl.rl_cls", "`PreferenceComparisons`", "trajectory_generator"),
    ("`AgentTrainer`", "random_prob", "`ExplorationWrapper`", "random_prob"),
    ("`AgentTrainer`", "switch_prob", "`ExplorationWrapper`", "switch_prob"),
    ("Other scripts", "analyze", "Other scripts", "tuning"),
    ("`EMANorm`", "hid_sizes", "`BasicShapedRewardNet`", "hid_sizes"),
]
"""Rows of one thing: what the first ones say must be what the second ones say, which tests compare."""


@pytest.mark.parametrize("rows", SAME, ids=lambda rows: rows[1])
def test_rows_of_one_thing_agree(rows: tuple[str, str, str, str]) -> None:
    assert named(IMITATION, *rows[:2]) == named(IMITATION, *rows[2:])


@pytest.mark.parametrize("row", [row for row in ROWS if row.ours[0].startswith("see ")], ids=str)
def test_where_a_row_sends_to_another_the_options_are_there(row: Any) -> None:
    (name,) = spans(row.ours[0])
    there = [other for other in ROWS if f"`{name}`" in other.heading]
    have = {option for other in there for option in other.theirs}
    assert have
    assert {option for option in row.theirs if not option.endswith("_kwargs")} <= have


def test_gatherers_and_all_budgets_have_one_meaning_with_the_script() -> None:
    assert set(named(IMITATION, SCRIPT, "gatherer_cls")) == set(
        named(IMITATION, "`PreferenceComparisons`", "preference_gatherer")
    )
    (steps,), (labels,) = (named(IMITATION, SCRIPT, option) for option in ("total_timesteps", "total_comparisons"))
    given = of(f"--{steps.replace('_', '-')} 5000 --{labels} 30 --preferences.initial-comparisons 5")
    assert (given.total_env_steps, given.preferences.comparisons) == (5000, 30)
    text = row_of(IMITATION, "`PreferenceComparisons`", "PreferenceComparisons").ours[-1]
    assert f"`{steps}`" in text
    assert f"`{labels}`" in text


def test_rl_options_are_those_of_their_algorithm(configurations: Any) -> None:
    """SB3's PPO with a tuned configuration of imitation's, and RLlib's with our settings of the same numbers."""
    config = configurations.named_configs["seals_hopper"]()["rl"]
    options = {"learning_rate": 1e-4, **config["rl_kwargs"]}
    environments, iteration = 4, config["batch_size"]
    theirs = sb3.PPO(
        "MlpPolicy",
        sb3.common.vec_env.DummyVecEnv([Walk] * environments),
        n_steps=iteration // environments,  # as make_rl_algo
        device="cpu",
        **options,
    )
    names = named(IMITATION, PARTS, "rl.rl_kwargs")
    meaning = {
        "ppo.learning_rate": ("learning_rate", "lr"),
        "ppo.gamma": ("gamma", "gamma"),
        "ppo.gae_lambda": ("gae_lambda", "lambda_"),
        "ppo.clip": ("clip_range", "clip_param"),
        "ppo.entropy_coefficient": ("ent_coef", "entropy_coeff"),
        "ppo.value_coefficient": ("vf_coef", "vf_loss_coeff"),
        "ppo.epochs": ("n_epochs", "num_epochs"),
        "ppo.minibatch_size": ("batch_size", "minibatch_size"),
        "ppo.max_grad_norm": ("max_grad_norm", "grad_clip"),
    }
    assert set(names) == set(meaning) == {f"ppo.{name.partition('.')[2]}" for name in names}
    assert {option for option, _ in meaning.values()} == set(options)
    length, copies, sac = named(IMITATION, PARTS, "rl.batch_size")
    assert named(IMITATION, PARTS, "environment.num_vec") == (copies,)
    (runners,) = named(IMITATION, PARTS, "environment.parallel")
    ours = {name.partition(".")[2]: options[meaning[name][0]] for name in names}
    ours |= {length.partition(".")[2]: iteration // environments, copies.partition(".")[2]: environments}
    settings = PPOSettings(**ours)
    built = PreferencePPOConfig()
    apply_ppo(built, settings)
    assert built.train_batch_size == theirs.n_steps * theirs.n_envs == iteration
    for name in names:
        option, rllib = meaning[name]
        wanted = theirs.clip_range(1.0) if option == "clip_range" else getattr(theirs, option)
        assert getattr(built, rllib) == wanted, name
    twice = PPOSettings(**ours, **{runners.partition(".")[2]: 2})
    assert twice.iteration_env_steps == 2 * iteration  # times the env runners
    assert SACSettings(**{sac.partition(".")[2]: 99}).batch_size == 99


def test_policies_have_their_layers() -> None:
    assert named(IMITATION, PARTS, "policy.cnn_policy") == ("ppo.network=nature",)
    assert named(IMITATION, PARTS, "policy.policy_kwargs")[:2] == ("ppo.network", "ppo.hidden")
    space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    ours, size = image_encoder("nature", space.shape, None)
    first = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    theirs = torch_layers.NatureCNN(first, features_dim=512)
    assert size == theirs.features_dim
    assert [each.shape for each in ours.parameters()] == [each.shape for each in theirs.parameters()]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_saved_agent_is_a_start(kind: str, tmp_path: Path) -> None:
    """A ``model.zip``, or the folder that imitation's ``save_stable_model`` makes."""
    from imitation.policies.serialize import save_stable_model

    from rlhf_ray.rllib.starting import policy_weights

    assert named(IMITATION, SCRIPT, "agent_path") == ("--policy-from",)
    policy, observations, actions = test_sb3.SPACES["bounded"]
    model = test_sb3.saved(tmp_path / "alone.zip", policy, observations, actions)
    save_stable_model(tmp_path / "final", model)
    paths = [tmp_path / "alone.zip", tmp_path / "final" if kind == "folder" else tmp_path / "final" / "model.zip"]
    alone, folder = (policy_weights(path, observations, actions) for path in paths)
    assert alone.keys() == folder.keys()
    for name, value in alone.items():
        np.testing.assert_array_equal(value, folder[name])
    assert of(f"--policy-from {tmp_path / 'final'}").start.policy_from == str(tmp_path / "final")


def test_options_of_the_command(configurations: Any) -> None:
    (episodes,) = named(IMITATION, PARTS, "policy_evaluation.n_episodes_eval")
    (folder,) = named(IMITATION, PARTS, "logging.log_dir")
    tracker, callback = named(IMITATION, PARTS, "logging.wandb_logging")
    assert (tracker, callback) == named(IMITATION, "In every class", "custom_logger")
    (every,) = named(IMITATION, SCRIPT, "checkpoint_interval")
    (seed,) = named(IMITATION, "In every class", "rng")
    (reward,) = note(IMITATION, "Other scripts", "train_rl")
    words = f"{episodes} 7 {folder} there {tracker} wandb {callback} mine:Own --{every.replace('_', '-')} 3 --{seed} 5"
    given = of(f"{words} --environment CartPole-v1")
    assert (given.evaluation_episodes, str(given.run_dir), given.tracker) == (7, "there", "wandb")
    assert TRACKERS[given.tracker]
    assert (given.callback, given.checkpoint_every, given.seed) == (("mine:Own",), 3, 5)
    assert given.environment == "CartPole-v1"
    assert of(reward).true_reward
    for option in ("environment.gym_id", "environment.max_episode_steps"):
        assert named(IMITATION, PARTS, option) == ("environment",)
    assert named(IMITATION, "In every class", "action_space") == ("environment",)
    assert named(IMITATION, "In every class", "optimizer") == named(IMITATION, "`BasicRewardTrainer`", "lr")


def test_fast_is_as_small_as_theirs(configurations: Any) -> None:
    assert named(IMITATION, SCRIPT, "fast") == ("--fast",)
    theirs = configurations.named_configs["fast"]()
    ours = tune_configs.fast(tune_configs.load("pendulum").experiment)
    assert theirs["total_comparisons"] <= ours.preferences.comparisons <= 8
    assert ours.total_env_steps <= 1_100
    assert of("--fast").fast
