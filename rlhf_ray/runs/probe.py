"""The callback that compares reward versions with each other on the run's probe set, and with the true reward.

The probe set consists of fragments of the first round's comparisons. ``probe.json`` in the run folder lists their ids; the
fragments themselves are in the preference store. Correlations with the true reward are also on the newest comparisons' fragments,
which follow the policy, and so are the distances to it; both at `COMPARED_WITH_TRUTH` points of a run.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from rlhf_ray.actors.executor import OwnStreams
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.data.metrics import Metric, declare
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.regions import true_reward_of
from rlhf_ray.measure.intervals import reward_correlations
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.functions.function import EnsembleReward
from rlhf_ray.reward.probe import ProbeReading, learned_rewards
from rlhf_ray.runs.callbacks import Callback, TrainingRun
from rlhf_ray.runs.distances import logged_distances
from rlhf_ray.runs.metrics_files import carry_on
from rlhf_ray.store import PreferenceStore

declare(
    "reward model",
    Metric(
        "step_correlation",
        "Linear correlation of learned and true rewards of steps in the newest comparisons, at eight points of a run.",
        "correlation",
    ),
    Metric("step_rank_correlation", "Rank correlation of the same.", "correlation"),
    Metric(
        "return_correlation",
        "Linear correlation of learned and true returns of fragments in the newest comparisons.",
        "correlation",
    ),
    Metric("return_rank_correlation", "Rank correlation of the same.", "correlation"),
    Metric(
        "epic_distance",
        "EPIC distance of the learned to the true reward on the newest comparisons: 0 to 1, 0.71 if unrelated.",
        "distance",
    ),
    Metric("dard_distance", "DARD distance of the same.", "distance"),
    Metric("probe_reward_mean", "Mean learned reward per step on the probe set.", "learned reward"),
    Metric("probe_reward_std", "Standard deviation of the learned reward on the probe set.", "learned reward"),
    Metric("probe_rank_correlation", "Rank correlation of learned and true returns on the probe set.", "correlation"),
    Metric(
        "probe_drift",
        "One minus the rank correlation of the probe set's returns with those of the version before.",
    ),
    Metric(
        "learned_gain",
        "Learned reward per step of the batch above that of the probe set: comparable over reward versions.",
        "probe standard deviations",
    ),
)

STEPS, IMAGE_STEPS = 2000, 500
"""Most steps of the probe set, and of the newest fragments: each new reward version reads them all."""
OF_TRUTH = "return_correlation"
"""A metric of the iterations in which a reward version was compared with the true reward."""
COMPARED_WITH_TRUTH = 8
"""Points of a run, even over its comparisons, after which the next reward version is compared with the true reward on the newest
fragments: a curve of eight points, where one for each version would take a tenth of a short run."""


class Probing(Callback):
    """Adds metrics of each new reward version, and ``learned_gain`` to every iteration."""

    def on_start(self, run: TrainingRun) -> None:
        """Load the probe set of a resumed run, and read it with the restored reward version."""
        self._run = run
        self._store: PreferenceStore | None = None
        self._readings: dict[int, ProbeReading] = {}
        self._point = max(
            (self._point_at(row["comparisons"]) for row in run.folder.rows() if OF_TRUTH in row), default=-1
        )
        self._probe: Fragments | None = None
        self._truth: RewardFunction | None = None
        self._sought = False
        """Whether `_truth` was looked for."""
        if run.folder.probe.exists() and (store := self._stored()) is not None:
            with carry_on("probe set"):
                self._probe = store.fragments(json.loads(run.folder.probe.read_text())["fragments"])[1]
        if self._probe is not None and run.algorithm.ring.version:
            self._read(self._probe)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Read the probe set if there is a new reward version."""
        if not self._run.experiment.preferences.comparisons or not metrics.get("reward_version"):
            return
        if self._probe is None:
            with carry_on("probe set"):
                probe = self._compared(metrics["comparisons"], newest=False)
                if probe is not None:
                    write_text(self._run.folder.probe, json.dumps({"fragments": probe.ids()}) + "\n")
                self._probe = probe
            if self._probe is None:
                return
        if metrics["reward_version"] not in self._readings:
            metrics |= self._of_version(self._probe, metrics["comparisons"])
        used = self._readings.get(metrics.get("learner_reward_version") or 0)
        if used is not None and metrics.get("learned_reward_mean") is not None:
            metrics["learned_gain"] = used.gain(metrics["learned_reward_mean"])

    def _of_version(self, probe: Fragments, comparisons: int) -> dict[str, float]:
        """Read the probe set and the newest comparisons with the newest version."""
        earlier = max(self._readings.values(), key=lambda reading: reading.version, default=None)
        reading, reward = self._read(probe)
        found = {
            "probe_reward_mean": reading.mean,
            "probe_reward_std": reading.std,
            "probe_drift": math.nan if earlier is None else reading.drift(earlier),
            "probe_rank_correlation": reading.truth(probe),
        }
        if (point := self._point_at(comparisons)) == self._point:
            return found
        self._point = point
        newest: Fragments | None = None
        with carry_on("correlations with the true reward"):
            newest = self._compared(comparisons, newest=True)
        if newest is not None and np.isfinite(newest.rewards).all():
            # The environment is made for its formula, and may seed the process's generators.
            with carry_on("distances to the true reward"), OwnStreams():
                found |= self._distances(reward, newest)
            of = reward_correlations(learned_rewards(reward, newest), newest.rewards, intervals=False)
            found |= {
                "step_correlation": of.steps_linear.mean,
                "step_rank_correlation": of.steps_rank.mean,
                OF_TRUTH: of.returns_linear.mean,
                "return_rank_correlation": of.returns_rank.mean,
            }
        return found

    def _point_at(self, comparisons: float) -> int:
        """Return how many of the points at which versions are compared with the true reward are over."""
        return int(COMPARED_WITH_TRUTH * comparisons / self._run.experiment.preferences.comparisons)

    def _distances(self, reward: RewardEnsemble, newest: Fragments) -> dict[str, float]:
        """Estimate the distances to the true reward, if it is known as a function, except for images, which would take too long."""
        if is_image(reward.observation_space) or reward.reads_history:
            return {}
        experiment, steps = self._run.experiment, Transitions.of_fragments(newest)
        if not self._sought:
            self._sought, self._truth = True, true_reward_of(experiment.environment, steps)
        if self._truth is None:
            return {}
        gamma = experiment.agent_settings.gamma
        return logged_distances(EnsembleReward(reward), self._truth, steps, gamma, experiment.seed)

    def _read(self, probe: Fragments) -> tuple[ProbeReading, Any]:
        reward = self._run.algorithm.reward_model()
        reading = ProbeReading.of(reward, probe)
        # The learner may still use an earlier version.
        kept = sorted(self._readings)[-1:]
        self._readings = {version: self._readings[version] for version in kept} | {reading.version: reading}
        return reading, reward

    def _stored(self) -> PreferenceStore | None:
        """The run's store, once there is one."""
        folder = self._run.folder.preferences
        if self._store is None and (folder / "store.json").exists():
            self._store = PreferenceStore(folder, create=False)
        return self._store

    def _compared(self, comparisons: int, *, newest: bool) -> Fragments | None:
        """The distinct fragments of the first ``comparisons`` stored ones: of the newest, or of an even spread. None without any.

        After a kill, the store may be ahead of the run, which will ask for the rest again.
        """
        if (store := self._stored()) is None:
            return None
        snapshot = store.snapshot()
        held = min(len(snapshot), int(comparisons))
        if not held:
            return None
        length = snapshot.gather(slice(0, 1)).pairs.left.length
        budget = IMAGE_STEPS if is_image(self._run.algorithm.config.checked.observation_space) else STEPS
        count = min(held, max(2, budget // (2 * length)))
        rows = np.arange(held)
        rows = rows[-count:] if newest else rows[np.linspace(0, len(rows) - 1, count).round().astype(np.int64)]
        pairs = snapshot.gather(rows).pairs
        both = Fragments.concatenate([pairs.left, pairs.right])
        distinct = {name: i for i, name in reversed(list(enumerate(both.ids())))}
        return both[np.array(sorted(distinct.values()))]
