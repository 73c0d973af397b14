"""Counterfactuals: edit recorded steps and compare the reward that they get with the one that they should get."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.inputs import BYTE
from rlhf_ray.data.spaces import WIDEST_SCALED, one_line, unscaled
from rlhf_ray.data.strays import without_strays
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.edits import AnyEdit, check, edit_from_json, edited, read_json
from rlhf_ray.reward.functions import RewardFunction

On = Literal["all", "rewarded", "ordinary"]
"""Steps that a case starts from: all, those of high true reward, or the others. Without true rewards, the given ones count."""
STEPS = 400
"""Steps per case."""
OTHER_IMAGES = (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""Suffixes of pictures that are not read."""


@dataclass(frozen=True)
class Counterfactual:
    """One case: edits of steps, and the reward expected after them.

    Attributes:
        name: in words.
        edits: applied one after another; none for the steps as they are.
        expected: expected mean reward: a number; "unchanged", the true reward of the steps as they were; None if unknown, or if
            the true reward function tells.
        on: the steps it starts from.
    """

    name: str
    edits: tuple[AnyEdit, ...] = ()
    expected: float | Literal["unchanged"] | None = None
    on: On = "all"


@dataclass(frozen=True)
class CaseOutcome:
    """What came out of one case.

    Attributes:
        case: the case.
        steps: number of steps that the edits changed; steps that they left as they were don't count.
        expected: expected mean reward; None if unknown.
        given: mean reward after the edits; NaN without steps.
        deviation: its standard deviation over steps.
        before: mean reward of the same steps before the edits.
        before_steps: the first few of these steps, for drawing.
        after_steps: the same after the edits.
    """

    case: Counterfactual
    steps: int
    expected: float | None
    given: float
    deviation: float
    before: float
    before_steps: Transitions
    after_steps: Transitions

    @property
    def error(self) -> float | None:
        """``given - expected``; None if either is unknown."""
        return None if self.expected is None or not self.steps else self.given - self.expected

    @property
    def change(self) -> float:
        """What the edits change: ``given - before``; NaN without steps."""
        return self.given - self.before

    @property
    def edited(self) -> bool:
        """Whether the edits changed any steps."""
        return self.steps > 0 and bool(self.case.edits)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        case = {"name": self.case.name, "edits": [str(edit) for edit in self.case.edits], "on": self.case.on}
        figures = ("given", "deviation", "before")
        return (
            case
            | {"steps": self.steps, "expected": self.expected}
            | {name: getattr(self, name) if self.steps else None for name in figures}
        )


def evaluate(
    reward: RewardFunction,
    data: Transitions,
    cases: Sequence[Counterfactual],
    rng: np.random.Generator,
    *,
    grid: tuple[int, int] | None = None,
    truth: RewardFunction | None = None,
    most: int = STEPS,
) -> list[CaseOutcome]:
    """Edit steps of ``data`` and compute their reward.

    Args:
        reward: the reward function.
        data: steps to edit.
        cases: what to do with them.
        rng: draws the steps and the random places.
        grid: (rows, columns) if observations are grids.
        truth: the true reward function; tells the expected reward of cases that don't give one.
        most: steps per case.

    Raises:
        SettingError: an edit doesn't fit the observations.
    """
    high = rewarded(reward, data)
    return [_outcome(reward, data, case, high, rng, grid, truth, most) for case in cases]


def _outcome(
    reward: RewardFunction,
    data: Transitions,
    case: Counterfactual,
    high: BoolArray,
    rng: np.random.Generator,
    grid: tuple[int, int] | None,
    truth: RewardFunction | None,
    most: int,
) -> CaseOutcome:
    check(case.edits, data.observations.shape[1:], data.observations.dtype, grid, case.name)
    chosen = np.ones(len(data), bool) if case.on == "all" else high if case.on == "rewarded" else ~high
    steps = data[chosen].sample(most, rng)
    after, changed = edited(steps, case.edits, rng)
    if case.edits:
        steps, after = steps[changed], after[changed]
    if not len(steps):
        return CaseOutcome(case, 0, None, float("nan"), 0.0, float("nan"), steps, after)
    given = reward.of(after)
    if case.expected == "unchanged":
        expected = float(steps.rewards.mean())
    elif case.expected is not None:
        expected = float(case.expected)
    elif truth is not None:
        expected = float(truth.of(after).mean())
    else:
        expected = float(steps.rewards.mean()) if not case.edits else float("nan")
    before = float(reward.of(steps).mean())
    known = expected if np.isfinite(expected) else None
    figures = (float(given.mean()), float(given.std()), before)
    return CaseOutcome(case, len(steps), known, *figures, steps[:4], after[:4])


def rewarded(reward: RewardFunction, data: Transitions) -> BoolArray:
    """Return the steps of high true reward: above the middle of its range; of high given reward if the truth is unknown."""
    values = data.rewards if np.isfinite(data.rewards).all() and len(data) else reward.of(data)
    if not len(values) or np.ptp(values) == 0:
        return np.zeros(len(values), bool)
    return np.asarray(values > (values.min() + values.max()) / 2)


def read_edits(path: Path | str, objects: dict[str, int] | None = None) -> list[Counterfactual]:
    """Read cases from a JSON file.

    It holds a list of objects such as::

        {"name": "no goal", "edits": [{"edit": "remove", "object": "goal", "when": "next_state"}], "expected": 0, "on": "ordinary"}

    Args:
        path: the file.
        objects: object codes by name; without, objects are numbers.

    Raises:
        SettingError: the file can't be read, or a case is wrong.
    """
    path = Path(path)
    value = read_json(path)
    if not isinstance(value, list) or not value:
        raise SettingError(f"The edits {path} must be a list of cases, each with name, edits and, if known, expected.")
    cases = []
    for number, each in enumerate(value, 1):
        where = f"{path}, case {number}"
        if not isinstance(each, dict):
            raise SettingError(f"{where}: a case must be an object with name and edits; got {json.dumps(each)[:60]}.")
        unknown = sorted(set(each) - {"name", "edits", "expected", "on"})
        if unknown:
            raise SettingError(f"{where} has {', '.join(unknown)}; a case has name, edits, expected and on.")
        expected, on = each.get("expected"), each.get("on", "all")
        is_number = isinstance(expected, int | float) and not isinstance(expected, bool) and np.isfinite(expected)
        if expected not in (None, "unchanged") and not is_number:
            raise SettingError(
                f'{where}: expected is {json.dumps(expected)}; it must be a number, "unchanged" or null.'
            )
        if on not in ("all", "rewarded", "ordinary"):
            raise SettingError(f"{where}: on is {json.dumps(on)}; it must be 'all', 'rewarded' or 'ordinary'.")
        edits = each.get("edits", [])
        if not isinstance(edits, list):
            raise SettingError(f"{where}: edits must be a list of edits.")
        found = tuple(edit_from_json(edit, where, objects or {}) for edit in edits)
        cases.append(Counterfactual(str(each.get("name", f"case {number}")), found, expected, cast(On, on)))
    return cases


@dataclass(frozen=True)
class FolderRow:
    """Reward of the pictures of one type with one action: mean, standard deviation and number."""

    type: str
    action: str
    mean: float
    deviation: float
    pictures: int


def check_edits(
    path: Path, reward: RewardFunction, objects: dict[str, int] | None = None, grid: tuple[int, int] | None = None
) -> None:
    """Check a user's counterfactuals, before any work: a JSON file for `read_edits`, or a folder for `evaluate_folder`.

    Raises:
        SettingError: there are none at ``path``, or they don't fit the reward's observations.
    """
    if not path.exists():
        raise SettingError(f"--edits is {path}, which does not exist; give a JSON file of edits, or a folder of PNGs.")
    if path.is_dir():
        read_folder(reward, path)
        return
    space = reward.observation_space
    for case in read_edits(path, objects):
        check(case.edits, space.shape or (), np.dtype(space.dtype), grid, case.name)


def evaluate_folder(reward: RewardFunction, folder: Path | str) -> list[FolderRow]:
    """Compute the reward of hand-edited PNGs for each action (the middle of the range for continuous actions).

    Args:
        reward: a reward of images.
        folder: see `read_folder`.

    Raises:
        SettingError: there are no such pictures, or one does not fit the reward's observations.
    """
    rows: list[FolderRow] = []
    for kind, before, after in read_folder(reward, folder):
        for name, action in _actions(reward.action_space):
            given = reward(before, np.stack([action] * len(before)), after, np.zeros(len(before), bool))
            rows.append(FolderRow(kind, name, float(given.mean()), float(given.std()), len(before)))
    return rows


def read_folder(reward: RewardFunction, folder: Path | str) -> list[tuple[str, Array, Array]]:
    """Read hand-edited PNGs: each type's name, and its pictures as observations and next observations ``[n, *observation_shape]``.

    The folder holds one folder per type, with ``<picture>.png`` (nothing moves: state and next state), or
    ``<number>/obs.png`` and ``<number>/next_obs.png``. Names that begin with a dot are left out.

    Raises:
        SettingError: there are no such pictures, or one has the wrong size or channels, transparent pixels, or 16 bits.
    """
    folder, space = Path(folder), reward.observation_space
    shape = getattr(space, "shape", None) or ()
    if len(shape) != 3:
        raise SettingError(
            f"The reward takes observations of shape {list(shape)}: no images. Give edits in a JSON file."
        )
    if space.dtype != np.uint8 and not (space.high == BYTE).all():  # type: ignore[attr-defined]  # a Box
        raise SettingError(
            f"The reward takes {one_line(space)}, and pictures hold whole numbers from 0 to {BYTE}. Give edits in a JSON file."
        )
    if not folder.is_dir():
        raise SettingError(f"There is no folder {folder} with pictures.")
    found = []
    for kind in (each for each in without_strays(folder.iterdir()) if each.is_dir()):
        files = without_strays(kind.iterdir())
        pairs = [(path, path) for path in files if path.suffix.lower() == ".png"]
        for path in files:
            if path.suffix.lower() in OTHER_IMAGES:
                raise SettingError(f"{path} is no PNG, and other formats change colours; save it as PNG.")
        for number in (each for each in files if each.is_dir()):
            for name in ("obs.png", "next_obs.png"):
                if not (number / name).is_file():
                    raise SettingError(f"{number} needs obs.png and next_obs.png; {name} is missing.")
            pairs.append((number / "obs.png", number / "next_obs.png"))
        if pairs:
            before, after = (np.stack([_picture(pair[i], shape) for pair in pairs]) for i in range(2))
            found.append((kind.name, before, after))
    if not found:
        raise SettingError(
            f"{folder} has no pictures; it needs TYPE/NAME.png, or TYPE/NUMBER/obs.png and next_obs.png."
        )
    return found


def _actions(space: gym.Space[Any]) -> list[tuple[str, Array]]:
    if isinstance(space, gym.spaces.Discrete):
        return [(str(i), np.asarray(i)) for i in range(int(space.start), int(space.start) + int(space.n))]
    assert isinstance(space, gym.spaces.Box)
    low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    # Without bounds, or with formal ones, the middle is 0, or the bound nearest to it.
    bounded = ~unscaled(low, high, WIDEST_SCALED)
    middle = np.where(bounded, (np.where(bounded, low, 0) + np.where(bounded, high, 0)) / 2, np.clip(0.0, low, high))
    return [("middle", middle.astype(space.dtype))]


def _picture(path: Path, shape: Sequence[int]) -> Array:
    """Read a picture as an observation: grey and palette pictures too, where the colours are the same ones."""
    try:
        with Image.open(path, formats=["PNG"]) as file:
            if file.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
                raise SettingError(f"{path} has more than 8 bits for each value; save it with 8.")
            image = ImageOps.exif_transpose(file)
            if (image.height, image.width) != tuple(shape[:2]):
                raise SettingError(
                    f"{path} is {image.height} x {image.width}; the reward takes {shape[0]} x {shape[1]}."
                )
            if len(image.getbands()) == shape[2] and shape[2] in (
                2,
                4,
            ):  # the last channel is a channel of the observations
                return np.asarray(image)
            pixels = np.asarray(image.convert("RGBA"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError) as error:
        raise SettingError(f"Can't read {path} as PNG.") from error
    colours, holes = pixels[..., :3], int((pixels[..., 3] < BYTE).sum())
    if holes:
        raise SettingError(
            f"{path} has {holes} transparent pixels, which have no colour for the reward: paint over them instead of erasing, or "
            "flatten the picture onto a background, and save it without transparency."
        )
    grey = bool((colours == colours[..., :1]).all())
    if shape[2] != 3 and not (shape[2] == 1 and grey):
        raise SettingError(f"{path} has {1 if grey else 3} channels of uint8; the reward takes {shape[2]} of uint8.")
    return np.array(colours[..., : shape[2]])
