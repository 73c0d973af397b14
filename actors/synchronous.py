"""The synchronous ring: collect, ask, answer, store, fit, publish, one after the other, round by round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from actors.pipeline import FIRST_FIT, Pipeline, RoundReport
from actors.reward_trainer import StateLostError
from actors.rollout_collector import PolicyFactory
from rlhf_ray.comparisons import Comparisons
from rlhf_ray.reward.trainer import FitReport
from rlhf_ray.schedules import rounds_covered


class SynchronousPipeline(Pipeline):
    """Turns the ring when it is told to, and returns when it has turned. The same seed gives the same turns."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self._read = 0
        """Up to which event the store was read, where people are asked."""
        self.round_number = -1
        """The last round that was held; -1 before the first."""
        self._adopted: Comparisons | None = None
        """Labels that are there before the first round, until that is held."""

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
        self._collect_first(env_steps)
        return self.hold_round(0, stop)

    def explore(self, round_number: int, policy_version: int, make_policy: PolicyFactory) -> None:
        """Gather clips of a policy with a share of random actions, as the settings say."""
        steps = self.fragments.exploration_env_steps
        ray.get(self._collect(steps, round_number, policy_version, make_policy))
        self.env_steps += steps

    def film(self, round_number: int, policy_version: int, make_policy: PolicyFactory) -> None:
        """Film a policy for people, as the settings say."""
        assert self.page is not None
        steps, clips = self.fragments.filmed_env_steps, self.films_per_round
        films, shown = self._film(steps, clips, round_number, policy_version, make_policy, self.env_steps)
        self.env_steps += steps
        told = self.page.tell.remote(self._situation(self.env_steps, "the next round"), shown)
        ray.get([self.fragmenter.add.remote(films), told])

    def hold_round(self, round_number: int, stop: Callable[[], bool] = lambda: False) -> RoundReport:
        """Ask for what is due by round ``round_number``, store the answers and fit the reward model to all.

        Args:
            round_number: which round.
            stop: says whether to wait for people no longer; what they have answered until then counts.
        """
        wanted = max(0, sum(self.labels[: round_number + 1]) - self.answered)
        updates = self.reward_model.initial_updates if self.version == 0 else self.reward_model.updates
        answered, fit, missing, labels = 0, None, wanted, list[Any]()
        if self._adopted is not None:
            # With the gradient steps of the rounds that need not be held for them.
            updates += rounds_covered(self.labels, len(self._adopted)) * self.reward_model.updates
            missing -= len(self._adopted)
            labels.append(ray.put(self._adopted))
            self._adopted = None
        if missing > 0:
            reward = None if self.version == 0 else ray.put(self.publish())
            count, pairs = self.fragmenter.propose.options(num_returns=2).remote(missing, round_number, reward)
            if asked := ray.get(count):
                labels += self._gather(pairs, asked, round_number, stop)
        if labels:
            fit = self._fit(updates, *labels)
            # Counted by the trainer, whose state goes back with this one's: the store may hold some of them already, from
            # a commit that was repeated or a run that is resumed at an earlier round.
            answered = fit.comparisons - self.answered
            fit = fit if fit.gradient_steps else None  # everything was taken back, so that no version was made
        self.round_number = round_number
        self.answered += answered
        return RoundReport(round_number, wanted, answered, self.answered, fit)

    def _gather(self, pairs: Any, count: int, round_number: int, stop: Callable[[], bool]) -> list[Any]:
        """Have the pairs answered and the answers stored; the references of what there is to fit to."""
        if self.gatherer is not None:
            comparisons = self.gatherer.gather.remote(pairs, round_number)
            ray.get(self.store.commit.remote(comparisons, annotator=self.preferences.teacher))
            return [comparisons]
        assert self.page is not None
        ray.get(self.page.ask.remote(round_number, pairs))
        changes = 0
        while not stop():
            progress = ray.get(self.page.wait.remote([round_number], changes))
            changes = progress.changes
            if progress.unknown:
                ray.get(self.page.ask.remote(round_number, pairs))
            elif progress.done[round_number] >= count:
                break
        ray.get(self.page.tell.remote(self._situation(self.env_steps, "the agent to learn from this round")))
        since, (self._read, held) = self._read, ray.get(self.store.position.remote())
        return [self.store.since.remote(since)] if held else []

    def arrived(self) -> dict[str, Any]:
        """What has arrived at the fragmenter (`Pipeline.check_report`)."""
        return self.check_report(ray.get(self.fragmenter.report.remote()))

    def state(self) -> dict[str, Any]:
        """See `Pipeline.state`."""
        return super().state() | {"round_number": self.round_number}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Pipeline.load_state`."""
        super().load_state(state)
        self.round_number, self._adopted = state["round_number"], None

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
