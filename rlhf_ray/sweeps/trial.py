"""One trial of a sweep: a whole training with its own ring, measured regularly by the sweep's objective."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.tune import PlacementGroupFactory, Trainable
from ray.tune.search.repeater import TRIAL_INDEX

from rlhf_ray.actors.executor import OwnStreams
from rlhf_ray.actors.ring_callbacks import Logs
from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.checkpoints import add_manifest
from rlhf_ray.data.errors import CallbackError, FaultyEnvironmentError, LostFragmentsError, SettingError
from rlhf_ray.data.failures import cause, explain, in_code_of_a_user
from rlhf_ray.rllib.algorithm import LearnsFromPreferences
from rlhf_ray.rllib.choice import AGENTS, preference_config
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.settings import AgentName, Experiment, from_json
from rlhf_ray.sweeps.space import apply, kinds

OBJECTIVE, ENV_STEPS, SETTINGS = "objective", "env_steps", "settings"
"""Keys of a trial's results: the objective (larger is better), the environment steps so far, and the settings that vary."""

TRIAL = "trial"
"""Key of a trial's config, next to the settings that vary: everything that all trials share."""

REFUSAL = "refusal"
"""Key in the only result of a trial with invalid settings: the reason. The sweep continues with the others."""

LINKS = "links.json"
"""File in a trial's folder with each annotator's link to its labelling page."""

MEASUREMENTS = 20
"""Approximate number of measurements per trial: often enough for a scheduler, at a few percent of the trial's time."""


def experiment_of(config: dict[str, Any]) -> Experiment:
    """Return the experiment for a trial's config."""
    return apply(from_json(Experiment, config[TRIAL]["experiment"]), settings_of(config))


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that vary from a trial's config, to which Tune adds keys of its own."""
    settings = {name: config[name] for name in kinds() if name in config}
    if TRIAL_INDEX in config:  # a repeated trial
        settings["seed"] = config[TRIAL]["experiment"]["seed"] + config[TRIAL_INDEX]
    return settings


def final(error: Exception) -> str | None:
    """Return what to say of an error that the trial would repeat if Tune restarted it; None for others, such as a lost process."""
    found = cause(error)
    if isinstance(found, LostFragmentsError | OSError | ray.exceptions.RayError):
        return None
    if isinstance(found, SettingError | FaultyEnvironmentError | CallbackError) or in_code_of_a_user(error):
        return explain(error)
    return None


class Measured(LearnsFromPreferences):
    """A mixin to put before an algorithm that learns from preferences, which makes it a trial of a sweep.

    Its config is a dictionary. The key ``trial`` holds the experiment (``experiment``), the objective (``metric``), and
    ``episodes`` and ``seed`` of the evaluations. The other keys are the settings that vary, by name.
    """

    def __init__(self, config: Any = None, **arguments: Any):
        self._plan: dict[str, Any] | None = None
        self._settings: dict[str, Any] = {}
        self._refusal: str | None = None
        if isinstance(config, dict) and TRIAL in config:
            self._plan, self._settings = config[TRIAL], settings_of(config)
            try:
                config = preference_config(experiment_of(config))
            except SettingError as error:
                self._refusal, config = str(error), self.get_default_config()
        callbacks = Logs()
        callbacks.on_links = self.leave_links  # type: ignore[method-assign]
        super().__init__(config, ring_callbacks=callbacks, **arguments)

    @classmethod
    def default_resource_request(cls, config: Any) -> Any:
        """Return the bundles of RLlib and the ring; one CPU if the settings are invalid."""
        if isinstance(config, dict) and TRIAL in config:
            try:
                config = preference_config(experiment_of(config))
            except SettingError:
                return PlacementGroupFactory([{"CPU": 1.0}])
        return super().default_resource_request(config)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Inside this context, an error that a restart would repeat refuses the trial."""
        try:
            yield
        except Exception as error:
            self._refusal = final(error)
            if self._refusal is None:
                raise

    def setup(self, config: Any) -> None:
        """Set up the algorithm (see `LearnsFromPreferences.setup`)."""
        if self._refusal is not None:
            return
        with self._refusing():
            super().setup(config)
            self._every = max(1, self.budget.iterations // MEASUREMENTS)
            if self.links and self._storage is not None:
                self.leave_links(self.links)

    def leave_links(self, links: dict[str, str]) -> None:
        """Write the links to the labelling page to the trial's folder, for its owner only: a trial's output isn't shown."""
        if self._storage is None:
            Logs().on_links(links)
            return
        folder = Path(self._storage.trial_fs_path)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / LINKS, json.dumps(links), mode=0o600)

    def step(self) -> dict[str, Any]:
        """Run an iteration. The result has the environment steps, the settings that vary, and regularly the objective."""
        began = self._refusal is None
        result: dict[str, Any] = {}
        if began:
            with self._refusing():
                result = super().step()
        result |= {ENV_STEPS: self.env_steps if began else 0, SETTINGS: self._settings}
        if self._refusal is not None:
            return result | {"done": True, REFUSAL: self._refusal}
        if (objective := self._measure(result)) is not None:
            result[OBJECTIVE] = objective
        return result

    def log_result(self, result: dict[str, Any]) -> None:
        """See `LearnsFromPreferences`. A trial with invalid settings has no callbacks."""
        if self._refusal is None:
            super().log_result(result)
        else:
            Trainable.log_result(self, result)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """See `LearnsFromPreferences`. For a trial with invalid settings, save only the reason."""
        if self._refusal is None:
            super().save_checkpoint(checkpoint_dir)
        else:
            (Path(checkpoint_dir) / REFUSAL).write_text(self._refusal)
        add_manifest(Path(checkpoint_dir), unlisted=PREFERENCES)

    def _measure(self, result: dict[str, Any]) -> float | None:
        """Return the objective if a measurement is due and possible; else None."""
        if not self.finished and (self.training_iteration + 1) % self._every:
            return None
        if self._plan is not None and self._plan["metric"] == "return":
            # The initial states are the same each time and for all trials, for a fair comparison.
            of = {"episodes": self._plan["episodes"], "seed": self._plan["seed"]}
            with OwnStreams():  # an environment may seed the process's generators
                return evaluate(str(self.config.env), self._policy()().best, **of).true_return_mean
        loss = result[PREFERENCES].get("round", {}).get("held_out_loss")
        return None if loss is None or not math.isfinite(loss) else -float(loss)


TRIALS: dict[AgentName, type[Measured]] = {
    name: type(f"SweepTrial_{name}", (Measured, kind.algorithm), {"__module__": __name__})
    for name, kind in AGENTS.items()
}
"""Each agent's algorithm as a trial of a sweep."""

globals().update({kind.__name__: kind for kind in TRIALS.values()})  # where pickles look for them
