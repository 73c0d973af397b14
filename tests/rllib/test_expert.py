"""Experts, PPO on the true reward as the published Procgen agents do; and policies cloned from demonstrations."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rlhf_ray import tune_configs
from rlhf_ray.agents.true_return import TrueReturn
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recordings import load_transitions
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.rllib import starting
from rlhf_ray.rllib.policy import CollectorPolicy, built, policy_spec
from rlhf_ray.rllib.reference import CLIP, ReturnScaled
from rlhf_ray.rllib.starting import LEAST_LOG_STD, clone
from rlhf_ray.runs import expert
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.policies import newest_policy
from rlhf_ray.runs.record import RecordingPlan, record
from rlhf_ray.settings import PPOSettings
from tests.command_line import fails_with
from tests.whole_runs import small


class Piece:
    """What the connector needs of RLlib's episode."""

    def __init__(self, name: str, length: int, done: bool):
        self.id_, self.is_terminated, self._length = name, done, length

    def __len__(self) -> int:
        return self._length


def test_rewards_are_divided_by_the_deviation_of_discounted_returns_across_batches() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(1.0, 3.0, size=600)
    rewards[50] = 1000.0
    returns = np.zeros(600)
    for i in range(600):
        returns[i] = rewards[i] + (0.9 * returns[i - 1] if i not in (0, 250) else 0.0)
    scale = ReturnScaled(gamma=0.9)
    scaled: list[Any] = []
    # Episode a has 250 steps, b 350; the batches cut them at 100 and 400. Each piece ends with RLlib's masked row.
    for pieces in ([("a", 0, 100, False)], [("a", 100, 250, True), ("b", 250, 400, False)], [("b", 400, 600, True)]):
        rows = np.concatenate([np.append(rewards[first:last], 99.0) for _, first, last, _ in pieces])
        mask = np.concatenate([np.append(np.ones(last - first, bool), False) for _, first, last, _ in pieces])
        columns = {Columns.REWARDS: torch.tensor(rows), Columns.LOSS_MASK: torch.tensor(mask)}
        # RLlib numbers the pieces of a batch.
        episodes = [Piece(f"{name}_{i}", last - first + 1, done) for i, (name, first, last, done) in enumerate(pieces)]
        state, scale = scale.get_state(), ReturnScaled(gamma=0.9)  # as after a resume
        scale.set_state(state)
        scale(batch={DEFAULT_MODULE_ID: columns}, episodes=episodes)
        assert not columns[Columns.REWARDS][~columns[Columns.LOSS_MASK]].any()
        scaled += columns[Columns.REWARDS][columns[Columns.LOSS_MASK]].tolist()
    np.testing.assert_allclose(scaled[400:], np.clip(rewards[400:] / returns.std(), -CLIP, CLIP), rtol=1e-5)
    rare = torch.zeros(400)
    rare[:2] = torch.tensor([-1000.0, 1000.0])  # 14 of their deviations
    columns = {Columns.REWARDS: rare, Columns.LOSS_MASK: torch.ones(400, dtype=torch.bool)}
    ReturnScaled(gamma=0.0)(batch={DEFAULT_MODULE_ID: columns}, episodes=[Piece("a_0", 401, True)])
    assert columns[Columns.REWARDS].unique().tolist() == [-CLIP, 0.0, CLIP]


def test_rollouts_as_arrays_have_the_returns_of_their_episodes() -> None:
    rng = np.random.default_rng(0)
    steps, copies, gamma, pieces = 40, 3, 0.9, 4
    parts: dict[int, list[VectorRollout]] = {1: [], 2: []}
    expected = []
    for source, rollouts in parts.items():
        rewards = rng.normal(1.0, 3.0, (pieces * steps, copies))
        ended, real = np.zeros(rewards.shape, bool), np.ones(rewards.shape, bool)
        ret, lengths = np.zeros(copies), np.zeros(copies, np.int64)
        for t in range(pieces * steps):
            if t % steps == 0:
                starts = lengths.copy()
            for copy in range(copies):
                real[t, copy] = t == 0 or not ended[t - 1, copy]
                if not real[t, copy]:
                    ret[copy], lengths[copy] = 0.0, 0
                    continue
                ended[t, copy] = rng.random() < 0.05
                ret[copy] = gamma * ret[copy] + rewards[t, copy]
                lengths[copy] += 1
                expected.append(ret[copy])
            if t % steps == steps - 1:
                rows = slice(t - steps + 1, t + 1)
                nothing = np.zeros((steps, copies), np.float32)
                rollouts.append(
                    VectorRollout(
                        np.zeros((steps + 1, copies, 1)),
                        nothing,
                        nothing,
                        rewards[rows],
                        ended[rows],
                        np.zeros((steps, copies), bool),
                        real[rows],
                        starts,
                        0,
                        source,
                    )
                )
    one, two = parts.values()
    scale = ReturnScaled(gamma=gamma)
    # A batch without the first runner's rollout, which comes late, and twice in the next one.
    for batch in ([one[0], two[0]], [two[1]], [one[1], one[2], two[2]], [two[3], one[3]]):
        given = np.concatenate([of.rewards[of.real] for of in batch])
        columns = {Columns.REWARDS: torch.as_tensor(given), Columns.LOSS_MASK: torch.ones(len(given), dtype=torch.bool)}
        scale(batch={DEFAULT_MODULE_ID: columns}, episodes=batch)
    np.testing.assert_allclose(columns[Columns.REWARDS], np.clip(given / np.std(expected), -CLIP, CLIP), rtol=1e-5)


def test_presets_have_the_published_batches_and_network() -> None:
    for name, num_envs in (("hard_500", 256), ("hard", 128), ("easy_200", 128), ("easy", 64)):
        ppo = tune_configs.load(f"procgen_{name}").experiment.ppo
        assert (ppo.num_envs, ppo.iteration_env_steps, ppo.minibatch_size * 8) == (
            num_envs,
            num_envs * 256,
            num_envs * 256,
        )
    images = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    recurrent = tune_configs.load("procgen_hard_rec").experiment.ppo
    assert (recurrent.num_envs, recurrent.iteration_env_steps, recurrent.minibatch_size) == (256, 65_536, 32 * 256)
    module = built(policy_spec(recurrent), images, gym.spaces.Discrete(15))
    assert sum(each.numel() for each in module.parameters()) == 254_800  # as published
    module = built(policy_spec(PPOSettings(network="impala")), images, gym.spaces.Discrete(15))
    weights = dict(module.network.encoder.named_parameters())
    assert [tuple(each.shape) for name, each in weights.items() if "first.weight" in name] == [
        (16, 3, 3, 3),
        (32, 16, 3, 3),
        (32, 32, 3, 3),
    ]
    assert not any(each.any() for name, each in weights.items() if name.endswith("bias"))
    full = next(each for name, each in weights.items() if each.shape == (256, 32 * 8 * 8))
    limit = (6 / (256 + 2048)) ** 0.5  # Glorot's
    assert 0.99 * limit < float(full.detach().abs().max()) <= limit
    assert module.network.actor.weight.norm(dim=1).allclose(torch.full((15,), 0.01))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_an_expert_is_trained_resumed_and_recorded_by_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert, "evaluate", lambda *_, **__: TrueReturn(1.0, 0.0, 1, 0.0))
    experiment = small(environment="CartPole-v1")
    folder = RunFolder.create(tmp_path / "run", experiment, {"true_reward": True})
    rows: list[Any] = []

    class StoppedError(Exception):
        pass

    def stop_after_three(metrics: Any) -> None:
        rows.append(metrics)
        if len(rows) == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        expert.train_expert(folder, experiment, watch=stop_after_three)
    assert newest_policy(folder)[1] == 2
    outcome = expert.train_expert(folder, experiment, resume=True, watch=rows.append)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 3, 4]
    for row in folder.rows():  # CartPole pays 1 a step; RLlib counts one more for some episodes that a rollout cuts
        assert row["true_return_mean"] == pytest.approx(row["episode_length_mean"], abs=0.5)
    undisturbed = RunFolder.create(tmp_path / "undisturbed", experiment, {"true_reward": True})
    expert.train_expert(undisturbed, experiment)
    policies = (newest_policy(each)[0] for each in (folder, undisturbed))
    weights, same = (policy.agent.network.state_dict() for policy in policies)  # type: ignore[attr-defined]
    for name, value in same.items():  # the statistics of the return are those of all steps, before and after
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert [row["iteration"] for row in folder.rows()] == [1, 2, 3, 4]
    assert 2400 <= outcome.env_steps < 2400 + 4 * 4
    assert folder.finished()
    assert outcome.reference is not None
    policy, iteration = newest_policy(folder)
    assert iteration == 4
    plan = RecordingPlan(
        "CartPole-v1", {"policy": 0.5, "epsilon": 0.5}, env_steps=200, epsilon=0.5, policy=policy.maker()
    )
    record(plan, tmp_path / "alone")
    record(plan, tmp_path / "actors", actors=2)
    alone, actors = (load_transitions(tmp_path / name) for name in ("alone", "actors"))
    np.testing.assert_array_equal(alone.observations, actors.observations)
    greedy = alone[alone.columns["policy"] == "policy"]
    np.testing.assert_array_equal(greedy.actions, policy.best(greedy.observations))


def test_what_an_expert_does_not_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = fails_with(capsys, "train", "cartpole", "--true-reward", "--reference", "--callback", "mine:Mine")
    assert "--true-reward trains on the true reward alone, without a ring; leave out --reference, --callback." in said


SEEN = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOUNDED = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def policy(action_space: gym.Space[Any], observation_space: gym.spaces.Box = SEEN, **settings: Any) -> Any:
    spec = policy_spec(PPOSettings(**({"hidden": (32,)} | settings)))
    spec.observation_space, spec.action_space = observation_space, action_space
    torch.manual_seed(0)
    return spec.build()


def seen(n: int) -> Any:
    return np.random.default_rng(0).uniform(-1, 1, (n, 3)).astype(np.float32)


def test_a_policy_of_continuous_actions_does_what_was_shown_and_keeps_something_to_try_out() -> None:
    module, observations = policy(BOUNDED, initial_log_std=-1.2), seen(512)
    actions = np.stack([1.5 * observations[:, 0], 5 + 4 * observations[:, 1]], 1)
    before = {name: np.array(value) for name, value in module.get_state().items()}
    report = clone(
        module, Demonstrations(observations, actions), epochs=60, minibatch_size=64, learning_rate=3e-3, seed=1
    )
    assert (report.steps, report.gradient_steps) == (512, 60 * 8)
    assert report.after > report.before + 1
    error = np.abs(CollectorPolicy(module).best(observations) - actions) / [4.0, 10.0]  # shares of the range
    assert error.mean() < 0.03
    np.testing.assert_allclose(module.network.log_std.detach().numpy(), LEAST_LOG_STD, atol=1e-5)
    for name, value in module.get_state().items():
        assert np.array_equal(value, before[name]) == name.startswith(("critic", "statistics.symlogs")), name


def test_a_policy_of_discrete_actions_too_and_the_same_seed_gives_the_same() -> None:
    observations = seen(300)
    demonstrations = Demonstrations(observations, (observations[:, 0] > 0) + 0)
    states = []
    for _ in range(2):
        module = policy(gym.spaces.Discrete(3))
        report = clone(module, demonstrations, epochs=40, minibatch_size=50, learning_rate=1e-2, seed=1)
        states.append(module.get_state())
    assert report.before == pytest.approx(math.log(1 / 3), abs=0.1)
    assert np.mean(CollectorPolicy(module).best(observations) == demonstrations.actions) > 0.97
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name])


def test_unless_told_otherwise_it_takes_enough_gradient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (starting.EPOCHS, starting.LEAST_STEPS) == (50, 1500)
    monkeypatch.setattr(starting, "EPOCHS", 5)  # a tenth of each
    monkeypatch.setattr(starting, "LEAST_STEPS", 150)
    few, module = Demonstrations(seen(60), np.zeros(60, np.int64)), policy(gym.spaces.Discrete(3))
    assert clone(module, few, minibatch_size=20).gradient_steps == 150
    many = Demonstrations(seen(800), np.zeros(800, np.int64))
    assert clone(module, many, minibatch_size=20).gradient_steps == 5 * 40


def test_a_policy_that_normalises_knows_the_demonstrations_before_it_learns_from_them() -> None:
    module, shown = policy(gym.spaces.Discrete(3), normalize_observations=True), 0.1 * seen(60) + 0.5
    clone(module, Demonstrations(shown, np.zeros(60, np.int64)), epochs=1)
    assert int(module.network.statistics.count) == 60
    np.testing.assert_allclose(module.network.statistics.mean[: shown.shape[1]], shown.mean(0), atol=1e-4)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_policy_with_memory_is_refused(memory: Any) -> None:
    module = policy(gym.spaces.Discrete(2), memory=memory, memory_units=8)
    shown = Demonstrations(seen(20), np.zeros(20, np.int64))
    with pytest.raises(SettingError, match=r"set ppo\.memory to none"):
        clone(module, shown)
