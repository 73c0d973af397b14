"""Identity: the same code and data have it in every process; other code, weights, closures or globals have another."""

import functools
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.identity import identify, own_code
from tests.command_line import run_python

MODULE = """
import enum, functools, logging, dataclasses
import numpy as np, torch
import helper

logger = logging.getLogger(__name__)
SCALE = {scale}
WEIGHTS = np.arange(3.0) * SCALE


class Kind(enum.Enum):
    A = 1


@dataclasses.dataclass
class Base:
    gain: float = {gain}

    def paid(self, x):
        return self.gain * x if x not in {{"left", "right", "up"}} else 0


class Own(Base):
    __slots__ = ("held",)
    layer = torch.nn.Linear(2, 1).requires_grad_(False)
    layer.weight.fill_({weight})
    layer.bias.fill_(0)

    @functools.cached_property
    def cached(self):
        return helper.shift(1)

    @staticmethod
    def plain():
        return Kind.A, logger


@functools.lru_cache
def remembered(x):
    return x + {cached}


def closed(sign):
    def inner(x, *, most=3):
        return [(lambda y: sign * y + SCALE)(each) for each in (x, WEIGHTS[0], remembered(2), most)]
    return inner


PARTS = closed({sign}), Own(), Own, functools.partial(closed({sign}), most=4), torch.arange({scale} + 1.0)
"""
CHANGES = ({}, {"scale": 2}, {"gain": 3.0}, {"weight": 0.25}, {"cached": 2}, {"sign": -1}, {"helper": "x + 1"})
SAID = """
import sys
from rlhf_ray.data.identity import identify
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    import made
    print(identify(*made.PARTS))
    for name in ("made", "helper"):
        del sys.modules[name]
"""


@pytest.mark.slow
def test_each_process_finds_the_same_identity_and_each_change_another(tmp_path):
    folders = [tmp_path / str(number) for number in range(len(CHANGES))]
    for folder, change in zip(folders, CHANGES, strict=True):
        values = {"scale": 1, "gain": 2.0, "weight": 0.5, "cached": 1, "sign": 1, "helper": "x"} | change
        folder.mkdir()
        (folder / "helper.py").write_text(f"def shift(x): return {values['helper']}")
        (folder / "made.py").write_text(MODULE.format(**values))
    said = []
    for seed in ("1", "2"):  # of the order of sets; the second process reads compiled files
        path = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}
        said.append(run_python(SAID, *folders, env=path).stdout.split())
    assert said[0] == said[1]
    assert len(set(said[0])) == len(CHANGES)


def scaled(by: float, offset: object = None) -> object:
    return lambda x, power=2: by * x**power


class Mean:
    def __init__(self, gain: float):
        self.gain = gain
        self.itself = self

    def of(self, x: float) -> float:
        return self.gain * x


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (scaled(1.0), scaled(-1.0)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: np.sin(x), lambda x: np.cos(x)),
        (Mean(1).of, Mean(2).of),
        (functools.partial(scaled, 1), functools.partial(scaled, 2)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (np.zeros(2), np.array([0, 1e-300])),
        ({"a": 1}, {"a": 1.0}),
        ([[], 1], [[1]]),
        (gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 2, (2,))),
        (gym.envs.registration.EnvSpec("A-v0", scaled(1)), gym.envs.registration.EnvSpec("A-v0", scaled(2))),
    ],
)
def test_what_does_something_else_has_another_identity(first, second):
    assert identify(first) == identify(first)
    assert identify(first) != identify(second)


def test_the_same_code_made_twice_is_the_same():
    assert identify(scaled(1.0)) == identify(scaled(1.0))
    assert identify(Mean(1)) == identify(Mean(1))
    space = gym.spaces.Box(-1, 1, (2,))
    before = identify(space)
    space.sample()
    assert identify(space) == before


def test_what_cannot_be_identified_is_never_the_same():
    locked = Mean(1)
    locked.lock = threading.Lock()  # type: ignore[attr-defined]
    assert identify(locked) != identify(locked)


def test_own_code_is_what_is_loaded_and_what_it_imports(tmp_path, monkeypatch):
    for name, text in (("mine_a", "def f():\n    import mine_b"), ("mine_b", "X = 1"), ("mine_c", "X = 1")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("mine_a")
    before = own_code()
    (tmp_path / "mine_c.py").write_text("X = 2")  # nothing imports it
    assert own_code() == before
    (tmp_path / "mine_b.py").write_text("X = 2")
    assert own_code() != before
    monkeypatch.delitem(sys.modules, "mine_a")
