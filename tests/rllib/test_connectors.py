"""Rewards that read the steps before, in the learner's episodes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.rllib.connectors import HistoryReward
from rlhf_ray.rllib.learned_reward import RewardModule, reward_spec
from rlhf_ray.settings import RewardModelSettings
from tests.rllib.test_reward_mix import ACTIONS, OBSERVATIONS, Modules, episode


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
