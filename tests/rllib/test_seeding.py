"""What env runners draw and do: random streams of which no two are the same, and actions of the environment's space."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from rlhf_ray import envs
from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.data.rollout import rollout
from rlhf_ray.data.seeds import generator, number_of, sequence
from rlhf_ray.data.spaces import fitted
from rlhf_ray.envs.batches import GymBatch
from rlhf_ray.policies.actions import policy_bounds, to_env_actions, to_env_actions_tensor, to_policy_actions
from rlhf_ray.rllib import env_runner, rllib_internals
from rlhf_ray.rllib.choice import reference_config
from rlhf_ray.rllib.env_runner import ArrayEnvRunner, EnvRunner
from rlhf_ray.rllib.policy import CollectorPolicy, policy_spec
from rlhf_ray.settings import Experiment, PPOSettings, SACSettings, SettingError
from tests.envs.worlds import Gives
from tests.rllib.test_array_env_runner import runners

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
        rllib_internals.begin_runner(runner, 0, iteration)
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
    rllib_internals.seed_learners(algorithm, 0)
    rllib_internals.seed_learners(algorithm, 1)
    rllib_internals.seed_learners(algorithm, 0, 5)
    assert len(set(drawn)) == 9
    rllib_internals.seed_learners(algorithm, 0)
    assert drawn[-3:] == drawn[:3]


def test_processes_and_draws_of_the_ring_share_no_numbers() -> None:
    numbers = [number_of(sequence(0, "env runners", 0, index)) for index in range(100)]
    numbers += [number_of(sequence(0, "learners", 0)), number_of(sequence(0, "learners", 0, 0))]
    assert len(set(numbers)) == len(numbers)
    assert generator(0, "rollouts", 1).random() == np.random.default_rng([0, 3, 1]).random()  # as in earlier versions


def test_no_two_env_runners_iterations_or_uses_have_the_same_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    episodes: list[Any] = []
    processes: list[Any] = []
    monkeypatch.setattr(rllib_internals, "begin_episodes", lambda runner, *seeds: episodes.append(seeds))
    monkeypatch.setattr(rllib_internals, "seed_process", processes.append)

    def begin(number: int, iteration: int, evaluates: bool, **how: Any) -> Any:
        runner = SimpleNamespace(worker_index=number, config=SimpleNamespace(in_evaluation=evaluates))
        rllib_internals.begin_runner(runner, 5, iteration, **how)
        return tuple(tuple(seeds.generate_state(4)) for seeds in episodes[-1])

    cases = [
        (number, iteration, evaluates) for number in range(3) for iteration in (0, 7) for evaluates in (False, True)
    ]
    begun = [begin(*case) for case in cases]
    assert len({one for each in begun for one in each}) == 2 * len(cases)  # of episodes, and of the environment
    assert len({tuple(each.generate_state(4)) for each in processes}) == len(processes) == 8  # 0 is in the algorithm's
    assert [begin(*case) for case in cases] == begun
    assert len({*begun, begin(1, 0, False, unused=True), begin(1, 0, False, unused=True)}) == len(cases) + 2


INF = np.inf


def box(low: Any, high: Any, dtype: Any = np.float32) -> gym.spaces.Box:
    return gym.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


FLOATS = [
    box([-2, 0], [2, 10]),
    box([-2, -INF], [2, INF]),
    box([0, -INF, 3], [INF, -1, 5]),
    box([-INF], [INF]),
    box([0.1, -0.3], [0.3, 0.7], np.float64),  # as float32, two of these are outside
    box([0.1, -INF, 0.3], [INF, 0.7, 0.7], np.float64),
    box([0.1, -2], [0.3, 2], np.float16),
    box([-INF, 0, -1], [INF, INF, 1], np.float16),
]
OTHERS: list[gym.Space[Any]] = [
    box([0, -3], [5, 2], np.int8),
    box([0], [1], np.int64),
    box([[-1, -INF]], [[1, 0]], np.float64),
    box([-1e6, 0], [1e6, 0.7], np.float64),  # formal bounds
    box([-1e300, 0], [1, 1e300], np.float64),
    gym.spaces.MultiDiscrete([3, 2], dtype=np.int32),
    gym.spaces.MultiBinary(3),
    gym.spaces.Discrete(3, start=-1, dtype=np.int8),
]
ID = "tests/Strict-v0"


class Strict(Gives):
    """Refuses what isn't in its action space."""

    def __init__(self, space: gym.Space[Any], render_mode: str | None = None):
        box = gym.spaces.Box(-1, 1, (2,), np.float32)
        super().__init__(box, lambda step: np.full(2, np.cos(step), np.float32), space)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} of {getattr(action, 'dtype', None)}"
        return super().step(action)


@pytest.fixture
def strict(request: pytest.FixtureRequest) -> Iterator[str]:
    made: Any = Strict
    gym.register(ID, entry_point=made, max_episode_steps=10, kwargs={"space": request.param})
    yield ID
    del gym.registry[ID]


@pytest.mark.parametrize("space", FLOATS, ids=str)
def test_each_component_is_scaled_between_two_bounds_and_clipped_at_one(space: gym.spaces.Box) -> None:
    rng = np.random.default_rng(0)
    actions = np.concatenate([rng.normal(size=(40, *space.shape)), rng.normal(size=(20, *space.shape)) * 1e6])
    actions = actions.astype(np.float32)
    given = to_env_actions(actions, space)
    for action in fitted(given, space):
        assert action.dtype == space.dtype
        assert space.contains(action)
    expected = actions.astype(np.float64)
    for k, (low, high) in enumerate(zip(space.low.tolist(), space.high.tolist(), strict=True)):
        if np.isfinite(low) and np.isfinite(high):
            expected[:, k] = low + (expected[:, k] + 1) / 2 * (high - low)
        expected[:, k] = np.minimum(np.maximum(expected[:, k], low), high)
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)
    tensor = to_env_actions_tensor(torch.as_tensor(actions), space)
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor.numpy(), given, rtol=1e-6)
    back = to_policy_actions(given, space)
    np.testing.assert_allclose(back, np.clip(actions, *policy_bounds(space)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", FLOATS, ids=str)
def test_environments_of_a_user_s_own_maker_get_them_too(space: gym.spaces.Box) -> None:
    outputs = iter(to_env_actions(np.random.default_rng(0).normal(size=(9, *space.shape)) * 9, space))
    rollout(Strict(space), lambda _: next(outputs), steps=9, seed=0)


@pytest.mark.parametrize("strict", [*FLOATS, *OTHERS], ids=str, indirect=True)
def test_environments_get_actions_of_their_space(strict: str) -> None:
    space, rng = envs.make_env(strict).action_space, np.random.default_rng(0)
    outputs = rng.normal(size=(10, *(space.shape or ()))) * 100
    if not isinstance(space, gym.spaces.Box):
        outputs = np.stack([space.sample() for _ in range(10)])
    given = to_env_actions(outputs, space)
    actions = iter(given)
    rollout(envs.make_env(strict), lambda _: next(actions), seed=0)
    batch = GymBatch(strict, 2)
    batch.reset([0, 1])
    batch.step(given[:2])
    for act in (None, lambda observations, first: given[: len(observations)]):
        evaluate(strict, act, episodes=2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [FLOATS[2], FLOATS[5], FLOATS[6], OTHERS[0]], ids=str, indirect=True)
def test_both_env_runners_give_actions_of_the_space(strict: str) -> None:
    for runner in runners(strict, num_envs=2, rollout_length=30, initial_log_std=2.0):
        runner.sample()
        runner.sample(random_actions=True)
        runner.stop()


BOUNDED = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
IMAGE = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)


def build(observation_space: Any, action_space: Any, **settings: Any) -> Any:
    spec = policy_spec(PPOSettings(**settings))
    spec.observation_space, spec.action_space = observation_space, action_space
    torch.manual_seed(0)
    return spec.build()


def test_the_deterministic_policy_takes_the_most_likely_action() -> None:
    module = build(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3))
    with torch.no_grad():
        module.network.actor[-1].bias.copy_(torch.tensor([0.0, 5.0, 1.0]))
    policy = CollectorPolicy(module)
    observations = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    assert policy.best(observations).tolist() == [1] * 7
    drawn = [int(policy.act(observations[0], np.random.default_rng(i))) for i in range(300)]
    assert 0.9 < np.mean(np.array(drawn) == 1) < 1.0


def test_continuous_actions_are_drawn_around_the_mean_and_scaled_to_the_bounds() -> None:
    module = build(gym.spaces.Box(-1, 1, (4,)), BOUNDED, initial_log_std=-2.0)
    policy = CollectorPolicy(module)
    observation = np.zeros(4, dtype=np.float32)
    best = policy.best(observation[None])[0]
    drawn = np.stack([policy.act(observation, np.random.default_rng(i)) for i in range(400)])
    assert (np.abs(drawn.mean(0) - best) < [0.06, 0.15]).all()
    np.testing.assert_allclose(drawn.std(0), np.exp(-2.0) * np.array([2.0, 5.0]), rtol=0.15)


@pytest.mark.parametrize("network", ["nature", "impala", "auto"])
def test_image_policies_take_uint8_and_give_a_value_for_each(network: Any) -> None:
    module = build(IMAGE, gym.spaces.Discrete(15), network=network)
    batch = {Columns.OBS: torch.randint(0, 256, (5, 64, 64, 3), dtype=torch.uint8)}
    outputs = module.forward_train(batch)
    assert outputs[Columns.ACTION_DIST_INPUTS].shape == (5, 15)
    values = module.compute_values(batch, outputs[Columns.EMBEDDINGS])
    torch.testing.assert_close(values, module.compute_values(batch))
    assert values.shape == (5,)
    # Dividing by 255 is part of the network: white and black must not saturate it alike.
    black, white = (torch.full((1, 64, 64, 3), value, dtype=torch.uint8) for value in (0, 255))
    assert not torch.equal(module.compute_values({Columns.OBS: black}), module.compute_values({Columns.OBS: white}))


def test_bounded_observations_are_scaled_and_unbounded_ones_are_not() -> None:
    space = gym.spaces.Box(np.array([-8.0, -np.inf], np.float32), np.array([8.0, np.inf], np.float32))
    module = build(space, gym.spaces.Discrete(2), normalize_observations=False)
    torch.testing.assert_close(module.network.encode(torch.tensor([[4.0, 4.0]])), torch.tensor([[0.5, 4.0]]))


@pytest.mark.parametrize(("network", "space"), [("mlp", IMAGE), ("nature", gym.spaces.Box(-1, 1, (4,)))])
def test_a_network_that_does_not_fit_is_refused(network: Any, space: Any) -> None:
    with pytest.raises(SettingError, match=r"ppo\.network"):
        build(space, gym.spaces.Discrete(2), network=network)


def test_images_too_small_for_the_convolutions_are_refused() -> None:
    with pytest.raises(SettingError, match="too small"):
        build(gym.spaces.Box(0, 255, (20, 20, 3), np.uint8), gym.spaces.Discrete(2), network="nature")
