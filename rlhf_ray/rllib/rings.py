"""The ring of an algorithm, from its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_ray.actors.build import build_ring
from rlhf_ray.actors.executor import LocalExecutor
from rlhf_ray.actors.labelling_page import PageSettings
from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.actors.ring import (
    STATE,
    Learn,
    Pretrained,
    Progress,
    Ring,
    RingSettings,
    RoundReport,
    StepBudget,
    Stop,
    never,
)
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.labelling.camera import tried_fps
from rlhf_ray.queries.pool import PoolReport
from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.rllib.starting import fitted_reward


class FixedReward(Ring):
    """The ring of a training on a fixed, already fitted reward model: no questions, no fits, no actors.

    Args:
        reward: the fitted reward model (`RewardEnsemble.state`); None if `load` will provide it.
    """

    env_steps = answered = skipped = rounds_held = 0
    collecting = False
    people: None = None

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
        """Report the fixed reward."""
        self.newest_reward()
        return RoundReport(0, 0, 0, 0, None, new_reward=True)

    def advance(self, progress: Progress, stop: Stop = never, learn: Learn = lambda report: None) -> None:
        """Let the agent learn: nothing else is ever due."""
        learn(None)

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`: there are no fragments."""
        return PoolReport().metrics()

    def save(self, folder: Path) -> None:
        (folder / STATE).mkdir(exist_ok=True)
        write_nested({"reward": self._reward}, folder / STATE)

    def load(self, folder: Path, *, replace: bool = False) -> None:
        self._reward = read_nested(folder / STATE)["reward"]


def ring_of(
    config: PreferenceConfig, budget: StepBudget, store: Path | str, folder: Path | str, callbacks: RingCallbacks | None
) -> Ring:
    """Start the ring of an algorithm.

    Raises:
        SettingError: there is no fitted reward model to train on, or the labels to start from can't be used.
    """
    checked, name = config.checked, config.ring_name
    assert checked is not None
    assert name is not None
    experiment = checked.experiment
    if experiment.preferences.comparisons == 0:
        return FixedReward(None if config.reward_from is None else fitted_reward(config.reward_from).state())
    settings = RingSettings(
        checked.fragments,
        experiment.preferences,
        experiment.reward_model,
        checked.observation_space,
        checked.action_space,
        store,
        experiment.seed,
        experiment.total_env_steps,
        config.begun_after,
    )
    ring = build_ring(
        settings,
        LocalExecutor(name) if config.ring_here else RayExecutor(name),
        config.make_env(film=checked.films),
        rollouts=config.num_envs_per_env_runner,
        iterations=budget.learning_iterations,
        iteration_env_steps=budget.iteration_env_steps,
        page=page_of(config, name, folder),
        callbacks=callbacks,
    )
    if config.labels_from is not None:
        try:
            ring.adopt(config.labels_from)
        except Exception:
            ring.close()  # there is no algorithm yet that would close it
            raise
    return ring


def page_of(config: PreferenceConfig, run_id: str, folder: Path | str) -> PageSettings | None:
    """Return the settings of the labelling page; None without human annotators.

    Raises:
        SettingError: the environment can't be rendered, or the page's texts can't be read.
    """
    experiment = config.settings()
    labelling = experiment.labelling
    if not experiment.preferences.asks_people:
        return None
    sessions = Path(config.sessions or Path(folder).absolute() / "labelling.json")
    fps = tried_fps("preferences.teacher is human, but ", config.make_env(film=True))
    port_file = None if config.sessions is None else Path(config.sessions).with_suffix(".port")
    return PageSettings.read(labelling, sessions, str(config.env), fps, run_id, experiment.seed, port_file)
