"""Gymnasium spaces: as JSON, for saved reward models and recordings; made from fragments; and bounds that are only formal.

Formal bounds are so wide that nobody can mean them, such as ±1e6 or ±the largest float32. Scaled by them, all values look the same.
"""

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Convert ``space`` (Box, Discrete, MultiDiscrete or MultiBinary) to JSON values.

    A bound that is the same everywhere is written once.
    """
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, gym.spaces.Box):
        # Python's json module writes and reads infinite bounds as Infinity.
        low, high = (float(of.flat[0]) if (of == of.flat[0]).all() else of.tolist() for of in (space.low, space.high))
        box = {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), "low": low, "high": high}
        names = {"names": list(names_in(space)), "planes": planes_in(space)}
        return box | {name: value for name, value in names.items() if value}
    raise ValueError(f"The space {space} can't be saved; only Box, Discrete, MultiDiscrete and MultiBinary can.")


def space_from_json(value: dict[str, Any]) -> gym.Space[Any]:
    """Convert what `space_to_json` returned back to a space."""
    if value["type"] == "Discrete":
        return gym.spaces.Discrete(value["n"], start=value["start"])
    if value["type"] == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(value["nvec"], start=value["start"])
    if value["type"] == "MultiBinary":
        return gym.spaces.MultiBinary(value["n"])
    shape, dtype = tuple(value["shape"]), np.dtype(value["dtype"])
    low, high = (np.broadcast_to(np.array(value[name], dtype=dtype), shape) for name in ("low", "high"))
    return with_names(gym.spaces.Box(low, high, shape, dtype.type), value.get("names", ()), int(value.get("planes", 0)))


def seeded(space: gym.Space[Any], seed: int) -> gym.Space[Any]:
    """Return a copy of ``space`` to sample from: an environment may sample from its own space, or seed it."""
    own = copy.deepcopy(space)
    own.seed(seed)
    return own


def with_names(space: gym.spaces.Box, names: Sequence[str], planes: int = 0) -> gym.spaces.Box:
    """Return ``space`` after giving it the names of the parts that its observations are made of.

    Args:
        space: of vectors or images.
        names: of each number of a vector, or of each channel of an image; empty: unknown.
        planes: of an image, the number of first channels that hold one number each, everywhere the same.
    """
    space.part_names, space.planes = tuple(names), planes  # type: ignore[attr-defined]
    return space


def names_in(space: gym.Space[Any]) -> tuple[str, ...]:
    """Return the names that `with_names` gave, for example of a Dict's parts; empty if there are none."""
    return tuple(getattr(space, "part_names", ()))


def feature_names(space: gym.Space[Any]) -> list[str]:
    """Name each number of observations: by the part of a Dict that it is of, or by its place."""
    return list(names_in(space)) or [f"feature {i}" for i in range(int(np.prod(space.shape or ())))]


def take_names(space: gym.Space[Any], other: gym.Space[Any]) -> None:
    """Give ``space`` the names that ``other``, the space of the same observations, has: a loaded model may lack them."""
    if isinstance(space, gym.spaces.Box) and not names_in(space) and space.shape == other.shape:
        with_names(space, names_in(other), planes_in(other))


def planes_in(space: gym.Space[Any]) -> int:
    """Return how many of an image's first channels hold one number each."""
    return int(getattr(space, "planes", 0))


def choices_of(space: gym.Space[Any]) -> tuple[int, ...]:
    """Return the number of values of each component of an action: of one for Discrete, several for MultiDiscrete, else none."""
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),)
    return tuple(int(n) for n in space.nvec.flat) if isinstance(space, gym.spaces.MultiDiscrete) else ()


def spaces_of(*parts: Fragments) -> tuple[gym.spaces.Box, gym.Space[Any]]:
    """Return spaces that contain the fragments' observations and actions: enough to build a reward model for them.

    Bounds and the number of actions are those that occur, which need not be all of the environment's.

    Args:
        parts: at least one batch of fragments, all with the same shapes and dtypes.

    Raises:
        SettingError: integer actions are below 0, or float actions are NaN or infinite.
    """
    seen, actions = parts[0].observations, parts[0].actions
    low, high = (0, 255) if seen.dtype == np.uint8 else (-np.inf, np.inf)
    observation_space = gym.spaces.Box(low, high, seen.shape[2:], seen.dtype.type)
    least, most = min(part.actions.min() for part in parts), max(part.actions.max() for part in parts)
    if actions.dtype.kind in "iu" and actions.ndim == 2:
        if least < 0:
            raise SettingError(
                f"The fragments have integer actions from {least} to {most}, but actions are numbered from 0: add {-least} to them."
            )
        return observation_space, gym.spaces.Discrete(int(most) + 1)
    largest = max(abs(float(least)), abs(float(most)))
    if not np.isfinite(largest):
        raise SettingError("The fragments have actions that are NaN or infinite; remove them.")
    return observation_space, gym.spaces.Box(-largest, largest, actions.shape[2:], np.float32)


def of_one_choice(actions: Array, axes: int = 1) -> Array:
    """Return whole-number actions ``[…, 1]`` as ``[…]``: so other programs save the actions of a Discrete space.

    Args:
        actions: recorded actions; others stay as they are.
        axes: leading axes, before an action's own.
    """
    shape = actions.shape[:axes]
    return actions.reshape(shape) if actions.dtype.kind in "biu" and actions.size == np.prod(shape) else actions


def shaped(actions: Array, space: gym.Space[Any], axes: int = 1) -> Array:
    """Return recorded actions in the shape of ``space``, if they differ from it by an axis of 1 only; others as they are."""
    shape = space.shape or ()
    alike = actions.ndim >= axes and np.prod(shape) == 1 == np.prod(actions.shape[axes:])
    return actions.reshape(*actions.shape[:axes], *shape) if alike else actions


def one_line(space: gym.Space[Any]) -> str:
    """Describe a space in one line; a large Box prints in several."""
    return " ".join(str(space).split())


WIDEST = 255.0
"""Widest range of a number in an observation that is taken at its word: a byte's. (A wider one may be meant, too: what is seen
tells.)"""

WIDEST_SCALED = 1e5
"""Widest range that is taken at its word where nothing else tells the scale: of actions and of pixels."""


def formal_numbers(space: gym.spaces.Box, widest: float = WIDEST) -> BoolArray:
    """Return which numbers of a Box have formal bounds, ``[size]``: both finite, and further apart than ``widest``."""
    finite = np.isfinite(space.low) & np.isfinite(space.high)
    return np.asarray(finite & unscaled(space.low, space.high, widest)).reshape(-1)


def unscaled(low: Array, high: Array, widest: float = WIDEST) -> BoolArray:
    """Return which numbers have no range to scale by: a bound is infinite, or both are formal."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(~(np.isfinite(low) & np.isfinite(high)) | (high - low > widest))


def without_formal(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return an action space with infinite in place of formal bounds: itself if it has none."""
    if not isinstance(space, gym.spaces.Box) or np.dtype(space.dtype).kind != "f":
        return space
    formal = formal_numbers(space, WIDEST_SCALED).reshape(space.shape)
    if not formal.any():
        return space
    low, high = np.where(formal, -np.inf, space.low), np.where(formal, np.inf, space.high)
    kind: Any = np.dtype(space.dtype).type
    return gym.spaces.Box(low.astype(kind), high.astype(kind), dtype=kind)


def within(space: gym.spaces.Box) -> tuple[Array, Array]:
    """Return the bounds of a Box as float32, such that a float32 between them is in the Box."""
    if space.dtype == np.float32:
        return space.low, space.high
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    return low, np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)


def fitted(actions: Any, space: gym.Space[Any]) -> Any:
    """Return actions for an environment, one or a batch, as its space declares them: in its dtype and, if converted, its bounds.

    Others than arrays of numbers, and those that are no numbers of the space, stay as they are.
    """
    dtype = getattr(space, "dtype", None)
    if dtype is None or not isinstance(actions, np.ndarray | np.generic) or actions.dtype == dtype:
        return actions
    if isinstance(space, gym.spaces.Box) and np.dtype(dtype).kind == "f" and actions.dtype.kind in "iuf":
        limits = np.finfo(dtype)
        return np.clip(actions, np.maximum(space.low, limits.min), np.minimum(space.high, limits.max)).astype(dtype)
    return actions.astype(dtype) if np.dtype(dtype).kind in "iu" and actions.dtype.kind in "biu" else actions


def in_words(space: gym.Space[Any]) -> str | None:
    """Say which numbers of observations have formal bounds, and what comes of it; None if none have."""
    if not isinstance(space, gym.spaces.Box) or not (formal := formal_numbers(space)).any():
        return None
    index = np.flatnonzero(formal)
    runs = np.split(index, np.flatnonzero(np.diff(index) > 1) + 1)
    names = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    listed = f"number{'s' if len(index) > 1 else ''} {', '.join(names[:8])}{' and others' if len(names) > 8 else ''}"
    which = "" if formal.all() else f" of {listed}"
    low, high = (np.asarray(bound, np.float64).reshape(-1)[formal] for bound in (space.low, space.high))
    return (
        f"the bounds{which} of the observations ({low.min():.3g} to {high.max():.3g}) are too wide to scale by; the policy scales "
        "these numbers by what it has seen of them"
    )
