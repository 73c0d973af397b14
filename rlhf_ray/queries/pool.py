"""ClipPool: keeps the newest fragments and chooses the pairs of them to ask about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pyarrow as pa

from rlhf_ray.data.arrays import Array, IntArray
from rlhf_ray.data.comparisons import Pairs, pair_id
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.data.seeds import generator
from rlhf_ray.queries.selection import SELECTIONS, Candidates, choose, random_pairs
from rlhf_ray.settings import PreferenceSettings, ResolvedFragments, RewardModelSettings
from rlhf_ray.store.clips import Pack, Rows

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
    """

    source: int
    policy_version: int
    fragments: Fragments | None
    too_short: int
    episode_lengths: tuple[int, ...]


@dataclass(frozen=True)
class PoolReport:
    """What has arrived at the pool.

    Attributes:
        fragments: in the pool.
        distinct: the share of them that are different clips; 1 for an empty pool.
        newest_policy: the newest policy version among them.
        too_short: stretches of episodes that were shorter than a fragment.
        episode_lengths: the different lengths of the episodes that ended, in steps, the shortest first.
    """

    fragments: int = 0
    distinct: float = 1.0
    newest_policy: int = RANDOM_POLICY
    too_short: int = 0
    episode_lengths: tuple[int, ...] = ()


class ClipPool:
    """A pool of the newest fragments.

    What arrives is ordered by policy version and source before it is used, so that the order in which rollout workers happen
    to finish changes nothing. Every choice is drawn from a generator seeded with the asking's number: a restarted pool chooses
    as the lost one would have, from the fragments that have arrived since.
    """

    def __init__(
        self,
        fragments: ResolvedFragments,
        preferences: PreferenceSettings,
        reward_model: RewardModelSettings,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        seed: int,
    ):
        self.settings, self.preferences, self.seed = fragments, preferences, seed
        self.selection = SELECTIONS.make(preferences.selection)
        self._make_ensemble = (observation_space, action_space, reward_model)
        self._ensemble: RewardEnsemble | None = None
        self._clips: dict[tuple[int, int], Fragments] = {}
        self._ids: dict[tuple[int, int], list[str]] = {}
        """`Fragments.ids` of each of the above, which are costly for images."""
        self._too_short: dict[tuple[int, int], int] = {}
        self._episode_lengths: set[int] = set()
        self._asked: dict[int, list[tuple[str, str]]] = {}
        """Of each asking, the ids of the fragments of each pair."""

    def add(self, clips: Clips) -> PoolReport:
        """Take in the clips of one rollout. Adding the same rollout twice changes nothing."""
        key = (clips.policy_version, clips.source)
        self._too_short[key] = clips.too_short
        self._episode_lengths.update(clips.episode_lengths)
        if clips.fragments is not None:
            self._clips[key], self._ids[key] = clips.fragments, clips.fragments.ids()
        for old in sorted(self._clips):
            if self._size() - len(self._clips[old]) < self.settings.pool:
                break
            del self._clips[old], self._ids[old]
        return self.report()

    def propose(self, count: int, number: int, reward: dict[str, Array] | None) -> tuple[int, Pairs | None]:
        """Choose ``count`` pairs to ask about, none of which an earlier asking chose.

        Args:
            count: pairs wanted.
            number: of the asking; decides the random choices.
            reward: the newest version of the reward ensemble (`RewardEnsemble.state`), for selections that look at it.

        Returns:
            How many pairs, and the pairs: at most ``count``; 0 and None when there is no pair to be made.
        """
        if self._size() < 2:
            return 0, None
        pool = Fragments.concatenate([self._clips[key] for key in sorted(self._clips)])[-self.settings.pool :]
        names = self._names()
        different = sorted({name: i for i, name in reversed(list(enumerate(names)))}.values())
        pool, names = pool[np.array(different)], [names[i] for i in different]
        rng = generator(self.seed, "pairs", number)
        version = 0 if reward is None else int(reward["version"])
        if self.selection is None or (reward is None and self.selection.needs_reward):
            index = self._new_pairs(pool, names, count, number, rng)
        else:
            drawn = self._new_pairs(pool, names, count * self.preferences.oversampling, number, rng)
            returns = None if reward is None else self._returns(reward, pool)
            index = choose(self.selection, Candidates(drawn, pool, returns), count, rng)
        if len(index) == 0:
            return 0, None
        self._asked[number] = [(names[left], names[right]) for left, right in index]
        ids = tuple(pair_id(*pair) for pair in self._asked[number])
        return len(index), Pairs(pool[index[:, 0]], pool[index[:, 1]], ids, version)

    def _returns(self, reward: dict[str, Array], pool: Fragments) -> Array:
        if self._ensemble is None:
            import torch  # both are large imports, which most pools have no need of

            from rlhf_ray.reward import RewardEnsemble

            with torch.random.fork_rng(devices=[]):  # making one must not change what others in this process draw next
                self._ensemble = RewardEnsemble(*self._make_ensemble)
        self._ensemble.load_state(reward)
        return self._ensemble.fragment_returns(pool)

    def _new_pairs(
        self, pool: Fragments, names: list[str], count: int, number: int, rng: np.random.Generator
    ) -> IntArray:
        """``count`` random pairs of the fragments in ``pool``, called ``names``, that no earlier asking was about."""
        position = {name: i for i, name in enumerate(names)}
        asked = {
            frozenset((position[left], position[right]))
            for earlier, pairs in self._asked.items()
            for left, right in pairs
            if earlier < number and left in position and right in position
        }
        drawn = random_pairs(len(pool), count + len(asked), rng, pool.starts == 0, self.settings.start_share)
        return drawn[[frozenset(pair) not in asked for pair in drawn.tolist()]][:count]

    def report(self) -> PoolReport:
        """What has arrived."""
        names = self._names()
        return PoolReport(
            fragments=len(names),
            distinct=len(set(names)) / len(names) if names else 1.0,
            newest_policy=max((version for version, _ in self._clips), default=RANDOM_POLICY),
            too_short=sum(self._too_short.values()),
            episode_lengths=tuple(sorted(self._episode_lengths)),
        )

    def save(self, folder: Path) -> None:
        """Write all there is to ``pool.json`` and, the clips, as Arrow, to ``pool-….arrow`` in ``folder``."""
        keys = sorted(self._clips)
        about: dict[str, Any] = {
            "clips": [[*key, len(self._clips[key])] for key in keys],
            "too_short": [[*key, count] for key, count in self._too_short.items()],
            "episode_lengths": sorted(self._episode_lengths),
            "asked": [[number, pairs] for number, pairs in self._asked.items()],
            "file": None,
        }
        if keys:
            rows = Rows.concatenate([Rows(self._ids[key], self._clips[key]) for key in keys])
            about["file"] = f"pool-{rows.content()}.arrow"
            with (folder / about["file"]).open("wb") as sink:
                rows.write(sink)
        (folder / "pool.json").write_text(json.dumps(about) + "\n")

    def load(self, folder: Path) -> None:
        """The inverse of `save`."""
        about = json.loads((folder / "pool.json").read_text())
        clips: dict[tuple[int, int], Fragments] = {}
        self._ids, first = {}, 0
        if about["file"] is not None:
            pack = Pack(about["file"], pa.memory_map(str(folder / about["file"])))
            pack.check(np.arange(len(pack.ids)))
            for version, source, count in about["clips"]:
                rows = slice(first, first := first + count)
                kept = pack.fragments[rows]
                clips[version, source] = Fragments(**{name: np.array(array) for name, array in vars(kept).items()})
                self._ids[version, source] = pack.ids[rows]
        self._clips = clips
        self._too_short = {(version, source): count for version, source, count in about["too_short"]}
        self._episode_lengths = set(about["episode_lengths"])
        self._asked = {number: [(left, right) for left, right in pairs] for number, pairs in about["asked"]}

    def _names(self) -> list[str]:
        """The id of each fragment in the pool, the oldest first."""
        return [name for key in sorted(self._clips) for name in self._ids[key]][-self.settings.pool :]

    def _size(self) -> int:
        return sum(len(fragments) for fragments in self._clips.values())
