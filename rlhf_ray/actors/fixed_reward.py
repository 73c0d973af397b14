"""The ring of a training on a fixed, already fitted reward model: no questions, no fits, no actors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_ray.actors.ring import STATE, Moment, Pretrained, RoundReport, Stop
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY
from rlhf_ray.data.nested import read_nested, write_nested


class FixedReward:
    """A ring that does nothing.

    Args:
        reward: the fitted reward model (`RewardEnsemble.state`); None if `load` will provide it.
    """

    env_steps = answered = rounds_held = 0
    collecting = False
    begun_after: int | None = None
    people: None = None
    """No human annotators."""
    say: Callable[[str], None]
    """Never called: there is nothing to wait for."""

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

    def begin(self, env_steps: int, stop: Stop = lambda: False, pretrained: Pretrained | None = None) -> RoundReport:
        """See `Ring.begin`: reports the fixed reward; takes no environment steps."""
        self.newest_reward()
        return RoundReport(0, 0, 0, 0, None, new_reward=True)

    def advance(self, moment: Moment, stop: Stop = lambda: False) -> None:
        """See `Ring.advance`: nothing is ever due."""

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`: there are no fragments."""
        return {"too_short": 0, "distinct_clips": 1.0, "clips_policy_version": RANDOM_POLICY}

    def check(self) -> None:
        """See `Ring.check`: nothing can fail."""

    def save(self, folder: Path) -> None:
        """See `Ring.save`."""
        (folder / STATE).mkdir(exist_ok=True)
        write_nested({"reward": self._reward}, folder / STATE)

    def load(self, folder: Path, *, replace: bool = False) -> None:
        """See `Ring.load`."""
        self._reward = read_nested(folder / STATE)["reward"]

    def abandon(self) -> None:
        """See `Ring.abandon`."""

    def close(self) -> None:
        """See `Ring.close`."""
