"""LearnsFromPreferences: a mixin that gives an RLlib algorithm a learned reward. `rlhf_ray.rllib.ppo` and `.sac` apply it."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import platform
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.tune import PlacementGroupFactory

from rlhf_ray.actors.cluster import start_ray
from rlhf_ray.actors.placement import NODES_WITHIN, await_room, ring_bundles
from rlhf_ray.actors.ring import (
    LABELS,
    STATE,
    Fitting,
    Pretrained,
    Ring,
    RoundReport,
    StepBudget,
    Stop,
    check_horizon,
    never,
    no_fit,
)
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.defaults import own_defaults
from rlhf_ray.data.errors import SettingError
from rlhf_ray.optim import leave_cores_to_parts
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID, module_state
from rlhf_ray.rllib.metrics import PREFERENCES as PREFERENCES  # where callers look for it
from rlhf_ray.rllib.metrics import Gauges
from rlhf_ray.rllib.policy import PolicyMaker
from rlhf_ray.rllib.rings import InRunFolder, ring_of
from rlhf_ray.rllib.rllib_internals import (
    forget_env_runners,
    forget_steps,
    raise_fault,
    reset_and_reseed,
    seed_learners,
    spread_env_runners,
    use_own_learning_rates,
)
from rlhf_ray.rllib.rollouts import Ready, RolloutsAhead, learn_after_sampling, learn_while_sampling
from rlhf_ray.rllib.starting import first_weights, fresh_weights
from rlhf_ray.store.files import lock_store

ORIGIN = "origin.json"
"""File in a checkpoint with the Tune trial it came from."""

ATTEMPTS = 30
"""Iterations without any steps before a run gives up. Env runners restart within a few, unless the environment has a fault."""


class LearnsFromPreferences(InRunFolder):
    """A mixin to put before an RLlib `Algorithm`, with `PreferenceConfig` in its config: the learner sees a learned reward.

    Each `train()` is one iteration of the algorithm. Before it, the ring does what is due (ask, label, fit) and the learner gets
    the newest reward version. In the results, ``env_runners/episode_return_mean`` is the true return, and ``preferences`` holds
    the ring's metrics.

    Args:
        ring_callbacks: told what happens while the training waits; None: it is logged.
        iterating: context manager around each iteration. It may abort one: `save_to_path` then saves the state before it.
    """

    config: Any

    def __init__(
        self,
        config: Any = None,
        *arguments: Any,
        ring_callbacks: RingCallbacks | None = None,
        iterating: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        **keywords: Any,
    ):
        self._ring_callbacks, self._iterating, self._stop = ring_callbacks, iterating, never
        super().__init__(config, *arguments, **keywords)

    @classmethod
    def default_resource_request(cls, config: Any) -> PlacementGroupFactory:
        """Return RLlib's resource bundles plus those of the ring's actors."""
        request = super().default_resource_request(config)
        ours: PreferenceConfig = cls.get_default_config().update_from_dict(config)
        experiment = ours.settings()
        if not experiment.preferences.comparisons or ours.ring_here:
            return request
        return PlacementGroupFactory(
            [*request.bundles, *ring_bundles(experiment.reward_model.gpus)], strategy=request.strategy
        )

    @own_defaults()
    def setup(self, config: Any) -> None:
        """Check the environment, start the ring and build the algorithm (called by Ray)."""
        leave_cores_to_parts()
        settings: PreferenceConfig = self.config
        checked = settings.check_environment()
        self._check_gpu()
        if settings.needs_ray:
            self._claim_room()
        name = f"ring-{uuid.uuid4().hex[:12]}"
        self.config = settings.for_one_algorithm(checked, name)
        self._checked, experiment = checked, checked.experiment
        self._spaces = (checked.observation_space, checked.action_space)
        self.budget = StepBudget(
            experiment, checked.fragments, self.config.most_iteration_env_steps, films=checked.films
        )
        with contextlib.ExitStack() as failed:
            # Tune runs a trial once, and may start its next process before the last one has ended.
            if experiment.preferences.comparisons and (self._storage is None or self.config.store):
                failed.enter_context(lock_store(self._store_path()))
            self._ring = ring_of(self.config, self.budget, self._store_path(), self.logdir, self._ring_callbacks)
            self._lock = failed.pop_all()
        self.begun = self.fresh = False
        """Whether the first labelling round was held; whether the agent has started anew."""
        self._gauges = Gauges(str(self._store_path()).rstrip("/").split("/")[-2:][0])  # the run's or trial's folder
        try:
            with spread_env_runners():
                super().setup(config)
        except Exception:
            raise_fault(self.config.faults)  # if env runners reported one, this is its consequence
            raise
        seed_learners(self, experiment.seed)
        self._ahead = RolloutsAhead(self, experiment.agent_settings.max_policy_age)
        if (weights := first_weights(self.config, *self._spaces)) is not None:
            self._give(weights)

    @property
    def ring(self) -> Ring:
        """The ring: the actors that ask, label and fit."""
        return self._ring

    @property
    def links(self) -> dict[str, str]:
        """Where each person labels, with ``preferences.teacher="human"``: their links by name."""
        people = self.ring.people
        return {} if people is None else dict(people.page.links)

    def update_arguments(self) -> dict[str, Any]:
        """Return the agent's own arguments of `LearnerGroup.update`."""
        return {}

    def _claim_room(self) -> None:
        """Start Ray if it isn't running, and wait until it has room for this algorithm's actors."""
        own, *bundles = self.default_resource_request(self.config.to_dict()).bundles
        start_ray(math.ceil(sum(bundle.get("CPU", 0.0) for bundle in (own, *bundles))))
        if ray.util.get_current_placement_group() is None:  # else Tune reserved the requested resources
            await_room(bundles, nodes_within=NODES_WITHIN if os.environ.get("RAY_ADDRESS") else 0.0)

    def _check_gpu(self) -> None:
        agent: str = self.config.agent
        gpus = 0.0 if self.config.num_learners else self.config.num_gpus_per_learner
        if gpus and not torch.cuda.is_available():
            raise SettingError(
                f"{agent}.gpus_per_learner is {gpus:g}, and with {agent}.num_learners 0 this process is the learner, but torch "
                f"sees no GPU on {platform.node()}: set {agent}.num_learners to 1 to place the learner on a node with a GPU."
            )

    @property
    def _trial(self) -> str | None:
        """Folder name of this Tune trial (RLlib's `trial_id` is always the same); None outside of Tune."""
        storage = self._storage
        return None if storage is None else str(storage.trial_dir_name)

    @property
    def _sampled(self) -> int:
        """Environment steps sampled by the algorithm's own rollouts so far."""
        return int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))

    @property
    def env_steps(self) -> int:
        """Environment steps so far: the algorithm's rollouts and the rollout collector's."""
        return self._sampled + self.ring.env_steps

    @property
    def finished(self) -> bool:
        """Whether another iteration could exceed ``total_env_steps``."""
        return self.budget.finished(self._sampled, self.ring.env_steps)

    @own_defaults()
    def reward_model(self) -> RewardEnsemble:
        """Return a copy of the newest version of the reward model."""
        with torch.random.fork_rng(devices=[]):  # keep the policy's random stream unchanged
            ensemble = RewardEnsemble(*self._spaces, self._checked.experiment.reward_model)
        ensemble.load_state(self.ring.newest_reward())
        return ensemble

    # An iteration.

    @own_defaults()
    def begin(self, stop: Stop = never) -> bool:
        """Collect the initial fragments and hold the first labelling round. `train` calls this if needed.

        Does nothing before an iteration of the pretraining.

        Args:
            stop: polled while waiting for slow annotators, here and later; True ends the wait.

        Returns:
            Whether it completed; False if stopped.
        """
        self._stop = stop
        if self.begun or self.budget.pretrains(self._sampled):
            return True
        preferences = self._checked.experiment.preferences
        # Above the versions of its rollouts, so that the pool replaces their fragments.
        pretrains = preferences.pretraining_env_steps > 0
        pretrained = Pretrained(self.training_iteration + 1, self._policy()) if pretrains else None
        report = self.ring.begin(self.budget.initial_env_steps, stop, pretrained)
        if self.ring.env_steps > self.budget.initial_env_steps:  # other initial fragments were collected
            self.budget.share_out(self.ring.env_steps)
        fits = preferences.comparisons > 0
        if report is None or (stop() and fits and not self.ring.version):  # the round will be held again
            return False
        self.begun = True
        self._use(report)
        return True

    @own_defaults()
    def step(self) -> dict[str, Any]:
        """Run one iteration (called by `train`). Sets ``done`` for Tune when the step budget is spent."""
        result: dict[str, Any] = super().step()
        result["done"] = self.finished
        if self.finished:
            self.ring.check()  # no later iteration would notice
        return result

    def training_step(self) -> None:
        """Let the ring do what is due, then run one iteration of the algorithm."""
        with self._iterating():
            held = self.begun
            self.begin(self._stop)
            if held:
                progress = self.budget.progress(
                    self._sampled, self.ring.env_steps, self.training_iteration, self._policy
                )
                self._start_anew(progress.share)
                self.ring.advance(progress, self._stop, self._learn)
            else:
                self._learn(no_fit)
            self._log_ring()

    def _start_anew(self, share: float) -> None:
        """Give the agent new weights, once, when the reward model rests (see `AgentSettings.fresh_policy`)."""
        experiment = self._checked.experiment
        due = experiment.preferences.until <= share < 1 and experiment.preferences.comparisons > 0
        if due and experiment.agent_settings.fresh_policy and not self.fresh:
            self.fresh = True
            self._give(fresh_weights(self.config, *self._spaces))
            self.learner_group.foreach_learner(forget_steps)
            if self._ring_callbacks is not None:
                self._ring_callbacks.on_stage("the reward model rests, and the agent starts anew")

    def _give(self, weights: dict[str, Array]) -> None:
        """Give the policy these weights."""
        self.learner_group.set_weights({DEFAULT_MODULE_ID: weights})
        self.env_runner_group.sync_weights(
            from_worker_or_learner_group=self.learner_group, policies=[DEFAULT_MODULE_ID], inference_only=True
        )

    def _learn(self, fitting: Fitting) -> None:
        """Run one iteration of the algorithm, which uses the reward version that is being fitted, if any."""

        @functools.cache
        def ready() -> None:
            if (report := fitting()) is not None:
                self._use(report)

        started = time.perf_counter()
        self._iterate(ready)
        if self._checked.experiment.preferences.comparisons == 0:
            # NaN, because RLlib raises for a default of None.
            ends = [(ENV_RUNNER_RESULTS, f"episode_len_{end}") for end in ("min", "max")]
            lengths = [self.metrics.peek(end, default=math.nan) for end in ends]
            seen = sorted({int(length) for length in lengths if not math.isnan(length)})
            check_horizon(seen, self._checked.experiment.preferences)
        self.metrics.log_value((PREFERENCES, "iteration_seconds"), time.perf_counter() - started, window=1)

    def _log_ring(self) -> None:
        """Log the ring's metrics, and the training's progress."""
        ring = self.ring
        values = ring.metrics() | self.budget.metrics(self._sampled, ring.env_steps)
        values |= {"comparisons": ring.answered, "reward_version": ring.version, "rounds": ring.rounds_held}
        stages = values.pop("stages", None)
        self.metrics.log_dict(values, key=PREFERENCES, window=1)
        if stages is not None:
            self.metrics.log_dict(stages, key=(PREFERENCES, "stages"), window=1)

    def log_result(self, result: dict[str, Any]) -> None:
        """Log an iteration's result, to Prometheus too (called by Ray)."""
        super().log_result(result)
        self._gauges.set(result)

    def _iterate(self, ready: Ready) -> None:
        """Run one iteration of the algorithm. Retry if all env runners were lost before sampling anything.

        Raises:
            RuntimeError: env runners sample nothing despite restarts.
            FaultyEnvironmentError: the environment raised, or returned invalid data.
        """
        sampled = self._sampled
        for _ in range(ATTEMPTS):
            self._iterate_once(ready)
            group = self.env_runner_group
            if group.num_healthy_remote_workers() < group.num_remote_workers():
                raise_fault(self.config.faults)
            if self._sampled > sampled:
                return
            self.restore_env_runners(group)
            time.sleep(1.0)
        raise RuntimeError(
            f"Env runners sampled nothing in {ATTEMPTS} attempts. Check their processes' logs (the environment may raise), or set "
            "num_env_runners=0 to sample in the learner's process and see the error here."
        )

    def _iterate_once(self, ready: Ready) -> None:
        experiment = self._checked.experiment
        iteration, synchronous = self.training_iteration, experiment.preferences.mode == "synchronous"
        if synchronous and iteration and iteration % experiment.checkpoint_every == 0:
            reset_and_reseed(self, experiment.seed, iteration)
        if synchronous or self.config.num_env_runners == 0:
            learn_after_sampling(self, ready, **self.update_arguments())
        else:
            left = (experiment.total_env_steps - self.env_steps) // self.config.most_iteration_env_steps
            iterations = max(1, left)  # calling `train` beyond the budget still runs an iteration
            most = iterations * self.config.num_env_runners
            learn_while_sampling(self, self._ahead, most, ready, **self.update_arguments())

    def _use(self, report: RoundReport) -> None:
        """Pass the newest reward version to the learner if there is a new one, and log the round."""
        if report.new_reward:
            self._publish()
        values = {"iteration": self.training_iteration + 1} | report.metrics()
        self.metrics.log_dict(values, key=(PREFERENCES, "round"), window=1)

    def _publish(self) -> None:
        """Pass the ring's newest reward version to the learner."""
        self.learner_group.set_weights({REWARD_MODULE_ID: module_state(self.ring.newest_reward())})

    def _policy(self) -> PolicyMaker:
        """Return a factory for the current policy."""
        weights = self.learner_group.get_weights([DEFAULT_MODULE_ID])[DEFAULT_MODULE_ID]
        spec = self.config.rl_module_spec.rl_module_specs[DEFAULT_MODULE_ID]
        return PolicyMaker(spec, *self._spaces, weights)

    # Checkpoints.

    @own_defaults()
    def save_to_path(self, path: Any = None, **arguments: Any) -> str:
        """Save RLlib's checkpoint, with the ring (``ring``), the labels (``preferences``) and the reward (``reward_model``)."""
        saved: str = super().save_to_path(path, **arguments)
        folder = Path(saved).absolute()
        for part in (STATE, LABELS):
            shutil.rmtree(folder / part, ignore_errors=True)
        if self.begun or self._checked.experiment.preferences.comparisons == 0:
            self.ring.save(folder)
        if self.ring.version:
            self.reward_model().save(folder / REWARD_MODULE_ID)
        (folder / ORIGIN).write_text(json.dumps({"trial": self._trial}) + "\n")
        return saved

    @own_defaults()
    def restore_from_path(self, path: Any, *arguments: Any, **keywords: Any) -> None:
        """Restore a checkpoint.

        Its comparisons are added to this algorithm's own store, which may hold newer ones. If the checkpoint is another Tune
        trial's (population-based training), its comparisons replace this store's.
        """
        super().restore_from_path(path, *arguments, **keywords)
        folder = Path(path).absolute()
        origin, kept = json.loads((folder / ORIGIN).read_text())["trial"], self._kept
        replace = self._trial is not None and origin not in (None, self._trial)
        self.begun, self.fresh = kept["begun"], kept["fresh"]
        self.budget.share_out(kept["initial_env_steps"])
        if self.begun:
            self.budget.initial_env_steps = kept["initial_env_steps"]  # taken: an extension has no more of them
        if self.begun or self._checked.experiment.preferences.comparisons == 0:
            self.ring.load(folder, replace=replace)
        if self.begun and self.ring.version:  # the ring may be ahead of the learner
            self._publish()
        # The checkpoint's optimiser has the learning rate of its own algorithm.
        self.learner_group.foreach_learner(functools.partial(use_own_learning_rates, timestep=self._sampled))
        # Not the episodes of the run's start again.
        reset_and_reseed(self, self._checked.experiment.seed, self.training_iteration)

    def get_state(self, components: Any = None, *, not_components: Any = None, **keywords: Any) -> dict[str, Any]:
        """Return RLlib's state with the ring's counters. The ring's state is in the folder of `save_to_path`."""
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **keywords)
        if self._check_component(PREFERENCES, components, not_components):
            initial = self.budget.initial_env_steps
            state[PREFERENCES] = {"begun": self.begun, "fresh": self.fresh, "initial_env_steps": initial}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if PREFERENCES in state:
            self._kept = {"initial_env_steps": self.budget.initial_env_steps} | state[PREFERENCES]

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the configuration to rebuild the algorithm from a checkpoint, without paths to what the checkpoint contains."""
        config = self.config.copy(copy_frozen=False)
        config.run_dir = config.store = config.reward_from = config.policy_from = config.labels_from = None
        config.demonstrations_from = config.begun_after = None
        return (config.get_state(),), {}

    def farewell(self, stop: Stop = never) -> None:
        """Tell people, once, that the training is over."""
        self.ring.farewell(self.env_steps, stop, self._policy)

    def stop_now(self) -> None:
        """Stop env runners and pending work of the ring at once. Afterwards, only save and stop the algorithm."""
        forget_env_runners(self.env_runner_group)
        self.ring.abandon()

    def cleanup(self) -> None:
        """Stop everything this algorithm started (called by Ray)."""
        super().cleanup()
        if hasattr(self, "_ring"):
            if self.finished:
                self.farewell()
            self.ring.close()
            self._lock.close()
