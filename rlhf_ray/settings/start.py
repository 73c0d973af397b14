"""Where a run starts, other than from nothing: the options of `rlhf-ray train`."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_ray.data.errors import SettingError


@dataclass(frozen=True)
class Start:
    """What a run starts from. All of it is copied into the run's folder, which from then on needs none of it any more."""

    reward_from: str | None = None
    """Train on this reward model, which is fitted already and stays as it is; nobody is asked anything. A folder that
    `rlhf-ray fit` wrote, or a run's."""
    labels: str | None = None
    """Start from the labels in this preference store, or in this run's: they count as answered, so that fewer are asked for."""
    policy_from: str | None = None
    """Start from this policy's weights: a run's folder, or an RLlib checkpoint of one."""
    demonstrations: str | None = None
    """Have the policy imitate these before it trains: a .npz with the arrays observations and actions (`rlhf-ray record` writes
    such), or a folder that imitation saved trajectories to."""
    cloning_epochs: int | None = None
    """Passes over the demonstrations; unless given, 50 or as many as make 1,500 gradient steps."""

    def __post_init__(self) -> None:
        if self.cloning_epochs is not None and self.cloning_epochs < 1:
            raise SettingError(f"--cloning-epochs is {self.cloning_epochs}; it must be 1 or more.")
        if self.reward_from is not None and self.labels is not None:
            raise SettingError(
                f"--reward-from is {self.reward_from}, which is fitted already, and --labels is {self.labels}: leave one of them "
                "out, or fit a reward model to the labels first (`rlhf-ray fit`)."
            )

    @property
    def parts(self) -> set[str]:
        """What of a run is given: ``reward_model``, ``labels``, ``policy``."""
        given = {
            "reward_model": self.reward_from,
            "labels": self.labels,
            "policy": self.policy_from or self.demonstrations,
        }
        return {name for name, value in given.items() if value is not None}
