"""PreferenceLoop: learning from preferences beside an agent's training, whichever algorithm trains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_ray.actors.ring import Moment, Ring, RoundReport, Stop
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.arrays import Array
from rlhf_ray.settings import Experiment, ResolvedFragments


class PreferenceLoop:
    """Shares the budget of environment steps out, and tells the ring how far the training is.

    Args:
        ring: what it turns.
        experiment: the settings.
        fragments: those of the experiment, with numbers in place of auto.
        iteration_env_steps: the most environment steps that an iteration of the agent's training takes.
    """

    def __init__(self, ring: Ring, experiment: Experiment, fragments: ResolvedFragments, iteration_env_steps: int):
        self.ring, self.experiment, self.fragments = ring, experiment, fragments
        self.iteration_env_steps = iteration_env_steps
        self.begun = False
        self.stop: Stop = lambda: False
        """Says whether to wait no longer for a slow teacher."""
        first = 0 if experiment.preferences.comparisons == 0 else fragments.initial_env_steps
        self.initial_env_steps, self.iterations = budget(experiment, fragments, iteration_env_steps, first)
        """Environment steps of the first clips; iterations after them."""

    def env_steps(self, sampled: int) -> int:
        """Environment steps so far, of which the agent's own rollouts have ``sampled``."""
        return sampled + self.ring.env_steps

    def finished(self, sampled: int) -> bool:
        """Whether another iteration could take more than the budget."""
        return self.env_steps(sampled) + self.iteration_env_steps > self.experiment.total_env_steps

    def progress(self, sampled: int) -> float:
        """From 0 before the first iteration to 1 before the last."""
        left = self.experiment.total_env_steps - self.iteration_env_steps - self.env_steps(sampled)
        if left < self.iteration_env_steps:
            return 1.0
        # What the ring is going to take between rounds is not the agent's, unless it does without.
        left -= max(0, self._between - (self.ring.env_steps - self.initial_env_steps))
        return sampled / (sampled + max(left, self.iteration_env_steps))

    @property
    def _between(self) -> int:
        """Environment steps that the ring takes between rounds, in all, at most."""
        of = self.experiment.preferences
        return of.rounds * self.fragments.between_rounds_env_steps(of.asks_people)

    def begin(self, stop: Stop = lambda: False) -> RoundReport | None:
        """Gather the first clips and hold the first labelling round; None where it was stopped before."""
        self.stop = stop
        report = self.ring.begin(self.initial_env_steps, stop)
        self.begun = report is not None
        if self.ring.env_steps > self.initial_env_steps:  # more first clips were gathered
            self._share_out(self.ring.env_steps)
        return report

    def before_iteration(self, sampled: int, iteration: int, policy: Callable[[], PolicyFactory]) -> RoundReport | None:
        """Turn the ring as far as is due; what came of it, where there is a new report.

        Args:
            sampled: environment steps of the agent's own rollouts so far.
            iteration: of the agent's training that comes next, from 0.
            policy: makes what makes the newest policy.
        """
        now = self.env_steps(sampled)
        room = self.experiment.total_env_steps - now - self.iteration_env_steps
        return self.ring.advance(Moment(self.progress(sampled), now, room, iteration, policy), self.stop)

    def newest_reward(self) -> dict[str, Array] | None:
        """The newest version of the reward model; None where there is none."""
        return self.ring.newest_reward() if self.ring.version else None

    def metrics(self, sampled: int) -> dict[str, Any]:
        """What is to be known now."""
        clips: dict[str, Any] = {}
        if self.experiment.preferences.comparisons:
            clips = {
                "fragments_length": self.fragments.length,
                "first_clips_env_steps": self.initial_env_steps,
            }
        return (
            self.ring.metrics()
            | clips
            | {
                "env_steps": self.env_steps(sampled),
                "comparisons": self.ring.answered,
                "reward_version": self.ring.version,
                "rounds": self.ring.rounds_held,
                "finished": float(self.finished(sampled)),
            }
        )

    def save(self, folder: Path) -> None:
        """Write what a checkpoint keeps of the ring into ``folder``, which is there."""
        if self.begun or self.experiment.preferences.comparisons == 0:
            self.ring.save(folder)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides."""
        return {"begun": self.begun, "initial_env_steps": self.initial_env_steps}

    def load(self, folder: Path, state: dict[str, Any], *, replace: bool = False) -> None:
        """The inverse of `save` and `state`; see `Ring.load`."""
        self.begun = state["begun"]
        self._share_out(state["initial_env_steps"])
        if self.begun or self.experiment.preferences.comparisons == 0:
            self.ring.load(folder, replace=replace)

    def _share_out(self, initial: int) -> None:
        self.initial_env_steps, self.iterations = budget(
            self.experiment, self.fragments, self.iteration_env_steps, initial
        )


def budget(
    experiment: Experiment, fragments: ResolvedFragments, iteration_env_steps: int, initial: int
) -> tuple[int, int]:
    """Share the environment steps out: those of the first clips, which take ``initial`` or somewhat more, and the iterations."""
    of = experiment.preferences
    between = fragments.between_rounds_env_steps(of.asks_people)
    left = experiment.total_env_steps - of.rounds * between - initial
    # What does not fill an iteration goes to the first clips, so that the steps add up to the budget.
    return initial + left % iteration_env_steps, left // iteration_env_steps
