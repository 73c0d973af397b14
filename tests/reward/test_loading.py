"""Rewards of every kind answer one call, and are loaded by path or name; malicious files run nothing."""

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data import consent, modules
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import (
    CallableReward,
    EnsembleReward,
    ImitationReward,
    NotDifferentiableError,
    RewardFunction,
    TableReward,
    imitation,
    load_reward,
)
from rlhf_ray.settings import RewardModelSettings

VECTORS, CHOICES = gym.spaces.Box(-1, 1, (5,), np.float32), gym.spaces.Discrete(3)
IMAGES = gym.spaces.Box(0, 255, (16, 18, 4), np.uint8)
FORCES = gym.spaces.Box(-2, 2, (2,), np.float32)


def steps_for(reward, n=4):
    rng = np.random.default_rng(0)
    shape, kind = reward.observation_space.shape, reward.observation_space.dtype
    states = (255 * rng.random((2, n, *shape))).astype(kind)
    actions = rng.integers(0, 3, n) if not reward.action_space.shape else rng.random((n, 2)).astype(np.float32)
    return states[0], actions, states[1], np.zeros(n, bool)


def refusal(what, *spaces):
    with pytest.raises(SettingError) as refused:
        load_reward(what, *spaces)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    reward = RewardEnsemble(VECTORS, CHOICES, RewardModelSettings(hidden=(4,)))
    reward.save(tmp_path / "reward_model")
    return reward, tmp_path / "reward_model"


def test_a_reward_models_folder_and_a_run_folder(model, tmp_path):
    reward, folder = model
    (tmp_path / "config.json").write_text("{}")
    for where in (folder, str(folder), tmp_path):
        found = load_reward(where)
        assert isinstance(found, EnsembleReward)
        given = steps_for(found)
        assert np.allclose(found(*given), reward.predict(*given), atol=1e-5)


def test_a_runs_own_network_is_found_in_its_folder_once_allowed_there(model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(consent, "_allowed", set())
    monkeypatch.setenv(modules.FOLDERS, "")
    monkeypatch.setattr("sys.path", list(sys.path))
    where = tmp_path / "modules"
    where.mkdir()
    (where / "nets_of_a_run.py").write_text(
        'from rlhf_ray.reward.networks import NETWORKS\nNet = NETWORKS.parts["mixed"]\n'
    )
    file = model[1] / "reward.json"
    about = json.loads(file.read_text())
    about["settings"]["network"] = "nets_of_a_run:Net"
    file.write_text(json.dumps(about))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "run.json").write_text(json.dumps({"modules": [str(where)]}))
    assert f"({where}/nets_of_a_run.py) and runs its code" in refusal(tmp_path)
    assert modules.folders() == []
    consent.allow("nets_of_a_run", anywhere=True)
    assert isinstance(load_reward(tmp_path), EnsembleReward)
    assert modules.folders() == [str(where)]


def test_a_table(tmp_path):
    np.savez(tmp_path / "maze.npz", table=np.arange(24.0).reshape(4, 6))
    np.savez(tmp_path / "states.npz", table=np.arange(4.0), actions=5)
    found = load_reward(tmp_path / "maze.npz")
    assert isinstance(found, TableReward)
    assert found.table.shape == (4, 6, 4)
    assert load_reward(tmp_path / "states.npz").table.shape == (4, 5, 4)
    np.savez(tmp_path / "broken.npz", table=np.array([[1.0, np.nan]]))
    assert "NaN" in refusal(tmp_path / "broken.npz")
    np.savez(tmp_path / "other.npz", rewards=np.zeros(3))
    assert "no array table, but rewards" in refusal(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", table=np.array([{}], object), allow_pickle=True)
    assert "damaged" in refusal(tmp_path / "objects.npz")


def nets():
    imitation = pytest.importorskip("imitation.rewards.reward_nets")
    norm = pytest.importorskip("imitation.util.networks").RunningNorm
    VECTORS.sample()  # the space now holds a random generator, which is saved with it
    members = [imitation.BasicRewardNet(VECTORS, CHOICES) for _ in range(2)]
    return {
        "basic": imitation.BasicRewardNet(VECTORS, FORCES, use_done=True),
        "cnn": imitation.CnnRewardNet(IMAGES, CHOICES, use_next_state=True),
        "shaped": imitation.BasicShapedRewardNet(VECTORS, CHOICES),
        "shaped cnn": imitation.ShapedRewardNet(
            imitation.CnnRewardNet(IMAGES, CHOICES), imitation.BasicPotentialCNN(IMAGES, (8,)), 0.99
        ),
        "normalised": imitation.NormalizedRewardNet(members[0], norm),
        "ensemble": imitation.AddSTDRewardWrapper(
            imitation.RewardEnsemble(VECTORS, CHOICES, members), default_alpha=0.1
        ),
    }


@pytest.mark.filterwarnings("ignore")
def test_networks_that_imitation_saved(tmp_path):
    for kind, net in nets().items():
        torch.save(net, tmp_path / "net.pt")
        found = load_reward(tmp_path / "net.pt")
        assert isinstance(found, ImitationReward), kind
        given = steps_for(found)
        assert np.allclose(found(*given), ImitationReward(net)(*given)), kind
        found.observation_space.sample()


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {EVIL}",)


EVIL = Path("evil_ran")


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_malicious_pickle_does_not_run_and_is_named(tmp_path, monkeypatch, protocol):
    pytest.importorskip("imitation")
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    net.extra = Evil()
    torch.save(net, "evil.pt", pickle_protocol=protocol)
    said = refusal("evil.pt")
    assert protocol > 2 or f"{os.system.__module__}.system" in said
    assert not EVIL.exists()
    # The file would run under a plain unpickler: otherwise this test shows nothing.
    torch.load("evil.pt", weights_only=False)
    assert EVIL.exists()


def test_other_files_of_torch_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("imitation")
    net = torch.nn.Linear(2, 2)
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    assert "weights without their network" in refusal(tmp_path / "weights.pt")
    torch.save(net, tmp_path / "linear.pth")
    assert "holds a Linear, not a reward network" in refusal(tmp_path / "linear.pth")
    monkeypatch.setattr(imitation, "MOST_BYTES", 2**20)
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(2**21))
    assert (tmp_path / "bomb.pt").stat().st_size < 2**14
    assert "networks of up to" in refusal(tmp_path / "bomb.pt")


def test_damaged_files_are_refused_in_one_line(model, tmp_path):
    _, folder = model
    pytest.importorskip("imitation")
    torch.save(nets()["basic"], tmp_path / "net.pt")
    np.savez(tmp_path / "table.npz", table=np.zeros((3, 2)))
    rng = np.random.default_rng(0)
    for file in (folder / "reward.json", folder / "reward.safetensors", tmp_path / "net.pt", tmp_path / "table.npz"):
        whole, refused = file.read_bytes(), 0
        for cut in rng.integers(0, len(whole), 6):
            file.write_bytes(whole[:cut])
            refusal(folder if file.parent == folder else file)
        for _ in range(6):
            noisy = bytearray(whole)
            for at in rng.integers(0, len(whole), 8):
                noisy[at] = rng.integers(256)
            file.write_bytes(bytes(noisy))
            try:
                load_reward(folder if file.parent == folder else file)
            except SettingError as error:
                assert "\n" not in str(error)  # noqa: PT017 (a flipped bit in a weight is no error)
                refused += 1
        assert refused
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other/1"}, "has format 'other/1'; this version reads"),
        ({"settings": {"no_such": 1}}, "no setting no_such"),
        ({"settings": {"network": "strange_module_of_mine:Net"}}, "--allow-import strange_module_of_mine"),
        (
            {"observation_space": {"type": "Box", "shape": [10**6, 10**6], "dtype": "uint8", "low": 0, "high": 1}},
            "damaged",
        ),
        ({"observation_space": {}}, "damaged"),
    ],
)
def test_strange_descriptions_are_refused(model, change, says):
    _, folder = model
    description = json.loads((folder / "reward.json").read_text())
    (folder / "reward.json").write_text(json.dumps(description | change))
    assert says in refusal(folder)


def test_what_is_no_reward_is_said(tmp_path):
    assert "There is no reward at" in refusal(tmp_path / "nothing")
    assert "give a run folder" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "has not fitted one yet" in refusal(tmp_path)
    (tmp_path / "run.json").write_text('{"options": {"true_reward": false}}')
    assert "has not fitted one yet" in refusal(tmp_path)
    (tmp_path / "run.json").write_text('{"options": {"true_reward": true}}')
    assert "a run on the true reward (--true-reward), which has no reward model" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    assert "is no reward; give" in refusal(tmp_path / "notes.txt")


def test_rewards_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_rewards_tried.py").write_text(
        "import numpy as np\n"
        "from rlhf_ray.reward.functions import TableReward\n"
        "def first(observations, actions, next_observations, terminated):\n    return next_observations[:, 0]\n"
        "def made():\n    return TableReward(np.ones((3, 2)))\n"
        "def wide(observations, actions, next_observations, terminated):\n    return next_observations\n"
        "class Mine(TableReward):\n    def __init__(self):\n        super().__init__(np.zeros((2, 2)))\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(load_reward("own_rewards_tried:first", VECTORS, CHOICES), CallableReward)
    assert isinstance(load_reward("own_rewards_tried:made"), TableReward)
    assert isinstance(load_reward("own_rewards_tried:Mine"), TableReward)
    assert "name the environment" in refusal("own_rewards_tried:first")
    wide = load_reward("own_rewards_tried:wide", VECTORS, CHOICES)
    with pytest.raises(SettingError, match=r"must return \(4,\)"):
        wide.members(*steps_for(wide))
    assert "is int" in refusal("own_rewards_tried:number")
    assert "has no missing: correct the name" in refusal("own_rewards_tried:missing")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)


VECTOR, IMAGE = gym.spaces.Box(-1, 1, (5,), np.float32), gym.spaces.Box(0, 255, (20, 24, 4), np.uint8)
DISCRETE, CONTINUOUS = gym.spaces.Discrete(3), gym.spaces.Box(-2, 2, (2,), np.float32)
ALL = RewardModelSettings(use_next_state=True, use_done=True, ensemble_size=2)


def ensemble(observations, actions):
    torch.manual_seed(0)
    return EnsembleReward(RewardEnsemble(observations, actions, ALL))


def of_imitation(observations, actions):
    nets = pytest.importorskip("imitation.rewards.reward_nets")
    make = nets.CnnRewardNet if len(observations.shape) == 3 else nets.BasicRewardNet
    return ImitationReward(make(observations, actions, use_next_state=True, use_done=True))


ALL_KINDS = {
    "ensemble, vectors, discrete": lambda: ensemble(VECTOR, DISCRETE),
    "ensemble, vectors, continuous": lambda: ensemble(VECTOR, CONTINUOUS),
    "ensemble, stacked images": lambda: ensemble(IMAGE, DISCRETE),
    "imitation, vectors": lambda: of_imitation(VECTOR, CONTINUOUS),
    "imitation, images": lambda: of_imitation(IMAGE, DISCRETE),
    "table": lambda: TableReward(np.arange(24.0).reshape(4, 6)),
    "callable": lambda: CallableReward(lambda o, a, n, d: n[:, 0] - d, VECTOR, DISCRETE),
}


def steps_of_any(reward: RewardFunction, n=7, seed=0):
    rng = np.random.default_rng(seed)
    reward.observation_space.seed(seed)
    reward.action_space.seed(seed)
    before, actions, after = (
        np.stack([space.sample() for _ in range(n)])
        for space in (reward.observation_space, reward.action_space, reward.observation_space)
    )
    return Transitions(before, actions, after, rng.random(n) < 0.3, rng.random(n), np.arange(n) // 3, np.arange(n) % 3)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind_answers_the_same_call(kind):
    reward = ALL_KINDS[kind]()
    steps = steps_of_any(reward)
    rewards = reward.of(steps)
    assert rewards.shape == (7,)
    assert rewards.dtype == np.float64
    assert np.allclose(reward.members_of(steps).mean(0), rewards)
    assert np.allclose(reward.of(steps[2:3]), rewards[2:3], atol=1e-5)
    if not reward.differentiable:
        with pytest.raises(NotDifferentiableError):
            reward.forward(*reward.tensors(steps))
        return
    inputs = [of.requires_grad_() for of in reward.tensors(steps)]
    output = reward.forward(*inputs)
    assert np.allclose(output.detach().numpy(), rewards, atol=1e-4)
    grads = torch.autograd.grad(output.sum(), inputs)
    assert all(grad.abs().sum() > 0 for grad in grads)
    assert reward.layers()
    assert not np.allclose(reward.fresh(1).of(steps), reward.fresh(2).of(steps))


def test_an_adapter_keeps_its_own_copy():
    made = RewardEnsemble(VECTOR, DISCRETE, ALL)
    reward = EnsembleReward(made)
    steps = steps_of_any(reward)
    before = reward.of(steps)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(1.0)
    assert np.array_equal(reward.of(steps), before)


class TypedNetwork(torch.nn.Module):
    """One step of one member; takes images as the environment gives them."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, observations, actions, next_observations, terminated):
        assert observations.dtype == torch.uint8
        return self.layer(observations.float().mean((1, 2, 3))[:, None]).squeeze(-1)


def test_an_own_network_gets_images_as_the_environment_returns_them():
    settings = RewardModelSettings(network=TypedNetwork, ensemble_size=1)
    made = RewardEnsemble(IMAGE, DISCRETE, settings)
    reward = EnsembleReward(made)
    steps = steps_of_any(reward)
    given = (steps.observations, steps.actions, steps.next_observations, steps.terminated)
    assert np.allclose(reward.of(steps), made.predict(*given))
