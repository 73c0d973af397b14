"""Concepts, stability, clusters and behaviours on planted data."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from benchmarks.agent_calibrations import planted
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.steps import clusters, concepts
from rlhf_ray.interpret.agent.steps.behaviours import behaviours, shares, windows
from rlhf_ray.interpret.directions.stability import stability
from tests.agents import made


def episodes_of(lengths: list[int], seed: int = 0) -> Episodes:
    """Episodes whose memory holds a running count and a bit that no single observation shows."""
    rng = np.random.default_rng(seed)
    n, steps = len(lengths), max(lengths)
    bit = np.repeat(rng.integers(2, size=(n, 1)), steps + 1, 1).astype(bool)
    memory = 0.1 * rng.normal(size=(n, steps + 1, 6)).astype(np.float32)
    memory[:, 1:, 0] += bit[:, :-1]
    memory[:, 1:, 1] += bit[:, :-1]
    memory[:, 1:, 2] += np.arange(steps) / steps
    ends = np.array(lengths) < steps
    rewards = np.zeros((n, steps))
    rewards[np.arange(n), np.array(lengths) - 1] = 1.0
    seen, actions = rng.integers(0, 256, (n, steps + 1, 4, 4, 3)).astype(np.uint8), rng.integers(3, size=(n, steps))
    count, never = np.repeat(np.arange(steps + 1.0)[None], n, 0), np.zeros((n, steps + 1), bool)
    told = {"rewards": rewards, "lengths": np.array(lengths), "terminated": ends, "truncated": ~ends}
    states = {"bit": bit, "count": count, "never": never}
    return made.episodes(n, steps, observations=seen, actions=actions, memory=memory, states=states, **told)


class _Blank:
    """An agent that is only asked for the size of its memory."""

    memory_size = 6


def test_library_knows_states_and_events():
    episodes = episodes_of([3, 6])
    found = concepts.library(episodes, ["left", "right", "jump"], within=2)
    assert {"bit", "count", "never", "reward within 2 steps", "end within 2 steps"} < set(found)
    assert np.isnan(found["bit"][0, 4:]).all()  # after the end
    np.testing.assert_array_equal(found["reward within 2 steps"][0, :4], [0, 1, 1, np.nan])
    np.testing.assert_array_equal(found["end within 2 steps"][1, :6], 0.0)  # it was cut, and did not end
    jumps = found.get("action is jump", np.zeros((2, 7)))
    np.testing.assert_array_equal(jumps[1, :6], episodes.actions[1] == 2)


def test_memory_is_read_beside_its_controls_and_since_when():
    """The bit holds for the whole episode; a count follows the time, which other episodes tell as well."""
    episodes = episodes_of([12] * 20)
    found = concepts.samples(_Blank(), episodes)
    np.testing.assert_array_equal(found.values[5], episodes.memory[0, 6])  # after the observation at step 5
    frames = concepts.frames(episodes, found)
    read = {each.concept: each for each in concepts.decode(found, concepts.library(episodes), frames, [1, 4])}
    assert "never" not in read
    bit, count = read["bit"], read["count"]
    assert (bit.measure, count.measure) == ("AUC", "R²")
    assert bit.frame is not None
    assert bit.score.mean > 0.99 > 0.65 > bit.frame
    assert bit.shuffled.mean < 0.75
    assert count.score.mean > 0.8
    assert (bit.since, count.since) == (4, None)


def test_a_memory_of_three_steps_tells_of_three_steps_ago_and_no_more():
    rng = np.random.default_rng(5)
    signs = rng.choice([-1.0, 1.0], (40, 31))
    episodes = episodes_of([30] * 40)
    memory = np.zeros((40, 31, 4), np.float32)
    for back in range(4):
        memory[:, 1 + back :, back] = signs[:, : 30 - back]
    planted = replace(episodes, memory=memory, states={"sign": signs > 0})
    found = concepts.samples(_Blank(), planted)
    [sign] = concepts.decode(found, {"sign": concepts.library(planted)["sign"]}, None, [1, 2, 3, 5])
    assert (sign.score.mean, sign.since) == (1.0, 3)
    assert abs(sign.shuffled.mean - 0.5) < 0.1
    values = memory[:, 1:][planted.real].astype(float)
    [basis] = concepts.concept_directions(planted, values, np.arange(0, len(values), 2))
    assert list(basis.names) == ["sign"]
    np.testing.assert_allclose(np.abs(basis.filters[0]) / np.abs(basis.filters[0]).max(), [1, 0, 0, 0], atol=1e-3)


@pytest.mark.parametrize("lengths", [[1], [1, 1], [5], [2, 1, 3]])
def test_few_steps_are_no_error(lengths):
    episodes = episodes_of(lengths)
    found = concepts.samples(_Blank(), episodes)
    for each in concepts.decode(found, concepts.library(episodes)):
        assert np.isfinite(each.score.mean)
    found_again = behaviours({"memory": episodes.memory[:, 1:]}, episodes.real)
    assert found_again.labels.shape == episodes.real.shape
    assert clusters.cluster(found.values).stability <= 1.0
    assert clusters.tsne(found.values).shape == (len(found), 2)


def test_planted_sources_are_stable_and_noise_is_not():
    rng = np.random.default_rng(0)
    sources = rng.laplace(size=(1500, 4))
    mixed = sources @ rng.normal(size=(4, 10)) + 0.01 * rng.normal(size=(1500, 10))
    found = directions.fit("ica", mixed, 4)
    agreed = np.abs(np.corrcoef(found.encode(mixed).T, sources.T)[:4, 4:])
    assert agreed.max(1).min() >= 0.95
    assert stability(found, mixed).stable.all()
    noise = rng.normal(size=(1500, 10))
    assert not stability(directions.fit("ica", noise, 4), noise, seeds=2).stable.any()


def test_clusters_find_planted_ones_and_say_when_there_are_none():
    rng = np.random.default_rng(1)
    truth = rng.integers(3, size=400)
    points = 6.0 * np.eye(8)[truth] + rng.normal(size=(400, 8))
    for kind in clusters.KINDS:
        found = clusters.cluster(points, kind)
        assert len(found) == 3
        assert adjusted_rand_score(truth, found.labels) > 0.9
        assert found.stability > 0.9
        assert found.silhouette > clusters.CLEAR
    nothing = clusters.cluster(rng.normal(size=(300, 8)))
    assert nothing.silhouette < clusters.CLEAR


def test_planted_behaviours_are_found():
    blocks, truth = planted.behaving(0)
    real = np.ones(truth.shape, bool)
    found = behaviours(blocks, real, length=5, count=4)
    starts = found.starts.steps % 5 == 0
    agreed = adjusted_rand_score(found.starts.cut(truth)[starts], found.clusters.labels[starts])
    assert agreed >= 0.8
    means = shares(found.labels, np.where(truth == 0, 1.0, 0.0))
    assert means.max() > 0.6 > 0.3 > np.sort(means)[-2]


def test_windows_stay_within_episodes_and_blocks_count_alike():
    real = np.arange(6)[None] < np.array([[6], [3]])
    blocks = {
        "small": np.random.default_rng(0).normal(size=(2, 6, 2)),
        "large": 1000.0 * np.random.default_rng(1).normal(size=(2, 6, 7)),
    }
    features, rows, steps = windows(blocks, real, 3)
    assert list(zip(rows, steps, strict=True)) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    wide = features.var(0)
    assert wide[:6].sum() == pytest.approx(wide[6:].sum(), rel=0.8)


def test_umap_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(SettingError, match=r"install rlhf-ray\[interpret\]"):
        clusters.umap(np.random.default_rng(0).normal(size=(30, 4)))
