"""FragmentPool: keeps the newest fragments and selects pairs of them to ask about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pyarrow as pa

from rlhf_ray.data.arrays import Array, IntArray
from rlhf_ray.data.comparisons import Pairs, pair_id, spread_of
from rlhf_ray.data.failures import blaming
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.data.seeds import generator
from rlhf_ray.queries.selection import SELECTIONS, Candidates, choose, random_pairs
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, ResolvedFragments, RewardModelSettings
from rlhf_ray.store.packs import Pack, Rows

if TYPE_CHECKING:
    from rlhf_ray.reward import RewardEnsemble


BEFORE = -1
"""Number of the batch that `FragmentPool.exclude` adds to."""


@dataclass(frozen=True)
class CutFragments:
    """The fragments of one rollout, with facts about its episodes.

    Attributes:
        source: index of the EnvRunner; negative for the rollout collector: -1, and lower for each further part of its rollouts.
        policy_version: version of the policy that acted. A source makes one batch of fragments per version.
        fragments: None if no trajectory was long enough.
        episode_lengths: lengths (steps) of the episodes that ended in this rollout.
    """

    source: int
    policy_version: int
    fragments: Fragments | None
    episode_lengths: tuple[int, ...]


@dataclass(frozen=True)
class PoolReport:
    """Summary of the pool.

    Attributes:
        fragments: number of fragments in the pool.
        distinct: share of distinct fragments; 1 for an empty pool.
        newest_policy: newest policy version among them.
        too_short: number of episodes so far that were shorter than a fragment.
        episode_lengths: the distinct lengths (steps) of ended episodes, ascending.
    """

    fragments: int = 0
    distinct: float = 1.0
    newest_policy: int = RANDOM_POLICY
    too_short: int = 0
    episode_lengths: tuple[int, ...] = ()

    def metrics(self) -> dict[str, Any]:
        """Return the pool's metrics of an iteration."""
        return {
            "too_short": self.too_short,
            "distinct_fragments": self.distinct,
            "fragments_policy_version": self.newest_policy,
        }


class FragmentPool:
    """A pool of the newest fragments.

    Rollouts are ordered by policy version and source before use, so the order in which EnvRunners finish has no effect. Random
    choices use a generator seeded with the batch number: a restarted pool makes the same choices as the lost one, among the
    fragments that have arrived since.

    Raises:
        SettingError: ``preferences.selection`` names no valid selection.
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
        self.selection = SELECTIONS.make(preferences.selection, reward_model=reward_model)
        self._make_ensemble = (observation_space, action_space, reward_model)
        self._ensemble: RewardEnsemble | None = None
        self._fragments: dict[tuple[int, int], Fragments] = {}
        self._ids: dict[tuple[int, int], list[str]] = {}
        """`Fragments.ids` of each entry above, cached: expensive for images."""
        self._too_short: dict[tuple[int, int], int] = {}
        self._episode_lengths: set[int] = set()
        self._asked: dict[int, list[tuple[str, str]]] = {}
        """The pairs of fragment ids in each batch, by batch number."""

    @staticmethod
    def of(
        fragments: Fragments,
        asked: Iterable[tuple[str, str]],
        preferences: PreferenceSettings,
        reward_model: RewardModelSettings,
        spaces: tuple[gym.spaces.Box, gym.Space[Any]],
        seed: int,
    ) -> FragmentPool:
        """Make a pool of recorded fragments (at least two), which never proposes the pairs ``asked`` (see `exclude`)."""
        settings = FragmentSettings(length=fragments.length, pool=len(fragments), start_share=0.0)
        resolved = settings.resolved(horizon=None, total_env_steps=0)
        pool = FragmentPool(resolved, preferences, reward_model, *spaces, seed)
        pool.add(CutFragments(-1, RANDOM_POLICY, fragments, ()))
        pool.exclude(asked)
        return pool

    def add(self, cut: CutFragments) -> PoolReport:
        """Add the fragments of one rollout and return the summary. Adding a rollout again changes nothing."""
        key = (cut.policy_version, cut.source)
        self._too_short[key] = sum(steps < self.settings.length for steps in cut.episode_lengths)
        self._episode_lengths.update(cut.episode_lengths)
        if cut.fragments is not None:
            self._fragments[key], self._ids[key] = cut.fragments, cut.fragments.ids()
        newest = max((version for version, _ in self._fragments), default=RANDOM_POLICY)
        oldest = self.settings.max_policy_age
        for old in sorted(self._fragments):
            left = self._size() - len(self._fragments[old])
            stale = oldest is not None and newest - old[0] > oldest and left >= 2
            if left < self.settings.pool and not stale:
                break
            del self._fragments[old], self._ids[old]
        return self.report()

    def exclude(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Never propose these pairs of fragment ids, in either order: they were asked before this pool."""
        self._asked[BEFORE] = list(dict.fromkeys([*self._asked.get(BEFORE, []), *pairs]))

    def propose(
        self, count: int, number: int, reward: dict[str, Array] | None, answered: Mapping[str, int] | None = None
    ) -> tuple[int, Pairs | None]:
        """Select ``count`` pairs to ask about, excluding those of earlier batches.

        Args:
            count: number of pairs wanted.
            number: the batch number; seeds the random choices.
            reward: the newest version of the reward ensemble (`RewardEnsemble.state`), for selections that use it; or None.
            answered: number of answers by annotator so far, which the pairs take to the teacher; None if unknown.

        Returns:
            The number of pairs and the pairs: at most ``count``; 0 and None if no pair is possible.
        """
        if self._size() < 2:
            return 0, None
        pool, names = self._different()
        asked = self._asked_before(names, number)
        rng = generator(self.seed, "pairs", number)
        version = 0 if reward is None else int(reward["version"])
        if self.selection is None or (reward is None and self.selection.needs_reward):
            index = self._new_pairs(pool, asked, count, rng)
        else:
            drawn = self._new_pairs(pool, asked, count * self.preferences.oversampling, rng)
            network = self._make_ensemble[2].network
            with blaming({"preferences.selection": self.preferences.selection, "reward_model.network": network}):
                learned = None if reward is None else self._returns(reward, pool)
                noise = 0.0 if reward is None else float(reward.get("label_noise", 0.0))
                candidates = Candidates(drawn, pool.read_only(), learned, count, asked, noise)
                index = choose(self.selection, candidates, count, rng)
        if len(index) == 0:
            return 0, None
        self._asked[number] = [(names[left], names[right]) for left, right in index]
        ids = tuple(pair_id(*pair) for pair in self._asked[number])
        returns = pool.returns()
        known = not np.isnan(recent := float(returns.mean()))
        return len(index), Pairs(
            pool[index[:, 0]],
            pool[index[:, 1]],
            ids,
            version,
            recent_return=recent if known else None,
            recent_spread=spread_of(returns) if known else None,
            answered=answered,
        )

    def unlabelled(self, count: int, number: int) -> Pairs | None:
        """Draw at most ``count`` random pairs that were not asked about, for methods that learn from pairs without answers."""
        if self._size() < 2:
            return None
        pool, names = self._different()
        asked = self._asked_before(names, 1 + max(self._asked, default=-1))
        index = self._new_pairs(pool, asked, count, generator(self.seed, "unlabelled", number))
        if len(index) == 0:
            return None
        ids = tuple(pair_id(names[left], names[right]) for left, right in index)
        return Pairs(pool[index[:, 0]], pool[index[:, 1]], ids)

    def _different(self) -> tuple[Fragments, list[str]]:
        """Return the different fragments of the pool, and their ids."""
        pool = Fragments.concatenate([self._fragments[key] for key in sorted(self._fragments)])[-self.settings.pool :]
        names = self._names()
        if len(set(names)) == len(names):
            return pool, names
        different = sorted({name: i for i, name in reversed(list(enumerate(names)))}.values())
        return pool[np.array(different)], [names[i] for i in different]

    def _returns(self, reward: dict[str, Array], pool: Fragments) -> Array:
        if self._ensemble is None:
            import torch  # both imports are slow, and most pools don't need them

            from rlhf_ray.reward import RewardEnsemble

            with torch.random.fork_rng(devices=[]):  # keep this process's random stream unchanged
                self._ensemble = RewardEnsemble(*self._make_ensemble)
        self._ensemble.load_state(reward)
        return self._ensemble.fragment_returns(pool)

    def _asked_before(self, names: list[str], number: int) -> IntArray:
        """Return the pairs of batches before ``number`` with both fragments among ``names``, ``[k, 2]``, as positions there."""
        position = {name: i for i, name in enumerate(names)}
        asked = [
            (position[left], position[right])
            for earlier, pairs in self._asked.items()
            for left, right in pairs
            if earlier < number and left in position and right in position
        ]
        once = {frozenset(pair): pair for pair in asked}  # two annotators may have answered a pair, or its mirror image
        return np.array(list(once.values()), dtype=np.int64).reshape(-1, 2)

    def _new_pairs(self, pool: Fragments, asked: IntArray, count: int, rng: np.random.Generator) -> IntArray:
        """Draw ``count`` random pairs of the fragments in ``pool``, excluding those ``asked`` before."""
        old = {frozenset(pair) for pair in asked.tolist()}
        drawn = random_pairs(len(pool), count + len(old), rng, pool.starts == 0, self.settings.start_share)
        return drawn[[frozenset(pair) not in old for pair in drawn.tolist()]][:count]

    def report(self) -> PoolReport:
        """Return a summary of the pool."""
        names = self._names()
        return PoolReport(
            fragments=len(names),
            distinct=len(set(names)) / len(names) if names else 1.0,
            newest_policy=max((version for version, _ in self._fragments), default=RANDOM_POLICY),
            too_short=sum(self._too_short.values()),
            episode_lengths=tuple(sorted(self._episode_lengths)),
        )

    def save(self, folder: Path) -> None:
        """Write ``pool.json`` and, if there are fragments, ``pool-….arrow`` to ``folder``."""
        keys = sorted(self._fragments)
        about: dict[str, Any] = {
            "clips": [[*key, len(self._fragments[key])] for key in keys],
            "too_short": [[*key, count] for key, count in self._too_short.items()],
            "episode_lengths": sorted(self._episode_lengths),
            "asked": [[number, pairs] for number, pairs in self._asked.items()],
            "file": None,
        }
        if keys:
            rows = Rows.concatenate([Rows(self._ids[key], self._fragments[key]) for key in keys])
            about["file"] = f"pool-{rows.content()}.arrow"
            with (folder / about["file"]).open("wb") as sink:
                rows.write(sink)
        (folder / "pool.json").write_text(json.dumps(about) + "\n")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Pairs that this pool was told to exclude stay excluded."""
        excluded = self._asked.get(BEFORE, [])
        about = json.loads((folder / "pool.json").read_text())
        fragments: dict[tuple[int, int], Fragments] = {}
        self._ids, first = {}, 0
        if about["file"] is not None:
            pack = Pack(about["file"], pa.memory_map(str(folder / about["file"])))
            pack.check(np.arange(len(pack.ids)))
            for version, source, count in about["clips"]:
                rows = slice(first, first := first + count)
                kept = pack.fragments[rows]
                fragments[version, source] = Fragments(**{name: np.array(array) for name, array in vars(kept).items()})
                self._ids[version, source] = pack.ids[rows]
        self._fragments = fragments
        self._too_short = {(version, source): count for version, source, count in about["too_short"]}
        self._episode_lengths = set(about["episode_lengths"])
        self._asked = {number: [(left, right) for left, right in pairs] for number, pairs in about["asked"]}
        if excluded:
            self.exclude(excluded)

    def _names(self) -> list[str]:
        """Return the id of each fragment in the pool, oldest first."""
        return [name for key in sorted(self._fragments) for name in self._ids[key]][-self.settings.pool :]

    def _size(self) -> int:
        return sum(len(fragments) for fragments in self._fragments.values())
