"""A part of the user's own that raises: one line names it, and a resumed run goes on where it was."""

from __future__ import annotations

import importlib
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rlhf_ray.data.checkpoints import all_checkpoints
from rlhf_ray.data.errors import FaultyEnvironmentError, PartError, SettingError
from rlhf_ray.data.failures import blaming, explain
from rlhf_ray.data.seeds import generator
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.train import _resumable
from rlhf_ray.settings import Experiment, PreferenceSettings, RewardModelSettings
from tests.actors.rings import at, ring_in
from tests.made_up import wait_for

PARTS = """
import numpy as np
import torch
from torch import nn

from rlhf_ray.data.comparisons import Comparisons

broken = False
asked = []


def fail(what):
    if broken:
        raise ConnectionError(f"{what}: no route to host\\nsecond line")


class Service:
    def __init__(self, commit):
        self.commit = commit

    def ask(self, number, pairs):
        asked.append((number, tuple(pairs.ids)))
        some = pairs[np.arange(len(pairs) // 2)] if broken else pairs
        self.commit(Comparisons(some, np.ones(len(some), np.float32)))
        fail("service")


class Critic:
    name = "critic"

    def answer(self, pairs, rng):
        fail("critic")
        return np.ones(len(pairs), np.float32)


class Chooser:
    needs_reward = False

    def score(self, candidates, rng):
        fail("chooser")
        return rng.random(len(candidates.index))


class Net(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.weight = nn.Linear(observation_space.shape[0], 1)

    def forward(self, observation, action, next_observation, terminated):
        fail("net")
        return self.weight(observation).squeeze(-1)


def doubled(differences, preferences, label_noise):
    fail("doubled")
    return 2 * nn.functional.binary_cross_entropy_with_logits(differences, preferences.expand_as(differences), reduction="none")
"""
RAISED = "and it raised ConnectionError: {}: no route to host ("
REWARD_MODEL: dict[str, Any] = {
    "hidden": (8,),
    "batch_size": 4,
    "initial_updates": 10,
    "updates": 5,
    "ensemble_size": 2,
}
PREFERENCES: dict[str, Any] = {
    "mode": "asynchronous", "comparisons": 20, "initial_comparisons": 6, "rounds": 4, "schedule": "constant"
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "failing_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("failing_parts")
    sys.modules.pop("failing_parts", None)


def keep_training(ring: Any) -> None:
    for _ in range(500):
        ring.advance(at(0.5, 500))
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("setting", "name", "what"),
    [
        ("preferences.gatherer", "Service", "service"),
        ("preferences.teacher", "Critic", "critic"),
        ("preferences.selection", "Chooser", "chooser"),
        ("reward_model.network", "Net", "net"),
        ("reward_model.loss", "doubled", "doubled"),
    ],
)
def test_a_part_that_raises_beside_the_training_is_named_and_its_ring_goes_on_from_a_checkpoint(
    tmp_path: Path, own: ModuleType, setting: str, name: str, what: str
) -> None:
    group, _, field = setting.partition(".")
    chosen = {field: f"failing_parts:{name}"}
    preferences = PreferenceSettings(**PREFERENCES, **(chosen if group == "preferences" else {}))
    reward_model = RewardModelSettings(**REWARD_MODEL, **(chosen if group == "reward_model" else {}))
    with ring_in(tmp_path, preferences, reward_model=reward_model) as ring:
        ring.begin(200)
        own.broken = True  # type: ignore[attr-defined]
        with pytest.raises(PartError) as failed:
            keep_training(ring)
        said = str(failed.value)
        assert said.startswith(f"{setting} is 'failing_parts:{name}', {RAISED.format(what)}")
        assert "\n" not in said
        assert "failing_parts.py, line " in said
        assert pickle.loads(pickle.dumps(failed.value)).args == failed.value.args  # noqa: S301 - between processes
        with pytest.raises(PartError):
            ring.check()
        (tmp_path / "checkpoint").mkdir()
        ring.save(tmp_path / "checkpoint")
    own.broken = False  # type: ignore[attr-defined]
    with ring_in(tmp_path, preferences, reward_model=reward_model) as again:
        again.load(tmp_path / "checkpoint")

        def done() -> bool:
            again.advance(at(1.0, 1000))
            return again.answered >= 20 and not again.metrics()["stages"]["fitting_queue"]

        wait_for(done)
        assert again.answered == 20
    if name == "Service":
        pairs: dict[int, set[tuple[str, ...]]] = {}
        for number, ids in own.asked:
            pairs.setdefault(number, set()).add(ids)
        assert all(len(of) == 1 for of in pairs.values()), "a number stands for its pairs alone"
        assert len(own.asked) == len(pairs) + 1, "the questions that were open came again"


def test_a_run_that_starts_anew_gives_other_pairs_other_numbers(tmp_path: Path, own: ModuleType) -> None:
    preferences = PreferenceSettings(**PREFERENCES, gatherer="failing_parts:Service")
    with ring_in(tmp_path, preferences) as ring:
        ring.begin(200)
    with ring_in(tmp_path, preferences, seed=1, begun_after=0) as ring:  # killed before its first checkpoint
        ring.begin(200)
        ring.advance(at(0.5, 500))
        wait_for(lambda: ring.answered >= 13)
    numbers = [number for number, _ in own.asked]
    assert len(numbers) >= 2
    assert len(set(numbers)) == len(numbers)


def test_only_a_users_code_is_blamed(own: ModuleType) -> None:
    own.broken = True  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError), blaming({"preferences.teacher": "oracle"}):
        own.Critic().answer([], None)
    with pytest.raises(ValueError, match="not in tuple"), blaming({"preferences.teacher": "failing_parts:Critic"}):
        generator(0, "unknown")  # our own code raises
    with pytest.raises(SettingError), blaming({"preferences.teacher": "failing_parts:Critic"}):
        raise SettingError("says it all")
    both = {"preferences.gatherer": "failing_parts:Service", "preferences.teacher": "failing_parts:Critic"}
    with pytest.raises(PartError, match=r"^preferences\.teacher is 'failing_parts:Critic', and"), blaming(both):
        own.Critic().answer([], None)


def run_in(path: Path, mode: Any, iteration: int, save: Callable[[Path], Any]) -> tuple[Any, RunFolder]:
    """The algorithm of a run after so many iterations, and the run's folder."""
    experiment = Experiment(preferences=PreferenceSettings(mode=mode))
    config = SimpleNamespace(checked=SimpleNamespace(experiment=experiment))
    algorithm = SimpleNamespace(training_iteration=iteration, config=config, save_to_path=save)
    return algorithm, RunFolder.create(path / "run", experiment)


@pytest.mark.parametrize(
    ("mode", "iteration", "saved"), [("asynchronous", 3, True), ("asynchronous", 0, False), ("synchronous", 3, False)]
)
def test_a_run_says_how_to_continue_and_is_saved(tmp_path: Path, mode: Any, iteration: int, saved: bool) -> None:
    algorithm, folder = run_in(tmp_path, mode, iteration, lambda path: (path / "state").write_text("weights"))
    with pytest.raises(PartError) as failed, _resumable(algorithm, folder):
        raise PartError("preferences.gatherer is 'my:Service', and it raised TimeoutError.")
    said = explain(failed.value)
    assert f"continue with `rlhf-ray train --resume {folder.path}`." in said
    assert said.endswith("--debug shows the full traceback.")
    assert ("The run is saved at iteration 3" in said) is saved
    assert [path.name for path in all_checkpoints(folder.checkpoints)] == (["00000003"] if saved else [])


def test_after_an_error_of_the_environment_the_run_says_how_to_continue(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    with pytest.raises(FaultyEnvironmentError) as failed, _resumable(SimpleNamespace(), folder):  # type: ignore[arg-type]
        raise RuntimeError("a task failed") from FaultyEnvironmentError("Mine-v0: step() raised. Fix the environment.")
    told = f"Mine-v0: step() raised. Fix the environment. `rlhf-ray train --resume {folder.path}` continues the run."
    assert explain(failed.value) == told


def test_a_full_disk_does_not_hide_the_part(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    of_run, said = run_in(tmp_path, "asynchronous", 3, full), r"^my:Service raised\. Mend it and continue with"
    with pytest.raises(PartError, match=said), _resumable(*of_run):
        raise PartError("my:Service raised.")
