"""Random streams of environments, env runners and learners: no two are the same, and a restarted env runner repeats none."""

import itertools
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.seeds import generator, number_of, sequence
from rlhf_ray.rllib import env_runner
from rlhf_ray.rllib.array_env_runner import ArrayEnvRunner
from rlhf_ray.rllib.choice import reference_config
from rlhf_ray.rllib.env_runner import EnvRunner
from rlhf_ray.settings import Experiment, PPOSettings, SACSettings

COPIES = 3

STARTS: list[float] = []
"""Where each episode started, since the list was last cleared."""


class Dice(gym.Env[Any, Any]):
    """Shows a number drawn at the start of each of its short episodes."""

    def __init__(self, render_mode: str | None = None):
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = np.array([self.np_random.random()])
        STARTS.append(float(self.shown[0]))
        return self.shown.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.shown.copy(), 0.0, False, False, {}


gym.register("Dice-v0", Dice, max_episode_steps=4)


def config_of(agent: Any = "ppo", seed: int = 0, *, evaluation: bool = False, environment: str = "Dice-v0") -> Any:
    of: dict[str, Any] = {
        "ppo": PPOSettings(num_envs=COPIES, rollout_length=20, minibatch_size=20, hidden=(4,)),
        "sac": SACSettings(num_envs=COPIES, rollout_length=20, hidden=(4,)),
    }
    config = reference_config(Experiment(environment=environment, seed=seed, agent=agent, **of))
    config.validate()
    config.in_evaluation = evaluation
    return config


def starts(runner: Any) -> list[float]:
    """Where the episodes of a rollout start."""
    STARTS.clear()
    if runner.config.in_evaluation:
        runner.sample(num_episodes=5 * COPIES, explore=False)
    else:
        runner.sample(num_timesteps=20 * COPIES, explore=True)
    return list(STARTS)


def made(kind: Any = EnvRunner, index: int = 0, **of: Any) -> Any:
    return kind(config=config_of(**of), worker_index=index, num_workers=2)


@pytest.mark.slow
def test_no_two_environments_of_runs_with_adjacent_seeds_start_an_episode_alike() -> None:
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (ArrayEnvRunner, {}),
        (ArrayEnvRunner, {"seed": 1}),
        (EnvRunner, {"seed": 2}),
        (EnvRunner, {"agent": "sac", "seed": 3}),
        (EnvRunner, {"evaluation": True}),
    ]
    for kind, of in kinds:
        found = [starts(made(kind, index, **of)) for index in range(3)]
        assert all(len(each) >= 4 * COPIES for each in found)
        each = list(itertools.chain(*found))
        assert len(set(each)) == len(each)
    seeds = [made(kind, index, **of).copies for kind, of in kinds for index in range(3)]
    numbers = [number_of(child) for copies in seeds for child in copies.spawn(50)]
    assert len(set(numbers)) == len(numbers)


def test_a_run_repeats_its_episodes_and_none_of_another_iteration() -> None:
    runner = made(ArrayEnvRunner, 1)
    first = starts(runner)
    assert starts(made(ArrayEnvRunner, 1)) == first
    again: list[list[float]] = []
    for iteration in (4, 8, 4):
        env_runner.begin_runner(runner, 0, iteration)
        again.append(starts(runner))
    assert again[0] == again[2]
    assert not set(first) & set(again[0])
    assert not set(again[0]) & set(again[1])


def test_environments_that_are_made_again_repeat_no_episode() -> None:
    runner = made(EnvRunner, 1)
    first = starts(runner)
    runner.make_env()
    assert not set(first) & set(starts(runner))


def test_vector_environments_that_take_one_seed_get_one() -> None:
    first, second = (made(EnvRunner, index, environment="CartPole-v1") for index in (1, 2))
    assert not isinstance(env_runner.seeds_of_copies(first.env, first.copies), list)
    alone: Any = SimpleNamespace(num_envs=1, unwrapped=first.env.unwrapped)
    assert env_runner.seeds_of_copies(alone, np.random.SeedSequence(5)) == number_of(
        np.random.SeedSequence(5).spawn(1)[0]
    )
    seen = [runner.sample(num_timesteps=3, explore=False) for runner in (first, second)]
    found = [episode.get_observations(0).tobytes() for episodes in seen for episode in episodes]
    assert len(set(found)) == len(found) == 2 * COPIES


def test_learners_with_processes_of_their_own_get_streams_of_their_own() -> None:
    drawn: list[float] = []

    class Group:
        is_remote = True

        def foreach_learner(self, call: Any) -> None:
            for index in range(3):
                call(SimpleNamespace(_learner_index=index))
                drawn.append(float(torch.rand(())))

    algorithm: Any = SimpleNamespace(learner_group=Group())
    env_runner.seed_learners(algorithm, 0)
    env_runner.seed_learners(algorithm, 1)
    env_runner.seed_learners(algorithm, 0, 5)
    assert len(set(drawn)) == 9
    env_runner.seed_learners(algorithm, 0)
    assert drawn[-3:] == drawn[:3]


def test_processes_and_draws_of_the_ring_share_no_numbers() -> None:
    numbers = [number_of(sequence(0, "env runners", 0, index)) for index in range(100)]
    numbers += [number_of(sequence(0, "learners", 0)), number_of(sequence(0, "learners", 0, 0))]
    assert len(set(numbers)) == len(numbers)
    assert generator(0, "rollouts", 1).random() == np.random.default_rng([0, 3, 1]).random()  # as in earlier versions


def test_no_two_env_runners_iterations_or_uses_have_the_same_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    episodes: list[Any] = []
    processes: list[Any] = []
    monkeypatch.setattr(env_runner, "begin_episodes", lambda runner, *seeds: episodes.append(seeds))
    monkeypatch.setattr(env_runner, "seed_process", processes.append)

    def begin(number: int, iteration: int, evaluates: bool, **how: Any) -> Any:
        runner = SimpleNamespace(worker_index=number, config=SimpleNamespace(in_evaluation=evaluates))
        env_runner.begin_runner(runner, 5, iteration, **how)
        return tuple(tuple(seeds.generate_state(4)) for seeds in episodes[-1])

    cases = [
        (number, iteration, evaluates) for number in range(3) for iteration in (0, 7) for evaluates in (False, True)
    ]
    begun = [begin(*case) for case in cases]
    assert len({one for each in begun for one in each}) == 2 * len(cases)  # of episodes, and of the environment
    assert len({tuple(each.generate_state(4)) for each in processes}) == len(processes) == 8  # 0 is in the algorithm's
    assert [begin(*case) for case in cases] == begun
    assert len({*begun, begin(1, 0, False, unused=True), begin(1, 0, False, unused=True)}) == len(cases) + 2
