"""From an environment's name to the environment, single or vectorised."""

import difflib
from typing import Any

import gymnasium
from gymnasium.envs.registration import find_highest_version, parse_env_id
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rlhf_ray.data import modules
from rlhf_ray.envs import atari, procgen, procgen_settings
from rlhf_ray.envs.checked import RAISED, CheckedEnv, fault
from rlhf_ray.envs.fixed_horizon import fixed

PROCGEN_PREFIX = "procgen/"
FIXED_PREFIX = "fixed/"
"""Before a gymnasium id: the same with episodes of one length (`FixedHorizon`)."""

_OWN_ENVS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "rlhf_ray/CartPoleFixed-v0": ("rlhf_ray.envs.cartpole_fixed:CartPoleFixed", 500, {}),
    "rlhf_ray/MovingDot-v0": ("rlhf_ray.envs.moving_dot:MovingDot", 100, {}),
    # Hopper-v5 that goes on after a fall, when its reward for standing stops: as CartPoleFixed is to CartPole.
    "rlhf_ray/HopperFixed-v0": (
        "gymnasium.envs.mujoco.hopper_v5:HopperEnv",
        1000,
        {"terminate_when_unhealthy": False},
    ),
    "rlhf_ray/Pong-v0": ("rlhf_ray.envs.atari:pong", atari.STEPS, {}),
}
"""Our ids, each with its class, the number of steps after which its episodes are truncated, and options."""

_ACCEPTED_FORMS = (
    "Accepted are: a registered gymnasium id such as 'CartPole-v1'; 'module:EnvId-v0', where importing the module "
    "registers the id; 'fixed/ID', whose episodes all last as long as the time limit of the gymnasium id allows; "
    f"{', '.join(repr(name) for name in _OWN_ENVS)}; 'ALE/<Game>-v5', such as 'ALE/Breakout-v5'; "
    "and 'procgen/<game>-<mode>' with mode easy, hard, extreme, memory or exploration, such as 'procgen/coinrun-easy'."
)


def register() -> None:
    """Registers our own environments with gymnasium. Calling it again changes nothing."""
    for name, (entry_point, episode_steps, options) in _OWN_ENVS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point, max_episode_steps=episode_steps, kwargs=options)


def is_natively_vectorised(name: str) -> bool:
    """Whether the environment steps many copies of itself faster than a loop over single ones can (procgen does)."""
    return name.startswith(PROCGEN_PREFIX)


def make_env(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Makes one environment.

    Args:
        name: A registered gymnasium id, ``module:EnvId-v0``, ``fixed/`` and an id, ``ALE/<Game>-v5``, or
            ``procgen/<game>-<mode>``.
        **options: Handed to the environment's constructor, for example ``render_mode="rgb_array"``. For procgen, see
            ``rlhf_ray.envs.procgen.ProcgenVectorEnv``.

    Raises:
        ValueError: No environment has this name; the text gives the nearest ones.
        ImportError: A procgen game without procgen installed, or an Atari one without ale-py.
        FaultyEnvironmentError: The environment, or its module, raises when it is made; the environment's methods raise it too.
    """
    if is_natively_vectorised(name):
        return procgen.ProcgenEnv(*_procgen_game_and_mode(name), **options)
    if name.startswith(FIXED_PREFIX):
        inner = name.removeprefix(FIXED_PREFIX)
        if ":" in inner:
            raise ValueError(f"{name!r}: {FIXED_PREFIX} takes an id that is registered already, without a module.")
        if inner.startswith(atari.PREFIX):
            raise ValueError(
                f"{name!r}: the episodes of {inner} have one length already; name it without {FIXED_PREFIX}."
            )
        _check_gymnasium_id(inner)
        return fixed(inner, **options)
    if name.startswith(atari.PREFIX):
        atari.check(name)
    _check_gymnasium_id(name)
    return _make(name, options)


def make_vector_env(name: str, num_envs: int, **options: Any) -> VectorEnv[Any, Any, Any]:
    """Makes ``num_envs`` copies of an environment that are stepped together, in this process.

    The autoreset mode is always ``AutoresetMode.NEXT_STEP``, which RLlib requires (and does not check): the step after
    an episode's last returns the next episode's first observation, reward 0, and ignores the action.

    Args:
        name: As for ``make_env``.
        num_envs: Number of copies, at least 1.
        **options: As for ``make_env``.

    Raises:
        ValueError: No environment has this name (the text gives the nearest ones), or ``num_envs`` is below 1.
        ImportError: A procgen game without procgen installed.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs} for environment {name!r}: it must be at least 1.")
    if is_natively_vectorised(name):
        game, mode = _procgen_game_and_mode(name)
        return procgen.ProcgenVectorEnv(game, mode, num_envs=num_envs, **options)
    return SyncVectorEnv(
        [lambda: make_env(name, **options) for _ in range(num_envs)],
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )


class EnvCreator:
    """Makes the environment called ``name`` from RLlib's settings for it: one, or as many copies as ``num_envs`` asks for.

    It takes along what a script has registered under that name, which other processes know nothing of.

    Args:
        name: As for ``make_env``.
    """

    def __init__(self, name: str):
        self.name = name
        self._registered = gymnasium.registry.get(name)

    def __call__(self, context: Any) -> Any:
        """The environment, or the vector environment, with the options in ``context`` (a mapping)."""
        if self._registered is not None:
            gymnasium.registry.setdefault(self.name, self._registered)
        options = dict(context)
        count = options.pop("num_envs", None)
        if count is not None:
            return make_vector_env(self.name, count, **options)
        return make_env(self.name, **options)


def _make(name: str, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        env = (atari.atari if name.startswith(atari.PREFIX) else gymnasium.make)(name, **options)
    except (gymnasium.error.Error, ImportError):
        raise
    except RAISED as error:
        raise fault(f"Making environment {name}", error) from error
    return CheckedEnv(env, name)


def _procgen_game_and_mode(name: str) -> tuple[str, str]:
    game, _, mode = name.removeprefix(PROCGEN_PREFIX).rpartition("-")
    if mode not in procgen_settings.modes_of(game):
        raise ValueError(_unknown(name))
    return game, mode


def _check_gymnasium_id(name: str) -> None:
    """Raises a ValueError unless gymnasium can make ``name``; imports the module of a ``module:EnvId`` name."""
    module, _, env_id = name.rpartition(":")
    if module:
        try:
            modules.import_module(module)
        except modules.NoModuleError as error:
            raise ValueError(f"There is no environment {name!r}: {error}.") from error
        except ModuleNotFoundError:  # of somebody else's, which the module lacks
            raise
        except RAISED as error:
            raise fault(f"Importing {module} for environment {name}", error) from error
    if env_id in gymnasium.registry:
        return
    try:
        namespace, base_name, version = parse_env_id(env_id)
    except gymnasium.error.Error:  # Not even of an id's form.
        raise ValueError(_unknown(name)) from None
    if version is None and find_highest_version(namespace, base_name) is not None:
        return  # gymnasium takes the latest version, and says so.
    raise ValueError(_unknown(name))


def _unknown(name: str) -> str:
    known = {known_name.lower(): known_name for known_name in [*gymnasium.registry, *procgen_names()]}
    nearest = difflib.get_close_matches(name.rpartition(":")[2].lower(), known, n=5)
    hint = f"The nearest names are {', '.join(known[key] for key in nearest)}. " if nearest else ""
    return f"There is no environment {name!r}. {hint}{_ACCEPTED_FORMS}"


def procgen_names() -> list[str]:
    """The names of all procgen environments: every game with each mode that it has."""
    games = procgen_settings.GAMES
    return [f"{PROCGEN_PREFIX}{game}-{mode}" for game in games for mode in procgen_settings.modes_of(game)]
