"""Clip cutting in RLlib's env runners: fragments are copied out of the rollout where it is made."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import ray
from ray.rllib.callbacks.callbacks import RLlibCallback

from actors.fragmenter import Clips
from rlhf_ray.fragments import Fragments, Trajectory, cut_fragments
from rlhf_ray.rllib.actions import to_env_actions
from rlhf_ray.settings import FragmentSettings

logger = logging.getLogger(__name__)


class ClipCutter(RLlibCallback):  # type: ignore[misc]
    """Sends fragments of each rollout to the ring's fragmenter, and waits until they have arrived.

    It never raises: an exception in an env runner would end its process. What goes wrong is logged and counted in the metric
    ``clips_failed``.
    """

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, samples: Any, **kwargs: Any) -> None:
        """Cut and send (called by RLlib in the env runner's process)."""
        config = env_runner.config
        if config.in_evaluation:
            return
        failed = 0
        try:
            fragmenter = ray.get_actor(f"{config.ring_name}/fragmenter")
            ray.get(fragmenter.add.remote(self._clips(env_runner, samples)), timeout=60)
        except Exception:
            logger.warning("No clips were taken from this rollout.", exc_info=True)
            failed = 1
        metrics_logger.log_value("clips_failed", failed, reduce="sum")

    def _clips(self, env_runner: Any, episodes: Any) -> Clips:
        config = env_runner.config
        settings: FragmentSettings = config.fragment_settings
        version = max((_weights_version(episode) for episode in episodes), default=0)
        space = env_runner.env.single_action_space
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
        runners = max(1, config.num_env_runners)
        fragments: Fragments | None = cut_fragments(
            trajectories,
            length=settings.length,
            count=-(-settings.pool // runners),
            start_share=settings.start_share,
            policy_version=version,
            rng=np.random.default_rng([config.seed or 0, 4, env_runner.worker_index, version]),
        )
        too_short = sum(len(trajectory) < settings.length for trajectory in trajectories)
        lengths = tuple(int(episode.t) for episode in episodes if episode.is_done)
        return Clips(env_runner.worker_index, version, fragments, too_short, lengths)


def _weights_version(episode: Any) -> int:
    """The number of the weights that acted last in ``episode``: RLlib writes it with every step."""
    versions = episode.get_extra_model_outputs("weights_seq_no")
    return int(versions[-1]) if len(versions) else 0
