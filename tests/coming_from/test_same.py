"""What the pages for those who come from imitation and drlhp claim: a row names what does the same here, and it does.

More of imitation's classes are compared in ``tests/queries/test_imitations_preference_cases.py`` and
``tests/reward/test_reward_net.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray import tune_configs
from rlhf_ray.cli import label
from rlhf_ray.data.rollout import Switching
from rlhf_ray.queries.schedule import make_rate
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.wrappers import HumanPreferencesEnv, HumanPreferencesVectorEnv, relabel_replay_buffer
from tests.coming_from.pages import IMITATION, ROWS, given, named, note, spans
from tests.made_up import FORCES, VECTORS, Walk, some_comparisons, some_fragments

pc = pytest.importorskip("imitation.algorithms.preference_comparisons", reason="the extra 'imitation'")
nets = pytest.importorskip("imitation.rewards.reward_nets")
exploration = pytest.importorskip("imitation.policies.exploration_wrapper")
serialize = pytest.importorskip("imitation.data.serialize")
reward_wrapper = pytest.importorskip("imitation.rewards.reward_wrapper")
buffers = pytest.importorskip("imitation.policies.replay_buffer_wrapper")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
sb3_buffers = pytest.importorskip("stable_baselines3.common.buffers")

from rlhf_ray.reward.functions.reward_net import LearnedRewardNet  # noqa: E402 (needs imitation)
from tests.policies import test_sb3  # noqa: E402 (needs SB3)
from tests.queries.test_imitations_preference_cases import pairs_of, trajectories_of  # noqa: E402 (needs imitation)

MODEL = "`PreferenceModel`"
SCRIPT = "`train_preference_comparisons`"


def test_presets_are_of_their_tasks() -> None:
    found = 0
    for row in ROWS:
        if re.fullmatch(r"`rlhf-ray train [a-z0-9_]+`", row.ours[0]) and "NoFrameskip" in " ".join(row.theirs):
            (command,) = spans(row.ours[0])
            task = tune_configs.load(command.split()[-1]).experiment.environment
            assert row.theirs[0].partition("NoFrameskip")[0] in task
            found += 1
    assert found == 3


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_the_difference_of_two_returns_is_the_log_odds(discount: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named(IMITATION, MODEL, "PreferenceModel") == ("RewardEnsemble.fragment_returns",)
    (network,) = named(IMITATION, MODEL, "model")
    members = [nets.BasicRewardNet(VECTORS, FORCES) for _ in range(3)]
    monkeypatch.setattr(nets, "made", lambda: nets.RewardEnsemble(VECTORS, FORCES, members), raising=False)
    ours = RewardEnsemble(VECTORS, FORCES, given(network, "imitation.rewards.reward_nets:made", discount=discount))
    ours.reward_std.fill_(7.0)  # the agent's scale, not the likelihood's
    pairs = some_comparisons(5).pairs
    difference = ours.fragment_returns(pairs.left) - ours.fragment_returns(pairs.right)
    for net, log_odds in zip(members, difference, strict=True):
        with torch.no_grad():
            chances = pc.PreferenceModel(net, discount_factor=discount)(pairs_of(pairs))[0]
        np.testing.assert_allclose(1 / (1 + np.exp(-log_odds)), chances, rtol=1e-4)


class Asked:
    """What `ExplorationWrapper` needs of an environment; random actions are 1, the policy's 0."""

    num_envs = 1

    class action_space:  # noqa: N801 (an attribute)
        seed = staticmethod(lambda of: None)
        sample = staticmethod(lambda: np.ones(1))

    observation_space = VECTORS


@pytest.mark.parametrize(("share", "switch"), [(0.5, 0.5), (0.3, 0.1), (0.7, 1.0)])
def test_random_actions_come_as_in_their_wrapper(share: float, switch: float) -> None:
    (random_prob,) = named(IMITATION, "`AgentTrainer`", "random_prob")
    (switch_prob,) = named(IMITATION, "`AgentTrainer`", "switch_prob")
    of = given(random_prob, share, **{switch_prob.partition(".")[2]: switch})
    theirs = exploration.ExplorationWrapper(
        lambda observations, state, start: (np.zeros((len(observations), 1)), state),
        Asked(),
        random_prob=share,
        switch_prob=switch,
        rng=np.random.default_rng(0),
    )
    here = Switching(of.random_action_share, of.switch_probability, np.random.default_rng(0))
    steps = 20_000
    taken = np.array([[theirs(np.zeros((1, 3)), None, None)[0].item(), here.random()] for _ in range(steps)])
    assert np.abs(taken.mean(0) - share).max() < 0.06  # four standard errors in the longest stretches
    changes = np.abs(np.diff(taken, axis=0)).mean(0)
    np.testing.assert_allclose(changes, 2 * share * (1 - share) * switch, atol=0.015)


def test_a_scripted_teacher_labels_a_folder_of_theirs(tmp_path: Path) -> None:
    assert named(IMITATION, "`TrajectoryDataset`", "TrajectoryDataset")[0] == "rlhf-ray label"
    assert named(IMITATION, "`TrajectoryDataset`", "trajectories")[0] == "rlhf-ray label"
    assert named(IMITATION, "`train_preference_comparisons`", "trajectory_path") == ("rlhf-ray fit",)
    assert "--teacher" in note(IMITATION, "`train_preference_comparisons`", "trajectory_path")
    serialize.save(tmp_path / "trajectories", trajectories_of(some_fragments(12, length=8)))
    words = f"{tmp_path / 'trajectories'} --store {tmp_path / 'labels'} --teacher oracle --comparisons 15 --length 4"
    label.run(words.split())
    held = PreferenceStore(tmp_path / "labels").load()
    theirs = pc.SyntheticGatherer(temperature=0, rng=np.random.default_rng(0))(pairs_of(held.pairs))
    assert held.pairs.left.length == 4
    np.testing.assert_array_equal(held.preferences, theirs)
    assert len(held) == 15
    assert 0 < held.preferences.mean() < 1


@pytest.mark.slow
def test_schedules() -> None:
    names = named(IMITATION, "`PreferenceComparisons`", "query_schedule")
    times = np.linspace(0, 1, 2001)
    for name in names[:3]:
        schedule = name.partition("=")[2]
        rate = np.array([pc.QUERY_SCHEDULES[schedule](t) for t in times])
        shares = np.concatenate([[0], np.cumsum((rate[1:] + rate[:-1]) / 2)])
        ours = [make_rate(schedule, 1.0).share(t) for t in times]  # imitation's have a steepness of 1
        np.testing.assert_allclose(ours, shares / shares[-1], atol=1e-4)
    assert names[3:] == ("preferences.steepness",)


@pytest.fixture
def taught(tmp_path: Path) -> RewardEnsemble:
    """A reward for `Walk`, saved in the folder ``reward``."""
    settings = RewardModelSettings(hidden=(8,), ensemble_size=2, use_next_state=True)
    torch.manual_seed(0)
    reward = RewardEnsemble(Walk.observation_space, Walk().action_space, settings)
    reward.version.fill_(1)
    reward.save(tmp_path / "reward")
    return reward


def test_environments_give_the_rewards_and_the_info_that_theirs_give(tmp_path: Path, taught: RewardEnsemble) -> None:
    heading = "`RewardVecEnvWrapper`"
    vector, single = named(IMITATION, heading, "RewardVecEnvWrapper")
    assert (vector, single) == ("HumanPreferencesVectorEnv", "HumanPreferencesEnv")
    assert named(IMITATION, heading, "venv") == (vector,)
    assert named(IMITATION, "`AgentTrainer`", "reward_fn") == (single,)
    for option in ("RewardFn", "reward_fn"):
        assert named(IMITATION, heading, option) == ("RewardEnsemble.predict",)
    old, new = note(IMITATION, heading, "RewardVecEnvWrapper")[:2]
    venv = vec_env.DummyVecEnv([lambda: Walk((6,), numbered=False)])
    venv.seed(3)
    theirs = reward_wrapper.RewardVecEnvWrapper(venv, taught.predict)
    arguments: dict[str, Any] = {"total_env_steps": 100, "reward_model": tmp_path / "reward"}
    rows: list[Any] = [[], [], []]
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 1)).astype(np.float32)
    with HumanPreferencesEnv(Walk((6,), numbered=False), **arguments) as env:
        env.reset(seed=3)
        for action in actions:
            step = env.step(action)
            rows[1].append((step[1], step[4][new.split('"')[1]]))
    inner = gym.vector.SyncVectorEnv([lambda: Walk((6,), numbered=False)])
    with HumanPreferencesVectorEnv(inner, **arguments) as envs:
        envs.reset(seed=3)
        for action in actions:
            taken = envs.step(action[None])
            rows[2].append((taken[1][0], taken[4][new.split('"')[1]][0]))
    for action in actions:
        _, rewards, _, infos = theirs.step(action[None])
        rows[0].append((rewards[0], infos[0][old.split('"')[1]]))
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rows[2], rows[0], rtol=1e-4, atol=1e-5)
    assert len({reward for reward, _ in rows[0]}) == 6


def test_a_buffer_is_relabelled_as_theirs(tmp_path: Path, taught: RewardEnsemble) -> None:
    for option in ("ReplayBufferRewardWrapper", "reward_fn"):
        assert named(IMITATION, "`ReplayBufferRewardWrapper`", option) == ("relabel_replay_buffer",)
    spaces = (Walk.observation_space, Walk().action_space)
    assert (
        note(IMITATION, "`RewardVecEnvWrapper`", "RewardFn")[-1] == "LearnedRewardNet.predict"
    )  # theirs calls it by keyword
    learned = LearnedRewardNet(taught)
    plain = sb3_buffers.ReplayBuffer(20, *spaces, device="cpu")
    theirs = buffers.ReplayBufferRewardWrapper(
        20, *spaces, replay_buffer_class=sb3_buffers.ReplayBuffer, reward_fn=learned.predict, device="cpu"
    )
    rng = np.random.default_rng(0)
    for i in range(30):  # so that the oldest are gone
        step = (rng.normal(size=(1, 3)), rng.normal(size=(1, 3)), rng.uniform(-1, 1, (1, 1)), np.zeros(1))
        for buffer in (plain, theirs):
            buffer.add(*step, np.array([i % 5 == 4]), [{}])
    agent = SimpleNamespace(replay_buffer=plain, policy=SimpleNamespace(unscale_action=lambda of: of))
    with HumanPreferencesEnv(Walk(numbered=False), total_env_steps=100, reward_model=tmp_path / "reward") as env:
        assert relabel_replay_buffer(agent, env) == 20
    samples = theirs.sample(100)
    ours = {of.tobytes(): reward for of, reward in zip(plain.observations[:, 0], plain.rewards[:, 0], strict=True)}
    found = [ours[of.tobytes()] for of in samples.observations.numpy()]
    np.testing.assert_allclose(found, samples.rewards[:, 0], rtol=1e-4, atol=1e-5)
    assert len(set(found)) > 15


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_saved_agent_is_a_start(kind: str, tmp_path: Path) -> None:
    """A ``model.zip``, or the folder that imitation's ``save_stable_model`` makes."""
    from imitation.policies.serialize import save_stable_model

    from rlhf_ray.rllib.starting import policy_weights

    assert named(IMITATION, SCRIPT, "agent_path") == ("--policy-from",)
    policy, observations, actions = test_sb3.SPACES["bounded"]
    model = test_sb3.saved(tmp_path / "alone.zip", policy, observations, actions)
    save_stable_model(tmp_path / "final", model)
    paths = [tmp_path / "alone.zip", tmp_path / "final" if kind == "folder" else tmp_path / "final" / "model.zip"]
    alone, folder = (policy_weights(path, observations, actions) for path in paths)
    assert alone.keys() == folder.keys()
    for name, value in alone.items():
        np.testing.assert_array_equal(value, folder[name])
