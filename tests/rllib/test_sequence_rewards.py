"""PPO on rewards that read the steps before: each step's history is its episode's, also across rollouts."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
)
from tests.whole_runs import running

LENGTH = 7


def _experiment(memory: Any) -> Experiment:
    return Experiment(
        environment="Pendulum-v1",
        total_env_steps=150 + 2 * 120,
        seed=3,
        fragments=FragmentSettings(length=LENGTH, initial_env_steps=150, pool=30),
        preferences=PreferenceSettings(comparisons=10, initial_comparisons=6, rounds=1, held_out_share=0.2),
        reward_model=RewardModelSettings(network="gru", hidden=(8, 8), initial_updates=5, updates=2),
        ppo=PPOSettings(num_envs=2, rollout_length=60, minibatch_size=60, epochs=1, hidden=(8,), memory=memory),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_learner_sees_the_reward_of_each_step_after_its_episodes_steps_before(memory: Any) -> None:
    with running(PreferencePPOConfig.from_experiment(_experiment(memory)).build_algo()) as algorithm:
        result = algorithm.train()
        assert result["learners"][DEFAULT_MODULE_ID]["reward_version"] == 1
        ensemble, learner = algorithm.reward_model(), algorithm.learner_group._learner
        assert int(ensemble.window) == LENGTH
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
                    first = max(0, at + t - LENGTH + 1)
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
