"""What the agent learns from: the learned reward, after its episode's steps before, mixed as `reward_mix` says; nothing else."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies.ppo_update import PPOUpdate
from rlhf_ray.policies.sac_update import SACUpdate
from rlhf_ray.rllib import PreferencePPOConfig, PreferenceSACConfig
from rlhf_ray.rllib.learned_reward import (
    REPLAYED,
    REWARD_MODULE_ID,
    HistoryReward,
    LearnedReward,
    RewardModule,
    reward_spec,
)
from rlhf_ray.rllib.learner import PPOLearner
from rlhf_ray.rllib.rllib_internals import local_learner
from rlhf_ray.rllib.sac_learner import TransitionBuffer
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings
from tests.generous import LEAST, LENGTH, largest
from tests.rllib.test_faulty_environments import AGENTS, short
from tests.rllib.test_sac import episode
from tests.whole_runs import running

OBSERVATIONS, ACTIONS = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Box(-2.0, 2.0, (1,))


def module(mix: float, *, pretrains: bool = False, version: int = 1) -> RewardModule:
    torch.manual_seed(0)
    settings = RewardModelSettings(hidden=(8,), ensemble_size=2)
    of: RewardModule = reward_spec(settings, OBSERVATIONS, ACTIONS, pretrains, mix).build()
    of.ensemble.version.fill_(version)
    return of


class Modules(dict[str, Any]):
    """A learner's modules, as connectors see them."""

    def __init__(self, reward: RewardModule):
        reward.unwrapped = lambda: reward  # type: ignore[method-assign]
        super().__init__({REWARD_MODULE_ID: reward})


class Logged(dict[str, float]):
    """Metrics, as connectors log them."""

    def log_dict(self, values: dict[str, float], **_: Any) -> None:
        self.update(values)


def learned(reward: RewardModule, of: SingleAgentEpisode) -> Any:
    """The learned reward of each step, by `predict`."""
    seen = of.get_observations()
    return reward.ensemble.predict(seen[:-1], 2.0 * of.get_actions(), seen[1:], np.zeros(len(of), bool))


def batch(of: SingleAgentEpisode) -> dict[str, Any]:
    """The steps of an episode as a train batch, after them one that doesn't count."""
    seen = torch.as_tensor(of.get_observations())
    padded = torch.cat([seen, seen[-1:]])
    return {
        Columns.OBS: padded[:-1],
        Columns.NEXT_OBS: padded[1:],
        Columns.ACTIONS: torch.as_tensor(np.append(of.get_actions(), [[0.0]], 0)),
        Columns.REWARDS: torch.as_tensor(np.append(of.get_rewards(), 77.0)).float(),
        Columns.TERMINATEDS: torch.zeros(len(of) + 1, dtype=torch.bool),
        Columns.LOSS_MASK: torch.arange(len(of) + 1) < len(of),
    }


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("replayed", [False, True])
def test_a_batch_gets_the_mixture(share: float, replayed: bool) -> None:
    reward, of, metrics = module(share), episode(9), Logged()
    by_hand = (1 - share) * learned(reward, of) + share * of.get_rewards()
    shared = {REPLAYED: True} if replayed else {}
    connector = LearnedReward(keep_next_observations=replayed)
    columns = {DEFAULT_MODULE_ID: batch(of)}
    connector(rl_module=Modules(reward), batch=columns, episodes=[], shared_data=shared, metrics=metrics)
    rewards = columns[DEFAULT_MODULE_ID][Columns.REWARDS].numpy()
    assert rewards[:-1] == pytest.approx(by_hand, abs=1e-5)
    assert rewards[-1] == 0
    assert metrics["learned_reward_mean"] == pytest.approx(learned(reward, of).mean(), abs=1e-5)
    assert metrics["learned_reward_std"] == pytest.approx(learned(reward, of).std(), abs=1e-5)
    assert metrics.get("mixed_reward_mean") == (pytest.approx(by_hand.mean(), abs=1e-5) if share else None)


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("appended", [0, 1])
def test_episodes_get_the_mixture(share: float, appended: int) -> None:
    reward, of, metrics = module(share), episode(9), Logged()
    steps = len(of) - appended
    by_hand = ((1 - share) * learned(reward, of) + share * of.get_rewards())[:steps]
    episodes = [of]
    given = {Columns.LOSS_MASK: {}} if appended else {}
    HistoryReward()(rl_module=Modules(reward), batch=given, episodes=episodes, metrics=metrics)
    assert episodes[0].get_rewards() == pytest.approx([*by_hand, *[0.0] * appended], abs=1e-5)
    assert episodes[0] is not of  # which keeps the true return
    assert metrics["learned_reward_mean"] == pytest.approx(learned(reward, of)[:steps].mean(), abs=1e-5)
    assert metrics["learned_reward_std"] == pytest.approx(learned(reward, of)[:steps].std(), abs=1e-5)
    assert metrics.get("mixed_reward_mean") == (pytest.approx(by_hand.mean(), abs=1e-5) if share else None)


def test_the_novelty_of_the_pretraining_is_not_mixed() -> None:
    rewards, own = torch.randn(5), torch.ones(5)
    assert module(0.5, pretrains=True, version=0).mixed(rewards, own) is rewards
    assert torch.equal(module(0.5, pretrains=True).mixed(rewards, own), 0.5 * rewards + 0.5)


def test_states_are_remembered_once_when_they_are_new() -> None:
    reward, of = module(0.0, pretrains=True, version=0), episode(9)
    seen = []
    for shared in ({}, {REPLAYED: True}, None):
        columns = {DEFAULT_MODULE_ID: batch(of)}
        connector = LearnedReward(keep_next_observations=True)
        connector(rl_module=Modules(reward), batch=columns, episodes=[], shared_data=shared)
        seen.append(int(reward.novelty.seen))
        assert columns[DEFAULT_MODULE_ID][Columns.REWARDS][-1] == 0
    assert seen == [9, 9, 18]


@pytest.mark.parametrize("kind", [PreferencePPOConfig, PreferenceSACConfig])
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_the_setting_reaches_the_learners_module(kind: Any, share: float) -> None:
    config = kind().environment("Pendulum-v1").preferences(reward_mix=share)
    of_one = config.for_one_algorithm(config.check_environment(), "ring")
    spec = of_one.rl_module_spec.rl_module_specs[REWARD_MODULE_ID]
    assert spec.build().mix == share


@pytest.mark.parametrize(
    ("share", "said"), [(-0.1, "below 1"), (1.0, "below 1"), (float("nan"), "below 1"), ("half", "it must be a number")]
)
def test_other_shares_are_refused(share: Any, said: str) -> None:
    with pytest.raises(SettingError, match=f"reward_mix is '?{share}.*{said}"):
        Experiment(reward_mix=share)


WINDOW = 7


def of_sequences(memory: Any) -> Experiment:
    return Experiment(
        environment="Pendulum-v1",
        total_env_steps=150 + 2 * 120,
        seed=3,
        fragments=FragmentSettings(length=WINDOW, initial_env_steps=150, pool=30),
        preferences=PreferenceSettings(comparisons=10, initial_comparisons=6, rounds=1, held_out_share=0.2),
        reward_model=RewardModelSettings(network="gru", hidden=(8, 8), initial_updates=5, updates=2),
        ppo=PPOSettings(num_envs=2, rollout_length=60, minibatch_size=60, epochs=1, hidden=(8,), memory=memory),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_learner_sees_the_reward_of_each_step_after_its_episodes_steps_before(memory: Any) -> None:
    with running(PreferencePPOConfig.from_experiment(of_sequences(memory)).build_algo()) as algorithm:
        result = algorithm.train()
        assert result["learners"][DEFAULT_MODULE_ID]["reward_version"] == 1
        ensemble, learner = algorithm.reward_model(), algorithm.learner_group._learner
        assert int(ensemble.window) == WINDOW
        whole: dict[str, tuple[list[Any], list[Any]]] = {}
        for _ in range(2):  # an episode of 200 steps is longer than a rollout, and some end in the second
            for episode in algorithm.env_runner.sample(num_timesteps=120):
                observations, actions = whole.setdefault(episode.id_, ([], []))
                at = len(actions)
                observations += list(episode.get_observations())[len(observations) > 0 :]
                actions += list(np.clip(episode.get_actions() * 2.0, -2.0, 2.0))
                batch = learner._learner_connector(
                    rl_module=learner.module, batch={}, episodes=[copy.deepcopy(episode)], shared_data={}, metrics=None
                )[DEFAULT_MODULE_ID]
                real = batch[Columns.LOSS_MASK].bool()
                got = batch[Columns.REWARDS][real].numpy()
                assert len(got) == len(episode)
                if at == 0 and episode.t_started:
                    continue  # its first steps were in the training
                for t in range(len(episode)):
                    first = max(0, at + t - WINDOW + 1)
                    part = slice(first, at + t + 1)
                    inputs = ensemble.networks.encode(
                        torch.as_tensor(np.stack(observations[first : at + t + 2]))[None],
                        torch.as_tensor(np.stack(actions[part]))[None],
                        torch.tensor([False]),
                    )
                    with torch.no_grad():
                        raw = ensemble.networks(inputs)[:, 0, -1]
                    expected = ((raw - ensemble.reward_mean) / ensemble.reward_std).mean()
                    assert got[t] == pytest.approx(float(expected), abs=1e-4)
        assert sum(len(actions) > 60 for _, actions in whole.values()), "no episode went over a rollout's end"


READ = (
    (RLModule, ("forward_exploration", "forward_train")),
    (LearnedReward, ("__call__",)),
    (PPOLearner, ("_rows_of_arrays", "_take_steps", "compute_loss_for_module")),
    (PPOUpdate, ("take_steps",)),
    (SACUpdate, ("step",)),
    (TransitionBuffer, ("add", "sample", "state")),
)
"""What reads for the agent, and what it returns."""

SEEN: dict[str, float] = {}
"""The largest number that each of them got or returned."""


def note(name: str, *things: Any) -> None:
    SEEN[name] = max(SEEN.get(name, 0.0), largest(things))


def spied(method: Any) -> Any:
    def spy(self: Any, *given: Any, **named: Any) -> Any:
        note(method.__qualname__, given, named)
        returned = method(self, *given, **named)
        note(method.__qualname__, returned)
        return returned

    return spy


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_no_part_of_the_agent_gets_the_true_reward(agent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    SEEN.clear()
    for kind, names in READ:
        for name in names:
            monkeypatch.setattr(kind, name, spied(getattr(kind, name)))
    with running(short(agent, "tests/Generous-v0").build_algo()) as algorithm:
        while not algorithm.finished:
            result = algorithm.train()
        assert result["env_runners"]["episode_return_mean"] > LENGTH * LEAST
        note("learner", vars(local_learner(algorithm.learner_group)))
        algorithm.save_to_path(tmp_path / "checkpoint")
    assert len(SEEN) > 2
    assert {name: number for name, number in SEEN.items() if number > LEAST / 2} == {}
