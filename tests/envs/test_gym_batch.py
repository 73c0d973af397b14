"""Any gymnasium environment as a batch: exact states without pickle, copies that stand still, and one line if it can't."""

from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from examples.worlds import WORLDS
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.envs import make_batch
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.envs.batches import GymBatch
from tests.envs.worlds import Gives

FIELDS = ("observations", "rewards", "terminated", "truncated", "causes")


def check_states(name: str, before: int = 8, after: int = 60) -> EnvBatch:
    """States restored in another order, in another batch, repeat everything."""
    batch, other = make_batch(name, 3), make_batch(name, 3)
    batch.action_space.seed(0)
    actions = np.stack([[batch.action_space.sample() for _ in range(3)] for _ in range(before + after)])
    batch.reset([5, 6, 7])
    for t in range(before):
        seen = batch.step(actions[t]).observations
    states = batch.states()
    order = [2, 0, 1]
    np.testing.assert_array_equal(other.restore([states[i] for i in order]), seen[order])
    for t in range(before, before + after):
        ours, theirs = batch.step(actions[t]), other.step(actions[t][order])
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(theirs, field), np.array(getattr(ours, field))[order])
    other.close()
    return batch


@pytest.mark.parametrize(
    "name",
    [
        *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "fixed/CartPole-v1"),
        *(f"rlhf_ray/{name}-v0" for name in ("MovingDot", "CoinFlip", *WORLDS)),
    ],
)
def test_restored_states_repeat_everything(name: str) -> None:
    check_states(name).close()


def test_mujoco_restores_what_observations_read() -> None:
    """Ant's observations hold contact forces, and its reward reads body positions from before the step."""
    pytest.importorskip("mujoco")
    for name in ("Hopper-v5", "Ant-v5"):
        check_states(name).close()


def test_ended_copies_stand_still() -> None:
    batch = GymBatch("CartPole-v1", 2)
    last = batch.reset([0, 1])
    ended = 0
    for _ in range(60):
        step = batch.step(np.array([0, 1]))
        ended += int(step.terminated.all())
        if ended > 1:
            np.testing.assert_array_equal(step.observations, last)
            assert not step.rewards.any()
        last = step.observations
    assert ended > 10
    saved = batch.states()
    batch.reset([4, 5])
    np.testing.assert_array_equal(batch.restore(saved), last)
    assert batch.step(np.array([0, 0])).terminated.all()
    with pytest.raises(SettingError, match="has no edit 'remove_saw'"):
        batch.edit("remove_saw")
    batch.close()


NAME = "batch_test/Odd-v0"


class Odd(gym.Env[Any, Any]):
    """Has an iterator inside; ``own`` says whether it saves itself."""

    observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    action_names = ("stay", "count")

    def __init__(self, own: bool = False):
        self.numbers = iter(range(99))
        self.at = 0
        if own:
            self.get_state = lambda: bytes([self.at])
            self.set_state = self._set

    def _set(self, state: bytes) -> None:
        self.at = state[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += int(action)
        return np.array([self.at], np.float32), 1.0, self.at == 3, False, {"cause": "three"}

    def describe(self) -> dict[str, Any]:
        return {"at": self.at, "odd": self.at % 2 == 1}

    edits = {"further": "Counts one more."}  # noqa: RUF012

    def edit(self, name: str) -> Any:
        self.at += name == "further"
        return np.array([self.at], np.float32)

    def masks(self) -> dict[str, Any]:
        return {"count": np.arange(4).reshape(2, 2) < self.at}


@pytest.fixture
def odd() -> None:
    gym.register(NAME, entry_point=Odd, max_episode_steps=5)


def test_a_state_that_is_not_plain_is_one_line_unless_the_environment_saves_itself(odd: None) -> None:
    batch = GymBatch(NAME, 1)
    batch.reset([0])
    with pytest.raises(
        SettingError, match=r"batch_test/Odd-v0 can't save its state \(Odd.numbers is a range_iterator\)"
    ) as said:
        batch.states()
    assert "\n" not in str(said.value)
    own = GymBatch(NAME, 2, own=True)
    own.reset([0, 0])
    own.step(np.array([1, 0]))
    saved = own.states()
    own.step(np.array([1, 1]))
    np.testing.assert_array_equal(own.restore(saved[::-1]), [[0], [1]])
    said_now = own.describe()
    assert (said_now["at"].tolist(), said_now["odd"].tolist()) == ([0, 1], [False, True])
    for _ in range(3):
        step = own.step(np.array([0, 1]))
    assert (list(step.causes), step.terminated.tolist()) == (["", "three"], [False, True])
    step = own.step(np.array([0, 1]))
    assert step.truncated.tolist() == [True, False]  # the time limit's count is restored too
    assert own.action_names == ("stay", "count")


def test_an_environments_own_masks_and_edits_are_used(odd: None) -> None:
    batch = GymBatch(NAME, 3, own=True)
    batch.reset([0, 0, 0])
    assert batch.edit("further", np.array([True, False, True])).tolist() == [[1], [0], [1]]
    for action in ([1, 0, 0], [1, 0, 0]):
        batch.step(np.array(action))
    assert batch.edit("further").tolist() == [[3], [1], [2]]  # the first has ended
    assert batch.masks()["count"].reshape(3, 4).sum(1).tolist() == [3, 1, 2]
    with pytest.raises(SettingError, match="has no edit 'back'; it offers further"):
        batch.edit("back")


def test_unknown_names_say_the_closest() -> None:
    with pytest.raises(ValueError, match="CartPole-v1"):
        make_batch("CartPole-v11", 1)
    with pytest.raises(ValueError, match="There is no environment 'procgen/coinrun-simple'"):
        make_batch("procgen/coinrun-simple", 1)


class Tells(Gives):
    """Says about itself what its class has, and edits so."""

    said: Any = MappingProxyType({"hue": 1.0})
    edited: Any = np.ones(2, np.float32)
    edits: Any = ("paint",)

    def describe(self) -> Any:
        return self.said(self.t) if callable(self.said) else self.said

    def edit(self, name: str) -> Any:
        if isinstance(self.edited, Exception):
            raise self.edited
        return self.edited


@pytest.fixture
def tells() -> GymBatch:
    box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    gym.register("Tells-v0", entry_point=lambda: Tells(box, lambda step: np.zeros(2, np.float32)))
    batch = GymBatch("Tells-v0", 2)
    batch.reset([0, 1])
    return batch


def test_names_of_edits_may_be_a_list(tells: GymBatch) -> None:
    assert tells.edits == {"paint": ""}
    np.testing.assert_array_equal(tells.edit("paint"), np.ones((2, 2)))
    np.testing.assert_array_equal(tells.describe()["hue"], [1.0, 1.0])


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [
        ("said", {"hue": "red"}, r"Tells-v0: describe\(\)\['hue'\] is 'red'; it must be a number"),
        ("said", {"hue": None}, r"Tells-v0: describe\(\)\['hue'\] is None; it must be a number"),
        ("said", [1.0], "Tells-v0: .*returns a list; it must return a dict"),
        (
            "said",
            lambda step: {"hue": 1.0} | ({"size": 2.0} if step else {}),
            "Tells-v0: .*says size at some steps only",
        ),
        ("edited", None, "returns None; it must return the new observation"),
        ("edited", np.ones(3), r"returns an array of shape \[3\]; .*of shape \[2\]"),
        ("edited", KeyError("paint"), r"edit\('paint'\) raises KeyError"),
    ],
)
def test_what_an_environment_says_wrongly_and_an_edit_that_fails_are_named(what, value, message, tells, monkeypatch):
    monkeypatch.setattr(Tells, what, staticmethod(value) if callable(value) else value)
    with pytest.raises(FaultyEnvironmentError, match=message):  # noqa: PT012 - one of them
        tells.describe()
        tells.step(np.array([0, 0]))
        tells.describe()
        tells.edit("paint")
