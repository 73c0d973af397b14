"""A gatherer that wants films gets what people would see, of every fragment that it is asked about."""

import dataclasses
import logging
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from examples.own_gatherer import Looks
from rlhf_ray.actors.fragment_source import Filming
from rlhf_ray.actors.gatherer import ShownFrames
from rlhf_ray.actors.ring_actors import FILMS
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.labelling.films import film, frames_of
from rlhf_ray.queries.gatherers import wants_films
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.settings import FragmentSettings, PreferenceSettings
from tests.actors.rings import at, ring_in
from tests.made_up import Drawn, labels_in, some_fragments

DRAWN = partial(Drawn, (20,), numbered=False)
FRAGMENTS = FragmentSettings(length=5, pool=60, initial_env_steps=200, film_env_steps=40)
PREFERENCES = PreferenceSettings(comparisons=12, initial_comparisons=6, rounds=3, held_out_share=0.2)


class FarRight(Looks):
    """Prefers the walk that is further right, which it sees: the column of a film's darkest pixels."""

    seen: ClassVar[list[Any]] = []

    def ask(self, number: int, pairs: Pairs) -> None:
        FarRight.seen.append((pairs, self.films(pairs.left), self.films(pairs.right)))
        super().ask(number, pairs)

    def score(self, film: Any) -> float:
        return float(film.mean((0, 1, 3)).argmin())


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_it_sees_each_fragment_and_its_answers_are_learned_from(tmp_path: Path, mode: Any) -> None:
    FarRight.seen.clear()
    preferences = dataclasses.replace(PREFERENCES, mode=mode, gatherer=FarRight)
    assert wants_films(preferences)
    with ring_in(tmp_path, preferences, fragments=FRAGMENTS, make_env=DRAWN) as ring:
        assert isinstance(ring.source, Filming)
        assert ring.begin(200) is not None
        for number in range(1, 4):
            ring.advance(at(number / 3, push=0.1 * number, iteration=number, env_steps=200 + 100 * number))
            if mode == "asynchronous":
                ring.settle()
        assert ring.version > 1
        assert ring.env_steps > 200
    stored = labels_in(tmp_path / "store")
    assert set(stored.annotators) == {"looks"}
    for pairs, left, right in FarRight.seen:
        for side, films in ((pairs.left, left), (pairs.right, right)):
            assert [made.shape for made in films] == [(6, 40, 60, 3)] * len(side)
            for frames, observations in zip(films, side.observations, strict=True):
                columns = np.clip(30 + 5 * observations[:, 2], 0, 59).astype(int)
                assert np.abs(frames.mean((1, 3)).argmin(1) - columns).max() <= 1
    assert (tmp_path / FILMS).is_dir()


def test_frames_come_back_from_a_film_and_from_images() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (7, 20, 30, 3), dtype=np.uint8)
    assert np.array_equal(frames_of(film("a" * 64, frames, pixelated=True)), frames)
    images = some_fragments(3, observations=gym.spaces.Box(0, 255, (20, 30, 3), np.uint8))
    shown = ShownFrames()(images)
    assert all(np.array_equal(made, observed) for made, observed in zip(shown, images.observations, strict=True))


def test_pairs_whose_films_are_lost_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ring_in(
        tmp_path, dataclasses.replace(PREFERENCES, gatherer=FarRight), fragments=FRAGMENTS, make_env=DRAWN
    ) as ring:
        ring.begin(200)
        shown: ShownFrames = ring.actors.executor.actors["gatherer"]._frames
        shown._films._content.clear()
        FarRight.seen.clear()
        with caplog.at_level(logging.WARNING):
            report = ring.advance(at(1 / 3, room=0))
        assert "pairs whose films are lost" in caplog.text
        assert report.answered < report.wanted


def test_the_scripted_gatherer_and_people_want_none() -> None:
    assert not wants_films(PREFERENCES)
    assert not wants_films(dataclasses.replace(PREFERENCES, teacher="human", gatherer=FarRight))
    assert not wants_films(dataclasses.replace(PREFERENCES, gatherer=FarRight).without_questions())


def test_films_need_an_environment_that_renders_and_steps_for_them(tmp_path: Path) -> None:
    config = PreferencePPOConfig().environment("Pendulum-v1")
    config.preferences(gatherer=FarRight, comparisons=20, rounds=2, total_env_steps=8_000)
    assert config.check_environment().films
    config.fragments(film_env_steps=3_000)
    with pytest.raises(SettingError, match=r"filming for the gatherer in preferences.rounds=2"):
        config.check_environment()


def test_an_environment_that_renders_nothing_is_refused_before_the_start() -> None:
    config = PreferencePPOConfig().environment("rlhf_ray/MountainCar-v0")
    config.preferences(gatherer=FarRight, comparisons=20, rounds=2, total_env_steps=100_000)
    with pytest.raises(SettingError, match=r"FarRight wants films, but .* can't be filmed: .* render_mode"):
        config.check_environment()
