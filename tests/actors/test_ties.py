"""Labels are not spent on ties: both rings, with real Ray actors, where trembling reaches nothing and where nothing does."""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.asynchronous import AsynchronousPipeline
from actors.synchronous import SynchronousPipeline
from rlhf_ray.queries.spending import GATHERINGS, PROBE, TRICKLE
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from tests.made_up import Walk, same_comparisons

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

ROUNDS, LABELS, INITIAL = 3, 100, 40
FIRST = 600
TOTAL = 10_000
"""Environment steps of the first clips, and in all: of which the gatherings take a tenth each."""


class Far(Walk):
    """A walk whose reward is 1 beyond ``goal`` and 0 anywhere else."""

    def __init__(self, goal: float):
        super().__init__((60,), numbered=False)
        self.goal = goal

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(abs(self.position) > self.goal), terminated, truncated, info


def _arguments(folder: Path, goal: float, mode: Any) -> dict[str, Any]:
    return {
        "name": f"{mode}-{goal}",
        "fragments": FragmentSettings(length=10, pool=60),
        "preferences": PreferenceSettings(mode=mode, comparisons=LABELS, initial_comparisons=INITIAL, rounds=ROUNDS),
        "reward_model": RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=5, updates=2),
        "observation_space": Walk.observation_space,
        "action_space": Walk().action_space,
        "make_env": partial(Far, goal),
        "store": folder / "store",
        "seed": 0,
        "rollouts": 10,
        "spread": 100,
        "total_env_steps": TOTAL,
    }


def test_held_actions_make_clips_that_answers_tell_apart(tmp_path: Path) -> None:
    """Of random actions alone, none of ten rollouts of 60 steps gets so far: all 100 labels were ties."""
    ring = SynchronousPipeline(**_arguments(tmp_path, 12.0, "synchronous"))
    try:
        report = ring.begin(FIRST)
        assert (report.wanted, report.answered, ring.env_steps) == (INITIAL, INITIAL, FIRST)
        assert ring.spending.report()["labels_held_back"] == 0
    finally:
        ring.close()
    stored = PreferenceStore(tmp_path / "store").load()
    assert stored is not None
    assert stored.ties <= 0.8 * len(stored)


def test_where_nothing_tells_clips_apart_the_budget_is_held_back_and_a_restored_ring_goes_on_alike(
    tmp_path: Path,
) -> None:
    probes = PROBE * (1 + GATHERINGS)

    def later(ring: SynchronousPipeline) -> list[tuple[int, int, int]]:
        made = []
        for number in range(1, ROUNDS + 1):
            ring._collect_first(60)  # new clips, as PPO's rollouts would be
            report = ring.hold_round(number)
            made.append((report.wanted, report.answered, ring.spending.held_back))
        return made

    ring = SynchronousPipeline(**_arguments(tmp_path, math.inf, "synchronous"))
    try:
        report = ring.begin(FIRST)
        assert (report.wanted, report.answered) == (probes, probes)
        assert ring.env_steps == FIRST + GATHERINGS * ring.more_env_steps
        assert ring.spending.report() == {
            "labels_held_back": INITIAL - probes,
            "first_clips_gathered": 1 + GATHERINGS,
            "newest_answers": PROBE,
            "newest_ties": PROBE,
        }
        state = ring.state()
        rounds = later(ring)
        assert [answered for _, answered, _ in rounds] == [TRICKLE] * ROUNDS
        assert rounds[-1][2] == LABELS - probes - TRICKLE * ROUNDS  # unspent, and none lost
    finally:
        ring.close()
    again = SynchronousPipeline(**_arguments(tmp_path / "again", math.inf, "synchronous"))
    try:
        again.import_store(tmp_path / "store")
        again.load_state(state)
        assert later(again) == rounds
    finally:
        again.close()
    stored = [PreferenceStore(folder / "store").load() for folder in (tmp_path, tmp_path / "again")]
    assert stored[0] is not None
    assert stored[1] is not None
    assert same_comparisons(*stored)
    assert len(stored[0]) == probes + TRICKLE * ROUNDS


@pytest.mark.parametrize("goal", [12.0, pytest.param(math.inf, marks=pytest.mark.soak)])
def test_the_asynchronous_ring_does_the_same(goal: float, tmp_path: Path) -> None:
    ring = AsynchronousPipeline(**_arguments(tmp_path, goal, "asynchronous"))
    nothing = goal == math.inf
    try:
        report = ring.begin(FIRST)
        assert report is not None
        first = PROBE * (1 + GATHERINGS) if nothing else INITIAL
        assert report.answered == first
        assert ring.env_steps == FIRST + nothing * GATHERINGS * ring.more_env_steps
        for i in (1, ROUNDS):
            ring.advance(i / ROUNDS, FIRST + 100 * i)
            before, deadline = ring.answered, time.monotonic() + 60
            while ring.answered == before:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert first < ring.answered <= (first + 2 * TRICKLE if nothing else LABELS)
    finally:
        ring.close()
