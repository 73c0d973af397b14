"""Collecting labels without training: from files, or nothing, to a store."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_ray import envs
from rlhf_ray.actors.rollout_collector import RolloutCollector
from rlhf_ray.cli.convert import run as convert
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.runs.label import _Clips, label
from rlhf_ray.settings import Experiment, FragmentSettings, LabellingSettings, SettingError
from rlhf_ray.store import PreferenceStore
from tests.labelling.person import Person
from tests.made_up import labels_in

PAGE = LabellingSettings(annotators=("ada",), port=0, catch_share=0.0)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_ray.labelling.collect.LOOK_EVERY", 0.02)


def _label(source: str, store: Path, environment: str, comparisons: int, **options: Any) -> int:
    """Label with one person at the page."""
    threads: list[threading.Thread] = []
    over = threading.Event()

    def invite(links: dict[str, str]) -> None:
        # The page is served by the thread that is here: it must not wait for itself.
        threads.append(threading.Thread(target=lambda: Person(links["ada"], store).label(over.is_set)))
        threads[0].start()

    experiment = Experiment(environment, fragments=FragmentSettings(length=8))
    try:
        return label(
            source, store, comparisons=comparisons, experiment=experiment, labelling=PAGE, invite=invite, **options
        )
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def _dots(file: Path) -> None:
    """Recorded steps of the moving dot, with random actions."""
    env = envs.make_env("rlhf_ray/MovingDot-v0")
    env.action_space.seed(0)
    steps: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
    for episode in range(3):
        observation, _ = env.reset(seed=episode)
        over = False
        while not over:
            action = env.action_space.sample()
            after, reward, terminated, truncated, _ = env.step(action)
            values = (observation, action, reward, terminated, truncated)
            for into, value in zip(steps.values(), values, strict=True):
                into.append(value)
            observation, over = after, terminated or truncated
    Demonstrations(**{name: np.array(values) for name, values in steps.items()}).save(file)


@pytest.mark.slow
def test_people_label_what_random_actions_do_from_the_first_two_clips_on_and_later_go_on(tmp_path, monkeypatch):
    filmed: list[tuple[int, bool]] = []
    film = RolloutCollector.film

    def count(self: Any, env_steps: int, clips: int, *arguments: Any, episode: bool, **options: Any) -> Any:
        filmed.append((clips, episode))
        return film(self, env_steps, clips, *arguments, episode=episode, **options)

    monkeypatch.setattr(RolloutCollector, "film", count)
    assert _label("Pendulum-v1", tmp_path / "store", "Pendulum-v1", 4) == 4
    assert filmed[0] == (2, False)  # the first pair needs no more; an episode comes later
    assert _label("Pendulum-v1", tmp_path / "store", "Pendulum-v1", 6, seed=1) == 6
    stored = labels_in(tmp_path / "store")
    assert stored.pairs.left.length == 8
    assert set(stored.pairs.left.policy_versions) == {-1}
    better = stored.pairs.left.returns() > stored.pairs.right.returns()
    assert (better == (stored.preferences == 1)).all()


@pytest.mark.soak
def test_people_label_recorded_steps_and_then_the_store_they_made(tmp_path: Path) -> None:
    _dots(tmp_path / "dots.npz")
    assert _label(str(tmp_path / "dots.npz"), tmp_path / "one", "rlhf_ray/MovingDot-v0", 5) == 5
    assert _label(str(tmp_path / "one"), tmp_path / "two", "rlhf_ray/MovingDot-v0", 4) == 4
    first, second = (PreferenceStore(tmp_path / name).events() for name in ("one", "two"))
    clips = {clip for side in ("left_id", "right_id") for clip in first[side].to_pylist()}
    assert {clip for side in ("left_id", "right_id") for clip in second[side].to_pylist()} <= clips


def test_clips_of_a_minari_data_set_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("minari", reason="the extra 'minari'")
    _dots(tmp_path / "dots.npz")
    name = "rlhf_ray/MovingDot-v0"
    convert([str(tmp_path / "dots.npz"), str(tmp_path / "dots-v0"), "--to", "minari", "--environment", name])
    config = PreferencePPOConfig.from_experiment(Experiment(name, fragments=FragmentSettings(length=8)))
    proposed = _Clips(str(tmp_path / "dots-v0"), config, 0).propose(3, 0)
    assert len(proposed[0]) == 3


def test_what_cannot_be_shown_is_refused_with_what_to_do(tmp_path: Path) -> None:
    Demonstrations(np.zeros((30, 3), np.float32), np.zeros((30, 1), np.float32), timeouts=np.arange(30) == 29).save(
        tmp_path / "steps.npz"
    )
    with pytest.raises(SettingError, match="observations are not images"):
        _label(str(tmp_path / "steps.npz"), tmp_path / "store", "Pendulum-v1", 3)
