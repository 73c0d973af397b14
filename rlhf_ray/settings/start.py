"""Options of commands that are no settings of an experiment: what `rlhf-ray train` starts from, and a sweep's choices."""

from dataclasses import dataclass
from typing import Literal

from rlhf_ray.data.errors import SettingError


@dataclass(frozen=True)
class Start:
    """What a run starts from. Everything is copied into the run folder, so the originals are not needed later."""

    reward_from: str | None = None
    """Train on this reward model, keep it fixed, and ask nothing. A folder written by `rlhf-ray fit`, or a run folder."""
    labels: str | None = None
    """Start with the labels of this preference store or run folder. They count towards the budget, so fewer are asked."""
    policy_from: str | None = None
    """Start from this policy's weights. A run folder, one of its RLlib checkpoints, or a model.zip of Stable-Baselines3's PPO,
    A2C or SAC (MlpPolicy, or for PPO and A2C CnnPolicy of images) or the folder that imitation saved it in. Only tensors are read
    from it."""
    demonstrations: str | None = None
    """Pretrain the policy on these demonstrations by behavioural cloning. An .npz with arrays observations and actions (as
    `rlhf-ray record` writes), trajectories saved by imitation, or a Minari data set."""
    cloning_epochs: int | None = None
    """Passes over the demonstrations. None: 50, or as many as give 1,500 gradient steps."""

    def __post_init__(self) -> None:
        if self.cloning_epochs is not None and self.cloning_epochs < 1:
            raise SettingError(f"--cloning-epochs is {self.cloning_epochs}; it must be 1 or more.")
        if self.reward_from is not None and self.labels is not None:
            raise SettingError(
                f"--reward-from is {self.reward_from} and --labels is {self.labels}, but a given reward model is not refitted: "
                "drop one of them, or fit a reward model to the labels first (`rlhf-ray fit`)."
            )

    @property
    def parts(self) -> set[str]:
        """The parts that are given: ``reward_model``, ``labels``, ``policy``."""
        values = {
            "reward_model": self.reward_from,
            "labels": self.labels,
            "policy": self.policy_from or self.demonstrations,
        }
        return {name for name, value in values.items() if value is not None}


Search = Literal["random", "optuna", "gp", "qmc"]
"""random: independent draws. optuna: Optuna's tree-structured Parzen estimator. gp: its Gaussian process. qmc: its Sobol sequence,
which covers ranges more evenly than independent draws."""

Schedule = Literal["none", "asha", "pbt", "pb2"]

Metric = Literal["return", "likelihood"]
"""return: mean true return of the deterministic policy. likelihood: mean log-likelihood, in nats per comparison, of held-out
comparisons under the reward model."""
