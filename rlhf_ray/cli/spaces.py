"""The spaces of an environment that an option names."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rlhf_ray.data.errors import SettingError


def spaces_of(environment: str, *, supported: bool = False) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the observation and action space of an environment.

    Args:
        environment: its name.
        supported: whether to check that reward models support them.

    Raises:
        SettingError: there is no such environment, it can't be made, or its spaces are not supported.
    """
    from rlhf_ray import envs
    from rlhf_ray.envs.spaces import check_spaces

    try:
        env: Any = envs.make_env(environment)
        spaces = env.observation_space, env.action_space
        env.close()
        if supported:
            check_spaces(*spaces, environment)
    except SettingError:
        raise
    except (ValueError, ImportError) as error:
        raise SettingError(str(error)) from error
    return spaces
