"""Gatherers that answer nothing, restart, lose what they were asked or see films of it; the reward trainer's actor."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import ray

from examples.own_gatherer import Looks
from rlhf_ray.actors.executor import Actor
from rlhf_ray.actors.fragment_source import Filming
from rlhf_ray.actors.gatherer import (
    FILMS,
    ChosenPairs,
    GathererActor,
    GathererProgress,
    OpenQuestions,
    ShownFrames,
    as_arrays,
)
from rlhf_ray.actors.ring_actors import RewardTrainerActor, StateLostError
from rlhf_ray.data.comparisons import Changes, Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.labelling.films import film, frames_of
from rlhf_ray.queries.gatherers import wants_films
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from tests.actors.rings import at, ring_in
from tests.actors.test_fragment_source import Done
from tests.made_up import FORCES, VECTORS, Drawn, labels_in, some_comparisons, some_fragments

ANSWERS = some_comparisons(6)
LOST = ray.exceptions.ObjectLostError("00", "", "")


class Store(Actor[Any]):
    """Holds so many answers."""

    held = 0

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        if method == "tally":
            return SimpleNamespace(comparisons=self.held)
        self.held += method == "commit"
        return 0


def actor(store: Store, ask: Callable[[Any, int, Pairs], None]) -> GathererActor:
    """Its gatherer has `commit`, and asks by `ask`."""

    class Own:
        def __init__(self, commit: Any) -> None:
            self.commit = commit

        def ask(self, number: int, pairs: Pairs) -> None:
            ask(self, number, pairs)

    return GathererActor(lambda commit, **others: Own(commit), lambda: store, lambda value: value)  # type: ignore[arg-type, return-value]


def test_a_gatherer_that_answers_nothing_at_first_is_named() -> None:
    store = Store()

    async def run() -> GathererProgress:
        of = actor(store, lambda own, number, pairs: None)
        await of.ask(1, ANSWERS.pairs)
        while (progress := await of.wait([1], 0)).open[1]:
            pass
        return progress

    with pytest.raises(SettingError, match="Own returned from the first 6 pairs without an answer"):
        asyncio.run(run())
    store.held = 1  # with labels from before, it may
    assert asyncio.run(run()).open == {1: 0}


def test_nothing_is_stored_after_the_end() -> None:
    store = Store()
    store.held = 1

    def ask(own: Any, number: int, pairs: Pairs) -> None:
        of.end()
        own.commit(Comparisons(pairs, np.ones(6, np.float32), ("ada",) * 6))

    of = actor(store, ask)

    async def run() -> GathererProgress:
        await of.ask(1, ANSWERS.pairs)
        await of.ask(2, ANSWERS.pairs)
        return await of.wait([1], 0)

    assert asyncio.run(run()).changes == 0
    assert store.held == 1


class Gatherer(Actor[Any]):
    """Answers with `progress`; its pairs may be lost."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.progress = GathererProgress(0, {})
        self.lost: set[int] = set()

    def send(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int = 1) -> Any:
        if method == "wait":
            return Done(self.progress)
        if arguments[0] in self.lost:
            raise LOST
        self.asked.append(arguments)
        return Done(None)


def test_a_restarted_gatherer_is_asked_again_and_lost_pairs_are_no_longer_open() -> None:
    gatherer = Gatherer()
    questions = OpenQuestions(gatherer, "answering", share=1.0, limit=None)
    for number, count in ((4, 3), (5, 2)):
        asyncio.run(questions.ask(ChosenPairs(number, f"pairs {number}", count)))  # type: ignore[arg-type]
    gatherer.lost |= {5, 6}
    gatherer.progress = GathererProgress(0, {}, unknown=(4, 5))
    assert asyncio.run(questions.listen())  # it may have stored something before it died
    assert gatherer.asked == [(4, "pairs 4"), (5, "pairs 5"), (4, "pairs 4")]
    assert (questions.open, questions.lost_questions, questions.pairs) == (3, 2, {4: "pairs 4"})
    asyncio.run(questions.ask(ChosenPairs(6, "pairs 6", 4)))  # type: ignore[arg-type]
    assert (questions.open, questions.lost_questions, questions.asked) == (3, 6, 5)


def test_open_pairs_survive_a_checkpoint() -> None:
    gatherer, pairs = Gatherer(), some_comparisons(3).pairs
    questions = OpenQuestions(gatherer, "answering", share=1.0, limit=None)

    async def lost() -> Pairs:
        raise LOST

    async def kept() -> list[Any]:
        return await as_arrays({3: lost(), 8: Done(pairs)})  # type: ignore[dict-item]

    batches = asyncio.run(kept())
    asyncio.run(questions.ask_again(batches, lambda value: value))  # type: ignore[arg-type, return-value]
    ((number, again),) = gatherer.asked
    assert (number, questions.open) == (8, 3)
    assert again.ids == pairs.ids
    for name, values in vars(pairs.right).items():
        np.testing.assert_array_equal(getattr(again.right, name), values)


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


FIRST, SECOND = Changes(6, some_comparisons(6, seed=1)), Changes(10, some_comparisons(4, seed=2))
NOTHING = Changes(10, None)


def _keys(changes: Changes) -> tuple[tuple[str, str], ...]:
    assert changes.comparisons is not None
    return tuple(changes.comparisons.keys)


def _actor() -> RewardTrainerActor:
    return RewardTrainerActor(RewardModelSettings(hidden=(8,)), PreferenceSettings(), VECTORS, FORCES, seed=0)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _version(actor: RewardTrainerActor) -> dict[str, Any]:
    return actor.trainer.ensemble.state()


def test_fitting_the_same_version_again_returns_it_without_fitting_again() -> None:
    actor = _actor()
    fit, reward, state = actor.fit(5, 1, FIRST)
    again, same_reward, same_state = actor.fit(5, 1, FIRST)
    assert again == fit
    assert (fit.report.version, fit.last) == (1, 6)
    assert _same(reward, same_reward)
    assert state["keys"] == same_state["keys"]
    later, _, _ = actor.fit(5, 2, SECOND)
    undisturbed = _actor()
    undisturbed.fit(5, 1, FIRST)
    expected, _, _ = undisturbed.fit(5, 2, SECOND)
    now, then = (str(dataclasses.replace(of.report, seconds=0)) for of in (later, expected))  # NaN is not NaN
    assert now == then
    assert _same(_version(actor), _version(undisturbed))


def test_a_version_cannot_be_skipped_or_gone_back_to() -> None:
    actor = _actor()
    actor.fit(1, 1, FIRST)
    actor.fit(1, 2, NOTHING)
    for version in (1, 4):
        with pytest.raises(StateLostError):
            actor.fit(1, version, SECOND)
    assert _version(actor)["version"] == 2
    assert len(actor.trainer.comparisons.keys) == 6  # nothing of what was refused was taken in


def test_changes_are_taken_in_and_where_everything_was_withdrawn_no_version_is_made(caplog):
    actor = _actor()
    nothing, _, _ = actor.fit(5, 1, Changes(1, None, (("gone", "anna"),)))
    assert (nothing.report.version, nothing.report.comparisons, nothing.report.gradient_steps) == (0, 0, 0)
    assert "No new version of the reward model: There are no comparisons" in caplog.text
    actor.fit(5, 1, FIRST)
    fit, _, _ = actor.fit(5, 2, Changes(9, SECOND.comparisons, _keys(FIRST)[:2], {"anna": 0.5}))
    assert (fit.report.version, fit.report.comparisons, fit.last) == (2, 8, 9)
    assert actor.trainer.comparisons.weights == {"anna": 0.5}
    nothing, _, state = actor.fit(5, 3, Changes(20, None, (*_keys(FIRST), *_keys(SECOND))))
    assert (nothing.report.version, nothing.report.gradient_steps) == (2, 0)
    assert np.isnan(nothing.report.train_loss)
    assert state["keys"] == []
    assert state["ensemble"]["version"] == 2
    fit, _, _ = actor.fit(5, 3, FIRST)
    assert (fit.report.version, fit.report.comparisons) == (3, 6)
