"""Rewards that read the steps before: recurrent and transformer networks, and their use on episodes."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import EnsembleReward
from rlhf_ray.reward.networks import make_network
from rlhf_ray.reward.predictor import Predictor
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, beats, right_about, some_comparisons, some_fragments
from tests.reward.fits import trainer_of

NAMES = ["gru", "transformer"]


def _ensemble(name: str, window: int = 4, observations: gym.spaces.Box = VECTORS, **settings: Any) -> RewardEnsemble:
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
    ensemble = _ensemble(name, use_done=True, use_next_state=True)
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
    ensemble = _ensemble("mlp", use_done=True)
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
    ensemble = _ensemble("gru", window=5)
    ensemble.save(tmp_path)
    assert int(RewardEnsemble.load(tmp_path).window) == 5


def test_who_has_only_single_steps_is_refused_with_one_line() -> None:
    ensemble = _ensemble("gru")
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
