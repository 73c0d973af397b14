"""StepBudget: divides a training's environment steps between the ring and the agent, and says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhf_ray.actors.ring import Progress
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.settings import Experiment, ResolvedFragments


class StepBudget:
    """The environment steps of a training. Its methods take the steps so far: ``sampled`` by the agent, ``taken`` by the ring.

    Args:
        experiment: the settings.
        fragments: the experiment's fragment settings, with numbers in place of auto.
        iteration_env_steps: maximum number of environment steps per iteration of the agent.
        films: whether the ring films fragments before each round.
    """

    def __init__(
        self, experiment: Experiment, fragments: ResolvedFragments, iteration_env_steps: int, *, films: bool = False
    ):
        self.total, self.preferences, self.fragments = experiment.total_env_steps, experiment.preferences, fragments
        self.iteration_env_steps = iteration_env_steps
        preferences = self.preferences
        self._between = preferences.rounds * fragments.between_rounds_env_steps(films)
        """Maximum number of environment steps that the ring takes between rounds, in total."""
        self._pretraining = preferences.pretraining_iterations(iteration_env_steps) * iteration_env_steps
        """Environment steps of the agent before the first labels."""
        self.initial_env_steps = self.iterations = 0
        """Environment steps for the initial fragments; number of iterations, with those of the pretraining."""
        self.share_out(0 if preferences.comparisons == 0 else fragments.initial_env_steps)

    def share_out(self, initial: int) -> None:
        """Divide the budget again, with ``initial`` steps for the initial fragments, or slightly more."""
        left = self.total - self._between - initial
        # Steps that don't fill an iteration go to the initial fragments, so that all steps add up to the budget.
        self.initial_env_steps = initial + left % self.iteration_env_steps
        self.iterations = left // self.iteration_env_steps

    @property
    def learning_iterations(self) -> int:
        """Number of iterations on the learned reward."""
        return self.iterations - self._pretraining // self.iteration_env_steps

    def finished(self, sampled: int, taken: int) -> bool:
        """Return whether another iteration could exceed the budget."""
        return sampled + taken + self.iteration_env_steps > self.total

    def pretrains(self, sampled: int) -> bool:
        """Return whether the next iteration comes before the first labels (`PreferenceSettings.pretraining_env_steps`)."""
        return sampled < self._pretraining

    def share(self, sampled: int, taken: int) -> float:
        """Return how far the training is, from 0 before the first iteration on the learned reward to 1 before the last."""
        left = self.total - self.iteration_env_steps - sampled - taken
        if left < self.iteration_env_steps:
            return 1.0
        # The steps that the ring will take between rounds are not the agent's.
        left -= max(0, self._between - (taken - self.initial_env_steps))
        done = max(0, sampled - self._pretraining)
        return done / (done + max(left, self.iteration_env_steps))

    def progress(self, sampled: int, taken: int, iteration: int, policy: Callable[[], PolicyFactory]) -> Progress:
        """Return the training's progress for the ring, before iteration number ``iteration``, from 0."""
        now = sampled + taken
        room = self.total - now - self.iteration_env_steps
        return Progress(self.share(sampled, taken), now, room, iteration, policy)

    def metrics(self, sampled: int, taken: int) -> dict[str, Any]:
        """Return the metrics of an iteration."""
        first: dict[str, Any] = {}
        if self.preferences.comparisons:
            first = {
                "fragments_length": self.fragments.length,
                "first_fragments_env_steps": self.initial_env_steps,
            }
        return first | {"env_steps": sampled + taken, "finished": float(self.finished(sampled, taken))}
