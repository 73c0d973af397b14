"""Makes environments, single or vectorised, from their names."""

import contextlib
import dataclasses
import difflib
import functools
import logging
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import gymnasium
from gymnasium.envs.registration import find_highest_version, load_env_creator, parse_env_id
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rlhf_ray.data import modules
from rlhf_ray.data.defaults import making
from rlhf_ray.data.errors import Fault, FaultyEnvironmentError, SettingError
from rlhf_ray.data.identity import identify, installed
from rlhf_ray.envs import atari, envpool, procgen
from rlhf_ray.envs.checked import RAISED, CheckedEnv, CheckedVectorEnv, fault
from rlhf_ray.envs.classic_control import ArrayVectorEnv, CartPoleFixedVectorEnv, PendulumVectorEnv
from rlhf_ray.envs.fixed_horizon import FIXED_PREFIX, fixed
from rlhf_ray.envs.likeness import difference
from rlhf_ray.envs.observations import Say
from rlhf_ray.envs.processes import EnvApart, ProcessesVectorEnv
from rlhf_ray.envs.views import viewed

logger = logging.getLogger(__name__)

PROCGEN_PREFIX = "procgen/"
SEALS_PREFIX = "seals/"

_GRID, _MAZE = "rlhf_ray.envs.gridworld:GridWorld", "rlhf_ray.envs.mazes:Maze"

_OWN_ENVS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "rlhf_ray/CartPoleFixed-v0": ("rlhf_ray.envs.control_fixed:CartPoleFixed", 500, {}),
    "rlhf_ray/AcrobotFixed-v0": ("rlhf_ray.envs.control_fixed:AcrobotFixed", 500, {}),
    "rlhf_ray/MovingDot-v0": ("rlhf_ray.envs.moving_dot:MovingDot", 100, {}),
    # MuJoCo's v5 that continue after a fall, without the reward for standing: what CartPoleFixed is to CartPole.
    **{
        f"rlhf_ray/{robot}Fixed-v0": (
            f"gymnasium.envs.mujoco.{robot.lower()}_v5:{robot}Env",
            1000,
            {"terminate_when_unhealthy": False},
        )
        for robot in ("Ant", "Hopper", "Humanoid", "Walker2d")
    },
    "rlhf_ray/Pong-v0": ("rlhf_ray.envs.atari:pong", atari.STEPS, {}),
    "rlhf_ray/Enduro-v0": ("rlhf_ray.envs.atari:enduro", atari.STEPS, {}),
    "rlhf_ray/FixedGoal-v0": (_GRID, 200, {"goals": "fixed"}),
    "rlhf_ray/CoinFlip-v0": (_GRID, 200, {"goals": "coin"}),
    "rlhf_ray/TwoGoals-v0": (_GRID, 200, {"goals": "two"}),
    "rlhf_ray/RandomGoal-v0": (_GRID, 200, {"goals": "random"}),
    "rlhf_ray/ManyGoals-v0": (_GRID, 200, {"goals": "many"}),
    "rlhf_ray/NoGoal-v0": (_GRID, 200, {"goals": "none"}),
    "rlhf_ray/Key-v0": (_GRID, 200, {"key": True}),
    "rlhf_ray/Walls-v0": (_GRID, 200, {"walls": True}),
    "rlhf_ray/EmptyMaze4-v0": (_MAZE, 8, {"size": 4}),
    "rlhf_ray/EmptyMaze10-v0": (_MAZE, 20, {"size": 10}),
    "rlhf_ray/KeyMaze6-v0": (_MAZE, 20, {"size": 6, "key": True}),
    "rlhf_ray/KeyMaze10-v0": (_MAZE, 30, {"size": 10, "key": True}),
    "rlhf_ray/MountainCar-v0": ("rlhf_ray.envs.mountain_car:MountainCar", 200, {}),
}
"""Our ids: class, episode length in steps, and options."""

_NATIVE: dict[str, type[ArrayVectorEnv]] = {kind.name: kind for kind in (PendulumVectorEnv, CartPoleFixedVectorEnv)}
"""Ids whose copies step natively, with their vector environments."""

_MAKERS: dict[str, Callable[..., gymnasium.Env[Any, Any]]] = {
    atari.PREFIX: atari.atari,
    envpool.PREFIX: envpool.EnvPoolEnv,
}
"""What makes environments that gymnasium's `make` doesn't, or not alone, by the prefix of their ids."""

_PROCESSES = "worker_processes"
"""The option of `make_vector_env` that a single environment doesn't take."""

_MADE: dict[str, dict[str, Any]] = {}
"""What processes of their own can't be asked before they start, of the environments that this process has made."""

_LIKE: dict[str, bool] = {}
"""Whether the ``vector_entry_point`` of a name with some options is like the single environment."""

_REGISTERED: dict[str, list[str]] = {}
"""The names that each imported module registered, with the module."""

THRESHOLDS: Mapping[str, float] = {
    "Pendulum-v1": -250.0,
    "rlhf_ray/CartPoleFixed-v0": 475.0,
    "rlhf_ray/AcrobotFixed-v0": -200.0,
}
"""Of environments that are registered without one: about nine tenths of the way from random actions to PPO on the true reward
(docs/results_archive.md); CartPoleFixed has CartPole-v1's."""

MOST_LISTED = 10
"""The largest number of a module's names that an error lists."""

_ACCEPTED_FORMS = (
    "Valid names are: a registered gymnasium id such as 'CartPole-v1'; 'module:EnvId-v0', where importing the module "
    "registers the id; 'fixed/ID', a gymnasium or EnvPool id with all episodes as long as its time limit; "
    "one of our own, such as 'rlhf_ray/MovingDot-v0' or 'rlhf_ray/CoinFlip-v0'; 'ALE/<Game>-v5', such as 'ALE/Breakout-v5'; "
    "'seals/<Name>', such as 'seals/CartPole-v0'; 'envpool/<Id>', such as 'envpool/WalkerWalk-v1'; "
    "and 'procgen/<game>-<mode>' with mode easy, hard, extreme, memory or exploration, such as 'procgen/coinrun-easy'."
)


def register() -> None:
    """Register our own environments with gymnasium. Idempotent."""
    for name, (entry_point, episode_steps, options) in _OWN_ENVS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point, max_episode_steps=episode_steps, kwargs=options)


def is_natively_vectorised(name: str) -> bool:
    """Return whether the environment steps many copies of itself natively, faster than a loop (procgen, EnvPool, Pendulum do)."""
    return name.startswith((PROCGEN_PREFIX, envpool.PREFIX)) or name in _NATIVE


@making
def steps_together(name: str) -> bool:
    """Return whether `make_vector_env` steps the copies together: natively, or by a ``vector_entry_point``.

    Says so if the environment has one that can't be used.
    """
    return is_natively_vectorised(name) or _vector_entry_point(name) is not None


def _vector_entry_point(name: str, **options: Any) -> Any:
    """Return the ``vector_entry_point`` that ``name`` was registered with, if it is like the single environment, otherwise None."""
    if name.startswith((PROCGEN_PREFIX, FIXED_PREFIX, *_MAKERS)):
        return None
    if ":" in name:
        check_gymnasium_id(name)  # imports the module
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    entry = spec and spec.vector_entry_point
    return None if entry is None or not _is_like_the_single_one(name, options) else entry


def _is_like_the_single_one(name: str, options: dict[str, Any]) -> bool:
    asked = f"{name} {options}"
    if asked not in _LIKE:
        together = functools.partial(gymnasium.make_vec, name, vectorization_mode="vector_entry_point", **options)
        problem = difference(together, functools.partial(make_env, name, **options))
        if problem is not None:
            logger.warning(
                "The vector_entry_point of %s is not used, and copies take steps one by one: %s.", name, problem
            )
        _LIKE[asked] = problem is None
    return _LIKE[asked]


@making
def make_env(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make one environment.

    Args:
        name: a registered gymnasium id, ``module:EnvId-v0``, ``fixed/`` followed by an id, ``ALE/<Game>-v5``,
            ``seals/<Name>``, ``procgen/<game>-<mode>``, or ``envpool/`` followed by one of EnvPool's.
        **options: arguments of the environment's constructor, for example ``render_mode="rgb_array"``. For procgen, see
            ``rlhf_ray.envs.procgen.ProcgenVectorEnv``.

    Returns:
        The environment, with observations and actions as arrays of ours (`rlhf_ray.envs.views`). Its methods raise
        `FaultyEnvironmentError` if it raises or returns invalid data, except for ``procgen/`` environments.

    Raises:
        ValueError: no environment has this name; the message lists the closest ones.
        ImportError: the package that has the environment is not installed.
        FaultyEnvironmentError: the environment, or its module, raises while it is made.
    """
    if name.startswith(PROCGEN_PREFIX):
        return procgen.ProcgenEnv(*procgen_game_and_mode(name), **options)
    if name.startswith(FIXED_PREFIX):
        inner = name.removeprefix(FIXED_PREFIX)
        if ":" in inner:
            raise ValueError(f"{name!r}: {FIXED_PREFIX} needs an id that is already registered, without a module.")
        if inner.startswith(atari.PREFIX):
            raise ValueError(
                f"{name!r}: episodes of {inner} already have a fixed length; use the name without {FIXED_PREFIX}."
            )
        _check_id(inner)
        return _make(name, functools.partial(fixed, inner, _maker(inner)), options)
    _check_id(name)
    return _make(name, functools.partial(_maker(name), name), options)


@making
def make_vector_env(name: str, num_envs: int, worker_processes: int = 1, **options: Any) -> VectorEnv[Any, Any, Any]:
    """Make ``num_envs`` copies of an environment, stepped together.

    The autoreset mode is always ``AutoresetMode.NEXT_STEP``, which RLlib requires (and doesn't check): the step after
    an episode's last one returns the next episode's first observation and reward 0, and ignores the action.

    Args:
        name: as for ``make_env``.
        num_envs: number of copies, at least 1.
        worker_processes: from 2, copies that don't step together (`steps_together`) step in a process each; 1: in this process.
            Results don't depend on it.
        **options: as for ``make_env``.

    Raises:
        ValueError: no environment has this name (the message lists the closest ones), or ``num_envs`` is below 1.
        ImportError: procgen is missing for a procgen game, or ale-py for an Atari game.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs for environment {name!r} is {num_envs}; it must be at least 1.")
    if name in _NATIVE:
        return CheckedVectorEnv(_NATIVE[name](num_envs, **options), name)
    if name.startswith(PROCGEN_PREFIX):
        game, mode = procgen_game_and_mode(name)
        return procgen.ProcgenVectorEnv(game, mode, num_envs=num_envs, **options)
    if name.startswith(envpool.PREFIX):
        return CheckedVectorEnv(envpool.EnvPoolVectorEnv(name, num_envs, **options), name)
    if (entry := _vector_entry_point(name, **options)) is not None:
        together = gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **options)
        usual = gymnasium.registry[name.rpartition(":")[2]].max_episode_steps
        limit = options.get("max_episode_steps", usual)
        if str(entry).startswith("gymnasium.envs.classic_control"):
            return together
        return CheckedVectorEnv(together, name, limit)
    if min(worker_processes, num_envs) > 1:
        return ProcessesVectorEnv(name, functools.partial(EnvCreator(name), options), num_envs)
    return SyncVectorEnv(
        [lambda: make_env(name, **options) for _ in range(num_envs)],
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )


def thread_options(name: str, threads: int, processes: int = 1) -> dict[str, Any]:
    """Return the options of `make_vector_env` by which several cores step the copies.

    These are ``threads`` threads where copies step in C++. Where they step in a loop, they get a process each from 2 ``processes``.
    """
    pools = envpool.EnvPoolVectorEnv, f"{envpool.__name__}:EnvPoolVectorEnv"
    if name.startswith(envpool.PREFIX) or _vector_entry_point(name) in pools:
        return {"num_threads": threads}
    return {_PROCESSES: processes} if processes > 1 and not steps_together(name) else {}


def _by_object(spec: Any) -> Any:
    """Return a registered environment with objects in place of names in ``__main__``, another module in other processes."""
    changed = {}
    for name in ("entry_point", "vector_entry_point"):
        entry = getattr(spec, name, None)
        if isinstance(entry, str) and entry.startswith("__main__:"):
            with contextlib.suppress(AttributeError):  # making the environment says what is missing
                changed[name] = load_env_creator(entry)
    return dataclasses.replace(spec, **changed) if changed else spec


class EnvCreator:
    """Makes the environment ``name`` from RLlib's env config: one, or ``num_envs`` copies if that is given.

    Pickling it includes an environment that a script registered under that name, which other processes don't know.
    """

    def __init__(self, name: str):
        self.name = name
        self._id = name.removeprefix(FIXED_PREFIX)
        self._registered = _by_object(gymnasium.registry.get(self._id))

    def __call__(self, context: Any) -> Any:
        """Make the environment, or vector environment, with the options in ``context`` (a mapping)."""
        if self._registered is not None:
            gymnasium.registry.setdefault(self._id, self._registered)
        options = dict(context)
        count = options.pop("num_envs", None)
        if count is not None:
            return make_vector_env(self.name, count, **options)
        options.pop(_PROCESSES, None)
        return make_env(self.name, **options)


def _maker(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    return next((make for prefix, make in _MAKERS.items() if name.startswith(prefix)), gymnasium.make)


def _make(name: str, make: Callable[..., gymnasium.Env[Any, Any]], options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        env = make(**options)
    except (gymnasium.error.Error, ImportError, SettingError):
        raise
    except RAISED as error:
        if name not in _MADE:
            raise fault(f"Making environment {name}", error) from error
        env = _apart(name, options, error)
    made = viewed(CheckedEnv(env, name))
    _MADE[name] = {each: getattr(made, each) for each in ("observation_space", "action_space", "metadata")}
    return made


def _apart(name: str, options: dict[str, Any], error: BaseException) -> EnvApart:
    """Make an environment that this process can't make again, such as a simulator that exists once, in a process of its own."""
    spec = gymnasium.registry.get(name.removeprefix(FIXED_PREFIX).rpartition(":")[2])
    like = SimpleNamespace(**_MADE[name], render_mode=options.get("render_mode"), close=lambda: None)
    try:
        env = EnvApart(name, functools.partial(EnvCreator(name), options), like, spec)
    except FaultyEnvironmentError:
        raise fault(f"Making environment {name}", error) from error
    why = " ".join(f"{type(error).__name__}: {error}".split())
    Say(name)("apart", f"a process can't make it twice ({why}), so other copies have processes of their own.")
    return env


def procgen_game_and_mode(name: str) -> tuple[str, str]:
    """Return game and mode of ``procgen/GAME-MODE``.

    Raises:
        ValueError: there is no such game or mode.
    """
    game, _, mode = name.removeprefix(PROCGEN_PREFIX).rpartition("-")
    if mode not in procgen.modes_of(game):
        raise ValueError(_unknown(name))
    return game, mode


def _check_id(name: str) -> None:
    """Raise ValueError unless ``name`` can be made; EnvPool checks its own names."""
    if name.startswith(SEALS_PREFIX):
        _register_seals(name)
    if name.startswith(atari.PREFIX):
        atari.check(name)
    if not name.startswith(envpool.PREFIX):
        check_gymnasium_id(name)


def _register_seals(name: str) -> None:
    """Register the environments of `imitation`'s experiments: episodes of one length, positions among MuJoCo's observations."""
    try:
        import seals  # noqa: F401 - registers its ids
    except ImportError as error:
        raise ImportError(f"{name} needs seals: pip install seals ({error}).") from error
    # Their environments are of MuJoCo's v4 ids, and gymnasium says at each that v5 is newer.
    warnings.filterwarnings("ignore", message=".*v4.*out of date.*")


def check_gymnasium_id(name: str) -> None:
    """Raise ValueError unless gymnasium can make ``name``; imports the module of a ``module:EnvId`` name."""
    module, _, env_id = name.rpartition(":")
    if module:
        before = set(gymnasium.registry)
        try:
            modules.import_module(module)
        except modules.NoModuleError as error:
            raise ValueError(f"There is no environment {name!r}: {error}.") from error
        except ModuleNotFoundError:  # a dependency of the module is missing
            raise
        except RAISED as error:
            raise fault(f"Importing {module} for environment {name}", error) from error
        _REGISTERED.setdefault(module, [f"{module}:{new}" for new in gymnasium.registry if new not in before])
    if env_id in gymnasium.registry:
        return
    try:
        namespace, base_name, version = parse_env_id(env_id)
    except gymnasium.error.Error:  # not a valid id
        raise ValueError(_unknown(name)) from None
    if version is None and find_highest_version(namespace, base_name) is not None:
        return  # gymnasium uses the latest version, and warns
    raise ValueError(_unknown(name))


def _unknown(name: str) -> str:
    module = name.rpartition(":")[0]
    own = _REGISTERED.get(module, [])
    if 0 < len(own) <= MOST_LISTED:
        return f"There is no environment {name!r}; the module {module} registers {', '.join(own)}."
    games = [f"{PROCGEN_PREFIX}{game}-{mode}" for game in procgen.GAMES for mode in procgen.modes_of(game)]
    known = {known_name.lower(): known_name for known_name in own or [*gymnasium.registry, *games]}
    wanted = (name if own else name.rpartition(":")[2]).lower()
    if wanted not in known and (theirs := envpool.spelled(wanted)):
        return f"There is no environment {name!r}, but EnvPool has {theirs}."
    nearest = difflib.get_close_matches(wanted, known, n=5)
    hint = f"The closest names are {', '.join(known[key] for key in nearest)}. " if nearest else ""
    return f"There is no environment {name!r}. {hint}{_ACCEPTED_FORMS}"


def reward_threshold(name: str) -> float | None:
    """Return the true return of an episode from which the environment ``name`` counts as learned; None if nobody says one.

    It is gymnasium's ``reward_threshold``, which `gymnasium.register` takes, or one of `THRESHOLDS`. Variants such as ``fixed/ID``
    have none: their episodes pay other returns.
    """
    spec = gymnasium.registry.get(name.partition(":")[2] or name)
    registered = None if spec is None else spec.reward_threshold
    return THRESHOLDS.get(name) if registered is None else float(registered)


def identity_of(name: str | None) -> str:
    """Return a hash of an environment's registration, and of the instance that is made by it if its class is a user's own.

    Of one that can't be made, its name.
    """
    if name is None:
        return ""
    try:
        env = make_env(name)
    except (Fault, ImportError, SettingError, ValueError, gymnasium.error.Error):
        return name
    made = env.unwrapped
    own = made if not installed(type(made).__module__) else type(made)
    found = identify(name, gymnasium.registry.get(name.rpartition(":")[2]), own)
    env.close()  # type: ignore[no-untyped-call]
    return found
