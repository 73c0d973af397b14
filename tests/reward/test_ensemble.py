"""Ensembles of rewards: predictions, their files, consent; and those that read the steps before."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rlhf_ray.data import consent
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import EnsembleReward
from rlhf_ray.reward.networks import make_network
from rlhf_ray.reward.predictor import Predictor
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import (
    CHOICES,
    FORCES,
    IMAGES,
    VECTORS,
    beats,
    right_about,
    some_comparisons,
    some_fragments,
    steps_of,
)
from tests.reward.fits import trainer_of

SPACES = [(VECTORS, FORCES), (VECTORS, CHOICES), (IMAGES, CHOICES)]
ALL_INPUTS = RewardModelSettings(hidden=(16,), use_next_state=True, use_done=True)


def _ensemble(
    observations: gym.spaces.Box = VECTORS,
    actions: gym.Space[Any] = FORCES,
    settings: RewardModelSettings = ALL_INPUTS,
    seed: int = 0,
) -> RewardEnsemble:
    """One with weights and normalisers that are nothing special."""
    torch.manual_seed(seed)
    ensemble = RewardEnsemble(observations, actions, settings)
    ensemble.reward_mean.copy_(torch.linspace(-1, 1, settings.ensemble_size))
    ensemble.reward_std.copy_(torch.linspace(0.5, 2, settings.ensemble_size))
    ensemble.version.fill_(4)
    return ensemble


def test_predict_takes_float64_as_environments_give_it() -> None:
    steps = steps_of(some_fragments(2))
    doubles = [a.astype(np.float64) if a.dtype == np.float32 else a for a in steps]
    assert np.array_equal(_ensemble().predict(*doubles), _ensemble().predict(*steps))


def test_only_the_last_step_of_a_fragment_can_have_ended_the_episode() -> None:
    clips = some_fragments(1, 4)
    settings = RewardModelSettings(use_state=False, use_action=False, use_done=True)
    ensemble = _ensemble(settings=settings)
    going_on, ended = (
        ensemble.fragment_returns(dataclasses.replace(clips, terminated=np.array([end])))[:, 0] for end in (False, True)
    )
    done = torch.tensor([False, True])
    anything = torch.zeros(2, 3)
    step, last_step = ensemble.raw_rewards(anything, torch.zeros(2, 2), anything, done).numpy().T
    assert np.allclose(going_on, 4 * step, atol=1e-5)
    assert np.allclose(ended, 3 * step + last_step, atol=1e-5)


@pytest.mark.parametrize(("observations", "actions"), SPACES)
def test_a_saved_model_predicts_the_same_bit_for_bit(tmp_path, observations, actions):
    ensemble = _ensemble(observations, actions)
    ensemble.save(tmp_path / "new" / "folder")
    loaded = RewardEnsemble.load(tmp_path / "new" / "folder")
    steps = steps_of(some_fragments(4, observations=observations, actions=actions))
    assert np.array_equal(loaded.predict(*steps), ensemble.predict(*steps))
    assert int(loaded.version) == 4
    assert loaded.settings == ensemble.settings
    assert loaded.observation_space == observations
    assert loaded.action_space == actions


def test_a_saved_model_is_safetensors_and_json_and_nothing_else(tmp_path: Path) -> None:
    _ensemble().save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["reward.json", "reward.safetensors"]
    description = json.loads((tmp_path / "reward.json").read_text())
    assert description["format"] == "rlhf_ray.reward/2"
    assert description["version"] == 4
    header_size = int.from_bytes((tmp_path / "reward.safetensors").read_bytes()[:8], "little")
    header = json.loads((tmp_path / "reward.safetensors").read_bytes()[8 : 8 + header_size])
    assert {"reward_mean", "reward_std", "version"} < set(header)
    (tmp_path / "reward.json").write_text(json.dumps(description | {"format": "rlhf_ray.reward/1"}))
    with pytest.raises(
        SettingError, match=r"has format 'rlhf_ray\.reward/1'; this version reads.*the version that wrote it"
    ):
        RewardEnsemble.load(tmp_path)


def test_infinite_bounds_survive_saving(tmp_path: Path) -> None:
    endless = gym.spaces.Box(np.array([-np.inf, -1.0], np.float32), np.array([np.inf, np.inf], np.float32))
    _ensemble(endless, endless).save(tmp_path)
    loaded = RewardEnsemble.load(tmp_path)
    assert loaded.observation_space == endless
    assert loaded.action_space == endless


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing holds no reward model"):
        RewardEnsemble.load(tmp_path / "nothing")


def test_a_network_of_a_module_needs_consent_unless_it_has_been_used(tmp_path, monkeypatch):
    (tmp_path / "foreign_nets.py").write_text(
        "from pathlib import Path\nfrom rlhf_ray.reward.networks import NETWORKS\n"
        'Path(__file__).with_name("imported").touch()\nNet = NETWORKS.parts["mixed"]\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(consent, "_allowed", set())
    _ensemble().save(tmp_path / "model")
    file = tmp_path / "model" / "reward.json"
    about = json.loads(file.read_text())
    about["settings"]["network"] = "foreign_nets:Net"
    file.write_text(json.dumps(about))
    with pytest.raises(SettingError, match=r"reward\.json names 'foreign_nets:Net'.*--allow-import foreign_nets"):
        RewardEnsemble.load(tmp_path / "model")
    assert not (tmp_path / "imported").exists()
    _ensemble(settings=dataclasses.replace(ALL_INPUTS, network="foreign_nets:Net"))  # given in Python
    assert (tmp_path / "imported").exists()
    monkeypatch.setattr(consent, "_allowed", set())  # as in a new process
    assert RewardEnsemble.load(tmp_path / "model").settings.network == "foreign_nets:Net"


def test_loading_leaves_torchs_random_numbers_alone(tmp_path: Path) -> None:
    _ensemble().save(tmp_path)
    before = torch.get_rng_state()
    RewardEnsemble.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_can_be_loaded_from_arrays_that_cannot_be_written_to() -> None:
    state = _ensemble().state()
    for array in state.values():
        array.flags.writeable = False
    ensemble = _ensemble(seed=1)
    ensemble.load_state(state)
    assert np.array_equal(
        ensemble.predict(*steps_of(some_fragments(1))), _ensemble().predict(*steps_of(some_fragments(1)))
    )


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh"])
@pytest.mark.parametrize(
    ("observations", "actions", "settings"),
    [
        (VECTORS, FORCES, {}),
        (VECTORS, CHOICES, {"use_next_state": True, "use_done": True}),
        (VECTORS, gym.spaces.Discrete(4, start=2), {"use_state": False}),
        (VECTORS, FORCES, {"use_state": False, "use_action": False, "use_done": True, "hidden": (8,)}),
        (VECTORS, gym.spaces.Box(-np.inf, 1.0, (2,)), {"ensemble_size": 1, "hidden": (8,) * 11}),
        (IMAGES, CHOICES, {"network": "mlp"}),
        (IMAGES, CHOICES, {"network": "cnn", "use_done": True}),
        (IMAGES, CHOICES, {"network": "cnn", "use_state": False}),
    ],
)
def test_it_gives_what_the_ensemble_gives(observations, actions, settings, activation):
    torch.manual_seed(0)
    ensemble = RewardEnsemble(observations, actions, RewardModelSettings(activation=activation, **settings))
    ensemble.reward_mean.normal_()
    ensemble.reward_std.uniform_(0.5, 2.0)
    clips = some_fragments(4, observations=observations, actions=actions)
    steps = (clips.observations[:, 0], clips.actions[:, 0], clips.observations[:, 1], clips.terminated)
    predictor = Predictor(ensemble)
    for n in (1, 4):
        some = [array[:n] for array in steps]
        rewards = predictor.predict(*some)
        assert rewards.shape == (n,)
        assert rewards.dtype == np.float32
        np.testing.assert_allclose(rewards, ensemble.predict(*some), rtol=1e-4, atol=1e-5)


def test_it_is_of_one_version() -> None:
    ensemble = RewardEnsemble(VECTORS, FORCES, RewardModelSettings())
    clips = some_fragments(1)
    steps = (clips.observations[:, 0], clips.actions[:, 0], clips.observations[:, 1], clips.terminated)
    predictor = Predictor(ensemble)
    before = predictor.predict(*steps)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.add_(1.0)
    assert np.array_equal(predictor.predict(*steps), before)


NAMES = ["gru", "transformer"]


def _sequential(name: str, window: int = 4, observations: gym.spaces.Box = VECTORS, **settings: Any) -> RewardEnsemble:
    torch.manual_seed(0)
    made = RewardEnsemble(observations, FORCES, RewardModelSettings(network=name, hidden=(8, 8), **settings))
    made.window.fill_(window)
    made.reward_mean.normal_()
    made.reward_std.uniform_(0.5, 2.0)
    return made


def _episode(steps: int, observations: gym.spaces.Box = VECTORS, seed: int = 0) -> tuple[Tensor, Tensor]:
    clips = some_fragments(1, steps, observations=observations, seed=seed)
    return torch.as_tensor(clips.observations[0]), torch.as_tensor(clips.actions[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
def test_a_step_depends_on_itself_and_all_steps_before_and_on_none_after(name: str, space: gym.spaces.Box) -> None:
    torch.manual_seed(0)
    network = make_network(space, CHOICES, RewardModelSettings(network=name, hidden=(8, 8))).eval()
    clips = some_fragments(1, 6, observations=space, actions=CHOICES)
    seen, actions = torch.as_tensor(clips.observations), torch.as_tensor(clips.actions)
    none = torch.zeros(1, dtype=torch.bool)
    with torch.no_grad():
        before = network(network.encode(seen, actions, none))
        for at in range(6):
            changed = actions.clone()
            changed[0, at] = (changed[0, at] + 1) % 4
            moved = (network(network.encode(seen, changed, none)) - before).abs()[:, 0] > 1e-6
            assert not moved[:, :at].any()
            assert moved[:, at:].all()


def test_the_gru_computes_what_its_equations_say() -> None:
    torch.manual_seed(0)
    settings = RewardModelSettings(network="gru", hidden=(7, 5), activation="tanh", normalize_inputs="none")
    network = make_network(VECTORS, FORCES, settings)
    clips = some_fragments(3, 4)
    inputs = network.encode(*(torch.as_tensor(of) for of in (clips.observations, clips.actions, clips.terminated)))
    rewards = network(inputs)
    for member, memory in enumerate(network.memories):
        hidden = torch.zeros(3, 5)
        (w_x, w_h, b_x, b_h) = memory.cell.all_weights[0]
        for t in range(4):
            x = torch.tanh(memory.before[0](inputs["features"][:, t]))
            from_x, from_h = (x @ w_x.T + b_x).chunk(3, 1), (hidden @ w_h.T + b_h).chunk(3, 1)
            reset, update = (torch.sigmoid(from_x[i] + from_h[i]) for i in (0, 1))
            hidden = (1 - update) * torch.tanh(from_x[2] + reset * from_h[2]) + update * hidden
            expected = hidden @ network.head.weight[member] + network.head.bias[member]
            torch.testing.assert_close(rewards[member, :, t], expected[:, 0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 3, 4, 5, 13])
@pytest.mark.parametrize("terminated", [False, True])
def test_an_episodes_rewards_are_the_last_ones_of_windows_in_a_slow_loop(name, steps, terminated):
    ensemble = _sequential(name, use_done=True, use_next_state=True)
    ensemble._that_fit = 12  # several passes
    observations, actions = _episode(steps)
    expected = []
    for t in range(steps):
        first = max(0, t - 3)
        ended = torch.tensor([terminated and t == steps - 1])
        inputs = ensemble.networks.encode(observations[None, first : t + 2], actions[None, first : t + 1], ended)
        with torch.no_grad():
            expected.append((ensemble.networks(inputs)[:, 0, -1] - ensemble.reward_mean) / ensemble.reward_std)
    torch.testing.assert_close(
        ensemble.episode_rewards(observations, actions, terminated), torch.stack(expected, 1), rtol=1e-4, atol=1e-5
    )


def test_without_history_an_episodes_rewards_are_those_of_its_steps() -> None:
    ensemble = _sequential("mlp", use_done=True)
    observations, actions = _episode(6)
    ended = torch.tensor([False] * 5 + [True])
    expected = ensemble.member_rewards(observations[:-1], actions, observations[1:], ended)
    assert torch.equal(ensemble.episode_rewards(observations, actions, True), expected)


def _of_products(seed: int) -> Comparisons:
    """Comparisons by a reward of each step that is the sign of the first action of its fragment times the current one."""
    pairs = some_comparisons(600, 3, seed=seed).pairs
    left, right = (np.sign(of.actions[:, :1, 0] * of.actions[:, 1:, 0]).sum(1) for of in (pairs.left, pairs.right))
    return Comparisons(pairs, (left > right).astype(np.float32))[left != right]


def test_a_fit_learns_a_reward_that_no_single_step_shows() -> None:
    seen, unseen = _of_products(1), _of_products(2)
    right = {}
    for name in ("mlp", "gru"):
        settings = RewardModelSettings(
            network=name, hidden=(32, 32), ensemble_size=1, learning_rate=1e-2, use_state=False
        )
        trainer = trainer_of(settings, seen)
        trainer.fit(200)
        assert int(trainer.ensemble.window) == (3 if name == "gru" else 1)
        right[name] = right_about(unseen, trainer.ensemble)
    assert beats(0.75, right["gru"])
    assert not beats(0.5, right["mlp"])


def test_the_window_is_part_of_a_version(tmp_path: Any) -> None:
    ensemble = _sequential("gru", window=5)
    ensemble.save(tmp_path)
    assert int(RewardEnsemble.load(tmp_path).window) == 5


def test_who_has_only_single_steps_is_refused_with_one_line() -> None:
    ensemble = _sequential("gru")
    seen = np.zeros((2, 3), np.float32)
    steps = (seen, seen[:, :2], seen, np.zeros(2, bool))
    for ask in (lambda: ensemble.predict(*steps), lambda: Predictor(ensemble), lambda: EnsembleReward(ensemble)):
        with pytest.raises(
            SettingError, match=r"reward_model.network is 'gru', which reads the steps before"
        ) as raised:
            ask()
        assert "\n" not in str(raised.value)


def test_an_uneven_transformer_is_refused() -> None:
    with pytest.raises(SettingError, match=r"reward_model\.hidden is \(64, 32\)"):
        make_network(VECTORS, FORCES, RewardModelSettings(network="transformer", hidden=(64, 32)))
