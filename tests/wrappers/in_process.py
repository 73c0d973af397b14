"""The wrapper's ring in one process and one thread, for fast tests: the same parts, one after the other. Not a test itself."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any, ClassVar

from actors.fragmenter import Clips, Fragmenter
from actors.gatherer import SyntheticGatherer
from actors.pipeline import RoundReport
from rlhf_ray.queries.schedules import labels_due
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore


class InProcessRing:
    """Stands in for `rlhf_ray.wrappers.ring.WrapperRing`. What is due is done in `advance`."""

    made: list[InProcessRing]
    """All so far; a fixture empties it."""

    links: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        *,
        asks: bool,
        fits: bool,
        name: str,
        fragments: FragmentSettings,
        preferences: PreferenceSettings,
        reward_model: RewardModelSettings,
        observation_space: Any,
        action_space: Any,
        store: Path,
        seed: int,
        total_env_steps: int | None = None,
        page: object = None,
    ):
        self.asks, self.fits, self.waited_for = asks, fits, False
        self.fragments, self.preferences, self.reward_model = fragments, preferences, reward_model
        spaces = (observation_space, action_space)
        self.fragmenter = Fragmenter(fragments, preferences, reward_model, *spaces, seed)
        self.gatherer = SyntheticGatherer(preferences, seed)
        self.store = PreferenceStore(store)
        self.trainer = RewardTrainer(reward_model, *spaces, held_out_share=preferences.held_out_share, seed=seed)
        self.answered, self.version, self.asked, self.fitted = 0, 0, 0, 0
        self.clips: list[Clips] = []
        """Everything that was sent."""
        self.advances: list[tuple[float, int]] = []
        self.failure: Exception | None = None
        self.busy = False
        """Whether the fragmenter takes no clips."""
        self.closed = 0
        self.rounds = 0
        self._news: Any = None
        InProcessRing.made.append(self)

    def start(self) -> None:
        self.answered = len(self.store)

    def take(self, clips: Clips, wait: bool) -> bool:
        if self.busy and not wait:
            return False
        self.clips.append(clips)
        self.fragmenter.add(clips)
        return True

    def advance(self, progress: float, env_steps: int) -> None:
        if self.failure is not None:
            raise self.failure
        self.advances.append((progress, env_steps))
        of = self.preferences
        due = labels_due(of.comparisons, of.first_comparisons, of.schedule, progress, of.steepness) - self.answered
        if self.asks and due > 0 and env_steps >= self.fragments.initial_env_steps:
            _, pairs = self.fragmenter.propose(due, self.asked, self.publish() if self.version else None)
            if pairs is not None:
                self.store.commit(self.gatherer.gather(pairs, self.asked), annotator=of.teacher)
                self.asked, self.answered = self.asked + 1, len(self.store)
        rounds = math.floor(progress * of.rounds)
        if self.version and rounds > self.rounds:
            self._fit((rounds - self.rounds) * self.reward_model.updates)
            self.rounds = rounds
        elif not self.version:
            self._first_fit()

    @property
    def labels_due(self) -> int:
        return self.answered

    def settle(self) -> tuple[int, int]:
        return 0, self.answered

    def wait_for_version(self) -> None:
        self._first_fit()
        assert self.version, "the real one would wait for ever"

    def _first_fit(self) -> None:
        if self.answered >= (self.preferences.first_fit_comparisons if self.asks else 1):
            self._fit(self.reward_model.initial_updates)

    def _fit(self, updates: int) -> None:
        stored = self.store.load()
        if not self.fits or stored is None or len(stored) == self.fitted:
            return
        self.trainer.add(stored)
        fit = self.trainer.fit(updates)
        self.fitted, self.version = len(stored), fit.version
        self._news = RoundReport(fit.version - 1, 0, 0, self.answered, fit)

    def publish(self) -> Any:
        return self.trainer.ensemble.state()

    def news(self) -> Any:
        news, self._news = self._news, None
        return news

    def copy_store(self, path: Path) -> None:
        self.store.copy_to(path)

    def import_store(self, path: Path) -> None:
        self.store.import_from(path)

    def state(self) -> dict[str, Any]:
        trainer = copy.deepcopy(self.trainer.state()) if self.version else None
        counters = {"version": self.version, "asked": self.asked, "fitted": self.fitted, "rounds": self.rounds}
        return counters | {"trainer": trainer, "fragmenter": self.fragmenter.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.version, self.asked, self.fitted = state["version"], state["asked"], state["fitted"]
        self.rounds = state["rounds"]
        self.fragmenter.load_state(state["fragmenter"])
        if state["trainer"] is not None:
            self.trainer.load_state(state["trainer"], self.store.load())
        self.start()

    def close(self) -> None:
        self.closed += 1
