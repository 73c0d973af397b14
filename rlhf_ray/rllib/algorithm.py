"""PreferencePPO: PPO on a reward that is learned, while it trains, from comparisons."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.tune import PlacementGroupFactory

from actors.asynchronous import AsynchronousPipeline
from actors.fixed_reward import FixedReward
from actors.people import PeoplesPipeline
from actors.pipeline import RoundReport, check_horizon
from actors.placement import NODES_WITHIN, await_room, ring_bundles
from actors.synchronous import SynchronousPipeline
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.config import PreferencePPOConfig
from rlhf_ray.rllib.env_runner import raise_fault
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID, module_state
from rlhf_ray.rllib.metrics import PREFERENCES as PREFERENCES  # where callers look for it
from rlhf_ray.rllib.metrics import Gauges
from rlhf_ray.rllib.policy import PolicyMaker
from rlhf_ray.rllib.rollouts import RolloutsAhead, learn_while_sampling
from rlhf_ray.rllib.seeding import begin_anew
from rlhf_ray.rllib.spreading import spread_env_runners
from rlhf_ray.rllib.starting import fitted_reward, policy_weights
from rlhf_ray.settings import PreferenceSettings, SettingError

ORIGIN = "origin.json"
"""File in a checkpoint that says which of Tune's trials it is from."""

ATTEMPTS = 30
"""Iterations without a single step before a run gives up: env runners restart within a few, unless the environment is at fault."""


def ring_of(settings: PreferenceSettings) -> type[SynchronousPipeline] | type[AsynchronousPipeline]:
    """The way to drive the ring that ``settings`` ask for."""
    if settings.mode == "synchronous":
        return SynchronousPipeline
    return PeoplesPipeline if settings.asks_people else AsynchronousPipeline


class PreferencePPO(PPO):  # type: ignore[misc]
    """PPO whose learner sees a learned reward. An RLlib `Algorithm`: build it with `PreferencePPOConfig`.

    Each `train()` is one iteration of PPO. Before it, where a labelling round is due, the ring asks about clips of the newest
    rollouts, stores the answers, fits the reward model and gives the learner the new version. ``env_runners/
    episode_return_mean`` in the results is the true return; the ring's metrics are under ``preferences``.
    """

    config: PreferencePPOConfig

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """A `PreferencePPOConfig` with the defaults."""
        return PreferencePPOConfig()

    @classmethod
    def default_resource_request(cls, config: Any) -> PlacementGroupFactory:
        """RLlib's bundles and those for the ring's actors, where it has any."""
        request = super().default_resource_request(config)
        ours = cls.get_default_config().update_from_dict(config)
        if not ours.preference_settings.comparisons:
            return request
        ring = ring_bundles(ours.reward_model_settings.gpus)
        return PlacementGroupFactory([*request.bundles, *ring], strategy=request.strategy)

    def setup(self, config: Any) -> None:
        """Check the environment, start the ring, build PPO (called by Ray)."""
        settings = self.config
        observation_space, action_space = settings.check_environment()  # which tells the horizon too
        gpus = 0.0 if settings.num_learners else settings.num_gpus_per_learner
        if gpus and not torch.cuda.is_available():
            raise SettingError(
                f"ppo.gpus_per_learner is {gpus:g}, and with ppo.num_learners 0 this process learns, but torch sees no GPU on "
                f"{platform.node()}: set ppo.num_learners to 1, so that a learner goes where a GPU is."
            )
        if ray.util.get_current_placement_group() is None:  # or it has one, made for its resource request
            _, *bundles = self.default_resource_request(settings.to_dict()).bundles  # all but this process
            await_room(bundles, nodes_within=NODES_WITHIN if os.environ.get("RAY_ADDRESS") else 0.0)
        name = f"ring-{uuid.uuid4().hex[:12]}"
        self.config = settings.with_reward_module(observation_space, action_space, name)
        fragments, preferences = self.config.fragment_settings, self.config.preference_settings
        fixed = preferences.comparisons == 0
        self._share_out(0 if fixed else fragments.initial_env_steps)
        self.ring = self._fixed_reward() if fixed else self._pipeline(name, observation_space, action_space)
        self._spaces = (observation_space, action_space)
        self._begun = False
        self._stop: Callable[[], bool] = lambda: False
        self.iterating: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Each iteration is made within it. It may be left in the midst of one: what `save_to_path` saves then is as before it."""
        self._rounds_seen = 0
        self._gauges = Gauges(self._run_name())
        with spread_env_runners():
            super().setup(config)
        self._ahead = RolloutsAhead(self)
        if self.config.policy_from is not None:
            self.learner_group.set_weights({DEFAULT_MODULE_ID: policy_weights(self.config.policy_from)})
            self.env_runner_group.sync_weights(
                from_worker_or_learner_group=self.learner_group, policies=[DEFAULT_MODULE_ID], inference_only=True
            )

    def _share_out(self, initial: int) -> None:
        """Share the environment steps out, of which the first clips take ``initial`` or somewhat more."""
        fragments, preferences = self.config.fragment_settings, self.config.preference_settings
        between = fragments.between_rounds_env_steps(preferences.asks_people)
        budget = self.config.total_env_steps - preferences.rounds * between
        self._iterations = (budget - initial) // self.config.most_iteration_env_steps
        # What does not fill an iteration goes to the first clips, so that the steps add up to the budget.
        self._initial_env_steps = initial + (budget - initial) % self.config.most_iteration_env_steps

    def _fixed_reward(self) -> FixedReward:
        given = self.config.reward_from
        return FixedReward(None if given is None else fitted_reward(given).state())

    def _pipeline(
        self, name: str, observation_space: Any, action_space: Any
    ) -> SynchronousPipeline | AsynchronousPipeline:
        preferences = self.config.preference_settings
        ring = ring_of(preferences)(
            name=name,
            fragments=self.config.fragment_settings,
            preferences=self.config.preference_settings,
            reward_model=self.config.reward_model_settings,
            observation_space=observation_space,
            action_space=action_space,
            make_env=self.config.make_env(film=preferences.asks_people),
            store=self._store_path(),
            seed=self.config.seed or 0,
            rollouts=self.config.num_envs_per_env_runner,
            spread=max(0, self._iterations - 1),
            total_env_steps=self.config.total_env_steps,
            page=self.config.make_page(name, self.logdir),
        )
        iteration = self.config.most_iteration_env_steps  # whole ones, so that the steps still add up to the budget
        ring.more_env_steps = -(-ring.more_env_steps // iteration) * iteration
        if self.config.labels_from is not None:
            try:
                ring.adopt(self.config.labels_from)
            except Exception:
                ring.close()  # nobody else would: there is no algorithm yet
                raise
        return ring

    def _store_path(self) -> Path | str:
        """What the settings name; else a folder beside Tune's checkpoints of the trial, which a restored trial finds again."""
        if self.config.store:
            return self.config.store
        if self._storage is not None and isinstance(self._storage.storage_filesystem, pyarrow.fs.LocalFileSystem):
            return Path(self._storage.trial_fs_path).absolute() / PREFERENCES
        return Path(self.logdir).absolute() / PREFERENCES

    def _run_name(self) -> str:
        """The name of the run's or trial's folder."""
        return str(self._store_path()).rstrip("/").split("/")[-2:][0]

    @property
    def _trial(self) -> str | None:
        """The name of the folder of the Tune trial that this is (RLlib's `trial_id` is always the same); None outside of Tune."""
        return None if self._storage is None else self._storage.trial_dir_name

    @property
    def env_steps(self) -> int:
        """Environment steps so far, those of PPO's rollouts and those of the rollout collector."""
        return self._sampled + self.ring.env_steps

    @property
    def _sampled(self) -> int:
        """Environment steps of PPO's rollouts so far."""
        return int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))

    @property
    def finished(self) -> bool:
        """Whether another iteration could take more than ``total_env_steps``."""
        return self.env_steps + self.config.most_iteration_env_steps > self.config.total_env_steps

    def reward_model(self) -> RewardEnsemble:
        """The newest version of the reward model."""
        with torch.random.fork_rng(devices=[]):  # making one must not change what the policy draws next
            ensemble = RewardEnsemble(*self._spaces, self.config.reward_model_settings)
        ensemble.load_state(self.ring.publish())
        return ensemble

    def begin(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Gather the first clips and have the first labelling round held; `train` does it where it was not.

        Args:
            stop: says whether to wait no longer, where a slow teacher has to be waited for, here or later.

        Returns:
            Whether it was done; not so when it was stopped.
        """
        self._stop = stop
        if not self._begun:
            report = self.ring.begin(self._initial_env_steps, stop)
            self._begun = report is not None
            if report is not None:
                if self.ring.env_steps > self._initial_env_steps:  # more first clips were gathered
                    self._share_out(self.ring.env_steps)
                self._hand_over(report)
        return self._begun

    def step(self) -> dict[str, Any]:
        """An iteration (called by `train`). Its result is the trial's last to Tune (``done``) where the budget is spent."""
        result: dict[str, Any] = super().step()
        result["done"] = self.finished
        return result

    def training_step(self) -> None:
        """Turn the ring as far as it is due, then take one iteration of PPO."""
        with self.iterating():
            self._train_once()

    def _train_once(self) -> None:
        if self._begun:
            self._turn()
        else:
            self.begin()
        started = time.perf_counter()
        self._iterate()
        arrived = self.ring.arrived()
        if isinstance(self.ring, FixedReward):
            check_horizon(self._episode_lengths(), self.config.preference_settings)
            clips = {}
        else:
            clips = self.ring.spending.report() | {
                "fragments_length": self.config.fragment_settings.length,
                "first_clips_env_steps": self._initial_env_steps,
            }
        self.metrics.log_dict(
            clips
            | {
                "env_steps": self.env_steps,
                "comparisons": self.ring.answered,
                "reward_version": self.ring.version,
                "rounds": self.ring.rounds_held,
                "too_short": arrived["too_short"],
                "distinct_clips": arrived["distinct_clips"],
                "clips_policy_version": arrived["newest_policy"],
                "finished": float(self.finished),
                "ppo_seconds": time.perf_counter() - started,
            },
            key=PREFERENCES,
            window=1,
        )
        if isinstance(self.ring, AsynchronousPipeline):
            self.metrics.log_dict(self.ring.report(), key=(PREFERENCES, "stages"), window=1)

    def log_result(self, result: dict[str, Any]) -> None:
        """Log what an iteration came to, to Prometheus too (called by Ray)."""
        super().log_result(result)
        self._gauges.set(result)

    def save_to_path(self, path: Any = None, **arguments: Any) -> str:
        """RLlib's checkpoint, and in it the preference store (``preferences``) and the reward model (``reward_model``)."""
        saved: str = super().save_to_path(path, **arguments)
        self.ring.copy_store(Path(saved).absolute() / PREFERENCES)
        if self.ring.version:
            self.reward_model().save(Path(saved) / REWARD_MODULE_ID)
        (Path(saved) / ORIGIN).write_text(json.dumps({"trial": self._trial}) + "\n")
        return saved

    def restore_from_path(self, path: Any, *arguments: Any, **keywords: Any) -> None:
        """Restore a checkpoint.

        Its comparisons are added to this algorithm's own store, which may hold more, of after it. Where the checkpoint is that of
        another of Tune's trials, which population-based training has this one go on from, they take the place of its own.
        """
        folder = Path(path).absolute()
        store = folder / PREFERENCES
        if store.exists():
            if self._is_of_another_trial(folder):
                self.ring.replace_store(store)
            else:
                self.ring.import_store(store)
        super().restore_from_path(path, *arguments, **keywords)
        self._keep_own_learning_rate()

    def _is_of_another_trial(self, checkpoint: Path) -> bool:
        if self._trial is None or not (checkpoint / ORIGIN).exists():
            return False
        origin: str | None = json.loads((checkpoint / ORIGIN).read_text())["trial"]
        return origin is not None and origin != self._trial

    def _keep_own_learning_rate(self) -> None:
        """Have the next update use this algorithm's learning rate: a checkpoint's optimizer brings that of whoever wrote it."""
        steps = self._sampled

        def keep(learner: Any) -> None:
            for optimizer, schedule in learner._optimizer_lr_schedules.items():
                learner._set_optimizer_lr(optimizer, lr=schedule.update(timestep=steps))

        self.learner_group.foreach_learner(keep)

    def get_state(self, components: Any = None, *, not_components: Any = None, **keywords: Any) -> dict[str, Any]:
        """RLlib's state and the ring's."""
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **keywords)
        if self._check_component(PREFERENCES, components, not_components):
            state[PREFERENCES] = {
                "ring": self.ring.state() if self._begun or isinstance(self.ring, FixedReward) else None,
                "begun": self._begun,
                "rounds_seen": self._rounds_seen,
                "initial_env_steps": self._initial_env_steps,
            }
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state`."""
        super().set_state(state)
        if PREFERENCES in state:
            self._begun, self._rounds_seen = state[PREFERENCES]["begun"], state[PREFERENCES]["rounds_seen"]
            self._share_out(state[PREFERENCES].get("initial_env_steps", self._initial_env_steps))
            if self._begun or isinstance(self.ring, FixedReward):
                self.ring.load_state(state[PREFERENCES]["ring"])
                if self.ring.version:  # the ring may have been ahead of the learner
                    self._publish()

    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a checkpoint rebuilds the algorithm with: the configuration, without the folders of what the checkpoint holds."""
        config = self.config.copy(copy_frozen=False)
        config.store = config.reward_from = config.policy_from = config.labels_from = None
        return (config.get_state(),), {}

    def leave_off(self) -> None:
        """End the env runners and what the ring has under way, at once. It can still be saved, and is to be stopped then."""
        self.env_runner_group._worker_manager.clear()
        self.ring.abandon()

    def cleanup(self) -> None:
        """End everything this algorithm started (called by Ray)."""
        super().cleanup()
        if hasattr(self, "ring"):
            self.ring.close()

    def _iterate(self) -> None:
        """One iteration of PPO; again, where all env runners were lost before they had sampled anything.

        Raises:
            RuntimeError: they sample nothing, however often they are restarted.
            FaultyEnvironmentError: the environment raised, or gave what cannot be trained on.
        """
        sampled = self._sampled
        for _ in range(ATTEMPTS):
            if self.config.preference_settings.mode == "synchronous":
                if self.training_iteration and self.training_iteration % self.config.checkpoint_every == 0:
                    begin_anew(self, [self.config.seed or 0, self.training_iteration])
                super().training_step()
            elif self.config.num_env_runners == 0:
                super().training_step()
            else:
                left = (self.config.total_env_steps - self.env_steps) // self.config.most_iteration_env_steps
                iterations = max(1, left)  # whoever calls `train` beyond the budget gets the iteration all the same
                learn_while_sampling(self, self._ahead, most=iterations * self.config.num_env_runners)
            if self.env_runner_group.num_healthy_remote_workers() < self.env_runner_group.num_remote_workers():
                raise_fault(self.config.faults)
            if self._sampled > sampled:
                return
            self.restore_env_runners(self.env_runner_group)
            time.sleep(1.0)
        raise RuntimeError(
            f"The env runners sampled nothing in {ATTEMPTS} attempts. Look into the logs of their processes for why (an "
            "environment that raises, say), or sample in the learner's process, with num_env_runners=0, to see the error here."
        )

    @property
    def _progress(self) -> float:
        """From 0 before the first iteration to 1 before the last."""
        left = self.config.total_env_steps - self.config.most_iteration_env_steps - self.env_steps
        if left < self.config.most_iteration_env_steps:
            return 1.0
        taken = self.env_steps - self._initial_env_steps
        return taken / (taken + left)

    def _turn(self) -> None:
        """Hold the labelling round that is due, or tell the asynchronous ring how far PPO is; give the learner a new version."""
        asynchronous = isinstance(self.ring, AsynchronousPipeline)
        due = math.floor(self._progress * self.ring.rounds) if asynchronous else self._round_due()
        new = due > self._rounds_seen
        if new:
            self._explore(due)
            self._film(due)
        if isinstance(self.ring, AsynchronousPipeline):
            self.ring.advance(self._progress, self.env_steps, self._stop)
            report = self.ring.news()
        else:
            report = (
                self.ring.hold_round(due, self._stop) if new and isinstance(self.ring, SynchronousPipeline) else None
            )
        self._rounds_seen = due
        if report is not None:
            self._hand_over(report)

    def _hand_over(self, report: RoundReport) -> None:
        """Give the learner the version that a fit made, or the one there is, and log what the round came to."""
        if report.fit is not None or isinstance(self.ring, FixedReward):
            self._publish()
        self._log_round(report)

    def _publish(self) -> None:
        """Give the learner the ring's version of the reward model."""
        self.learner_group.set_weights({REWARD_MODULE_ID: module_state(self.ring.publish())})

    def _episode_lengths(self) -> list[int]:
        """The shortest and the longest episode of late, where there were any; one number where they are the same."""
        ends = [self.metrics.peek((ENV_RUNNER_RESULTS, f"episode_len_{end}"), default=None) for end in ("min", "max")]
        return sorted({int(length) for length in ends if length is not None})

    def _explore(self, round_number: int) -> None:
        """Gather exploratory clips, where the settings ask for them and the budget leaves room."""
        steps = self.config.fragment_settings.exploration_env_steps
        if steps and not isinstance(self.ring, FixedReward) and self._room_for(steps):
            self.ring.explore(round_number, self.training_iteration, self._policy())

    def _film(self, round_number: int) -> None:
        """Film the policy, where people are asked and the budget leaves room."""
        steps = self.config.fragment_settings.filmed_env_steps
        if self.config.preference_settings.asks_people and self._room_for(steps):
            assert not isinstance(self.ring, FixedReward)
            self.ring.film(round_number, self.training_iteration, self._policy())

    def _room_for(self, steps: int) -> bool:
        """Whether ``steps`` more and an iteration fit into the budget."""
        return self.env_steps + steps + self.config.most_iteration_env_steps <= self.config.total_env_steps

    def _policy(self) -> PolicyMaker:
        """The policy as it is now."""
        weights = self.learner_group.get_weights([DEFAULT_MODULE_ID])[DEFAULT_MODULE_ID]
        spec = self.config.rl_module_spec.rl_module_specs[DEFAULT_MODULE_ID]
        return PolicyMaker(spec, *self._spaces, weights)

    def _round_due(self) -> int:
        """The last round that should have been held before the next iteration."""
        rounds = self.ring.rounds
        if self.env_steps + 2 * self.config.most_iteration_env_steps > self.config.total_env_steps:
            return rounds  # the last iteration: what is left of the budget is asked for now
        due: int = (self.training_iteration * (rounds + 1)) // self._iterations
        return min(rounds, due)

    def _log_round(self, report: RoundReport) -> None:
        values: dict[str, Any] = {
            "iteration": self.training_iteration + 1,
            "round": report.round_number,
            "wanted": report.wanted,
            "answered": report.answered,
            "gradient_steps": 0,
        }
        if report.fit is not None:
            values |= vars(report.fit)
            values["fit_seconds"] = values.pop("seconds")
            values |= {f"error_rate/{name}": rate for name, rate in values.pop("error_rates").items()}
        self.metrics.log_dict(values, key=(PREFERENCES, "round"), window=1)
