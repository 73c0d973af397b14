"""ArrayEnvRunner beside RLlib's env runner, when it steps back, and `env_threads` for copies in processes of their own."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from ray import tune
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_ray.data.system import CORES
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.envs.processes import ProcessesVectorEnv
from rlhf_ray.policies.actions import log_probability
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.env_runner import ArrayEnvRunner, EnvRunner, _Draws, env_threads
from rlhf_ray.rllib.ppo import needs_episodes
from rlhf_ray.rllib.reference import ReferencePPOConfig, ReferenceSACConfig
from rlhf_ray.runs.new_run import new_run
from rlhf_ray.runs.train import train
from rlhf_ray.settings import Experiment, PPOSettings, SACSettings
from tests.rllib.test_ppo_learner import configured, learner_of
from tests.whole_runs import differences, left_behind, running, small

NEEDS_ENVPOOL = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")


def runners(environment: str, **ppo: Any) -> list[Any]:
    """Both kinds, with the same policy and seed."""
    config = configured(ReferencePPOConfig, environment, **ppo)
    state = learner_of(config, environment).module[DEFAULT_MODULE_ID].get_state(inference_only=True)
    made = []
    for kind in (EnvRunner, ArrayEnvRunner):
        runner = kind(config=config, worker_index=0, num_workers=0)
        runner.module.set_state(state)
        made.append(runner)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        "Pendulum-v1",
        "CartPole-v1",
        "rlhf_ray/MovingDot-v0",
        "rlhf_ray/CartPoleFixed-v0",
        pytest.param("envpool/CartPole-v1", marks=NEEDS_ENVPOOL),
    ],
)
def test_without_noise_the_steps_are_those_of_rllib_s_runner(environment: str) -> None:
    theirs, ours = runners(environment, num_envs=3, rollout_length=70)
    for _ in range(4):
        episodes, (rollout,) = theirs.sample(explore=False), ours.sample(explore=False)
        assert isinstance(rollout, VectorRollout)
        assert len(rollout) == sum(map(len, episodes))
        trajectories = rollout.trajectories(rollout.actions)
        key = lambda seen: seen[0].ravel().tolist()  # noqa: E731  # by numbers: their last bits may differ
        expected = sorted(
            (episode for episode in episodes if len(episode)), key=lambda each: key(each.get_observations())
        )
        found = sorted(trajectories, key=lambda each: key(each.observations))
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other.observations, one.get_observations(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(other.actions, one.get_actions(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(other.rewards, one.get_rewards(), rtol=1e-3, atol=1e-3)
            assert other.terminated == one.is_terminated
            assert other.start == one.t_started
    expected, found = theirs.get_metrics(), ours.get_metrics()
    assert {name for name in expected if "connector" not in name and not name.startswith("env_to_module")} == set(found)
    for name in ("episode_return_mean", "episode_len_mean", "num_env_steps_sampled_lifetime", "num_episodes_lifetime"):
        if name in expected:
            assert float(found[name].peek()) == pytest.approx(float(expected[name].peek()), rel=1e-3)
    for runner in (theirs, ours):
        runner.stop()


@pytest.mark.parametrize("environment", ["Pendulum-v1", pytest.param("CartPole-v1", marks=pytest.mark.slow)])
def test_log_probabilities_are_the_network_s_of_the_actions(environment: str) -> None:
    _, runner = runners(environment, num_envs=2, rollout_length=64)
    (rollout,) = runner.sample()
    network = runner.module.unwrapped().network
    with torch.no_grad():
        outputs, _ = network.heads(network.encode(torch.as_tensor(rollout.observations[:-1]).flatten(0, 1)))
        expected = log_probability(
            outputs, torch.as_tensor(rollout.actions).flatten(0, 1), runner.env.single_action_space
        )
    np.testing.assert_allclose(rollout.log_probabilities.ravel(), expected.numpy(), rtol=1e-3, atol=1e-4)
    assert len(np.unique(rollout.actions)) > 1
    runner.stop()


@pytest.mark.slow
def test_whole_episodes_come_as_rllib_s_and_rollouts_begin_anew_after_them() -> None:
    _, runner = runners("Pendulum-v1", num_envs=2, rollout_length=50)
    runner.sample()
    episodes = runner.sample(num_episodes=2)
    assert [len(each) for each in episodes] == [200, 200]
    (rollout,) = runner.sample()
    assert rollout.starts.tolist() == [0, 0]
    runner.stop()


class SeesEpisodes(RLlibCallback):  # type: ignore[misc]
    def on_episode_end(self, **arguments: Any) -> None:
        """Nothing."""


class SeesIterations(RLlibCallback):  # type: ignore[misc]
    def on_train_result(self, **arguments: Any) -> None:
        """Nothing."""


def config() -> PreferencePPOConfig:
    return PreferencePPOConfig().environment("Pendulum-v1").preferences(comparisons=20, total_env_steps=10_000)


def test_what_needs_episodes_is_named() -> None:
    assert needs_episodes(config()) is None
    assert needs_episodes(config().callbacks(SeesIterations)) is None
    assert needs_episodes(config().learners(num_learners=1)) is None
    assert "num_learners" in str(needs_episodes(config().learners(num_learners=2)))
    assert "SeesEpisodes" in str(needs_episodes(config().callbacks(SeesEpisodes)))
    assert "on_sample_end" in str(needs_episodes(config().callbacks(on_sample_end=lambda **arguments: None)))


def test_a_callback_of_episodes_takes_rllib_s_runner_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    checked = config().check_environment()
    assert config().for_one_algorithm(checked, "ring").env_runner_cls is ArrayEnvRunner
    assert not [record for record in caplog.records if record.name.startswith("rlhf_ray")]  # RLlib logs its own
    assert config().callbacks(SeesEpisodes).for_one_algorithm(checked, "ring").env_runner_cls is EnvRunner
    (record,) = [record for record in caplog.records if record.name.startswith("rlhf_ray")]
    assert "SeesEpisodes" in record.getMessage()


def test_a_policy_with_memory_takes_rllib_s_runner() -> None:
    remembering = config()
    remembering.experiment["ppo"] = {**remembering.experiment["ppo"], "memory": "gru"}
    checked = remembering.check_environment()
    assert remembering.for_one_algorithm(checked, "ring").env_runner_cls is EnvRunner


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("env_runners", [0, 1])
def test_a_learner_actor_gets_arrays_and_takes_our_steps(env_runners: int) -> None:
    of = small().with_agent_settings(num_learners=1, num_env_runners=env_runners)
    mode: Any = "asynchronous" if env_runners else "synchronous"
    of = dataclasses.replace(of, preferences=dataclasses.replace(of.preferences, mode=mode))
    with running(PreferencePPOConfig.from_experiment(of).build_algo()) as algorithm:
        assert algorithm.config.env_runner_cls is ArrayEnvRunner
        [found] = algorithm.learner_group.foreach_learner(lambda learner: learner.own_steps is not None)
        assert found.get()
        assert algorithm.train()["learners"][DEFAULT_MODULE_ID]["reward_version"] == 1


class Sometimes(gym.Env[Any, Any]):
    """Episodes of two to five steps; those of an even number succeed, at their first step; it always moves by 0.5 or 1.5."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = self.length = 2 + Sometimes.episodes % 4
        Sometimes.episodes += 1
        return np.zeros(1, np.float32), {"success": False, "moved": 99.0}

    def step(self, action: Any) -> Any:
        said = {"success": self.left == self.length and self.length % 2 == 0, "moved": 0.5 + (self.left % 2)}
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, said


@pytest.mark.slow
def test_success_and_other_infos_are_metrics_of_both_runners() -> None:
    gym.register("Sometimes-v0", Sometimes)
    for runner in runners("Sometimes-v0", num_envs=1, rollout_length=56):  # 16 episodes, 14 steps for each four
        Sometimes.episodes = 0
        runner.sample()
        found = runner.get_metrics()
        assert float(found["success_rate"].peek()) == pytest.approx(0.5)
        # By hand, the means of the episodes of 2, 3, 4 and 5 steps; 99 at each reset is of no step.
        assert float(found["info_mean/moved"].peek()) == pytest.approx((1 + 3.5 / 3 + 1 + 5.5 / 5) / 4)
        runner.stop()
    gym.registry.pop("Sometimes-v0")


@pytest.mark.parametrize("choices", [(3,), (2, 3)])
def test_actions_are_drawn_with_the_probabilities_of_the_policy(choices: tuple[int, ...]) -> None:
    logits = np.random.default_rng(0).normal(size=sum(choices)).astype(np.float32)
    parts = np.split(logits, np.cumsum(choices)[:-1])
    rows, calls = 200, 100
    acting = _Draws(choices, torch.Generator().manual_seed(0))
    drawn = np.concatenate([np.reshape(acting(np.tile(logits, (rows, 1))), (rows, -1)) for _ in range(calls)])
    for component, part in zip(drawn.T, parts, strict=True):
        wanted = np.exp(part) / np.exp(part).sum()
        error = np.sqrt(wanted * (1 - wanted) / len(component))
        assert (np.abs(np.bincount(component, minlength=len(part)) / len(component) - wanted) < 5 * error).all()
    best = np.reshape(_Draws(choices, None)(logits[None]), -1)
    assert best.tolist() == [int(part.argmax()) for part in parts]


def test_box_actions_are_drawn_with_the_mean_and_deviation_of_the_policy() -> None:
    mean, log_std = np.array([0.5, -2.0]), np.log([0.1, 3.0])
    outputs = np.tile(np.concatenate([mean, log_std]), (200, 1)).astype(np.float32)
    acting = _Draws((), torch.Generator().manual_seed(0))
    drawn = np.concatenate([acting(outputs) for _ in range(100)])
    assert len(np.unique(drawn[:, 0])) > 0.99 * len(drawn)  # no noise is used again
    assert np.abs(drawn.mean(0) - mean) == pytest.approx(0, abs=5 * 3 / np.sqrt(len(drawn)))
    assert drawn.std(0) == pytest.approx(np.exp(log_std), rel=5 / np.sqrt(2 * len(drawn)))
    assert _Draws((), None)(outputs)[0] == pytest.approx(mean)


LOOP = "rlhf_ray/AcrobotFixed-v0"


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "kind"), [("ppo", ReferencePPOConfig), ("sac", ReferenceSACConfig)])
def test_the_copies_of_an_env_runner_step_in_as_many_processes_as_there_are_threads(agent: Any, kind: Any) -> None:
    groups: dict[str, Any] = {"ppo": PPOSettings, "sac": SACSettings}
    starts = []
    for threads in ("auto", 1, 2):
        group = groups[agent](env_threads=threads, num_envs=3)
        config = kind.from_experiment(Experiment(environment=LOOP, agent=agent, **{agent: group}))
        config.validate()
        runner = EnvRunner(config=config, worker_index=0, num_workers=0)
        assert type(runner.env.unwrapped) is (ProcessesVectorEnv if threads == 2 else SyncVectorEnv)
        assert not runner.env.closed
        starts.append(runner._try_env_reset(seed=1)[0])
        runner.stop()
        assert runner.env is None or runner.env.closed
    assert starts[0].tolist() == starts[1].tolist() == starts[2].tolist()
    assert len({tuple(start) for start in starts[0].reshape(3, -1).tolist()}) == 3


def test_a_creator_of_the_user_s_gets_no_option_that_it_does_not_know() -> None:
    tune.register_env("theirs", lambda context: None)
    config = PreferencePPOConfig().environment("theirs")
    assert env_threads(Experiment(environment="theirs", ppo=PPOSettings(env_threads=2))) == {}
    assert config.gym_env_vectorize_mode != "vector_entry_point"
    assert PreferencePPOConfig().environment(LOOP).gym_env_vectorize_mode == "vector_entry_point"
    assert env_threads(Experiment(environment=LOOP, ppo=PPOSettings(env_threads=2))) == {"worker_processes": 2}


def test_the_bound_of_cores_holds_for_threads_and_processes_that_a_setting_names(monkeypatch):
    monkeypatch.setenv(CORES, "3")
    PreferencePPOConfig().environment(LOOP)
    for name, option in (("envpool/WalkerWalk-v1", "num_threads"), (LOOP, "worker_processes")):
        for threads, used in ((2, 2), (8, 3)):
            assert env_threads(Experiment(environment=name, ppo=PPOSettings(env_threads=threads))) == {option: used}


@pytest.mark.slow
def test_a_run_is_the_same_in_one_process_and_in_two(tmp_path: Path) -> None:
    left = []
    for threads in (1, 2):
        ppo = PPOSettings(
            num_envs=4, rollout_length=150, minibatch_size=200, epochs=2, hidden=(16,), env_threads=threads
        )
        folder = new_run(tmp_path / str(threads), small(environment=LOOP, ppo=ppo))
        train(folder, evaluation_episodes=2)
        left.append(left_behind(folder.path))
    assert not differences(*left)
    assert len(left[0]["metrics"]) > 3
