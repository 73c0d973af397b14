"""The agent starts anew once the reward model rests: with other weights, no memory of gradient steps, and once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.starting import fresh_weights
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    SACSettings,
)
from tests.whole_runs import running

PPO = PPOSettings(num_envs=2, rollout_length=50, minibatch_size=50, epochs=1, hidden=(8,))
SAC = SACSettings(
    num_envs=2, rollout_length=50, hidden=(8,), learning_starts=100, updates_per_env_step=0.1, fresh_policy=True
)


def experiment(agent: str, until: float) -> Experiment:
    return Experiment(
        environment="Pendulum-v1",
        agent=agent,  # type: ignore[arg-type]
        total_env_steps=1_200,
        fragments=FragmentSettings(length=10, initial_env_steps=200),
        preferences=PreferenceSettings(comparisons=20, rounds=4, until=until),
        reward_model=RewardModelSettings(hidden=(8,), initial_updates=5, updates=2),
        ppo=PPO,
        sac=SAC,
    )


def weights_of(algorithm: Any) -> dict[str, Any]:
    return dict(algorithm.learner_group.get_weights([DEFAULT_MODULE_ID])[DEFAULT_MODULE_ID])


def optimiser_steps(algorithm: Any) -> list[float]:
    (found,) = algorithm.learner_group.foreach_learner(
        lambda learner: [float(of["step"]) for at in learner._named_optimizers.values() for of in at.state.values()]
    ).ignore_errors()
    return list(found.get())


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_the_agent_starts_anew_once_when_all_labels_are_asked(agent: str) -> None:
    given: list[dict[str, Any]] = []
    config = preference_config(experiment(agent, 0.5))
    with running(config.build_algo()) as algorithm:
        plain = algorithm._give
        algorithm._give = lambda weights: (given.append(weights), plain(weights))
        counts, steps = [], []
        while not algorithm.finished:
            algorithm.train()
            counts.append((len(given), algorithm.ring.answered))
            steps.append(max(optimiser_steps(algorithm), default=0.0))
        (fresh,) = given
        assert counts[-1] == (1, 20)
        begun = [started for started, _ in counts].index(1)
        assert 0 < begun < len(counts) - 1
        assert counts[begun][1] == 20  # nothing is asked afterwards
        assert steps[begun] < steps[begun - 1]
        expected = fresh_weights(algorithm.config, *algorithm._spaces)
        assert fresh.keys() == expected.keys()
        assert all(np.array_equal(fresh[name], expected[name]) for name in fresh)
        assert any(not np.array_equal(fresh[name], value) for name, value in weights_of(algorithm).items())


@pytest.mark.parametrize(("until", "fresh"), [(1.0, True), (0.5, False)])
def test_otherwise_it_goes_on(until: float, fresh: bool) -> None:
    of = experiment("ppo", until)
    with running(preference_config(of.changed(ppo={"fresh_policy": fresh})).build_algo()) as algorithm:
        while not algorithm.finished:
            algorithm.train()
        assert not algorithm.fresh
        assert algorithm.ring.answered == 20


def test_a_resumed_run_does_not_start_anew_again(tmp_path: Path) -> None:
    config = preference_config(experiment("ppo", 0.3))
    with running(config.build_algo()) as algorithm:
        while not algorithm.fresh:
            algorithm.train()
        algorithm.save_to_path(tmp_path / "checkpoint")
    with running(preference_config(experiment("ppo", 0.3)).build_algo()) as again:
        again.restore_from_path(tmp_path / "checkpoint")
        assert again.fresh
        again._give = None  # type: ignore[method-assign]  # to start anew would raise
        again.train()
