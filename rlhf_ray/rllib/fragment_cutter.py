"""Fragment cutting in RLlib's env runners: fragments are copied out of a rollout where it is made."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback

from rlhf_ray.actors.executor import Actor, Executor, Ref
from rlhf_ray.actors.local import executor_of
from rlhf_ray.data.errors import LostFragmentsError
from rlhf_ray.data.failures import cause
from rlhf_ray.data.fragments import Fragments, Trajectory, cut_fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.policies.env_actions import to_env_actions
from rlhf_ray.queries.pool import CutFragments, FragmentPool, PoolReport
from rlhf_ray.settings import ResolvedFragments

logger = logging.getLogger(__name__)


class FragmentCutter(RLlibCallback):  # type: ignore[misc]
    """Sends fragments of each rollout to the ring's pool.

    In the synchronous mode, it waits until the pool has them: losing a rollout's fragments would change the run, so it fails
    instead. In the asynchronous mode, it doesn't wait: while the pool is still busy with an earlier rollout's fragments, new ones
    are dropped (metric ``fragments_dropped``); errors are logged and counted (``fragments_failed``).
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent: Ref[PoolReport] | None = None
        """Reference of the pending call; ready when the pool has the fragments sent last."""
        self._ring: Executor | None = None
        self._pool: Actor[FragmentPool] | None = None
        """The pool's actor handle, looked up once; stays valid when Ray restarts it."""

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, samples: Any, **kwargs: Any) -> None:
        """Cut and send fragments (called by RLlib in the env runner's process)."""
        config = env_runner.config
        preferences = config.checked.experiment.preferences
        if config.in_evaluation or not preferences.comparisons:  # no questions to ask
            return
        if config.checked.films and not is_image(env_runner.env.single_observation_space):
            return  # the gatherer wants films, which the rollout collector renders
        failed = dropped = 0
        ring = self._ring = self._ring or executor_of(config.ring_name)
        if preferences.mode == "synchronous":
            try:
                with ring.apart():
                    ring.get(self._send(ring, env_runner, samples))
            except Exception as error:
                raise LostFragmentsError.because(str(cause(error)).partition("\n")[0]) from error
        else:
            try:
                if self._sent is not None and not ring.ready(self._sent):
                    dropped = 1
                else:
                    self._sent = self._send(ring, env_runner, samples)
            except Exception:
                logger.warning(
                    "Can't send this rollout's fragments to the pool; continuing without them.", exc_info=True
                )
                failed = 1
        metrics_logger.log_dict({"fragments_failed": failed, "fragments_dropped": dropped}, reduce="sum")

    def _send(self, ring: Executor, env_runner: Any, samples: Any) -> Ref[PoolReport]:
        if self._pool is None:
            self._pool = ring.find(FragmentPool, "pool")()
        return self._pool.call(FragmentPool.add, self._cut(env_runner, samples))

    def _cut(self, env_runner: Any, episodes: Any) -> CutFragments:
        config = env_runner.config
        settings: ResolvedFragments = config.checked.fragments
        space = env_runner.env.single_action_space
        if isinstance(episodes[0], VectorRollout):
            (rollout,) = episodes
            version = rollout.version
            trajectories = rollout.trajectories(to_env_actions(rollout.actions, space))
            ended = rollout.episode_lengths()
        else:
            version = max(_weights_version(episode) for episode in episodes)
            trajectories = [
                Trajectory(
                    observations=episode.get_observations(),
                    actions=to_env_actions(episode.get_actions(), space),
                    rewards=np.asarray(episode.get_rewards(), dtype=np.float64),
                    terminated=bool(episode.is_terminated),
                    start=int(episode.t_started),
                )
                for episode in episodes
                if len(episode) > 0
            ]
            ended = tuple(int(episode.t) for episode in episodes if episode.is_done)
        count, steps = -(-settings.pool // max(1, config.num_env_runners)), config.get_rollout_fragment_length()
        horizon = config.checked.horizon
        if settings.varied and horizon:
            # Take few enough per rollout that the pool spans an episode: the end of an episode alone may not vary.
            count = -(-count * steps // max(steps, horizon))
        fragments: Fragments | None = cut_fragments(
            trajectories,
            length=settings.length,
            count=count,
            start_share=settings.start_share,
            policy_version=version,
            rng=generator(config.checked.experiment.seed, "fragments", env_runner.worker_index, version),
        )
        too_short = sum(len(trajectory) < settings.length for trajectory in trajectories)
        return CutFragments(env_runner.worker_index, version, fragments, too_short, ended)


def _weights_version(episode: Any) -> int:
    """Return the version of the weights that acted last in ``episode``, which RLlib stores with every step."""
    versions = episode.get_extra_model_outputs("weights_seq_no")
    return int(versions[-1]) if len(versions) else 0
