"""Silences what RLlib and Tune say of themselves."""

from __future__ import annotations

import logging
import warnings

from rlhf_ray.actors.ray_internals import LOGGER
from rlhf_ray.rllib.rllib_internals import NoFaults


def quiet() -> None:
    """Silence RLlib's deprecation and startup messages. Errors still show."""
    for name in ("ray.rllib", "ray.tune", "ray._common.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("ray.rllib", "ray.rllib.utils.actor_manager", "ray.rllib.env.env_runner_group", LOGGER):
        logging.getLogger(name).addFilter(NoFaults())
    warnings.filterwarnings("ignore", message=".*Overriding environment rllib-single-agent-env-v0.*")
