import io
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rlhf_ray.actors.rollout_collector import RolloutCollector
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.settings import ResolvedFragments
from tests.made_up import AlwaysUp, Drawn, Walk, same_fragments


class Counting(gym.Wrapper[Any, Any, Any, Any]):
    """Counts the steps and remembers the actions."""

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self.actions: list[float] = []

    def step(self, action: Any) -> Any:
        self.actions.append(float(action[0]))
        return super().step(action)


def _collector(env: gym.Env[Any, Any], seed: int = 0, **changes: Any) -> RolloutCollector:
    arguments: dict[str, Any] = {"length": 5, "pool": 400} | changes
    return RolloutCollector(lambda: env, ResolvedFragments(**arguments), seed)


def _fragments(clips: CutFragments) -> Fragments:
    assert clips.fragments is not None
    return clips.fragments


@given(st.integers(1, 120), st.integers(1, 20), st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_exactly_as_many_steps_are_taken_as_asked_for(env_steps: int, rollouts: int, lengths: list[int]) -> None:
    env = Counting(Walk(tuple(lengths)))
    clips = _collector(env).collect(env_steps, rollouts, 0)[1]
    assert len(env.actions) == env_steps
    if clips.fragments is not None:
        # Each observation says which episode and which step of it it is: the fragments cross none.
        seen = clips.fragments.observations
        assert (seen[:, :, 1] == seen[:, :1, 1]).all()
        assert (np.diff(seen[:, :, 0]) == 1).all()
        assert np.array_equal(clips.fragments.starts, seen[:, 0, 0])


def test_the_steps_are_shared_by_rollouts_that_each_begin_an_episode() -> None:
    clips = _collector(Walk((1000,))).collect(103, 4, 0)[1]
    episodes = np.unique(_fragments(clips).observations[:, 0, 1])
    assert len(episodes) == 4
    lengths = [
        _fragments(clips).observations[_fragments(clips).observations[:, 0, 1] == e, -1, 0].max() for e in episodes
    ]
    assert sum(lengths) == 103
    assert max(lengths) - min(lengths) <= 1


def test_few_steps_are_not_shared_by_so_many_rollouts_that_none_holds_a_fragment() -> None:
    clips = _collector(Walk((1000,))).collect(12, 16, 0)[1]
    assert len(_fragments(clips)) == 2 * 2  # two rollouts of 6 steps hold two windows of 5 each
    assert clips.episode_lengths == ()


def test_only_the_lengths_of_episodes_that_ended_are_told() -> None:
    clips = _collector(Walk((7, 9))).collect(30, 1, 0)[1]
    assert clips.episode_lengths == (7, 9, 7)  # 7 steps of a fourth one of 9 steps are left
    assert _collector(Walk((50,))).collect(30, 1, 0)[1].episode_lengths == ()


def test_episodes_shorter_than_a_fragment_make_none() -> None:
    clips = _collector(Walk((4, 6))).collect(22, 1, 0)[1]  # 4, 6, 4, 6 and 2 of the next
    assert clips.episode_lengths == (4, 6, 4, 6)
    assert len(_fragments(clips)) == 2 * 2
    assert _collector(Walk((4,))).collect(20, 1, 0)[1].fragments is None


def test_fragments_say_whether_they_end_with_a_termination_and_truncation_is_none() -> None:
    for terminates in (True, False):
        fragments = _fragments(_collector(Walk((8,), terminates=terminates)).collect(16, 1, 0)[1])
        assert np.array_equal(fragments.terminated, (fragments.observations[:, -1, 0] == 8) & terminates)


def test_fragments_hold_what_happened() -> None:
    env = Counting(Walk((1000,)))
    fragments = _fragments(_collector(env).collect(20, 1, 0)[1])
    assert len(fragments) == 16
    for i, start in enumerate(fragments.starts):
        assert fragments.actions[i, :, 0].tolist() == pytest.approx(env.actions[start : start + 5])
        assert np.allclose(fragments.rewards[i], -np.abs(fragments.observations[i, 1:, 2]), atol=1e-6)
    assert fragments.actions.dtype == np.float32
    assert fragments.rewards.dtype == np.float64


def test_a_round_gives_the_same_clips_whenever_it_is_held_and_another_round_others() -> None:
    def make(seed: int = 0) -> RolloutCollector:
        return _collector(Walk((12,), numbered=False), seed)

    collector = make()
    rounds = [_fragments(collector.collect(60, 2, number)[1]) for number in (0, 1, 0)]
    assert same_fragments(rounds[0], rounds[2])
    assert same_fragments(rounds[0], _fragments(make().collect(60, 2, 0)[1]))
    assert not np.array_equal(rounds[0].observations, rounds[1].observations)
    assert not np.array_equal(rounds[0].observations, _fragments(make(seed=1).collect(60, 2, 0)[1]).observations)
    by_policy = [_fragments(collector.collect(60, 2, 3, 5, lambda: AlwaysUp(0.5))[1]) for _ in range(2)]
    assert same_fragments(*by_policy)


def test_random_actions_are_those_of_the_action_space_and_marked_as_random() -> None:
    env = Counting(Walk((1000,)))
    clips = _collector(env).collect(2000, 4, 0)[1]
    assert clips.policy_version == RANDOM_POLICY
    assert (_fragments(clips).policy_versions == RANDOM_POLICY).all()
    assert clips.source == -1
    assert abs(np.mean(env.actions)) < 0.06  # uniform in [-1, 1]
    assert abs(np.std(env.actions) - 1 / np.sqrt(3)) < 0.03


def test_with_a_random_action_share_of_1_actions_are_random_and_the_policy_is_not_asked() -> None:
    policy = AlwaysUp(0.5)
    at_random, by_policy = Counting(Walk((1000,))), Counting(Walk((1000,)))
    _collector(at_random).collect(50, 1, 0)
    _collector(by_policy, random_action_share=1.0).collect(50, 1, 0, 3, lambda: policy)
    assert by_policy.actions == at_random.actions
    assert policy.asked == 0


def test_with_a_random_action_share_of_0_all_actions_are_the_policys() -> None:
    env = Counting(Walk((10,)))
    clips = _collector(env, random_action_share=0.0).collect(50, 2, 0, 7, lambda: AlwaysUp(0.25))[1]
    assert env.actions == [0.25] * 50
    assert clips.policy_version == 7
    assert (_fragments(clips).policy_versions == 7).all()


class Remembers:
    """A policy that keeps the observations of its episode, those of random actions too."""

    episodes: list[list[float]]

    def __init__(self, episodes: list[list[float]], seen: list[float] | None = None):
        self.episodes, self.seen = episodes, [] if seen is None else seen

    def begin(self, after: Any = None) -> "Remembers":
        begun = Remembers(self.episodes, [] if after is None else after.seen)
        self.episodes += [begun.seen] * (after is None)
        return begun

    def see(self, observation: Any) -> None:
        self.seen.append(float(observation[0]))

    def act(self, observation: Any, rng: np.random.Generator) -> Any:
        self.see(observation)
        return np.array([0.25], np.float32)


@pytest.mark.parametrize("film", [False, True])
def test_a_policy_with_memory_sees_every_observation_of_an_episode_and_none_of_another(film: bool) -> None:
    episodes: list[list[float]] = []
    collector = _collector(Drawn((10,)), random_action_share=0.5)
    if film:  # the second part goes on with the episode that the first left
        for part in (1, 2):
            collector.film(15, 2, 0, 0, 7, lambda: Remembers(episodes), episode=False, part=part)
    else:
        collector.collect(30, 1, 0, 7, lambda: Remembers(episodes))
    assert [len(seen) for seen in episodes] == [10, 10, 10]
    assert all(seen == [float(step) for step in range(10)] for seen in episodes)


def test_an_environment_that_uses_its_observation_array_again_is_recorded_right() -> None:
    class InPlace(Walk):
        def _observation(self) -> Any:
            if not hasattr(self, "_array"):
                self._array = super()._observation()
            self._array[:] = super()._observation()
            return self._array

    plain, in_place = (_fragments(_collector(env).collect(30, 1, 0)[1]) for env in (Walk((10,)), InPlace((10,))))
    assert same_fragments(plain, in_place)


def test_no_more_fragments_are_cut_than_the_pool_has_room_for() -> None:
    assert len(_fragments(_collector(Walk((50,)), pool=7).collect(100, 1, 0)[1])) == 7


class TestFilming:
    def film(self, steps: int = 100, clips: int = 6, lengths: tuple[int, ...] = (20,), **options: Any) -> Any:
        collector = RolloutCollector(partial(Drawn, lengths), ResolvedFragments(length=5), 0)
        return collector, collector.film(steps, clips, 1, 700, 3, **options)

    def test_each_clip_has_the_film_of_its_own_frames(self) -> None:
        _, (_, clips, films, _) = self.film()
        assert len(films) == len(clips.fragments) >= 3
        assert [film.info.id for film in films] == clips.fragments.ids()
        for fragment, film in zip(clips.fragments.observations, films, strict=True):
            sheet = np.asarray(Image.open(io.BytesIO(film.sheet)).convert("L"))
            for k, observation in enumerate(fragment):
                row, column = divmod(k, film.info.columns)
                frame = sheet[row * 40 : row * 40 + 40, column * 60 : column * 60 + 60]
                seen = int(frame.mean(0).argmin())  # the dark column stands where the walk is
                assert abs(seen - int(np.clip(30 + 5 * observation[2], 0, 59))) <= 1

    def test_clips_never_cross_an_episode_and_steps_are_exact(self) -> None:
        collector, (_, clips, _, episode) = self.film(steps=103, lengths=(20, 13))
        assert collector.env.steps_in_all == 103
        steps = clips.fragments.observations[:, :, 0]
        assert (np.diff(steps, axis=1) == 1).all()
        assert (clips.fragments.starts == steps[:, 0]).all()
        assert (episode.steps, episode.ended, episode.policy_version, episode.env_steps) == (20, True, 3, 700)

    def test_only_what_is_shown_is_drawn(self) -> None:
        collector, _ = self.film(steps=200, clips=4, episode=False)
        assert collector.env.drawn <= 4 * 6 + 12  # and of clips that an episode's end cut short
        with_an_episode, _ = self.film(steps=200, clips=4)
        assert collector.env.drawn < with_an_episode.env.drawn <= collector.env.drawn + 21  # the first alone

    def test_a_clip_that_is_wanted_has_room(self) -> None:
        collector = RolloutCollector(partial(Drawn, (1000,)), ResolvedFragments(length=5, start_share=0.0), 0)
        filmed = [collector.film(30, 1, number, 0, episode=False)[1].fragments for number in range(40)]
        assert all(fragments is not None and len(fragments) == 1 for fragments in filmed)

    @pytest.mark.parametrize(("length", "short"), [(16, [0, 0]), (4, [3, 4])])
    def test_only_whole_episodes_are_too_short(self, length: int, short: list[int]) -> None:
        collector = RolloutCollector(partial(Drawn, (length,)), ResolvedFragments(length=5), 0)
        parts = [collector.film(14, 2, 0, 0, episode=False, part=part)[1] for part in (1, 2)]
        assert [
            sum(steps < 5 for steps in clips.episode_lengths) for clips in parts
        ] == short  # an episode counts where it ends

    def test_clips_share_no_frame_however_many_are_wanted(self) -> None:
        _, (_, clips, _, _) = self.film(steps=100, clips=1000, lengths=(1000,))
        assert set(np.diff(clips.fragments.starts)) == {6}

    def test_the_policy_acts_alone_and_the_same_number_films_the_same(self) -> None:
        _, (_, one, _, _) = self.film(make_policy=partial(AlwaysUp, 1.0))
        _, (_, other, _, _) = self.film(make_policy=partial(AlwaysUp, 1.0))
        assert (one.fragments.actions == 1.0).all()
        assert one.fragments.ids() == other.fragments.ids()

    def test_a_part_goes_on_with_the_episode_that_the_last_one_left(self) -> None:
        collector = RolloutCollector(partial(Drawn, (20,)), ResolvedFragments(length=5), 0)
        parts = [collector.film(14, 2, 0, 0, episode=False, part=part)[1] for part in (1, 2, 3)]
        assert collector.env.steps_in_all == 42
        assert collector.env.episode == 2
        assert [clips.source for clips in parts] == [-2, -3, -4]
        assert [clips.episode_lengths for clips in parts] == [(), (20,), (20,)]
        for clips, starts, first in zip(parts, (range(15), range(14, 36), range(8, 23)), (0, 0, 1), strict=True):
            steps, episodes = clips.fragments.observations[:, :, 0], clips.fragments.observations[:, :, 1]
            assert (np.diff(steps, axis=1) == 1).all()
            assert (clips.fragments.starts == steps[:, 0]).all()
            assert set(clips.fragments.starts + 20 * (episodes[:, 0] - first).astype(int)) <= set(starts)
        collector.film(14, 2, 1, 0, episode=False)  # no part, so a new episode, although the last one goes on
        assert collector.env.episode == 3


def test_varied_clips_are_of_held_actions_too_and_others_as_ever() -> None:
    env = Counting(Walk((1000,)))
    _collector(env).collect(500, 5, 0)
    plain = env.actions
    env.actions = []
    _collector(env, varied=True).collect(500, 5, 0)
    repeats = np.array(env.actions).reshape(5, 100)
    held = (np.diff(repeats) == 0).mean(axis=1)
    assert (np.diff(plain) != 0).all()
    assert held[0] == 0
    assert (held[1:] > [0.4, 0.6, 0.8, 0.85]).all()


@pytest.mark.parametrize(("part", "steps", "rollouts"), [(0, 200, 10), (0, 60, 5), (1, 200, 2)])
def test_varied_clips_are_of_whole_episodes_one_for_each_mean_length_at_least(part, steps, rollouts):
    env: Any = Walk((1000,))
    env.spec = gym.envs.registration.EnvSpec("Walk-v0", max_episode_steps=20)
    _collector(env, varied=True).collect(steps, 2, 0, part=part)
    assert env.episode == rollouts - 1


def test_other_processes_come_first_once_nobody_waits_for_the_first_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    nicer: list[int] = []
    monkeypatch.setattr("os.nice", nicer.append)
    collector, told = RolloutCollector(partial(Walk, (20,)), ResolvedFragments(length=5), 0, 7), []
    for part in (1, 2, 0, 0):
        collector.collect(20, 1, 0, part=part)
        told.append(len(nicer))
    assert (told, nicer) == ([0, 0, 1, 1], [7])


def _changes_of_mind(switch_probability: float) -> tuple[float, float]:
    """The share of random actions, and how often a random action follows one of the policy or the other way round."""
    env = Counting(Walk((10_000,)))
    settings = {"random_action_share": 0.4, "switch_probability": switch_probability}
    _collector(env, **settings).collect(8000, 1, 1, 5, lambda: AlwaysUp(0.5))
    random = np.array(env.actions) != 0.5
    return float(random.mean()), float((random[1:] != random[:-1]).mean())


@pytest.mark.parametrize("switch_probability", [1.0, 0.5, 0.05])
def test_exploration_comes_in_stretches(switch_probability: float) -> None:
    share, changes = _changes_of_mind(switch_probability)
    # A change needs a draw, and the draw to differ from the one before.
    assert changes == pytest.approx(switch_probability * 2 * 0.4 * 0.6, rel=0.2)
    assert share == pytest.approx(0.4, abs=0.1)


def test_after_pretraining_every_other_rollout_follows_the_policy_and_the_others_are_random() -> None:
    env = Counting(Walk((1000,)))
    clips = _collector(env).collect(400, 4, 0, 7, lambda: AlwaysUp(0.5), mixed=True)[1]
    follows = (np.array(env.actions).reshape(4, 100) == 0.5).mean(1)
    assert follows.tolist() == [0, 1, 0, 1]
    assert clips.policy_version == 7
    env = Counting(Walk((1000,)))
    _collector(env).collect(400, 1, 0, 7, lambda: AlwaysUp(0.5), mixed=True)
    assert (np.array(env.actions) == 0.5).mean() == 0.5
