"""The environment's own reward, about 1,000 at each step, reaches no part of the agent: only the true return and the teacher."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium as gym
import pytest
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import PrevActionsPrevRewards
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlhf_ray.data.errors import PartError
from rlhf_ray.policies.ppo_update import PPOUpdate
from rlhf_ray.policies.sac_update import SACUpdate
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.learned_reward import LearnedReward
from rlhf_ray.rllib.learner import PPOLearner
from rlhf_ray.rllib.rllib_internals import local_learner
from rlhf_ray.rllib.sac_replay import TransitionBuffer
from rlhf_ray.rllib.true_rewards import EnvToModuleWithoutRewards
from rlhf_ray.settings import Experiment, FragmentSettings, PreferenceSettings, RewardModelSettings, SettingError
from tests.generous import LEAST, LENGTH, largest
from tests.rllib.test_meddling_environments import AGENTS

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


class Connector(ConnectorV2):  # type: ignore[misc]
    """One of the user's own."""

    def __call__(self, *, batch: Any, episodes: Any, **given: Any) -> Any:
        note("connector", batch, episodes, given)
        return batch


def mine(*_: Any, **__: Any) -> Connector:
    return Connector()


def config_of(agent: str) -> Any:
    return preference_config(
        Experiment(
            environment="tests/Generous-v0",
            total_env_steps=400,
            fragments=FragmentSettings(length=5, initial_env_steps=80, pool=40),
            preferences=PreferenceSettings(comparisons=20, initial_comparisons=10, rounds=2),
            reward_model=RewardModelSettings(hidden=(8,), ensemble_size=1, initial_updates=3, updates=2),
            **AGENTS[agent.removesuffix(" with connectors")],
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("agent", [*AGENTS, "arrays with connectors"])
def test_no_part_of_the_agent_gets_the_true_reward(agent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    SEEN.clear()
    for kind, names in READ:
        for name in names:
            monkeypatch.setattr(kind, name, spied(getattr(kind, name)))
    config = config_of(agent)
    if agent.endswith("connectors"):
        config.env_runners(env_to_module_connector=mine, module_to_env_connector=mine)
        config.learners(learner_connector=mine)
    algorithm = config.build_algo()
    try:
        while not algorithm.finished:
            result = algorithm.train()
        assert result["env_runners"]["episode_return_mean"] > LENGTH * LEAST
        note("learner", vars(local_learner(algorithm.learner_group)))
        algorithm.save_to_path(tmp_path / "checkpoint")
    finally:
        algorithm.stop()
    assert len(SEEN) > 2
    assert {name: number for name, number in SEEN.items() if number > LEAST / 2} == {}


@pytest.mark.parametrize("where", ["env_to_module_connector", "module_to_env_connector"])
def test_a_connector_that_reads_rewards_is_refused_before_anything_starts(where: str) -> None:
    class Curious(ConnectorV2):  # type: ignore[misc]
        def __call__(self, *, batch: Any, episodes: Any, **given: Any) -> Any:
            sum(episode.get_return() for episode in episodes)
            return batch

    config = config_of("arrays").env_runners(**{where: lambda *_, **__: Curious()})
    with pytest.raises(SettingError, match=r"The connector Curious of .* reads the environment's own reward"):
        config.check_environment()


def some_episode(*spaces: Any) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(observation_space=spaces[0], action_space=spaces[1])
    episode.add_env_reset(spaces[0].sample(), {})
    episode.add_env_step(spaces[0].sample(), 1, LEAST, {})
    return episode


def test_a_connector_that_keeps_an_episode_reads_no_rewards_of_it_later() -> None:
    spaces: Any = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(3)
    kept: list[Any] = []

    class Keeper(ConnectorV2):  # type: ignore[misc]
        def __call__(self, *, batch: Any, episodes: Any, **given: Any) -> Any:
            for before in kept:
                before.get_rewards()
            kept.extend(episodes)
            episodes[0].set_observations(new_data=spaces[0].high, at_indices=0)
            episodes[0].custom_data["seen"] = 1
            return batch

    pipeline = EnvToModuleWithoutRewards(*spaces, connectors=[Keeper()])
    first = some_episode(*spaces)
    pipeline(rl_module=None, batch={}, episodes=[first], explore=True)
    assert (first.custom_data, first.get_return()) == ({"seen": 1}, LEAST)
    assert (first.get_observations(0) == spaces[0].high).all()
    with pytest.raises(PartError, match="connector Keeper"):
        pipeline(rl_module=None, batch={}, episodes=[some_episode(*spaces)], explore=True)


@pytest.mark.parametrize(("rewards", "refused"), [(1, True), (0, False)])
def test_rllibs_own_connector_of_earlier_rewards_is_refused_while_it_runs(rewards: int, refused: bool) -> None:
    spaces: Any = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(3)
    episode = some_episode(*spaces)
    read = PrevActionsPrevRewards(n_prev_actions=1, n_prev_rewards=rewards)
    pipeline = EnvToModuleWithoutRewards(*spaces, connectors=[read])
    says = pytest.raises(PartError, match="connector PrevActionsPrevRewards")
    expected: Any = says if refused else contextlib.nullcontext()
    with expected:
        pipeline(rl_module=None, batch={}, episodes=[episode], explore=True)
    assert episode.get_return() == LEAST
    assert largest(episode.get_observations(-1)) <= 1.0
