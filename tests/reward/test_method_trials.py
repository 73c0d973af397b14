"""A trial of a user's own method, network or teacher: each mistake is one line that names the setting and the part."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies.env_actions import to_env_actions_tensor
from rlhf_ray.reward.methods import FitLabels, FitMethod, make_methods
from rlhf_ray.reward.methods.trial import try_out
from rlhf_ray.reward.networks import make_network
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.teachers import TEACHERS

SPACES = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(4)


def method(**hooks: Any) -> FitMethod:
    made: FitMethod = type("Own", (FitMethod,), hooks)()
    return made


def revising(change: Any) -> FitMethod:
    return method(revises=True, revise=lambda self, labels: change(labels))


MISTAKES: dict[str, tuple[FitMethod, str]] = {
    "nothing": (revising(lambda labels: None), "revise.*return FitLabels"),
    "fewer weights": (revising(lambda of: dataclasses.replace(of, weights=of.weights[1:])), "revise.*shape"),
    "negative weights": (revising(lambda of: dataclasses.replace(of, weights=-of.weights)), "weights of 0 or more"),
    "large preferences": (revising(lambda of: dataclasses.replace(of, preferences=3 * of.preferences)), "from 0 to 1"),
    "NaN weights": (revising(lambda of: dataclasses.replace(of, weights=of.weights * float("nan"))), "finite weights"),
    "raises": (revising(lambda of: 1 / 0), "revise.*ZeroDivisionError"),
    "revise that is never called": (method(revise=lambda self, labels: labels), "revises"),
    "revises without revise": (method(revises=True), "revises"),
    "steps": (method(steps=lambda self, pairs, length, generator: torch.ones(pairs, length)), "steps.*shape"),
    "a ratio without a loss": (method(unlabelled_ratio=2), "unlabelled_ratio"),
    "a scalar loss": (
        method(unlabelled_ratio=2, unlabelled_loss=lambda self, differences, whole: differences.mean()),
        "unlabelled_loss.*shape",
    ),
    "a constant loss": (
        method(unlabelled_ratio=2, unlabelled_loss=lambda self, differences, whole: whole.mean(1)),
        "depends on differences",
    ),
    "a text as weight": (method(deviation_weight=lambda self, progress: "much"), "deviation_weight"),
    "a NaN weight": (method(deviation_weight=lambda self, progress: float("nan")), "deviation_weight"),
    "metrics": (method(metrics=lambda self: 5), "metrics"),
    "metrics of objects": (method(metrics=lambda self: {"a": object()}), "metrics"),
    "state": (method(state=lambda self: {"a": lambda: 0}), "state.*JSON"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_method_is_a_line_that_names_it(mistake: str) -> None:
    wrong, said = MISTAKES[mistake]
    with pytest.raises(SettingError, match=rf"reward_model\.methods has 'my:Own'.*{said}") as found:
        try_out("my:Own", wrong, members=3)
    assert "\n" not in str(found.value)


class Counts(FitMethod):
    """Right, with a state."""

    revises = True
    unlabelled_ratio = 1

    def __init__(self) -> None:
        self.passes = 0

    def revise(self, labels: FitLabels) -> FitLabels:
        self.passes += 1
        return dataclasses.replace(labels, weights=labels.weights * 0.5)

    def unlabelled_loss(self, differences: torch.Tensor, whole: torch.Tensor) -> torch.Tensor | None:
        return (differences**2).mean(1)

    def state(self) -> dict[str, Any]:
        return {"passes": self.passes}


def test_a_trial_leaves_the_method_and_torch_s_generator_as_they_were() -> None:
    of = Counts()
    before = torch.get_rng_state()
    (made,) = make_methods(RewardModelSettings(methods=(of,)))  # type: ignore[arg-type]
    assert isinstance(made, Counts)
    assert made.passes == 0
    assert torch.equal(before, torch.get_rng_state())


class Whole(nn.Module):
    """Rewards all steps of a fragment by its sum."""

    reads_history = False

    def __init__(self, settings: RewardModelSettings):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(settings.ensemble_size, 1, 1))

    def encode(self, observations: torch.Tensor, actions: torch.Tensor, terminated: torch.Tensor) -> dict[str, Any]:
        return {"seen": observations[:, 1:, 0]}

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.weight * self.summed(inputs["seen"])

    def summed(self, seen: torch.Tensor) -> torch.Tensor:
        return seen.cumsum(-1)


class Honest(Whole):
    reads_history = True


class Future(Honest):
    def summed(self, seen: torch.Tensor) -> torch.Tensor:
        return seen.flip(-1).cumsum(-1).flip(-1)


class EncodesWithWeights(Honest):
    def encode(self, observations: torch.Tensor, actions: torch.Tensor, terminated: torch.Tensor) -> dict[str, Any]:
        return {"seen": observations[:, 1:, 0] * self.weight.mean()}


class NotFinite(Honest):
    def summed(self, seen: torch.Tensor) -> torch.Tensor:
        return seen * float("nan")


class OneHot(nn.Module):
    """As the documentation recommends for Discrete actions."""

    reads_history = False

    def __init__(self, observation_space: gym.spaces.Box, action_space: gym.spaces.Discrete):
        super().__init__()
        self.actions = int(action_space.n)
        self.linear = nn.Linear(observation_space.shape[0] + self.actions, 1)

    def forward(self, observations: Any, actions: Any, next_observations: Any, terminated: Any) -> Any:
        one_hot = nn.functional.one_hot(actions, self.actions)
        return self.linear(torch.cat([observations, one_hot], 1)).squeeze(1)


class SaysHistory(OneHot):
    reads_history = True


def network(kind: type) -> Any:
    return make_network(*SPACES, RewardModelSettings(network=kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Whole, "reads_history = True"),
        (Future, "a later one"),
        (EncodesWithWeights, r"encode\(\) depends on parameters"),
        (NotFinite, "NaN or infinite"),
        (SaysHistory, r"no encode\(\)"),
    ],
)
def test_a_network_that_breaks_its_contract_is_refused(kind: type, said: str) -> None:
    with pytest.raises(SettingError, match=rf"reward_model\.network.*{said}"):
        network(kind)


def test_networks_that_keep_it_are_taken() -> None:
    assert network(Honest).reads_history
    network(OneHot)


@pytest.mark.parametrize("name", [3, ""])
def test_a_teacher_s_name_is_a_text(name: Any) -> None:
    teacher = type("Named", (), {"name": name, "answer": lambda self, pairs, rng: None})()
    settings = PreferenceSettings(teacher=teacher)
    with pytest.raises(SettingError, match=r"preferences\.teacher.*whose name is"):
        TEACHERS.make(settings.teacher, settings=settings)


def test_only_presets_are_joined() -> None:
    settings = PreferenceSettings(teacher="my_parts:Mine+mistake")
    with pytest.raises(SettingError, match=r"'my_parts:Mine' can't be joined by \+"):
        TEACHERS.make(settings.teacher, settings=settings)


def test_a_network_gets_int64_actions_in_the_learner_too() -> None:
    actions = to_env_actions_tensor(torch.tensor([0, 3], dtype=torch.int32), SPACES[1])  # RLlib's batches have int32
    assert actions.dtype == torch.int64
    made = network(OneHot).networks[0]
    assert made(torch.zeros(2, 3), actions, torch.zeros(2, 3), torch.zeros(2, dtype=torch.bool)).shape == (2,)
