"""People compare clips of what somebody else's library does in a wrapped environment."""

import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.actors.people import PageSettings
from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.envs import make_env
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.store import PreferenceStore
from rlhf_ray.wrappers import HumanPreferencesEnv, HumanPreferencesVectorEnv
from rlhf_ray.wrappers.session import WINDOW
from tests.labelling.person import Person
from tests.made_up import Drawn, Walk
from tests.wrappers.walking import act, make

PEOPLE = PreferenceSettings(
    mode="asynchronous", teacher="human", comparisons=12, initial_comparisons=6, rounds=2, schedule="constant"
)
PAGE = LabellingSettings(annotators=("ada",), port=0, catch_share=0.0, overlap_share=0.0)
FRAGMENTS = FragmentSettings(length=5, initial_env_steps=200)


def with_people(folder: Path, env: Any = None, **arguments: Any) -> HumanPreferencesEnv:
    given = {"total_env_steps": 8_000, "fragments": FRAGMENTS, "preferences": PEOPLE, "labelling": PAGE} | arguments
    return make(env or Drawn((20,), numbered=False), folder=folder, **given)


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_people_are_shown_what_the_agent_does_and_the_reward_is_what_they_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = Drawn((20,), numbered=False)
    small = RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5)
    with with_people(tmp_path, drawn, reward_model=small) as env:
        env.action_space.seed(0)
        act(env, 2 * WINDOW)
        env.save(tmp_path / "early")  # waits for nobody
        assert "6 of 6 due labels are missing" in caplog.text
        person, stopped = Person(env.links["ada"], tmp_path / "preferences"), threading.Event()
        thread = person.start(stopped.is_set)
        env.reset(seed=0)
        steps, deadline = 2 * WINDOW, time.monotonic() + 200
        while env.status()["comparisons"] < 12 or env.status()["reward_version"] < 1:
            assert time.monotonic() < deadline, env.status()
            *_, terminated, truncated, info = env.step(env.action_space.sample())
            steps += 1
            if terminated or truncated:
                env.reset()
            time.sleep(0.002)
        assert info["true_reward"] <= 0
        assert drawn.drawn < 0.4 * steps  # but for the first clips, only some stretches are drawn
        stopped.set()
        thread.join(30)
    stored = PreferenceStore(tmp_path / "preferences").load()
    assert stored is not None
    assert set(stored.annotators) == {"ada"}
    assert ((stored.pairs.left.returns() > stored.pairs.right.returns()) == (stored.preferences == 1)).all()
    steps_of = stored.pairs.left.observations[:, :, 0]
    assert (np.diff(steps_of, axis=1) == 1).all()


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_people_are_asked_about_the_first_two_clips_while_others_are_made(tmp_path: Path) -> None:
    with with_people(tmp_path, total_env_steps=20_000) as env:
        person = Person(env.links["ada"], tmp_path / "preferences")
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(48):  # of 200
            *_, truncated, _ = env.step(env.action_space.sample())
            if truncated:
                env.reset()
        deadline = time.monotonic() + 60
        while person.question() is None:
            assert time.monotonic() < deadline, "no question after 48 steps"
            time.sleep(0.1)


@pytest.mark.usefixtures("in_process")
def test_a_vector_environment_has_a_page_with_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[PageSettings] = []
    monkeypatch.setattr("rlhf_ray.wrappers.learning.start_people", lambda *given: pages.append(given[2]))
    asked = LabellingSettings(annotators=("ada", "bob"), instructions="Which dot is nearer?", port=0)
    envs = gym.vector.SyncVectorEnv([lambda: make_env("rlhf_ray/MovingDot-v0")] * 2)
    with HumanPreferencesVectorEnv(
        envs, total_env_steps=8_000, fragments=FRAGMENTS, preferences=PEOPLE, folder=tmp_path, labelling=asked
    ):
        (page,) = pages
        assert page.settings == asked
        assert set(Sessions.load(page.sessions).people) == {"ada", "bob"}
        assert page.fps == envs.metadata.get("render_fps", 15)


def test_what_cannot_be_shown_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="render_mode='rgb_array'"):
        HumanPreferencesEnv(Walk(), total_env_steps=1000, preferences=PEOPLE, folder=tmp_path)
    copies = gym.vector.SyncVectorEnv([Walk, Walk])
    with pytest.raises(SettingError, match="share\\(\\)"):
        HumanPreferencesVectorEnv(copies, total_env_steps=1000, preferences=PEOPLE, folder=tmp_path)


@pytest.mark.usefixtures("in_process")
def test_an_odd_picture_is_named_at_the_first_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Floats(Drawn):
        def render(self) -> Any:
            return super().render() / 255

    monkeypatch.setattr("rlhf_ray.wrappers.learning.start_people", lambda *given: None)
    env = with_people(tmp_path, Floats((20,), numbered=False))
    env._session.films = True  # as with a page
    with env, pytest.raises(FaultyEnvironmentError, match=r"Floats.*: render\(\) returned float64 of shape"):
        env.reset(seed=0)
