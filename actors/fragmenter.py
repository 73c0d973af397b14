"""Fragmenter: keeps the newest fragments and chooses pairs of them to ask about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, IntArray
from rlhf_ray.data.comparisons import Pairs, pair_id
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.labelling.films import Film
from rlhf_ray.queries.selection import most_disagreed, random_pairs
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings

if TYPE_CHECKING:
    from rlhf_ray.reward import RewardEnsemble


@dataclass(frozen=True)
class Clips:
    """What one rollout gave: its fragments, and what is to be known about its episodes.

    Attributes:
        source: who made it: the index of the EnvRunner; -1 for the rollout collector, and less for each part of what it makes.
        policy_version: the version of the policy that acted. A source makes one batch of clips per version.
        fragments: None when no stretch of an episode was long enough.
        too_short: stretches of episodes that were shorter than a fragment.
        episode_lengths: the lengths (steps) of the episodes that ended in this rollout.
        films: what people are shown of each fragment; empty where it was not filmed.
    """

    source: int
    policy_version: int
    fragments: Fragments | None
    too_short: int
    episode_lengths: tuple[int, ...]
    films: tuple[Film, ...] = ()


class Fragmenter:
    """A pool of the newest fragments.

    What arrives is ordered by policy version and source before it is used, so that the order in which rollout workers happen
    to finish changes nothing. Every choice is drawn from a generator seeded with the round's number: a restarted fragmenter
    chooses as the lost one would have, from the fragments that have arrived since.
    """

    def __init__(
        self,
        fragments: FragmentSettings,
        preferences: PreferenceSettings,
        reward_model: RewardModelSettings,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        seed: int,
    ):
        self.settings = fragments
        self.start_share = 0.0 if fragments.start_share == "auto" else fragments.start_share
        self.preferences = preferences
        self.seed = seed
        self.ensemble: RewardEnsemble | None = None
        if preferences.selection == "disagreement":
            from rlhf_ray.reward import RewardEnsemble  # a large import, which most fragmenters have no need of

            self.ensemble = RewardEnsemble(observation_space, action_space, reward_model)
        self._clips: dict[tuple[int, int], Fragments] = {}
        self._ids: dict[tuple[int, int], list[str]] = {}
        """`Fragments.ids` of each of the above, which are costly for images."""
        self._films: dict[str, Film] = {}
        self._too_short: dict[tuple[int, int], int] = {}
        self._episode_lengths: set[int] = set()
        self._asked: dict[int, list[tuple[str, str]]] = {}
        """Of each round, the ids of the fragments of each pair."""

    def add(self, clips: Clips) -> None:
        """Take in the clips of one rollout. Adding the same rollout twice changes nothing."""
        key = (clips.policy_version, clips.source)
        self._too_short[key] = clips.too_short
        self._episode_lengths.update(clips.episode_lengths)
        if clips.fragments is not None:
            self._clips[key], self._ids[key] = clips.fragments, clips.fragments.ids()
            self._films.update((film.info.id, film) for film in clips.films)
        for old in sorted(self._clips):
            if self._size() - len(self._clips[old]) < self.settings.pool:
                break
            for name in self._ids[old]:
                self._films.pop(name, None)
            del self._clips[old], self._ids[old]

    def propose(self, count: int, round_number: int, reward: dict[str, Array] | None) -> tuple[int, Pairs | None]:
        """Choose ``count`` pairs to ask about, none of which an earlier round chose.

        Args:
            count: pairs wanted.
            round_number: which labelling round this is; decides the random choices.
            reward: the newest version of the reward ensemble (`RewardEnsemble.state`), for selection by disagreement.

        Returns:
            How many pairs, and the pairs: at most ``count``; 0 and None when there is no pair to be made.
        """
        if self._size() < 2:
            return 0, None
        pool = Fragments.concatenate([self._clips[key] for key in sorted(self._clips)])[-self.settings.pool :]
        names = self._names()
        different = sorted({name: i for i, name in reversed(list(enumerate(names)))}.values())
        pool, names = pool[np.array(different)], [names[i] for i in different]
        rng = np.random.default_rng([self.seed, 1, round_number])
        version = 0 if reward is None else int(reward["version"])
        if self.ensemble is not None and reward is not None:
            self.ensemble.load_state(reward)
            candidates = self._new_pairs(pool, names, count * self.preferences.oversampling, round_number, rng)
            index = most_disagreed(candidates, self.ensemble.fragment_returns(pool), count)
        else:
            index = self._new_pairs(pool, names, count, round_number, rng)
        if len(index) == 0:
            return 0, None
        self._asked[round_number] = [(names[left], names[right]) for left, right in index]
        ids = tuple(pair_id(*pair) for pair in self._asked[round_number])
        films = tuple(
            (self._films[left], self._films[right]) for left, right in self._asked[round_number] if self._films
        )
        return len(index), Pairs(pool[index[:, 0]], pool[index[:, 1]], ids, version, films)

    def _new_pairs(
        self, pool: Fragments, names: list[str], count: int, round_number: int, rng: np.random.Generator
    ) -> IntArray:
        """``count`` random pairs of the fragments in ``pool``, called ``names``, that no earlier round asked about."""
        position = {name: i for i, name in enumerate(names)}
        asked = {
            frozenset((position[left], position[right]))
            for earlier, pairs in self._asked.items()
            for left, right in pairs
            if earlier < round_number and left in position and right in position
        }
        drawn = random_pairs(len(pool), count + len(asked), rng, pool.starts == 0, self.start_share)
        return drawn[[frozenset(pair) not in asked for pair in drawn.tolist()]][:count]

    def report(self) -> dict[str, Any]:
        """What has arrived.

        Fragments in the pool, the share of them that are different clips (1 for an empty pool), the newest policy version
        among them, stretches that were too short, and the different episode lengths seen.
        """
        names = self._names()
        return {
            "pool": len(names),
            "distinct_clips": len(set(names)) / len(names) if names else 1.0,
            "newest_policy": max((version for version, _ in self._clips), default=RANDOM_POLICY),
            "too_short": sum(self._too_short.values()),
            "episode_lengths": sorted(self._episode_lengths),
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "clips": {key: vars(fragments) for key, fragments in self._clips.items()},
            "too_short": dict(self._too_short),
            "episode_lengths": sorted(self._episode_lengths),
            "asked": {round_number: list(pairs) for round_number, pairs in self._asked.items()},
            "films": list(self._films.values()),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._clips = {key: Fragments(**arrays) for key, arrays in state["clips"].items()}
        self._ids = {key: fragments.ids() for key, fragments in self._clips.items()}
        self._too_short = dict(state["too_short"])
        self._episode_lengths = set(state["episode_lengths"])
        self._asked = {round_number: list(pairs) for round_number, pairs in state["asked"].items()}
        self._films = {film.info.id: film for film in state["films"]}

    def _names(self) -> list[str]:
        """The id of each fragment in the pool, the oldest first."""
        return [name for key in sorted(self._clips) for name in self._ids[key]][-self.settings.pool :]

    def _size(self) -> int:
        return sum(len(fragments) for fragments in self._clips.values())
