"""Views: observations and actions of other spaces, as the arrays that the rest of the project knows.

Observations become vectors or uint8 images ``[height, width, channels]``; actions become Discrete or MultiDiscrete, numbered from
0, or a Box of one dimension. `rlhf_ray.envs.make_env` and the readers of recorded episodes apply them; nothing behind them
knows that there were others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.images import LEAST_SIDE, is_image
from rlhf_ray.data.spaces import WIDEST_SCALED, choices_of, names_in, unscaled, with_names, without_formal

MOST_CHOICES = 4096
"""Of the components of an action together: a Box of whole numbers with more is not taken for choices."""


@dataclass(frozen=True)
class View:
    """How to see the observations of a space as arrays.

    Attributes:
        space: of the arrays.
        see: maps an observation, or a batch of them with any leading axes, to an array with the same leading axes.
    """

    space: spaces.Box
    see: Callable[[Any], Array]


def view_of(space: gym.Space[Any]) -> View | None:
    """Return the view of an observation space that needs one and has one; otherwise None.

    =====================================================  ======================================================================
    space                                                  seen as
    =====================================================  ======================================================================
    images ``[channels, h, w]`` or ``[stack, h, w]``       uint8 ``[h, w, channels]``
    stacks ``[stack, h, w, c]``, ``[stack, c, h, w]``      uint8 ``[h, w, stack * c]``, the newest last
    grey images ``[h, w]``, uint8                          uint8 ``[h, w, 1]``
    float images with finite bounds, at most 1e5 apart     uint8: 0 for the lower bound, 255 for the upper one
    other Boxes                                            their numbers as a vector
    MultiDiscrete, MultiBinary                             one-hot vectors (a Discrete alone stays: tables need its numbers)
    Dict and Tuple without images                          all vectors (of Discrete parts too), one after the other
    Dict and Tuple with images of one size                 the channels of all images; numbers come first, each as a channel that is
                                                           0 for its lower bound and 255 for its upper one; without bounds, or
                                                           if these are further than 255 apart, squashed (`_as_bytes`)
    =====================================================  ======================================================================
    """
    if isinstance(space, spaces.Box):
        if is_image(space) or (len(space.shape) == 1 and _kind(space) in "fiu"):
            return None
        return _image_view(space) or (None if _unclear(space) else _vector_view(space))
    if isinstance(space, spaces.Discrete):
        return None
    parts = _parts(space)
    return _joint_view(space, parts) if parts is not None and _has_images(space) else _vector_view(space)


@dataclass(frozen=True)
class ActionView:
    """How to see the actions of a space as ours.

    Attributes:
        space: of ours.
        act: maps one of our actions, or a batch of them with any leading axes, to the environment's.
        see: maps a batch of the environment's actions ``[n, …]`` to ours.
    """

    space: gym.Space[Any]
    act: Callable[[Any], Any]
    see: Callable[[Array], Array]


def action_view_of(space: gym.Space[Any]) -> ActionView | None:
    """Return the view of an action space that needs one and has one; otherwise None.

    Discrete actions that don't start at 0 are numbered from 0, MultiBinary ones and Boxes of few whole numbers become
    MultiDiscrete, a Box or MultiDiscrete becomes one of one dimension, and bounds that are only formal are left out.
    """
    shape: Any = space.shape
    if isinstance(space, spaces.Discrete) and space.start != 0:
        start = int(space.start)
        return ActionView(
            spaces.Discrete(int(space.n)),
            lambda action: np.asarray(action) + start if np.ndim(action) else int(action) + start,
            lambda actions: actions - start,
        )
    if (choices := _whole(space)) is not None:
        lowest, dtype = choices.start, space.dtype
        return ActionView(
            spaces.MultiDiscrete(choices.nvec.flatten()),
            lambda action: (_shaped(action, shape) + lowest).astype(dtype),
            lambda actions: (actions.astype(np.int64) - lowest).reshape(len(actions), -1),
        )
    if isinstance(space, spaces.Box) and _kind(space) == "f" and len(shape) != 1 and np.prod(shape):
        kind: Any = np.dtype(space.dtype).type
        flat = spaces.Box(space.low.flatten(), space.high.flatten(), dtype=kind)
        inner = action_view_of(flat) or ActionView(flat, _unchanged, _unchanged)
        return ActionView(
            inner.space,
            lambda action: _shaped(inner.act(action), shape),
            lambda actions: actions.reshape(len(actions), -1),
        )
    if (meant := without_formal(space)) is not space:
        assert isinstance(space, spaces.Box)
        low, high = space.low, space.high
        return ActionView(meant, lambda action: np.clip(action, low, high), _unchanged)
    return None


def _whole(space: gym.Space[Any]) -> spaces.MultiDiscrete | None:
    """An action space of several whole numbers as MultiDiscrete, if it is not one of ours already; None for others."""
    if isinstance(space, spaces.MultiDiscrete):
        return space if len(space.shape) != 1 or np.any(space.start) else None
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(space.shape, 2))
    if not isinstance(space, spaces.Box) or _kind(space) not in "iu" or not np.prod(space.shape):
        return None
    counts = space.high.astype(np.float64) - space.low.astype(np.float64) + 1
    few = counts.sum() <= MOST_CHOICES
    return spaces.MultiDiscrete(counts.astype(np.int64), start=space.low.astype(np.int64)) if few else None


def _shaped(actions: Any, shape: tuple[int, ...]) -> Array:
    """Reshape each of our actions, the last axis, to ``shape``."""
    return np.reshape(actions, (*np.shape(actions)[:-1], *shape))


def _unchanged(value: Any) -> Any:
    return value


def _kind(space: spaces.Box) -> str:
    return np.dtype(space.dtype).kind


def _parts(space: gym.Space[Any]) -> dict[Any, gym.Space[Any]] | None:
    """The named spaces of a Dict or Tuple; None for others."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def _vector_view(space: gym.Space[Any]) -> View | None:
    bounds = _bounds(space)
    if bounds is None or not len(bounds[0]):
        return None
    numeric = isinstance(space, spaces.Box) and _kind(space) in "fiu"
    kind: Any = np.dtype(space.dtype).type if numeric else np.float32
    seen = spaces.Box(bounds[0].astype(kind), bounds[1].astype(kind), dtype=kind)
    return View(
        with_names(seen, () if _parts(space) is None else _names(space)),
        lambda observation: _numbers(space, observation).astype(kind),
    )


def _bounds(space: gym.Space[Any]) -> tuple[Array, Array] | None:
    """The bounds of `_numbers`; None if the space has none."""
    if isinstance(space, spaces.Box):
        return space.low.flatten(), space.high.flatten()
    if size := sum(choices_of(space)) or (isinstance(space, spaces.MultiBinary) and int(np.prod(space.shape))):
        return np.zeros(size), np.ones(size)
    bounds = [_bounds(part) for part in (_parts(space) or {}).values()]
    known = [bound for bound in bounds if bound is not None]
    if not known or len(known) < len(bounds):
        return None
    return np.concatenate([low for low, _ in known]), np.concatenate([high for _, high in known])


def _numbers(space: gym.Space[Any], observation: Any) -> Array:
    """The numbers of an observation as a vector, after any leading axes."""
    if choices := choices_of(space):
        start = np.asarray(space.start).flatten()  # type: ignore[attr-defined]
        index = _flat(np.asarray(observation), len(space.shape or ())) - start
        return np.concatenate([np.eye(n, dtype=np.float32)[index[..., i]] for i, n in enumerate(choices)], -1)
    parts = _parts(space)
    if parts is None:
        return _flat(np.asarray(observation), len(space.shape or ()))
    return np.concatenate([_numbers(part, observation[name]) for name, part in parts.items()], -1)


def _names(space: gym.Space[Any], name: str = "") -> list[str]:
    """Name the numbers of `_numbers`: ``goal[0]``, ``inner.door=2``."""
    parts = _parts(space)
    if parts is not None:
        return [each for key, part in parts.items() for each in _names(part, _of_part(name, key, space))]
    if isinstance(space, spaces.Discrete):
        return [f"{name}={int(space.start) + choice}" for choice in range(int(space.n))]
    places = [f"{name}[{','.join(map(str, at))}]" if at else name for at in np.ndindex(space.shape or ())]
    if isinstance(space, spaces.MultiDiscrete):
        each = zip(places, space.start.flat, space.nvec.flat, strict=True)
        return [f"{place}={first + choice}" for place, first, count in each for choice in range(count)]
    return [name] if len(places) == 1 else places


def _of_part(name: str, key: Any, space: gym.Space[Any]) -> str:
    """Name a part of a Dict or Tuple."""
    if not name:
        return f"part {key}" if isinstance(space, spaces.Tuple) else str(key)
    return f"{name}.{key}"


def _flat(values: Array, rank: int) -> Array:
    """Join the last ``rank`` axes; without any, add one."""
    return values.reshape(*values.shape[: values.ndim - rank], -1)


def _unclear(space: spaces.Box) -> bool:
    """Whether a Box looks like images, but does not say what black and white are, or is too small."""
    return len(space.shape) == 3 and _channel_axis(space.shape, LEAST_SIDE // 2) is not None


def _scalable(space: spaces.Box) -> bool:
    """Whether the bounds say what black and white are."""
    return not unscaled(space.low, space.high, WIDEST_SCALED).any()


def _channel_axis(shape: tuple[int, ...], least: int = LEAST_SIDE) -> int | None:
    """The axis of an image's channels, -1 or -3; None if it is no image."""
    if min(shape[:2]) >= least and shape[2] >= 1:
        return -1
    return -3 if min(shape[1:]) >= least and shape[0] >= 1 else None


def _image_view(space: spaces.Box) -> View | None:
    shape, bytes_already = space.shape, space.dtype == np.uint8
    if not bytes_already and not (_kind(space) == "f" and _scalable(space)):
        return None
    if len(shape) == 2 and min(shape) >= LEAST_SIDE and bytes_already:
        return View(_images(*shape, 1), lambda image: np.asarray(image)[..., None])
    if len(shape) not in (3, 4) or (axis := _channel_axis(shape[-3:])) is None:
        return None
    to_bytes = _to_bytes(space)
    height, width, channels = shape[-3:] if axis == -1 else (*shape[-2:], shape[-3])

    def see(observation: Any) -> Array:
        image = to_bytes(np.asarray(observation))
        image = image if axis == -1 else np.moveaxis(image, -3, -1)
        if len(shape) == 4:  # [..., stack, height, width, channels]
            image = np.moveaxis(image, -4, -2)
            image = image.reshape(*image.shape[:-2], -1)
        return np.ascontiguousarray(image)

    return View(_images(height, width, channels * (shape[0] if len(shape) == 4 else 1)), see)


def _images(height: int, width: int, channels: int) -> spaces.Box:
    return spaces.Box(0, 255, (height, width, channels), np.uint8)


def _to_bytes(space: spaces.Box) -> Callable[[Array], Array]:
    if space.dtype == np.uint8:
        return _unchanged
    low, scale = space.low, 255.0 / np.maximum(space.high.astype(np.float64) - space.low, 1e-12)
    return lambda values: np.rint(np.clip((values - low) * scale, 0, 255)).astype(np.uint8)


def _has_images(space: gym.Space[Any]) -> bool:
    if isinstance(space, spaces.Box):
        return is_image(space) or _image_view(space) is not None
    return any(_has_images(part) for part in (_parts(space) or {}).values())


def _joint_view(space: gym.Space[Any], parts: dict[Any, gym.Space[Any]]) -> View | None:
    """The channels of all images, after those for each number; None if the images differ in size or a part is neither."""
    images: dict[Any, View] = {}
    numbers: dict[Any, Callable[[Any], Array]] = {}
    planes, channels = list[str](), list[str]()
    for name, part in parts.items():
        called = _of_part("", name, space)
        if _has_images(part):
            view = view_of(part) if not is_image(part) else View(cast(spaces.Box, part), np.asarray)
            if view is None:
                return None
            images[name], inner, count = view, names_in(view.space), view.space.shape[2]
            numbered = [called] if count == 1 else [f"{called}, channel {channel}" for channel in range(count)]
            channels += [f"{called}.{each}" for each in inner] or numbered
        elif (as_bytes := _as_bytes(part, called)) is not None:
            numbers[name], found = as_bytes
            planes += found
        else:
            return None
    if len({view.space.shape[:2] for view in images.values()}) != 1:
        return None
    height, width = next(iter(images.values())).space.shape[:2]

    def see(observation: Any) -> Array:
        seen = [view.see(observation[name]) for name, view in images.items()]
        planes = []
        for name, to_bytes in numbers.items():
            values = to_bytes(observation[name])[..., None, None, :]
            planes.append(np.broadcast_to(values, (*seen[0].shape[:-1], values.shape[-1])))
        return np.concatenate([*planes, *seen], -1)

    seen = _images(height, width, len(planes) + len(channels))
    return View(with_names(seen, [*planes, *channels], len(planes)), see)


def _as_bytes(space: gym.Space[Any], name: str) -> tuple[Callable[[Any], Array], list[str]] | None:
    """Return what makes a byte of each number of the part ``name``, and their names.

    Without a range to scale by, a number x is squashed: s / (1 + |s|) of s = sign(x) log(1 + |x|), finely around 0.
    """
    if (bounds := _bounds(space)) is None or not len(bounds[0]):
        return None
    if isinstance(space, spaces.Box) and _unclear(space) and not _scalable(space):
        return None
    low, high = (np.asarray(bound, np.float64) for bound in bounds)
    squashed = unscaled(low, high)
    box = spaces.Box(np.where(squashed, -1.0, low), np.where(squashed, 1.0, high), dtype=np.float64)
    to_bytes = _to_bytes(box)

    def see(observation: Any) -> Array:
        values = _numbers(space, observation).astype(np.float64)
        logs = np.sign(values) * np.log1p(np.abs(values))
        return to_bytes(np.where(squashed, logs / (1.0 + np.abs(logs)), values))

    return see, [f"{each}, squashed" if of else each for each, of in zip(_names(space, name), squashed, strict=True)]
