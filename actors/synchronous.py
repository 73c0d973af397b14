"""The synchronous ring: collect, ask, answer, store, fit, publish, one after the other, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from actors.first_clips import Part
from actors.labelling_page import Progress
from actors.pipeline import FIRST_FIT, Pipeline, RoundReport
from actors.reward_trainer import StateLostError
from actors.rollout_collector import PolicyFactory
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.queries.schedules import rounds_covered
from rlhf_ray.reward.trainer import FitReport

ASKINGS = 1000
"""People's questions of a round have numbers from this times the round's up: those of the first round come in parts."""

LOOK_EVERY = 0.2
"""Seconds between two looks at whether to stop while the first clips are made."""


class SynchronousPipeline(Pipeline):
    """Turns the ring when it is told to, and returns when it has turned. The same seed gives the same turns."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self._read = 0
        """Up to which event the store was read, where people are asked."""
        self._asked: list[tuple[int, Any, int]] = []
        """What people are asked in this round: the number of each asking, its pairs, and how many."""
        self.round_number = -1
        """The last round that was held; -1 before the first."""
        self._extra = 0
        """Times that was asked beyond once a round: each time has a number of its own."""
        self._adopted: Comparisons | None = None
        """Labels that are there before the first round, until that is held."""
        self._last_answer: float | None = None
        """When people had answered the last round that asked them something, in seconds since 1970."""

    @property
    def rounds_held(self) -> int:
        """Labelling rounds so far, the first included."""
        return self.round_number + 1

    def adopt(self, store: Path | str) -> Comparisons:
        """See `Pipeline.adopt`."""
        self._adopted = super().adopt(store)
        return self._adopted

    def begin(self, env_steps: int, stop: Callable[[], bool] = lambda: False) -> RoundReport:
        """Gather the first clips with ``env_steps`` random actions and hold the first round.

        Only waiting for people can be stopped.

        Raises:
            SettingError: the clips show that the settings do not fit the environment.
        """
        if self.page is None:
            self._collect_first(env_steps)
        else:
            self._collect_and_ask(env_steps, stop)
        return self.hold_round(0, stop)

    def _collect_and_ask(self, env_steps: int, stop: Callable[[], bool]) -> None:
        """Gather the first clips, and ask people about those there are meanwhile."""
        assert self.page is not None
        assert self.page_handle is not None
        self._first = first = self._first_parts(env_steps)
        self.env_steps += env_steps
        there = len(self._adopted) if self._adopted is not None else 0
        wanted = self.spending.grant(self.labels[0], there, None)
        calls: dict[Any, tuple[Part, Any]] = {}
        self.page_handle.tell(self._situation(0, first.waiting_for))
        while not first.done and not stop():
            busy = [collector for _, collector in calls.values()]
            for collector in (self.collector, *first.helpers):
                if first.left and collector not in busy:
                    part, clips = self._start_part(first, collector)
                    calls[clips] = part, collector
            for clips in ray.wait(list(calls), timeout=LOOK_EVERY, fetch_local=False)[0]:
                part, _ = calls.pop(clips)
                ray.get(self.fragmenter.add.remote(clips))
                self._took_part(first, part, clips, ray.get(self.fragmenter.report.remote()))
                self.page_handle.tell(self._situation(first.env_steps, first.waiting_for))
                missing = first.questions(wanted) - sum(count for *_, count in self._asked)
                if missing > 0 and not first.done:
                    self._ask_people(missing, len(self._asked))
            self._listen(-1)
        first.end()
        self._first = None

    def _ask_people(self, count: int, number: int) -> None:
        """Have ``count`` pairs chosen, and people asked about them."""
        assert self.page is not None
        reward = None if self.version == 0 else ray.put(self.publish())
        found, pairs = self.fragmenter.propose.options(num_returns=2).remote(count, number, reward)
        if asked := ray.get(found):
            ray.get(self.page.ask.remote(number, pairs))
            self._asked.append((number, pairs, asked))

    def explore(self, round_number: int, policy_version: int, make_policy: PolicyFactory) -> None:
        """Gather clips of a policy with a share of random actions, as the settings say."""
        steps = self.fragments.exploration_env_steps
        ray.get(self._collect(steps, round_number, policy_version, make_policy))
        self.env_steps += steps

    def film(self, round_number: int, policy_version: int, make_policy: PolicyFactory) -> None:
        """Film a policy for people, as the settings say."""
        assert self.page_handle is not None
        steps, clips = self.fragments.filmed_env_steps, self.films_per_round
        films, shown = self._film(steps, clips, round_number, policy_version, make_policy, self.env_steps)
        self.env_steps += steps
        self.page_handle.tell(self._situation(self.env_steps, "the next round"))
        if shown is not None:
            self.page_handle.show(shown)
        ray.get(self.fragmenter.add.remote(films))

    def hold_round(self, round_number: int, stop: Callable[[], bool] = lambda: False) -> RoundReport:
        """Ask for what is due by round ``round_number``, store the answers and fit the reward model to all.

        Args:
            round_number: which round.
            stop: says whether to wait for people no longer; what they have answered until then counts.
        """
        due = sum(self.labels[: round_number + 1])
        wanted = max(0, due - self.answered)
        updates = self.reward_model.initial_updates if self.version == 0 else self.reward_model.updates
        answered, fit, there, labels = 0, None, self.answered, list[Any]()
        if self._adopted is not None:
            # With the gradient steps of the rounds that need not be held for them.
            updates += rounds_covered(self.labels, len(self._adopted)) * self.reward_model.updates
            there += len(self._adopted)
            labels.append(ray.put(self._adopted))
            self._adopted = None
        labels += self._ask(due, there, round_number, stop)
        if labels:
            fit = self._fit(updates, *labels)
            # Counted by the trainer, whose state goes back with this one's: the store may hold some of them already, from
            # a commit that was repeated or a run that is resumed at an earlier round.
            answered = fit.comparisons - self.answered
            fit = fit if fit.gradient_steps else None  # everything was taken back, so that no version was made
        self.round_number = round_number
        self.answered += answered
        return RoundReport(round_number, wanted - self.spending.held_back, answered, self.answered, fit)

    def _ask(self, due: int, there: int, round_number: int, stop: Callable[[], bool]) -> list[Any]:
        """Ask for what is due, as far as answers tell clips apart (`Spending`); the references of what there is to fit to."""
        labels: list[Any] = []
        rounds_left = None if round_number == 0 else self.rounds - round_number + 1
        while True:
            count = self.spending.grant(due, there, rounds_left)
            if count > 0:
                asked, new = self._gather(count, round_number + self._extra, stop)
                labels += new
                there += asked
                if not new or not self.spending.watches or stop():
                    return labels
                self.spending.look(*ray.get(self.trainer.ties.remote(*new)))
            elif round_number == 0 and self._wants_clips and not stop():
                ray.get(self._more_first_clips())
            else:
                return labels
            if round_number > 0:
                return labels
            self._extra += 1

    def _gather(self, missing: int, number: int, stop: Callable[[], bool]) -> tuple[int, list[Any]]:
        """Have so many pairs chosen and answered and the answers stored: how many, and the references of what there is to fit to.

        ``number`` is higher each time.
        """
        if self.page is not None:
            return self._gather_from_people(missing, number, stop)
        assert self.gatherer is not None
        reward = None if self.version == 0 else ray.put(self.publish())
        count, pairs = self.fragmenter.propose.options(num_returns=2).remote(missing, number, reward)
        asked = ray.get(count)
        if not asked:
            return 0, []
        comparisons = self.gatherer.gather.remote(pairs, number)
        ray.get(self.store.commit.remote(comparisons, annotator=self.preferences.teacher))
        return asked, [comparisons]

    def _gather_from_people(self, missing: int, number: int, stop: Callable[[], bool]) -> tuple[int, list[Any]]:
        assert self.page is not None
        between = None if self._last_answer is None else time.time() - self._last_answer
        assert self.page_handle is not None
        if missing > (before := sum(count for *_, count in self._asked)):
            self._ask_people(missing - before, ASKINGS * (number + 1) - 1)
        asked = sum(count for *_, count in self._asked)
        if not asked:
            return 0, []
        changes = 0
        while not stop():
            progress = self._listen(changes)
            changes = progress.changes
            if all(progress.done.get(number, 0) >= count for number, _, count in self._asked):
                break
        self._asked = []
        self._last_answer = time.time()
        next_question = None if between is None else self._last_answer + between
        learning = self._situation(self.env_steps, "the agent to learn from this round", next_question=next_question)
        self.page_handle.tell(learning)
        since, (self._read, held) = self._read, ray.get(self.store.position.remote())
        return asked, [self.store.since.remote(since)] if held else []

    def _listen(self, changes: int) -> Progress:
        """What has happened at the page (`LabellingPage.wait`). If it was restarted, it is brought back and asked again."""
        assert self.page is not None
        assert self.page_handle is not None
        progress: Progress = ray.get(self.page.wait.remote([number for number, *_ in self._asked], changes))
        while not (progress.serving or self.page_handle.serves(self.page_handle.serve())):
            pass
        for number, pairs, _ in self._asked:
            if number in progress.unknown:
                ray.get(self.page.ask.remote(number, pairs))
        return progress

    def arrived(self) -> dict[str, Any]:
        """What has arrived at the fragmenter (`Pipeline.check_report`). Looks after the page, too."""
        if self.page is not None:
            self._listen(-1)
        return self.check_report(ray.get(self.fragmenter.report.remote()))

    def state(self) -> dict[str, Any]:
        """See `Pipeline.state`."""
        return super().state() | {"round_number": self.round_number, "extra": self._extra}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Pipeline.load_state`."""
        super().load_state(state)
        self.round_number, self._adopted, self._extra = state["round_number"], None, state.get("extra", 0)

    def _fit(self, updates: int, *labels: Any) -> FitReport:
        """Fit; a trainer that was restarted is given its state back first."""
        if self.version == 0:
            self.say(FIRST_FIT)
        fit = self.trainer.fit.options(num_returns=2)
        refs = fit.remote(updates, self.version + 1, *labels)
        try:
            return self._take_fit(*refs)
        except StateLostError:
            ray.get(self._restore_trainer())
            return self._take_fit(*fit.remote(updates, self.version + 1, *labels))
