"""The ring of a training on a fixed, already fitted reward model: no questions, no fits, no actors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_ray.actors.ring import STATE, Learn, Pretrained, Progress, RoundReport, Stop, never
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.queries.pool import PoolReport


class FixedReward:
    """A ring that does nothing.

    Args:
        reward: the fitted reward model (`RewardEnsemble.state`); None if `load` will provide it.
    """

    env_steps = answered = skipped = rounds_held = 0
    collecting = False
    people: None = None
    """No human annotators."""

    def __init__(self, reward: dict[str, Array] | None):
        self._reward = reward

    @property
    def version(self) -> int:
        """The reward model's version when it was saved; 0 if there is none."""
        return 0 if self._reward is None else int(self._reward["version"])

    def newest_reward(self) -> dict[str, Array]:
        """See `Ring.newest_reward`.

        Raises:
            SettingError: there is none.
        """
        if self._reward is None:
            raise SettingError(
                "preferences.comparisons is 0, but there is no fitted reward model to train on: set it to 1 or more, or name a "
                "fitted one (`--reward-from`, or start_from(reward_model=…) of the configuration)."
            )
        return self._reward

    def begin(self, env_steps: int, stop: Stop = never, pretrained: Pretrained | None = None) -> RoundReport:
        """See `Ring.begin`: reports the fixed reward; takes no environment steps."""
        self.newest_reward()
        return RoundReport(0, 0, 0, 0, None, new_reward=True)

    def advance(self, progress: Progress, stop: Stop = never, learn: Learn = lambda report: None) -> None:
        """See `Ring.advance`: the agent learns, and nothing else is ever due."""
        learn(None)

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`: there are no fragments."""
        return PoolReport().metrics()

    def check(self) -> None:
        """See `Ring.check`: nothing can fail."""

    def adopt(self, store: Path | str) -> None:
        """See `Ring.adopt`: a fixed reward learns from no labels (the settings refuse them)."""

    def save(self, folder: Path) -> None:
        """See `Ring.save`."""
        (folder / STATE).mkdir(exist_ok=True)
        write_nested({"reward": self._reward}, folder / STATE)

    def load(self, folder: Path, *, replace: bool = False) -> None:
        """See `Ring.load`."""
        self._reward = read_nested(folder / STATE)["reward"]

    def farewell(self, env_steps: int, stop: Stop = never, policy: Callable[[], PolicyFactory] | None = None) -> None:
        """See `Ring.farewell`: there is nobody."""

    def abandon(self) -> None:
        """See `Ring.abandon`."""

    def close(self) -> None:
        """See `Ring.close`."""
