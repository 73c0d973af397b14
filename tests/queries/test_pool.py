import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Pairs, pair_id
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.queries.pool import CutFragments, FragmentPool, PoolReport
from rlhf_ray.queries.selection import Candidates, Disagreement, choose
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from tests.made_up import FORCES, VECTORS, same_fragments, some_fragments, steps_of

REWARD_MODEL = RewardModelSettings(network="mlp", hidden=(8,))


def _pool(pool: int = 1000, seed: int = 0, start_share: float = 0.0, **preferences: Any) -> FragmentPool:
    fragments = FragmentSettings(length=5, pool=pool, start_share=start_share)
    return FragmentPool(
        fragments.resolved(horizon=None, total_env_steps=0),
        PreferenceSettings(**preferences),
        REWARD_MODEL,
        VECTORS,
        FORCES,
        seed,
    )


def _clips(version: int, source: int = 0, n: int = 4, **changes: Any) -> CutFragments:
    fragments = some_fragments(n, seed=100 * (version + 2) + source)
    fragments = dataclasses.replace(fragments, policy_versions=np.full(n, version))
    return dataclasses.replace(CutFragments(source, version, fragments, episode_lengths=()), **changes)


def _reward(version: int = 3, seed: int = 0) -> dict[str, Any]:
    trained = RewardEnsemble(VECTORS, FORCES, REWARD_MODEL)
    rng = np.random.default_rng(seed)
    state = {name: rng.normal(size=value.shape).astype(value.dtype) for name, value in trained.state().items()}
    return state | {"version": np.array(version), "reward_std": np.ones(3, np.float32)}


def _pairs(proposal: tuple[int, Pairs | None]) -> Pairs:
    count, pairs = proposal
    assert pairs is not None
    assert count == len(pairs)
    return pairs


def _questions(pairs: Pairs) -> set[frozenset[str]]:
    return {frozenset(names) for names in zip(pairs.left.ids(), pairs.right.ids(), strict=True)}


def _same(one: Pairs, other: Pairs) -> bool:
    return one.ids == other.ids and same_fragments(one.left, other.left) and same_fragments(one.right, other.right)


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["random", "disagreement"])
def test_the_order_in_which_clips_arrive_changes_nothing(selection: str) -> None:
    rollouts = [_clips(version, source) for version in (RANDOM_POLICY, 0, 1) for source in (0, 1)]
    proposals: list[Pairs] = []
    reports = []
    for order in itertools.permutations(rollouts):
        pool = _pool(pool=10, selection=selection)
        for clips in order:
            pool.add(clips)
        reports.append(pool.report())
        if len(proposals) < 20:
            proposals.append(_pairs(pool.propose(5, 1, _reward())))
    assert all(report == reports[0] for report in reports)
    assert all(_same(proposal, proposals[0]) for proposal in proposals)


def test_adding_a_rollout_twice_changes_nothing() -> None:
    once, twice = _pool(), _pool()
    for pool, times in ((once, 1), (twice, 2)):
        for clips in (_clips(1, episode_lengths=(7, 3, 3, 2)), _clips(2, episode_lengths=(9, 4, 5))):
            for _ in range(times):
                pool.add(clips)
    assert (
        once.report()
        == twice.report()
        == PoolReport(fragments=8, distinct=1.0, newest_policy=2, too_short=4, episode_lengths=(2, 3, 4, 5, 7, 9))
    )
    assert _same(_pairs(once.propose(6, 0, None)), _pairs(twice.propose(6, 0, None)))


def test_the_pool_keeps_the_newest_fragments_and_no_more_than_it_may() -> None:
    pool = _pool(pool=10)
    for version in range(6):
        pool.add(_clips(version))
        assert pool.report().fragments == min(10, 4 * (version + 1))
    pairs = _pairs(pool.propose(1000, 0, None))
    newest = [_clips(version).fragments for version in (3, 4, 5)]
    kept = Fragments.concatenate([fragments for fragments in newest if fragments is not None])[-10:]
    assert set(pairs.left.ids() + pairs.right.ids()) == set(kept.ids())
    assert len(pairs) == 10 * 9 // 2


def test_copies_of_a_clip_are_told_in_the_report_and_never_paired() -> None:
    pool = _pool(pool=6)
    fragments = some_fragments(2)
    pool.add(_clips(0, fragments=fragments[np.zeros(4, np.int64)]))
    assert pool.report().distinct == 0.25
    assert pool.propose(3, 0, None) == (0, None)
    pool.add(_clips(1, fragments=fragments[np.array([0, 1, 1])]))
    assert pool.report().distinct == 2 / 6  # of the newest 6
    assert len(_pairs(pool.propose(3, 0, None))) == 1


def test_a_rollout_that_comes_late_does_not_push_newer_ones_out() -> None:
    pool = _pool(pool=8)
    for version in (4, 5, RANDOM_POLICY, 3):
        pool.add(_clips(version))
        assert pool._size() <= 8  # what will never be asked about takes no memory
    pairs = _pairs(pool.propose(1000, 0, None))
    assert set(pairs.left.policy_versions.tolist() + pairs.right.policy_versions.tolist()) == {4, 5}


def test_rollouts_without_fragments_are_counted_and_make_no_pairs() -> None:
    pool = _pool()
    assert pool.propose(3, 0, None) == (0, None)
    pool.add(_clips(0, fragments=None, episode_lengths=(3, 3, 3)))
    assert pool.report() == PoolReport(too_short=3, episode_lengths=(3,))
    assert pool.propose(3, 0, None) == (0, None)
    pool.add(_clips(1, n=1))
    assert pool.propose(3, 0, None) == (0, None)


def test_proposals_depend_on_round_and_seed_only() -> None:
    def propose(round_number: int, seed: int) -> Pairs:
        pool = _pool(seed=seed)
        pool.add(_clips(0, n=30))
        return _pairs(pool.propose(10, round_number, None))

    assert _same(propose(1, 0), propose(1, 0))
    assert propose(1, 0).ids != propose(2, 0).ids
    assert propose(1, 0).ids != propose(1, 1).ids


def test_disagreement_is_that_of_the_reward_version_it_is_given() -> None:
    pool = _pool(selection="disagreement", oversampling=1000)  # so that all pairs are candidates
    clips = _clips(0, n=12)
    pool.add(clips)
    everything = np.array(list(itertools.combinations(range(12), 2)))
    chosen = []
    for version, seed in ((3, 0), (4, 1)):
        reward = _reward(version, seed)
        ensemble = RewardEnsemble(VECTORS, FORCES, REWARD_MODEL)
        ensemble.load_state(reward)
        returns = ensemble.fragment_returns(clips.fragments)
        candidates = Candidates(everything, clips.fragments, returns)
        best = choose(Disagreement(), candidates, 4, np.random.default_rng(0))
        names = clips.fragments.ids()
        pairs = _pairs(pool.propose(4, 0, reward))
        assert _questions(pairs) == {frozenset((names[left], names[right])) for left, right in best}
        assert pairs.reward_version == version
        chosen.append(_questions(pairs))
    assert chosen[0] != chosen[1]


def test_before_there_is_a_reward_disagreement_chooses_at_random() -> None:
    by_disagreement, at_random = _pool(selection="disagreement"), _pool(selection="random")
    for pool in (by_disagreement, at_random):
        pool.add(_clips(0, n=10))
    assert _same(_pairs(by_disagreement.propose(5, 0, None)), _pairs(at_random.propose(5, 0, None)))


@pytest.mark.parametrize("selection", ["random", "disagreement"])
def test_a_restored_pool_goes_on_as_the_first_would_have(selection: str, tmp_path: Path) -> None:
    first = _pool(pool=10, selection=selection)
    for version in range(3):
        first.add(_clips(version, episode_lengths=(3 + version,)))
    first.propose(8, 0, None)
    first.save(tmp_path)
    restored = _pool(pool=10, selection=selection)
    restored.add(_clips(9))  # which is forgotten
    restored.load(tmp_path)
    assert restored.report() == first.report()
    for pool in (first, restored):
        pool.add(_clips(3, n=2))
    assert _same(_pairs(restored.propose(6, 1, _reward())), _pairs(first.propose(6, 1, _reward())))


def test_an_empty_pool_is_saved_too_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    _pool().save(tmp_path)
    restored = _pool()
    restored.load(tmp_path)
    assert restored.report() == PoolReport()
    restored.add(_clips(0))
    restored.save(tmp_path)
    (file,) = tmp_path.glob("*.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(OSError, match="damaged"):
        _pool().load(tmp_path)


def test_disagreement_is_on_the_scale_of_the_likelihood_with_its_discount() -> None:
    """One member's returns are ten times another's: the likelihood hears it louder, whatever their normalisers say."""
    settings = dataclasses.replace(REWARD_MODEL, discount=0.5, ensemble_size=2)
    ensemble = RewardEnsemble(VECTORS, FORCES, settings)
    fragments = some_fragments(6)
    rewards = ensemble.raw_rewards(*map(torch.as_tensor, steps_of(fragments))).reshape(2, 6, 5).numpy()
    expected = (rewards * 0.5 ** np.arange(5)).sum(-1)
    np.testing.assert_allclose(ensemble.fragment_returns(fragments), expected, rtol=1e-5)
    ensemble.reward_std.fill_(10.0)  # what normalises rewards for the agent changes no logit
    np.testing.assert_allclose(ensemble.fragment_returns(fragments), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "selection", ["random", "k_center", "entropy+k_center", "near_on_policy+disagreement", "information_gain"]
)
def test_no_selection_asks_a_pair_twice_or_mirrored(selection: str) -> None:
    pool, asked = _pool(selection=selection, oversampling=4), set[frozenset[str]]()
    for number in range(6):
        pool.add(_clips(number, n=4))
        pairs = _pairs(pool.propose(3, number, _reward(number + 1)))
        assert pairs.reward_version == number + 1
        assert not _questions(pairs) & asked
        asked |= _questions(pairs)
    assert len(asked) == 18


def test_selections_know_how_many_are_wanted_and_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Candidates] = []

    class Looks:
        needs_reward = False

        def score(self, candidates: Candidates, rng: np.random.Generator) -> Any:
            seen.append(candidates)
            return np.zeros(len(candidates.index))

    looks: Any = Looks()
    pool = _pool(selection=looks)
    pool.add(_clips(0, n=6))
    first = _pairs(pool.propose(4, 0, None))
    pool.propose(2, 1, None)
    assert [(of.count, len(of.asked)) for of in seen] == [(4, 0), (2, 4)]
    names = seen[1].fragments.ids()
    assert {frozenset((names[left], names[right])) for left, right in seen[1].asked} == _questions(first)


def test_fragments_of_outdated_policies_are_dropped() -> None:
    fragments = FragmentSettings(length=5, pool=1000, max_policy_age=2).resolved(horizon=None, total_env_steps=0)
    pool = FragmentPool(fragments, PreferenceSettings(), REWARD_MODEL, VECTORS, FORCES, 0)

    def versions() -> set[int]:
        pairs = _pairs(pool.propose(1000, 0, None))
        return {*pairs.left.policy_versions.tolist(), *pairs.right.policy_versions.tolist()}

    found = []
    for version in (RANDOM_POLICY, 0, 1, 2, 3):
        pool.add(_clips(version))
        found.append(versions())
    assert found == [{-1}, {-1, 0}, {-1, 0, 1}, {0, 1, 2}, {1, 2, 3}]
    pool.add(_clips(0, source=1))  # late
    assert versions() == {1, 2, 3}
    pool.add(_clips(9, n=1))  # alone it would make no pair
    assert versions() == {3, 9}


def test_pairs_tell_the_pools_mean_return_and_its_spread_whatever_came_first_and_after_a_restart(tmp_path):
    pool, turned = _pool(pool=60), _pool(pool=60)
    for version in range(3):
        pool.add(_clips(version, n=20))
        turned.add(_clips(2 - version, n=20))
    returns = np.concatenate([of.returns() for of in (_clips(version, n=20).fragments for version in range(3)) if of])
    apart = np.abs(returns[:, None] - returns)[np.triu_indices(60, 1)]
    pairs = _pairs(pool.propose(3, 0, None))
    spread = pairs.recent_spread
    assert pairs.recent_return == pytest.approx(returns.mean())
    assert spread == pytest.approx(np.quantile(apart, 0.95))
    assert _pairs(turned.propose(3, 0, None)).recent_spread == spread
    pool.save(tmp_path)
    again = _pool(pool=60)
    again.load(tmp_path)
    assert _pairs(again.propose(3, 1, None)).recent_spread == spread
    blind = dataclasses.replace(some_fragments(4), rewards=np.full((4, 5), np.nan))
    pool.add(_clips(4, fragments=blind))
    pairs = _pairs(pool.propose(3, 1, None))
    assert pairs.recent_return is pairs.recent_spread is None


def test_pairs_without_answers_are_of_no_batch_the_newest_included() -> None:
    spaces = (VECTORS, FORCES)
    pool = FragmentPool.of(some_fragments(4), [], PreferenceSettings(), RewardModelSettings(), spaces, 0)
    asked = [_pairs(pool.propose(count, number, None)) for number, count in enumerate((2, 3))]
    unlabelled = pool.unlabelled(10, 1)
    names = [frozenset(pair) for of in (*asked, unlabelled) for pair in zip(of.left.ids(), of.right.ids(), strict=True)]
    assert len(set(names)) == len(names) == 6  # all that four fragments have
    assert unlabelled.ids == tuple(map(pair_id, unlabelled.left.ids(), unlabelled.right.ids()))


def test_a_pool_favours_starts_of_episodes_and_stays_without_what_was_asked_before_it(tmp_path: Path) -> None:
    fragments = some_fragments(12)
    fragments.starts[:] = np.arange(12) % 3
    pool = _pool(pool=12, start_share=1.0)
    pool.add(CutFragments(0, 0, fragments, ()))
    pool.save(tmp_path)
    names = fragments.ids()
    before = [(names[left], names[right]) for left, right in ((0, 3), (6, 0), (0, 9), (3, 6), (9, 3))]
    pool.exclude(before)
    pool.load(tmp_path)
    pairs = _pairs(pool.propose(9, 0, None))
    assert {*pairs.left.ids(), *pairs.right.ids()} == {names[6], names[9]}  # of four starts, the only pair left
    assert pairs.ids == tuple(map(pair_id, pairs.left.ids(), pairs.right.ids()))
