"""Rows of the page for those who come from imitation: reward networks and what applies them, compared with imitation's own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.envs import make_env
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.functions import CallableReward, load_reward
from rlhf_ray.settings import RewardModelSettings, SettingError
from rlhf_ray.wrappers import HumanPreferencesEnv, HumanPreferencesVectorEnv, relabel_replay_buffer
from tests.coming_from.pages import IMITATION, given, named, note
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, Walk, some_comparisons, some_fragments

nets = pytest.importorskip("imitation.rewards.reward_nets", reason="the extra 'imitation'")
norms = pytest.importorskip("imitation.util.networks")
serialize = pytest.importorskip("imitation.rewards.serialize")
reward_wrapper = pytest.importorskip("imitation.rewards.reward_wrapper")
buffers = pytest.importorskip("imitation.policies.replay_buffer_wrapper")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
sb3_buffers = pytest.importorskip("stable_baselines3.common.buffers")

from rlhf_ray.reward.functions.reward_net import LearnedRewardNet  # noqa: E402 (needs imitation)
from tests.queries.test_imitations_preference_cases import steps_of  # noqa: E402 (needs imitation)

NORMS, WRAPPERS = "`RunningNorm`", "`ForwardWrapper`"
OWN = "tests_of_rows"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A user's module, of what is set on it."""
    module = SimpleNamespace(__name__=OWN)
    monkeypatch.setitem(sys.modules, OWN, module)  # type: ignore[arg-type]
    return module


def fitted(**changes: Any) -> RewardEnsemble:
    torch.manual_seed(0)
    settings = RewardModelSettings(**{"hidden": (8,), "ensemble_size": 2, **changes})
    trainer = RewardTrainer(settings, VECTORS, FORCES, held_out_share=0.0, seed=0)
    trainer.comparisons.add(some_comparisons(20))
    trainer.fit(10)
    return trainer.ensemble


@pytest.mark.parametrize("heading", ["`BasicRewardNet`", "`build_mlp`"])
def test_an_mlp_with_their_weights_gives_their_rewards(heading: str) -> None:
    option = {"`BasicRewardNet`": "BasicRewardNet", "`build_mlp`": "build_mlp"}[heading]
    names = named(IMITATION, heading, option)
    assert names[-1] == "reward_model.hidden"
    actions = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    theirs = nets.BasicRewardNet(VECTORS, actions, use_next_state=True, use_done=True, hid_sizes=(7, 5))
    activation = "relu"
    assert "relu" in note(IMITATION, "`BasicRewardNet`", "BasicRewardNet")
    inputs = {"use_next_state": True, "use_done": True, "normalize_inputs": "none", "ensemble_size": 1}
    of = given(names[-1], (7, 5), network="mlp", activation=activation, **inputs)
    ours = RewardEnsemble(VECTORS, actions, of)
    layers = [each for each in theirs.modules() if isinstance(each, torch.nn.Linear)]
    own = list(ours.networks.parameters())
    order = [0, 1, 2, 5, 6, 7, 3, 4, 8]  # our next state comes before the action
    with torch.no_grad():
        for weight, bias, layer in zip(own[::2], own[1::2], layers, strict=True):
            weight[0].copy_(layer.weight.T[order] if len(weight[0]) == 9 else layer.weight.T)
            bias[0, 0].copy_(layer.bias)
    steps = steps_of(some_fragments(4, actions=actions))
    np.testing.assert_allclose(ours.predict(*steps), theirs.predict(*steps), rtol=1e-4, atol=1e-5)
    wide = RewardEnsemble(VECTORS, FORCES, of)  # of actions to 2: they are scaled, as the row says
    wide.load_state(ours.state())
    np.testing.assert_allclose(wide.predict(steps[0], 2 * steps[1], *steps[2:]), ours.predict(*steps), rtol=1e-5)


def test_their_cnn_is_the_pooled_one() -> None:
    network, convolutions = named(IMITATION, "`CnnRewardNet`", "CnnRewardNet")
    assert network == "reward_model.network=pooled_cnn"
    assert named(IMITATION, "`build_cnn`", "hid_channels") == (convolutions,)


def test_images_are_scaled_as_theirs() -> None:
    name = named(IMITATION, WRAPPERS, "normalize_images")[0]
    ours = RewardEnsemble(IMAGES, CHOICES, given(name, None, ensemble_size=1))
    seen = []
    first = next(of for of in ours.networks.modules() if isinstance(of, torch.nn.Conv2d))
    first.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    clips = some_fragments(1, 1, observations=IMAGES, actions=CHOICES)
    steps = steps_of(clips)
    ours.predict(*steps)
    theirs = nets.CnnRewardNet(IMAGES, CHOICES).preprocess(*steps)[0]  # normalize_images=True, channels last
    np.testing.assert_allclose(seen[0][:1].permute(0, 2, 3, 1), theirs, atol=1e-6)


class First(gym.Env[Any, Any]):
    """Images with channels first, as `hwc_format=False` is for."""

    observation_space = gym.spaces.Box(0, 255, (3, 20, 24), np.uint8)
    action_space: Any = CHOICES

    def reset(self, **_: Any) -> Any:
        return np.arange(3 * 20 * 24, dtype=np.uint16).reshape(3, 20, 24).astype(np.uint8), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


@pytest.mark.parametrize("heading", ["`CnnRewardNet`", "`ShapedRewardNet`"])
def test_channels_first_are_turned(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named(IMITATION, heading, "hwc_format") in ((), ("CnnRewardNet",))
    gym.register("ChannelsFirst-v0", entry_point=First)
    try:
        env = make_env("ChannelsFirst-v0")
        observation = env.reset()[0]
    finally:
        del gym.registry["ChannelsFirst-v0"]
    assert env.observation_space.shape == (20, 24, 3)
    np.testing.assert_array_equal(observation, np.moveaxis(First().reset()[0], 0, -1))


def test_their_classes_are_networks_here() -> None:
    for heading, option in ((WRAPPERS, "RewardNet"), ("`SqueezeLayer`", "SqueezeLayer")):
        assert named(IMITATION, heading, option) == ("reward_model.network=module:Name",)
    for heading, option in (("`PreferenceComparisons`", "reward_model"), ("`BasicRewardTrainer`", "preference_model")):
        assert named(IMITATION, heading, option) == ("reward_model.network",)
    assert named(IMITATION, "`reward`", "reward.net_cls") == ("reward_model.network",)


def test_of_a_wrapper_forward_counts_and_what_predict_processed_changes_does_not(own: SimpleNamespace) -> None:
    (name,) = named(IMITATION, WRAPPERS, "PredictProcessedWrapper")
    assert name == named(IMITATION, WRAPPERS, "ForwardWrapper")[0]
    base = nets.BasicRewardNet(VECTORS, FORCES)
    shaped = nets.ShapedRewardNet(base, lambda states: states.sum(-1), 0.9)
    made = {"processed": nets.NormalizedRewardNet(base, norms.RunningNorm), "forward": shaped}
    made["processed"].normalize_output_layer(torch.randn(100) * 5 + 3)
    steps = steps_of(some_fragments(4))
    for kind, net in made.items():
        own.make = lambda observation_space, action_space, of=net: of
        ours = RewardEnsemble(VECTORS, FORCES, given(name.partition("=")[0], f"{OWN}:make", ensemble_size=1))
        raw = ours.raw_rewards(*map(torch.as_tensor, steps))[0]
        np.testing.assert_allclose(raw, net.predict(*steps), rtol=1e-4, atol=1e-5)
        assert np.allclose(raw, base.predict(*steps), atol=1e-5) == (kind == "processed")
    processed = made["processed"].predict_processed(*steps, update_stats=False)
    assert not np.allclose(processed, made["processed"].predict(*steps), atol=0.1)


def test_members_rewards_have_their_moments() -> None:
    assert named(IMITATION, WRAPPERS, "RewardNetWithVariance") == ("RewardEnsemble.member_rewards",)
    assert named(IMITATION, "`AddSTDRewardWrapper`", "members") == ("reward_model.ensemble_size",)
    ours = fitted(ensemble_size=4)
    steps = steps_of(some_fragments(4))
    rewards = ours.member_rewards(*map(torch.as_tensor, steps))
    mean, variance = LearnedRewardNet(ours).predict_reward_moments(*steps)
    np.testing.assert_allclose(mean, rewards.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, rewards.var(0, correction=1), rtol=1e-4, atol=1e-5)


def test_each_members_rewards_are_normalised_over_the_steps_compared_and_saved_so(tmp_path: Path) -> None:
    for heading, option in (
        ("`NormalizedRewardNet`", "NormalizedRewardNet"),
        ("`reward`", "reward.normalize_output_ema"),
    ):
        (name,) = named(IMITATION, heading, option)
        assert name == "reward_model.normalize_outputs"
    assert named(IMITATION, "`NormalizedRewardNet`", "normalize_output_layer") == ()
    ours = fitted()  # on by default
    ours.save(tmp_path)
    pairs = some_comparisons(20).pairs
    clips = [map(torch.as_tensor, steps_of(of)) for of in (pairs.left, pairs.right)]
    rewards = torch.cat([RewardEnsemble.load(tmp_path).member_rewards(*of) for of in clips], 1)
    torch.testing.assert_close(rewards.mean(1), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(rewards.std(1), torch.ones(2), atol=1e-4, rtol=0)


def test_inputs_are_normalised_or_not() -> None:
    """Observations alone: their layer has one mean for each of all inputs, ours leaves the action as it is."""
    for heading, option in (("`build_mlp`", "normalize_input_layer"), ("`reward`", "reward.normalize_input_running")):
        assert named(IMITATION, heading, option) == ("reward_model.normalize_inputs",)
    assert named(IMITATION, NORMS, "eps") == named(IMITATION, NORMS, "decay") == ()
    theirs = nets.BasicRewardNet(VECTORS, FORCES, normalize_input_layer=norms.RunningNorm)
    assert next(of for of in theirs.modules() if isinstance(of, norms.RunningNorm)).running_mean.shape == (5,)
    features = {}
    for kind in ("none", "running"):
        ours = fitted(normalize_inputs=kind)
        encoded = ours.encode(some_fragments(4))
        features[kind] = ours.networks.features_of(encoded)
        torch.testing.assert_close(features[kind][..., 3:], encoded["features"][..., 3:])
    assert not torch.allclose(features["none"], features["running"], atol=0.01)


def test_networks_are_switched_by_themselves() -> None:
    assert named(IMITATION, NORMS, "training_mode") == ()
    ours = fitted(dropout=0.5, batch_norm=True)
    steps = steps_of(some_fragments(4))
    once = ours.predict(*steps)
    ours.networks.train()
    np.testing.assert_array_equal(ours.predict(*steps), once)
    alone = ours.predict(*(of[:1] for of in steps))
    np.testing.assert_allclose(alone, once[:1], rtol=1e-4, atol=1e-5)  # no statistics of the batch


def test_the_shaped_network() -> None:
    for option in ("potential", "BasicPotentialMLP", "BasicPotentialCNN"):
        assert named(IMITATION, "`ShapedRewardNet`", option) == ("reward_model.network=shaped",)


# What applies a reward


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


def test_rewards_are_loaded_and_checked_as_theirs(own: SimpleNamespace) -> None:
    heading = "`load_reward`"
    for option in ("load_reward", "load_zero", "venv"):
        assert named(IMITATION, heading, option) == ("rlhf_ray.reward.functions.load_reward",)
    assert named(IMITATION, heading, "ValidateRewardFn") == ("rlhf_ray.reward.functions.CallableReward",)
    own.zero = serialize.load_zero("", None)
    steps = steps_of(some_fragments(4))
    np.testing.assert_array_equal(load_reward(f"{OWN}:zero", VECTORS, FORCES)(*steps), own.zero(*steps))
    checked = serialize.ValidateRewardFn(lambda *of: of[0])
    with pytest.raises(AssertionError):
        checked(*steps)
    for wrong in (lambda *of: of[0], lambda *of: np.full(len(of[0]), np.nan)):
        with pytest.raises(SettingError):
            CallableReward(wrong, VECTORS, FORCES)(*steps)


def test_what_they_saved_is_loaded() -> None:
    assert "reward_net.pt" in note(IMITATION, "`load_reward`", "load_reward")
