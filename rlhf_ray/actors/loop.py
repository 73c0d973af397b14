"""PreferenceLoop: runs a ring next to an agent's training, for any algorithm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_ray.actors.ring import Moment, Pretrained, Ring, RoundReport, Stop
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.arrays import Array
from rlhf_ray.settings import Experiment, ResolvedFragments


class PreferenceLoop:
    """Divides the budget of environment steps, and reports the training's progress to the ring.

    Args:
        ring: the ring to run.
        experiment: the settings.
        fragments: the experiment's fragment settings, with numbers in place of auto.
        iteration_env_steps: maximum number of environment steps per iteration of the agent.
    """

    def __init__(self, ring: Ring, experiment: Experiment, fragments: ResolvedFragments, iteration_env_steps: int):
        self.ring, self.experiment, self.fragments = ring, experiment, fragments
        self.iteration_env_steps = iteration_env_steps
        self.begun = False
        self.stop: Stop = lambda: False
        """Polled while waiting for slow annotators; True ends the wait."""
        first = 0 if experiment.preferences.comparisons == 0 else fragments.initial_env_steps
        self.initial_env_steps, self.iterations = budget(experiment, fragments, iteration_env_steps, first)
        """Environment steps for the initial fragments; number of iterations, with those of the pretraining."""
        self._pretraining = experiment.preferences.pretraining_iterations(iteration_env_steps) * iteration_env_steps
        """Environment steps of the agent before the first labels."""

    def env_steps(self, sampled: int) -> int:
        """Return the total environment steps so far: ``sampled`` by the agent's own rollouts, plus the ring's."""
        return sampled + self.ring.env_steps

    def finished(self, sampled: int) -> bool:
        """Return whether another iteration could exceed the budget."""
        return self.env_steps(sampled) + self.iteration_env_steps > self.experiment.total_env_steps

    def pretrains(self, sampled: int) -> bool:
        """Return whether the next iteration comes before the first labels (`PreferenceSettings.pretraining_env_steps`)."""
        return not self.begun and sampled < self._pretraining

    def progress(self, sampled: int) -> float:
        """Return the progress, from 0 before the first iteration on the learned reward to 1 before the last."""
        left = self.experiment.total_env_steps - self.iteration_env_steps - self.env_steps(sampled)
        if left < self.iteration_env_steps:
            return 1.0
        # The steps that the ring will take between rounds are not the agent's.
        left -= max(0, self._between - (self.ring.env_steps - self.initial_env_steps))
        done = max(0, sampled - self._pretraining)
        return done / (done + max(left, self.iteration_env_steps))

    @property
    def _between(self) -> int:
        """Maximum number of environment steps that the ring takes between rounds, in total."""
        of = self.experiment.preferences
        return of.rounds * self.fragments.between_rounds_env_steps(of.asks_people)

    def begin(self, stop: Stop = lambda: False, pretrained: Pretrained | None = None) -> RoundReport | None:
        """Collect the initial fragments and hold the first labelling round; None if stopped before.

        Args:
            stop: polled while waiting for slow annotators; True ends the wait.
            pretrained: the policy after the pretraining; None without.
        """
        self.stop = stop
        report = self.ring.begin(self.initial_env_steps, stop, pretrained)
        fits = self.experiment.preferences.comparisons > 0
        if stop() and fits and not self.ring.version:  # before the first fit: the round will be held again
            report = None
        self.begun = report is not None
        if self.ring.env_steps > self.initial_env_steps:  # extra initial fragments were collected
            self._share_out(self.ring.env_steps)
        return report

    def before_iteration(self, sampled: int, iteration: int, policy: Callable[[], PolicyFactory]) -> RoundReport | None:
        """Let the ring do what is due. Return the new report, if any.

        Args:
            sampled: environment steps of the agent's own rollouts so far.
            iteration: index of the agent's next iteration, from 0.
            policy: returns a factory of the newest policy.
        """
        now = self.env_steps(sampled)
        room = self.experiment.total_env_steps - now - self.iteration_env_steps
        return self.ring.advance(Moment(self.progress(sampled), now, room, iteration, policy), self.stop)

    def newest_reward(self) -> dict[str, Array] | None:
        """Return the newest version of the reward model; None if there is none."""
        return self.ring.newest_reward() if self.ring.version else None

    def metrics(self, sampled: int) -> dict[str, Any]:
        """Return the current metrics."""
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
        """Write the ring's checkpoint to the existing folder ``folder``."""
        if self.begun or self.experiment.preferences.comparisons == 0:
            self.ring.save(folder)

    def state(self) -> dict[str, Any]:
        """Return the loop's own state for a checkpoint."""
        return {"begun": self.begun, "initial_env_steps": self.initial_env_steps}

    def load(self, folder: Path, state: dict[str, Any], *, replace: bool = False) -> None:
        """Restore what `save` wrote and `state` returned; see `Ring.load`."""
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
    """Divide the step budget: return the initial fragments' steps (``initial`` or slightly more) and the number of iterations."""
    of = experiment.preferences
    between = fragments.between_rounds_env_steps(of.asks_people)
    left = experiment.total_env_steps - of.rounds * between - initial
    # Steps that don't fill an iteration go to the initial fragments, so that all steps add up to the budget.
    return initial + left % iteration_env_steps, left // iteration_env_steps
