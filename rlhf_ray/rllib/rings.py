"""The ring of an algorithm, from its configuration."""

from __future__ import annotations

from pathlib import Path

from rlhf_ray.actors.build import build_ring
from rlhf_ray.actors.executor import RayExecutor
from rlhf_ray.actors.fixed_reward import FixedReward
from rlhf_ray.actors.labelling_page import PageSettings
from rlhf_ray.actors.local import LocalExecutor
from rlhf_ray.actors.ring import Ring, RingSettings, StepBudget
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.labelling.camera import tried_fps
from rlhf_ray.labelling.serve import warn_of_readers
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.labelling.texts import load_texts
from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.rllib.starting import fitted_reward


def ring_of(
    config: PreferenceConfig, budget: StepBudget, store: Path | str, folder: Path | str, callbacks: RingCallbacks | None
) -> Ring:
    """Start the ring of an algorithm.

    Args:
        config: the algorithm's own copy of the configuration (`PreferenceConfig.for_one_algorithm`).
        budget: the training's environment steps.
        store: folder or URL of the preference store.
        folder: where to keep annotators' links, unless the configuration says.
        callbacks: told what happens while the training waits; None: it is logged.

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

    Args:
        config: the algorithm's configuration.
        run_id: the run's id, stored with each event.
        folder: where to keep annotators' links, unless the configuration says.

    Raises:
        SettingError: the environment can't be rendered, or the page's texts can't be read.
    """
    experiment = config.settings()
    labelling = experiment.labelling
    if not experiment.preferences.asks_people:
        return None
    sessions = Path(config.sessions or Path(folder).absolute() / "labelling.json")
    Sessions.keep(sessions, labelling.annotators)
    warn_of_readers(labelling)
    fps = tried_fps("preferences.teacher is human, but ", config.make_env(film=True))
    port_file = None if config.sessions is None else Path(config.sessions).with_suffix(".port")
    texts = load_texts(labelling.language)
    return PageSettings(labelling, sessions, str(config.env), fps, run_id, experiment.seed, port_file, texts)
