"""PreferenceSAC: the replay buffer, the newest reward for all of it, whole runs that stop and go on, and what is refused."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray import tune
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlhf_ray.data.errors import BrokenAgentError
from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib import PreferenceSAC, PreferenceSACConfig
from rlhf_ray.rllib.checkpoint_parts import load_policy
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID, module_state
from rlhf_ray.rllib.reference import ReferenceSACConfig
from rlhf_ray.rllib.rllib_internals import local_learner
from rlhf_ray.rllib.sac_learner import SACLearner, TransitionBuffer
from rlhf_ray.rllib.sac_module import SoftActorCritic, SquashedGaussian
from rlhf_ray.runs.new_run import new_run
from rlhf_ray.runs.train import train
from rlhf_ray.settings import Experiment, FragmentSettings, PreferenceSettings, SACSettings, SettingError, to_json
from rlhf_ray.settings.start import Start
from rlhf_ray.sweeps import apply
from rlhf_ray.sweeps.trial import TRIAL, TRIALS
from tests.made_up import Walk
from tests.whole_runs import assert_same, outcome, running, small

BOUNDS = gym.spaces.Box(-3.0, 1.0, (1,), np.float32)
"""Not symmetric: policy actions are not the environment's."""


class Pushed(Walk):
    """A walk whose actions are scaled."""

    def __init__(self, lengths: tuple[int, ...] = (7, 12)):
        super().__init__(lengths, numbered=False)
        self.action_space = BOUNDS


def episode(steps: int, *, seed: int = 0, terminated: bool = False) -> SingleAgentEpisode:
    """An episode, or a piece of one, whose observations all differ."""
    rng = np.random.default_rng(seed)
    return SingleAgentEpisode(
        observations=list(rng.normal(size=(steps + 1, 3)).astype(np.float32)),
        actions=list(rng.uniform(-1.0, 1.0, (steps, 1)).astype(np.float32)),
        rewards=list(rng.normal(size=steps)),
        terminated=terminated,
        observation_space=Walk.observation_space,
        action_space=BOUNDS,
        len_lookback_buffer=0,
    ).to_numpy()


def tiny(**changes: Any) -> Experiment:
    sac = SACSettings(
        hidden=(16,), num_envs=2, rollout_length=20, learning_starts=60, batch_size=16, updates_per_env_step=0.5
    )
    values: dict[str, Any] = {"agent": "sac", "environment": "pushed", "total_env_steps": 100 + 8 * 40, "sac": sac}
    fragments = FragmentSettings(length=5, initial_env_steps=100, pool=60)
    preferences = PreferenceSettings(
        comparisons=20, initial_comparisons=8, rounds=3, held_out_share=0.0, allow_variable_horizon=False
    )
    return dataclasses.replace(small(fragments=fragments, preferences=preferences), **(values | changes))


@pytest.fixture(autouse=True)
def environments() -> None:
    tune.register_env("pushed", lambda context: Pushed((20,)))


@pytest.fixture
def learner(environments: None) -> SACLearner:
    """The learner of an algorithm, alone."""
    config = PreferenceSACConfig.from_experiment(tiny())
    checked = config.check_environment()
    of_one = config.for_one_algorithm(checked, "ring")
    spaces = (checked.observation_space, checked.action_space)
    built: SACLearner = of_one.build_learner(spaces={DEFAULT_MODULE_ID: spaces})
    built.build()
    return built


def version(number: int) -> RewardEnsemble:
    torch.manual_seed(number)
    reward = RewardEnsemble(Walk.observation_space, BOUNDS, small().reward_model)
    reward.version.fill_(number)
    return reward


# The replay buffer.


def test_each_row_has_its_own_next_observation_whatever_is_next_to_it_and_the_ring_keeps_the_newest() -> None:
    buffer, pieces = TransitionBuffer(50), [episode(n, seed=n, terminated=n == 30) for n in (9, 20, 3, 30)]
    known = {}
    for piece in pieces:
        observations, rewards = piece.get_observations(), piece.get_rewards()
        for i in range(len(piece)):
            known[observations[i].tobytes()] = (observations[i + 1], rewards[i], piece.is_terminated and i == 29)
    buffer.add(pieces[:2])
    buffer.add(pieces[2:])
    assert (buffer.added, len(buffer)) == (62, 50)
    place = buffer._columns[Columns.REWARDS].data_ptr()
    buffer.add([])
    buffer.add(pieces[-1:])  # again, now into a buffer that is full
    assert (buffer.added, buffer._columns[Columns.REWARDS].data_ptr()) == (92, place)
    torch.manual_seed(0)
    rows = buffer.sample(2_000)
    seen = set()
    for i in range(2_000):
        name = rows[Columns.OBS][i].numpy().tobytes()
        after, reward, over = known[name]
        np.testing.assert_array_equal(rows[Columns.NEXT_OBS][i], after)
        assert rows[Columns.REWARDS][i] == pytest.approx(reward)
        assert bool(rows[Columns.TERMINATEDS][i]) == over
        seen.add(name)
    newest = [each.tobytes() for piece in [*pieces, pieces[-1]] for each in piece.get_observations()[:-1]][-50:]
    assert seen == set(newest)
    rows = buffer.sample(2_000, newest=7)
    names = [row.numpy().tobytes() for row in rows[Columns.OBS]]
    assert (set(names[::2]), set(names[1::2])) == (set(newest[-7:]), set(newest))


# The learner.


def test_every_replayed_step_has_the_newest_reward_and_the_buffer_the_environments(learner: SACLearner) -> None:
    pieces = [episode(n, seed=n, terminated=n % 2 == 0) for n in (4, 17, 8)]
    learner.replay.add(pieces)
    true = np.concatenate([piece.get_rewards() for piece in pieces]).astype(np.float32)
    for number in (1, 2):
        reward = version(number)
        learner.module[REWARD_MODULE_ID].set_state(module_state(reward.state()))
        rows = learner.replay.sample(200)
        order = torch.randperm(200)
        rewarded = learner._rewarded({name: column[order] for name, column in rows.items()})
        expected = reward.predict(
            rewarded[Columns.OBS].numpy(),
            to_env_actions(rewarded[Columns.ACTIONS].numpy(), BOUNDS),
            rewarded[Columns.NEXT_OBS].numpy(),
            rewarded[Columns.TERMINATEDS].numpy(),
        )
        np.testing.assert_allclose(rewarded[Columns.REWARDS], expected, rtol=1e-4, atol=1e-5)
        assert set(rows[Columns.REWARDS].tolist()) <= set(true.tolist())
    np.testing.assert_array_equal(learner.replay.state()["columns"][Columns.REWARDS], true)


def test_the_true_reward_is_normalised_over_the_buffer() -> None:
    config = ReferenceSACConfig.from_experiment(tiny())
    config.validate()
    of: Any = config.build_learner(spaces={DEFAULT_MODULE_ID: (Walk.observation_space, BOUNDS)})
    of.build()
    pieces = [episode(n, seed=n) for n in (17, 4)]
    for piece in pieces:  # the second makes room for more than there are
        of.replay.add([piece])
    true = np.concatenate([piece.get_rewards() for piece in pieces])
    drawn = of.replay.sample(50)
    rewards = of._rewarded(drawn, replayed=True)[Columns.REWARDS].numpy()
    np.testing.assert_allclose(rewards, (drawn[Columns.REWARDS] - true.mean()) / true.std(), rtol=1e-4, atol=1e-5)


def test_gradient_steps_add_up_to_their_share_of_the_steps_after_the_first(learner: SACLearner) -> None:
    ends = [0, 40, 59, 61, 62, 100, 333, 334]
    due = [learner.due(before, after) for before, after in itertools.pairwise(ends)]
    assert due[:2] == [0, 0]
    assert sum(due) == int(0.5 * (334 - 60))
    assert min(due) >= 0


def test_an_update_moves_actor_critics_targets_and_temperature_but_not_the_reward(learner, monkeypatch):
    reward, taken_off, number = version(3), list[Any](), learner._weights_seq_no
    monkeypatch.setattr("rlhf_ray.rllib.sac_learner.take_off", lambda data, of: taken_off.append(of))
    learner.module[REWARD_MODULE_ID].set_state(module_state(reward.state()))
    before = {name: value.copy() for name, value in learner.module[DEFAULT_MODULE_ID].get_state().items()}
    results = learner.update(training_data=episodes_data([episode(100)]))
    assert (taken_off, learner._weights_seq_no) == ([learner.config], number + 1)
    after = learner.module[DEFAULT_MODULE_ID].get_state()
    fixed = {"network.clamps_log_std"}
    assert all(not np.array_equal(before[name], after[name]) for name in before.keys() - fixed)
    kept = learner.module[REWARD_MODULE_ID].get_state()
    for name, value in module_state(reward.state()).items():
        np.testing.assert_array_equal(kept[name], value)
    metrics = results[DEFAULT_MODULE_ID]
    assert metrics["agent_gradient_steps"].peek() == 20
    assert metrics["replayed_steps"].peek() == 100
    assert metrics["reward_version"].peek() == 3
    # Targets move by tau of the way, step by step: much less than the critics.
    moved = [
        np.abs(after[name] - before[name]).mean() for name in ("network.critics.weights.0", "network.targets.weights.0")
    ]
    assert moved[1] < 0.2 * moved[0]


@pytest.mark.parametrize("name", ["actor", "critic", "alpha"])
def test_a_gradient_step_that_leaves_weights_that_are_not_finite_is_told_with_its_learning_rates(learner, name):
    optimizer = learner.get_optimizer(DEFAULT_MODULE_ID, name)
    optimizer.param_groups[0]["lr"] = float("inf")
    with pytest.raises(
        BrokenAgentError, match=rf"diverged: weights of .*{name}.*sac\.{name}_learning_rate \(0\.0003\)"
    ):
        learner.update(training_data=episodes_data([episode(100)]))


def episodes_data(pieces: list[SingleAgentEpisode]) -> Any:
    from ray.rllib.core.learner.training_data import TrainingData

    return TrainingData(episodes=pieces)


# The module.


def test_the_deterministic_action_is_a_tanh_and_env_runners_have_the_actor_alone() -> None:
    assert float(SquashedGaussian(loc=torch.tensor(0.5)).to_deterministic().sample()) == pytest.approx(np.tanh(0.5))
    spec = RLModuleSpec(
        module_class=SoftActorCritic,
        observation_space=Walk.observation_space,
        action_space=BOUNDS,
        model_config={"hidden": [4], "initial_alpha": 0.1},
    )
    whole = spec.build()
    spec.inference_only = True
    acting = spec.build()
    sent = whole.get_state(inference_only=True)
    assert all(name.startswith(("network.actor.", "network.clamps_log_std")) for name in sent)
    acting.set_state(sent)
    observations = {Columns.OBS: torch.randn(5, 3)}
    outputs = [module.forward_inference(observations)[Columns.ACTION_DIST_INPUTS] for module in (whole, acting)]
    torch.testing.assert_close(*outputs)
    assert sum(p.numel() for p in acting.parameters()) < sum(p.numel() for p in whole.parameters())


# Whole runs.


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ring_in_process")
@pytest.mark.parametrize("pretraining", [0, 80], ids=["from labels", "pretrained"])
def test_a_restored_run_is_the_undisturbed_one_and_budgets_are_exact(tmp_path: Path, pretraining: int) -> None:
    experiment = tiny(total_env_steps=100 + 8 * 40 + pretraining)
    preferences = dataclasses.replace(experiment.preferences, pretraining_env_steps=pretraining)
    sac = dataclasses.replace(experiment.sac, normalize_observations=bool(pretraining))
    experiment = dataclasses.replace(experiment, preferences=preferences, sac=sac)
    algorithm = PreferenceSACConfig.from_experiment(experiment).build_algo()
    results = []
    with running(algorithm):
        while not algorithm.finished:
            results.append(algorithm.train())
            if algorithm.training_iteration == 4:
                algorithm.save_to_path(str(tmp_path / "checkpoint"))
        undisturbed, replayed = outcome(algorithm), local_learner(algorithm.learner_group).replay.state()
        module = local_learner(algorithm.learner_group).module[DEFAULT_MODULE_ID].unwrapped()
        check_statistics(module, algorithm.env_runner.module, replayed, normalises=bool(pretraining))
    assert undisturbed["env_steps"] == experiment.total_env_steps
    assert len(undisturbed["ids"]) == 20
    assert replayed["added"] == 8 * 40 + pretraining
    assert np.isnan(replayed["columns"][Columns.REWARDS]).all()  # the environment's own don't reach the learner
    true = results[-1]["env_runners"]["episode_return_mean"]
    assert -400 < true < 0
    assert results[-1]["learners"][DEFAULT_MODULE_ID]["reward_version"] > 1

    policy = load_policy(tmp_path / "checkpoint")
    assert np.abs(policy.best(np.zeros((3, 3), np.float32)) + 1.0).max() <= 2.0
    with running(PreferenceSAC.from_checkpoint(str(tmp_path / "checkpoint"))) as again:
        assert local_learner(again.learner_group).replay.added == 4 * 40
        while not again.finished:
            again.train()
        assert_same(undisturbed, outcome(again))
        for name, values in local_learner(again.learner_group).replay.state()["columns"].items():
            np.testing.assert_array_equal(values, replayed["columns"][name])


def check_statistics(module: Any, of_runner: Any, replayed: dict[str, Any], normalises: bool) -> None:
    """Each step counts once, when the environment takes it, however often it is replayed; env runners have the same statistics."""
    statistics = module.network.statistics
    assert (statistics is not None) == normalises
    if not normalises:
        return
    seen = replayed["columns"][Columns.OBS].astype(np.float64)
    assert int(statistics.count) == len(seen)
    size = seen.shape[1]
    np.testing.assert_allclose(statistics.mean[:size], seen.mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose((statistics.squares / statistics.count)[:size], seen.var(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(of_runner.network.statistics.mean, statistics.mean)
    assert np.abs(seen).max() > 10  # the buffer, which the reward reads, has them as they are


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ring_in_process")
def test_a_run_with_discrete_actions_asynchronous_and_then_its_reward_and_policy_for_another(tmp_path: Path) -> None:
    experiment = tiny(environment="rlhf_ray/CartPoleFixed-v0")
    sac = dataclasses.replace(experiment.sac, normalize_observations=True)
    experiment = dataclasses.replace(
        experiment, preferences=dataclasses.replace(experiment.preferences, mode="asynchronous"), sac=sac
    )
    first = new_run(tmp_path / "first", experiment)
    done = train(first, evaluation_episodes=1)
    assert done.env_steps <= experiment.total_env_steps
    assert done.trained is not None
    start = Start(reward_from=str(first.path), policy_from=str(first.path))
    second = new_run(
        tmp_path / "second", dataclasses.replace(tiny(environment="rlhf_ray/CartPoleFixed-v0"), sac=sac), start
    )
    done = train(second, evaluation_episodes=1, reference=True)
    assert done.comparisons == 0
    assert done.reference is not None
    rows = [json.loads(line) for line in second.metrics.read_text().splitlines()]
    assert rows[-1]["agent_gradient_steps"] == 20
    assert rows[-1]["policy_entropy"] > 0


# What is refused.


def refusals() -> Iterator[tuple[str, Any, str]]:
    spec = RLModuleSpec(module_class=SoftActorCritic)
    yield "n_step", lambda c: c.training(n_step=3), r"training\(n_step\) is 3, but this SAC's targets are one-step"
    yield "buffer", lambda c: c.training(replay_buffer_config={"capacity": 5}), r"use training\(buffer_size=…\)"
    yield "connector", lambda c: c.learners(learner_connector=lambda *_: []), "wrap the environment"
    yield "seen", lambda c: c.env_runners(env_to_module_connector=lambda *_: []), "wrap the environment"
    yield "model", lambda c: c.rl_module(model_config={"fcnet_hiddens": [3]}), "set by sac.hidden"
    yield "module", lambda c: c.rl_module(rl_module_spec=dataclasses.replace(spec, module_class=None)), "by sac.hidden"
    yield "intensity", lambda c: c.training(training_intensity=2.0), r"updates_per_env_step"
    yield "mode", lambda c: c.env_runners(batch_mode="complete_episodes"), "truncate_episodes"
    yield "learners", lambda c: c.learners(num_learners=2), "sac.num_learners is 2; it must be one of 0, 1"
    yield "time", lambda c: c.reporting(min_time_s_per_iteration=5), "an iteration is one training step"


@pytest.mark.parametrize(("name", "change", "what"), refusals())
def test_settings_of_rllib_that_this_sac_lacks_are_refused(name: str, change: Any, what: str) -> None:
    config = PreferenceSACConfig.from_experiment(tiny())
    config.validate()
    with pytest.raises(SettingError, match=what):
        change(config).validate()


def test_what_the_environment_or_the_start_must_have(tmp_path: Path) -> None:
    tune.register_env("unbounded", lambda context: Unbounded())
    with pytest.raises(SettingError, match=r"agent is 'sac', but the actions are .* finite bounds"):
        preference_config(tiny(environment="unbounded")).check_environment()
    pushed = tiny()
    with pytest.raises(
        SettingError, match=r"network is 'gru', which reads the steps before, but SAC replays single steps"
    ):
        preference_config(
            dataclasses.replace(pushed, reward_model=dataclasses.replace(pushed.reward_model, network="gru"))
        ).check_environment()
    with pytest.raises(SettingError, match="--demonstrations needs agent=ppo"):
        new_run(tmp_path / "run", tiny(), Start(demonstrations=str(tmp_path / "some.npz")))
    with pytest.raises(SettingError, match=r"at most sac\.rollout_length=20"):
        tiny(fragments=FragmentSettings(length=21, initial_env_steps=100))
    assert not (tmp_path / "run").exists()


class Unbounded(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


# Sweeps.


def test_a_sweep_varies_sacs_settings_and_its_trials_are_sacs() -> None:
    experiment = apply(tiny(environment="Pendulum-v1"), {"sac.gamma": 0.9, "sac.num_env_runners": 3})
    assert experiment.sac.gamma == 0.9
    with pytest.raises(SettingError, match="no setting 'agent' to vary"):
        apply(experiment, {"agent": "ppo"})
    kind = TRIALS[experiment.agent]
    assert issubclass(kind, PreferenceSAC)
    bundles = kind.default_resource_request({TRIAL: {"experiment": to_json(experiment)}}).bundles
    assert sum(bundle.get("CPU", 0) for bundle in bundles) >= 4  # the trial and three env runners
