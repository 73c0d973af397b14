"""`reward_mix`: what the agent learns from is the learned reward, mixed with the environment's own by hand."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.rllib import PreferencePPOConfig, PreferenceSACConfig
from rlhf_ray.rllib.learned_reward import (
    REPLAYED,
    REWARD_MODULE_ID,
    HistoryReward,
    LearnedReward,
    RewardModule,
    reward_spec,
)
from rlhf_ray.settings import Experiment, RewardModelSettings

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


def episode(steps: int) -> SingleAgentEpisode:
    rng = np.random.default_rng(0)
    return SingleAgentEpisode(
        observations=list(rng.normal(size=(steps + 1, 3)).astype(np.float32)),
        actions=list(rng.uniform(-1.0, 1.0, (steps, 1)).astype(np.float32)),
        rewards=list(rng.normal(5.0, 2.0, steps)),
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        len_lookback_buffer=0,
    ).to_numpy()


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
        assert reward.novelty is not None
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
    ("share", "said"),
    [(-0.1, "below 1"), (1.0, "below 1"), (float("nan"), "below 1"), ("half", "it must be a number")],
)
def test_other_shares_are_refused(share: Any, said: str) -> None:
    with pytest.raises(SettingError, match=f"reward_mix is '?{share}.*{said}"):
        Experiment(reward_mix=share)


@pytest.mark.parametrize("appended", [0, 1])
def test_a_reward_that_reads_history_sees_the_steps_before_a_piece(appended: int) -> None:
    torch.manual_seed(0)
    reward: RewardModule = reward_spec(RewardModelSettings(network="gru", hidden=(8, 8)), OBSERVATIONS, ACTIONS).build()
    reward.ensemble.window.fill_(4)
    assert reward.ensemble.reads_history
    whole = episode(12)
    actions = torch.as_tensor(to_env_actions(whole.get_actions(), ACTIONS))
    members = reward.ensemble.episode_rewards(torch.as_tensor(whole.get_observations()), actions, False)
    expected = reward.ensemble.combine(members).numpy()[5 : 12 - appended]
    pieces = [whole.slice(slice(5, 12), len_lookback_buffer=5)]
    before = copy.deepcopy(pieces[0].get_rewards())
    given: dict[str, Any] = {Columns.LOSS_MASK: {}} if appended else {}
    HistoryReward()(rl_module=Modules(reward), batch=given, episodes=pieces)
    assert pieces[0].get_rewards() == pytest.approx([*expected, *[0.0] * appended], abs=1e-5)
    assert not np.allclose(before, pieces[0].get_rewards())
