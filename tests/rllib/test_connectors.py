"""Connectors of one's own change what the policy and its learner see, and nothing of what the reward model sees."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlhf_ray.policies.env_actions import to_env_actions
from rlhf_ray.rllib.connectors import OBSERVATION, KeepObservations, RewardFirst, environment_observations
from rlhf_ray.rllib.learned_reward import RewardModule, reward_spec
from rlhf_ray.settings import RewardModelSettings
from tests.rllib.test_reward_mix import ACTIONS, OBSERVATIONS, Modules, episode


def test_observations_are_kept_as_they_were_before_they_changed() -> None:
    own, shared = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32), {"said": 1}
    of = SingleAgentEpisode(observation_space=OBSERVATIONS, action_space=ACTIONS)
    for step, observation in enumerate(own):
        if step == 0:
            of.add_env_reset(observation, infos=shared)
        else:
            of.add_env_step(observation, np.zeros(1, np.float32), 0.0, infos=shared)
        for _ in range(2):  # the second time, it is another's observation
            KeepObservations()(rl_module=None, batch={}, episodes=[of])
            of.set_observations(new_data=np.full(3, 0.5, np.float32), at_indices=-1)
    assert shared == {"said": 1}
    assert [info["said"] for info in of.get_infos()] == [1] * 4
    assert (np.array(of.get_observations()) == 0.5).all()
    np.testing.assert_array_equal(environment_observations(of.to_numpy()), own)
    assert OBSERVATION in of.get_infos(-1)


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
    RewardFirst()(rl_module=Modules(reward), batch=given, episodes=pieces)
    assert pieces[0].get_rewards() == pytest.approx([*expected, *[0.0] * appended], abs=1e-5)
    assert not np.allclose(before, pieces[0].get_rewards())
