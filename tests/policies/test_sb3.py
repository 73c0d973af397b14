"""Policies of Stable-Baselines3 act the same as policies of ours, and their files run nothing."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.policies import sb3_file
from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.sb3 import is_sb3, sb3_weights
from rlhf_ray.policies.soft_actor_critic import SoftActorCriticNetwork
from rlhf_ray.rllib.agents import agent_of
from rlhf_ray.rllib.starting import check_policy, policy_weights
from rlhf_ray.settings import SettingError

sb3 = pytest.importorskip("stable_baselines3", reason="the extra 'imitation'")

IMAGE = gym.spaces.Box(0, 255, (36, 40, 3), np.uint8)
HALF = gym.spaces.Box(np.array([-1, -np.inf, 2], np.float32), np.array([5, np.inf, 4], np.float32))
WIDE = gym.spaces.Box(np.array([-1, -1e6, 2], np.float32), np.array([5, 1e6, 4], np.float32))
SPACES: dict[str, tuple[str, gym.spaces.Box, gym.Space[Any]]] = {
    "choices": ("MlpPolicy", HALF, gym.spaces.Discrete(4, start=2)),
    "bounded": ("MlpPolicy", HALF, gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 5], np.float32))),
    "formal": ("MlpPolicy", WIDE, gym.spaces.Discrete(4)),
    "images": ("CnnPolicy", IMAGE, gym.spaces.Discrete(3)),
}


class Still(gym.Env[Any, Any]):
    """An environment of given spaces in which nothing happens."""

    def __init__(self, observations: gym.Space[Any], actions: gym.Space[Any]):
        self.observation_space, self.action_space = observations, actions

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def saved(path: Path, kind: str, observations: Any, actions: Any, algorithm: Any = None, **options: Any) -> Any:
    actions = gym.spaces.Discrete(int(actions.n)) if hasattr(actions, "n") else actions  # SB3 has no start
    model = (algorithm or sb3.PPO)(kind, Still(observations, actions), seed=0, device="cpu", **options)
    with torch.no_grad():  # biases start at 0, which would hide an error
        for each in model.policy.parameters():
            each.add_(0.05 * torch.randn(each.shape))
    model.save(path)
    return model


@pytest.mark.parametrize("kind", SPACES)
def test_it_acts_and_values_the_same(kind: str, tmp_path: Path) -> None:
    policy, observations, actions = SPACES[kind]
    layers = {} if kind == "images" else {"policy_kwargs": {"net_arch": [16, 24]}}
    model = saved(tmp_path / "model.zip", policy, observations, actions, **layers)
    agent = agent_of(tmp_path / "model.zip", None, observations, actions)
    observations.seed(0)
    seen = np.stack([observations.sample() for _ in range(6)])
    with torch.no_grad():
        step = agent.step(torch.as_tensor(seen), agent.initial_memory(6))
        outputs, values = step.logits, step.value
        tensor = model.policy.obs_to_tensor(seen if kind != "images" else seen.transpose(0, 3, 1, 2))[0]
        distribution = model.policy.get_distribution(tensor).distribution
        wanted = model.policy.predict_values(tensor).squeeze(-1)
    np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4)
    if isinstance(actions, gym.spaces.Discrete):
        np.testing.assert_allclose(outputs.softmax(-1), distribution.probs, rtol=1e-3, atol=1e-5)
        return
    assert isinstance(actions, gym.spaces.Box)
    middle, half = (actions.low + actions.high) / 2, (actions.high - actions.low) / 2
    mean, log_std = outputs.numpy().reshape(6, 2, 2).transpose(1, 0, 2)
    np.testing.assert_allclose(mean * half + middle, distribution.mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.exp(log_std) * half, distribution.stddev, rtol=1e-4)


def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path) -> None:
    _, observations, actions = SPACES["bounded"]
    network = ActorCriticNetwork(observations, actions, PolicyShape()).state_dict()

    def refused(match: str, **options: Any) -> None:
        saved(tmp_path / "model.zip", "MlpPolicy", observations, actions, **options)
        with pytest.raises(SettingError, match=match) as raised:
            check_policy(sb3_weights(tmp_path / "model.zip", observations, actions), network, "model.zip", "ppo")
        assert "\n" not in str(raised.value)

    refused("activation_fn=ReLU", policy_kwargs={"activation_fn": torch.nn.ReLU})
    refused("use_sde=True", use_sde=True)
    refused(r"its actor.0.weight has the shape \(32, 3\)", policy_kwargs={"net_arch": [32, 32]})
    refused(
        "does not exist, but with this environment, agent=ppo",
        algorithm=sb3.SAC,
        buffer_size=10,
    )
    refused("has the weight actor.mu.0.weight, which ours has not", algorithm=sb3.TD3, buffer_size=10)
    saved(tmp_path / "model.zip", "MlpPolicy", observations, actions)
    with pytest.raises(SettingError, match="takes 3 numbers; the environment's observations have 5"):
        sb3_weights(tmp_path / "model.zip", gym.spaces.Box(-1, 1, (5,)), actions)
    with pytest.raises(SettingError, match="does not act in the environment's action space"):
        sb3_weights(tmp_path / "model.zip", observations, gym.spaces.Box(-1, 1, (3,)))


def test_no_agent_is_made_of_sac_or_without_spaces(tmp_path: Path) -> None:
    saved(tmp_path / "model.zip", "MlpPolicy", HALF, BOX, sb3.SAC, buffer_size=10)
    with pytest.raises(SettingError, match=r"is a model of SAC; .* --policy-from"):
        agent_of(tmp_path / "model.zip", None, HALF, BOX)
    with pytest.raises(SettingError, match="needs the environment's spaces"):
        agent_of(tmp_path / "model.zip")
    with pytest.raises(SettingError, match="needs the environment's spaces"):
        policy_weights(tmp_path / "model.zip", HALF)


BOX = SPACES["bounded"][2]


def loaded(network: Any, path: Path, agent: str) -> Any:
    """The network with the policy in ``path``, as a start of a training loads it."""
    weights = policy_weights(path, HALF, BOX)
    prefix = "network." if agent == "sac" else ""
    check_policy(weights, {f"{prefix}{name}": value for name, value in network.state_dict().items()}, path.name, agent)
    network.load_state_dict({name.removeprefix(prefix): torch.as_tensor(value) for name, value in weights.items()})
    return network


def observed(n: int = 60) -> Any:
    HALF.seed(0)
    return np.stack([HALF.sample() for _ in range(n)]) * np.array([1, 7, 1], np.float32)


def check_alike(network: Any, model: Any, seen: Any, normalised: Any) -> None:
    """Check that the network acts and values ``seen`` as SB3's policy does what it sees of it."""
    model.policy.set_training_mode(False)
    with torch.no_grad():
        outputs, values = network.decide(network.encode(torch.as_tensor(seen)), network.initial_memory(len(seen)))
        given = torch.as_tensor(normalised, dtype=torch.float32)
        wanted = model.policy.get_distribution(given).distribution.mean
        np.testing.assert_allclose(values, model.policy.predict_values(given).squeeze(-1), rtol=1e-4, atol=1e-4)
    assert isinstance(BOX, gym.spaces.Box)
    middle, half = (BOX.low + BOX.high) / 2, (BOX.high - BOX.low) / 2
    np.testing.assert_allclose(outputs.numpy()[:, :2] * half + middle, wanted, rtol=1e-3, atol=1e-4)


def normalising(norm: str) -> dict[str, Any]:
    """The options of a policy of imitation that normalises observations."""
    base, norms = (pytest.importorskip(f"imitation.{name}") for name in ("policies.base", "util.networks"))
    return {
        "features_extractor_class": base.NormalizeFeaturesExtractor,
        "features_extractor_kwargs": {"normalize_class": getattr(norms, norm)},
    }


def learn_statistics(path: Path, model: Any, *parts: Any) -> None:
    """Let the parts' normalisers see different observations, and save the model."""
    for number, part in enumerate(parts):
        part.train()
        for batch in np.split(observed() * (1 + number) + number, 3):
            part(torch.as_tensor(batch))
        part.eval()
    model.save(path)


@pytest.mark.parametrize("norm", ["RunningNorm", "EMANorm"])
def test_a_policy_that_normalises_acts_and_values_the_same(norm: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "model.zip", "MlpPolicy", HALF, BOX, policy_kwargs=normalising(norm))
    learn_statistics(tmp_path / "model.zip", model, model.policy.features_extractor)
    with pytest.raises(
        SettingError, match=r"normalises its observations, but ppo\.normalize_observations is False: set it to True"
    ):
        loaded(ActorCriticNetwork(HALF, BOX, PolicyShape()), tmp_path / "model.zip", "ppo")
    network = loaded(
        ActorCriticNetwork(HALF, BOX, PolicyShape(normalize_observations=True)), tmp_path / "model.zip", "ppo"
    )
    check_alike(network, model, observed(6), observed(6))


@pytest.mark.parametrize("name", ["vecnormalize.pkl", "model_vecnormalize.pkl", "HalfBox-v0/vecnormalize.pkl"])
def test_a_policy_beside_a_vecnormalize_acts_and_values_the_same(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from stable_baselines3.common.vec_env import VecNormalize

    model = saved(tmp_path / "model.zip", "MlpPolicy", HALF, BOX)
    assert sb3_file.statistics_beside(tmp_path / "model.zip") is None
    assert "no VecNormalize beside it" in caplog.text
    outside = VecNormalize(model.get_env())
    outside.obs_rms.update(observed(200).astype(np.float64))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    outside.save(str(tmp_path / name))
    network = loaded(
        ActorCriticNetwork(HALF, BOX, PolicyShape(normalize_observations=True)), tmp_path / "model.zip", "ppo"
    )
    assert f"normalised by {tmp_path / name}" in caplog.text
    check_alike(network, model, observed(6), outside.normalize_obs(observed(6)))
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(SettingError, match="can't be read as a VecNormalize"):
        sb3_file.statistics_beside(tmp_path / "model.zip")
    (tmp_path / name).write_bytes(pickle.dumps(Call(os.mkdir, str(tmp_path / "ran"))))
    with pytest.raises(SettingError, match="can't be read as a VecNormalize"):
        sb3_file.statistics_beside(tmp_path / "model.zip")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("norm", ["none", "RunningNorm"])
@pytest.mark.parametrize("alpha", ["auto_0.3", 0.2])
def test_a_policy_of_sac_acts_and_values_the_same(alpha: Any, norm: str, tmp_path: Path) -> None:
    kwargs = {"net_arch": [8, 6]} | (normalising(norm) if norm != "none" else {})
    path, normalises = tmp_path / "model.zip", norm != "none"
    model = saved(path, "MlpPolicy", HALF, BOX, sb3.SAC, buffer_size=10, policy_kwargs=kwargs, ent_coef=alpha)
    policy = model.policy
    if normalises:
        parts = (policy.actor, policy.critic, policy.critic_target)
        learn_statistics(path, model, *(part.features_extractor for part in parts))
    with pytest.raises(SettingError, match=r"its network.actor.0.weight has the shape \(8, 3\)"):
        loaded(SoftActorCriticNetwork(HALF, BOX, (9, 6), 1.0, normalises), path, "sac")
    network = loaded(SoftActorCriticNetwork(HALF, BOX, (8, 6), 1.0, normalises), path, "sac")
    assert network.log_alpha.exp().item() == pytest.approx(0.3 if alpha == "auto_0.3" else 0.2)
    policy.set_training_mode(False)
    with torch.no_grad():
        seen = torch.as_tensor(observed(6))
        mean, log_std, _ = policy.actor.get_action_dist_params(seen)
        np.testing.assert_allclose(network.distribution(seen), torch.cat([mean, log_std], 1), rtol=1e-3, atol=1e-4)
        actions = torch.rand(6, 2) * 2 - 1
        for theirs, ours in ((policy.critic, network.critics), (policy.critic_target, network.targets)):
            wanted = torch.stack([of.squeeze(-1) for of in theirs(seen, actions)])
            np.testing.assert_allclose(network.values(ours, seen, actions), wanted, rtol=1e-3, atol=1e-4)


def test_log_deviations_are_cut_off_where_sb3_does(tmp_path: Path) -> None:
    model = saved(
        tmp_path / "model.zip", "MlpPolicy", HALF, BOX, sb3.SAC, buffer_size=10, policy_kwargs={"net_arch": [8]}
    )
    with torch.no_grad():
        model.policy.actor.log_std.bias.copy_(torch.tensor([-12.0, 9.0]))
        model.policy.actor.log_std.weight.mul_(0.1)
    model.save(tmp_path / "model.zip")
    network = loaded(SoftActorCriticNetwork(HALF, BOX, (8,), 1.0), tmp_path / "model.zip", "sac")
    with torch.no_grad():
        log_std = network.distribution(torch.as_tensor(observed(6)))[:, 2:]
        wanted = model.policy.actor.get_action_dist_params(torch.as_tensor(observed(6)))[1]
    np.testing.assert_allclose(log_std, wanted, rtol=1e-3)
    assert log_std[:, 0].max() < -5
    assert (log_std[:, 1] == 2).all()


def test_a_policy_of_another_agent_is_said_in_one_line(tmp_path: Path) -> None:
    saved(tmp_path / "ppo.zip", "MlpPolicy", HALF, BOX)
    saved(tmp_path / "sac.zip", "MlpPolicy", HALF, BOX, sb3.SAC, buffer_size=10, policy_kwargs={"net_arch": [8, 6]})
    sac, ppo = SoftActorCriticNetwork(HALF, BOX, (8, 6), 1.0), ActorCriticNetwork(HALF, BOX, PolicyShape())
    for network, file, agent in ((sac, "ppo.zip", "sac"), (ppo, "sac.zip", "ppo")):
        with pytest.raises(SettingError, match=f"The policy in {file} doesn't fit: .* agent={agent}"):
            loaded(network, tmp_path / file, agent)
    normalised = SoftActorCriticNetwork(HALF, BOX, (8, 6), 1.0, True)
    with pytest.raises(
        SettingError, match=r"does not normalise its observations, but sac\.normalize_observations is True: set it"
    ):
        loaded(normalised, tmp_path / "sac.zip", "sac")
    with pytest.raises(SettingError, match="does not act in the environment's action space"):
        sb3_weights(tmp_path / "sac.zip", HALF, gym.spaces.Discrete(2))
    with pytest.raises(SettingError, match="takes 3 numbers; the environment's observations have 5"):
        sb3_weights(tmp_path / "sac.zip", gym.spaces.Box(-1, 1, (5,)), BOX)
    kwargs = {"n_critics": 3, "net_arch": [8]}
    saved(tmp_path / "sac.zip", "MlpPolicy", HALF, BOX, sb3.SAC, buffer_size=10, policy_kwargs=kwargs)
    with pytest.raises(SettingError, match=r"has the weight critic\.qf2\.0\.weight, which ours has not"):
        sb3_weights(tmp_path / "sac.zip", HALF, BOX)


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, *call: Any):
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


def test_a_malicious_file_runs_nothing(tmp_path: Path) -> None:
    proof, weights = tmp_path / "proof", io.BytesIO()
    torch.save({"log_std": Call(os.mkdir, str(proof))}, weights)
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", weights.getvalue())
    assert is_sb3(tmp_path / "model.zip")
    with pytest.raises(SettingError, match=r"can't be read as a model of Stable-Baselines3"):
        sb3_weights(tmp_path / "model.zip", HALF, gym.spaces.Discrete(2))
    with pytest.raises(
        SettingError, match=r"a model of Stable-Baselines3: its policy.pth is damaged, or holds .* again\.$"
    ):
        policy_weights(tmp_path, HALF, gym.spaces.Discrete(2))
    assert not proof.exists()
    (tmp_path / "model.zip").unlink()
    with pytest.raises(SettingError, match="nor a model of Stable-Baselines3"):
        policy_weights(tmp_path, HALF, gym.spaces.Discrete(2))
