"""Arrays of all shapes and dtypes, and environments of all spaces, at the commands that read them: success, or one clear line."""

from __future__ import annotations

import contextlib
import io
import itertools
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_ray import cli
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recording_writer import write_episodes
from rlhf_ray.data.recordings import load_demonstrations, load_transitions, open_episodes
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import RewardModelSettings

OBSERVED, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
N, LENGTH = 24, 6
SMALL = "--reward-model.hidden 3 --reward-model.ensemble-size 1"


def arrays(observations: tuple[int, ...] = (3,), dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    seen = (rng.uniform(0, 1, (N + 1, *observations))).astype(dtype)
    at = np.arange(N)
    return {
        "observations": seen[:-1],
        "next_observations": seen[1:],
        "actions": rng.integers(3, size=N),
        "rewards": rng.normal(size=N),
        "terminals": at % (2 * LENGTH) == 2 * LENGTH - 1,
        "timeouts": at % LENGTH == LENGTH - 1,
    }


def said_by(words: list[str]) -> str:
    """Run a command in this process; return its one line, or nothing after success."""
    err, before = io.StringIO(), signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            cli.main(words)
        return ""
    except SystemExit as ended:
        code = ended.code
    finally:
        signal.signal(signal.SIGTERM, before)
    line = err.getvalue().strip()
    assert code == 2, line
    assert len(line.splitlines()) == 1, line
    assert line.startswith("rlhf-ray: "), line
    assert not any(word in line for word in ("unexpected", "raised", "Traceback", "bug report")), line
    return line


def columns_of(name: str, *shapes: Any) -> dict[str, dict[str, Any]]:
    values = arrays()[name]
    return {f"{name} {np.shape(shape(values))}": {name: shape(values)} for shape in shapes}


SAME = {
    **columns_of("rewards", lambda of: of[:, None], lambda of: of[:, None, None]),
    **columns_of("terminals", lambda of: of[:, None], lambda of: of.astype(np.float32)[:, None]),
    **columns_of("timeouts", lambda of: of[:, None]),
    **columns_of("actions", lambda of: of[:, None], lambda of: of.astype(np.uint8)[:, None, None]),
}
"""Other shapes of the same steps."""

REFUSED = {
    **columns_of("rewards", lambda of: of[None], lambda of: np.stack([of, of], 1)),
    **columns_of("terminals", lambda of: of[None], lambda of: of + 0.5),
    "actions one too large": {"actions": np.full(N, 3)},
    "actions below 0": {"actions": np.full(N, -1)},
    "actions that are floats": {"actions": np.zeros(N, np.float32)},
    "actions of no number": {"actions": np.zeros((N, 0))},
    "observations of no number": {"observations": np.zeros((N, 0)), "next_observations": np.zeros((N, 0))},
    "observations of another size": {"observations": np.zeros((N, 2)), "next_observations": np.zeros((N, 2))},
    "observations NaN": {"observations": np.full((N, 3), np.nan, np.float32)},
    "texts": {"rewards": np.array(["good"] * N)},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    RewardEnsemble(OBSERVED, CHOICES, RewardModelSettings(hidden=(3,), ensemble_size=1)).save(folder)
    return folder


def commands(file: Path, model: Path, out: Path) -> dict[str, list[str]]:
    lines = {
        "convert": f"convert {file} {out}/converted.npz --to demonstrations",
        "label": f"label {file} --store {out}/s --teacher oracle --comparisons 3 --fragments.length 3",
        "fit": f"fit --from-rewards {file} --environment Three-v0 --out {out}/f --supervised.epochs 1 {SMALL}",
        "interpret": f"interpret reward --model {model} --data {file} --out {out}/i --steps header --effort 0.05",
        "preprocess": f"interpret preprocess {model} --data {file} --out {out}/p",
    }
    return {name: line.split() for name, line in lines.items()}


@pytest.mark.parametrize("kind", SAME)
def test_columns_are_read_as_flat_arrays_by_each_command(tmp_path: Path, model: Path, kind: str) -> None:
    np.savez(tmp_path / "d.npz", **{**arrays(), **SAME[kind]})
    np.savez(tmp_path / "flat.npz", **arrays())
    ours, flat = (load_transitions(tmp_path / name) for name in ("d.npz", "flat.npz"))
    for name in ("rewards", "terminated", "episodes", "actions"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(flat, name))
    for words in commands(tmp_path / "d.npz", model, tmp_path).values():
        assert said_by(words) == ""


@pytest.mark.parametrize("kind", REFUSED)
def test_each_command_takes_or_refuses_other_arrays_in_one_line(tmp_path: Path, model: Path, kind: str) -> None:
    np.savez(tmp_path / "d.npz", **{**arrays(), **REFUSED[kind]})
    said = {name: said_by(words) for name, words in commands(tmp_path / "d.npz", model, tmp_path).items()}
    assert said["interpret"]
    assert said["preprocess"]


SHAPES = [(), (1,), (0,), (3,), (2, 3), (16, 16), (18, 16, 3), (3, 18, 16), (2, 16, 16, 1)]
DTYPES = ["bool", "int8", "uint8", "int64", "float16", "float32", "float64", "complex64", "U3", "O", "M8[s]"]
NAMES = list(arrays())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_readers_return_whole_steps_or_one_line(tmp_path: Path, data: st.DataObject) -> None:
    made = arrays(data.draw(st.sampled_from(SHAPES)), data.draw(st.sampled_from(DTYPES[:7])))
    for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True)):
        kind = data.draw(st.sampled_from(["shape", "dtype", "length", "missing", "value"]))
        if kind == "missing":
            del made[name]
        elif kind == "shape":
            made[name] = np.ones((N, *data.draw(st.sampled_from(SHAPES))), made[name].dtype)
        elif kind == "dtype":
            zeros = np.zeros(made[name].shape, data.draw(st.sampled_from(DTYPES)))
            made[name] = zeros if zeros.dtype.kind != "O" else np.zeros(made[name].shape, "U1")
        elif kind == "length":
            made[name] = made[name][: data.draw(st.integers(0, N - 1))]
        else:
            made[name] = made[name].astype(np.float64)
            made[name][..., :1] = data.draw(st.sampled_from([np.nan, np.inf, -1.0, 1e30]))
    file = tmp_path / "d.npz"
    np.savez(file, **made)
    number = next(n for n in itertools.count() if not (tmp_path / f"{n}").exists())
    try:
        steps = load_transitions(file)
        whole = load_demonstrations(file).trajectories()
        write_episodes(open_episodes(file), tmp_path / f"{number}", "imitation")
        again = load_demonstrations(tmp_path / f"{number}")
    except SettingError as refused:
        if "\n" in str(refused):
            raise
        return
    assert steps.rewards.shape == steps.terminated.shape == (len(steps),)
    assert sum(map(len, whole)) == len(steps) == len(again)
    np.testing.assert_array_equal(again.actions, steps.actions)
    assert steps.observations.shape == steps.next_observations.shape


# Environments

PICTURE = spaces.Box(0, 255, (18, 16, 3), np.uint8)
OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (2,), np.float64),
    "number": spaces.Box(-1, 1, ()),
    "three": OBSERVED,
    "nothing": spaces.Box(-1, 1, (0,)),
    "flags": spaces.Box(0, 1, (3,), bool),
    "small picture": spaces.Box(0, 255, (5, 5, 3), np.uint8),
    "picture": PICTURE,
    "channels first": spaces.Box(0, 255, (3, 18, 16), np.uint8),
    "unbounded picture": spaces.Box(-np.inf, np.inf, (18, 16, 3)),
    "choice": spaces.Discrete(4, start=2),
    "choices": spaces.MultiDiscrete([2, 3]),
    "nested": spaces.Dict(a=spaces.Dict(b=spaces.Box(-1, 1, (2,))), c=spaces.MultiBinary(2)),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1, 2))]),
    "told": spaces.Dict(picture=PICTURE, told=spaces.Text(9)),
    "pictures": spaces.Dict(a=PICTURE, b=spaces.Box(0, 255, (20, 20, 3), np.uint8)),
    "text": spaces.Text(4),
    "sequence": spaces.Sequence(spaces.Discrete(2)),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    "one of": spaces.OneOf([spaces.Discrete(2), spaces.Box(-1, 1, (1,))]),
}
ACTIONS = {
    "choice": spaces.Discrete(3),
    "from 1": spaces.Discrete(3, start=1),
    "choices": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "switches": spaces.MultiBinary(3),
    "matrix": spaces.Box(-1, 1, (2, 2)),
    "nothing": spaces.Box(-1, 1, (0,)),
    "whole numbers": spaces.Box(0, 5, (2,), np.int64),
    "dict": spaces.Dict(a=spaces.Discrete(2)),
    "tuple": spaces.Tuple([spaces.Discrete(2)]),
    "text": spaces.Text(4),
    "sequence": spaces.Sequence(spaces.Discrete(2)),
}
NOT_RECORDED = {"nothing", "told", "pictures", "text", "sequence", "graph", "one of"}


class Drawn(gym.Env[Any, Any]):
    """Draws its observations."""

    def __init__(self, observations: str, actions: str):
        self.observation_space, self.action_space = OBSERVATIONS[observations], ACTIONS[actions]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        return self.observation_space.sample(), 1.0, False, False, {}


gym.register("Three-v0", lambda: Drawn("three", "choice"), max_episode_steps=4)


@pytest.mark.parametrize(
    ("observations", "actions"),
    [*((each, "choice") for each in OBSERVATIONS), *(("vector", each) for each in list(ACTIONS)[1:])],
)
def test_environments_of_all_spaces_are_recorded_or_refused_in_one_line(
    tmp_path: Path, observations: str, actions: str
) -> None:
    name = f"Drawn-{observations}-{actions}-v0".replace(" ", "")
    if name not in gym.registry:
        gym.register(name, lambda: Drawn(observations, actions), max_episode_steps=4)
    said = said_by(["record", name, "--out", str(tmp_path / "r"), "--episodes", "2"])
    refused = observations in NOT_RECORDED or actions in ("nothing", "dict", "tuple", "text", "sequence")
    assert bool(said) == refused
    if refused:
        assert f"Environment {name!r} has the " in said
        return
    assert len(load_transitions(tmp_path / "r")) == 8
    for to in ("demonstrations", "imitation"):
        out = tmp_path / f"{to}{'.npz' if to == 'demonstrations' else ''}"
        assert said_by(["convert", str(tmp_path / "r"), str(out), "--to", to]) == ""
        assert len(load_transitions(out)) == 8
