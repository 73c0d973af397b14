"""The ring of a training on a reward model that is fitted already: it asks nothing, fits nothing and has no actors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.pipeline import RoundReport
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY


class FixedReward:
    """What `rlhf_ray.rllib.PreferencePPO` asks of a ring, of one that stands still.

    Args:
        reward: the fitted reward model (`RewardEnsemble.state`); None where `load_state` is to bring it.
    """

    rounds = rounds_held = answered = env_steps = 0
    page_handle: None = None
    """Nobody is asked to label."""
    say: Callable[[str], None]
    """There is nothing to wait for."""

    def __init__(self, reward: dict[str, Array] | None):
        self._reward = reward

    @property
    def version(self) -> int:
        """The version that the reward model had when it was saved; 0 while there is none."""
        return 0 if self._reward is None else int(self._reward["version"])

    def publish(self) -> dict[str, Array]:
        """The reward model (`RewardEnsemble.state`).

        Raises:
            SettingError: there is none.
        """
        if self._reward is None:
            raise SettingError(
                "preferences.comparisons is 0, and no reward model is given to train on instead: set it to 1 or more, or name a "
                "fitted one (`--reward-from`, or start_from(reward_model=…) of the configuration)."
            )
        return self._reward

    def begin(self, env_steps: int, stop: Callable[[], bool] = lambda: False) -> RoundReport:
        """Nothing is gathered, asked or fitted; ``env_steps`` are not taken."""
        self.publish()
        return RoundReport(0, 0, 0, 0, None)

    def abandon(self) -> None:
        """There is nothing under way."""

    def arrived(self) -> dict[str, Any]:
        """No clips are cut."""
        return {"too_short": 0, "distinct_clips": 1.0, "newest_policy": RANDOM_POLICY}

    def copy_store(self, path: Path) -> None:
        """There is no store."""

    def import_store(self, path: Path) -> None:
        """There is no store."""

    def replace_store(self, path: Path) -> None:
        """There is no store."""

    def state(self) -> dict[str, Any]:
        """All that a checkpoint keeps."""
        return {"reward": self._reward}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._reward = state["reward"]

    def close(self) -> None:
        """Nothing was started."""
