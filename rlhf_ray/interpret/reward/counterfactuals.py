"""Counterfactuals: edit recorded steps and compare the reward that they get with the one that they should get."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import ConfigDict, FiniteFloat

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.inputs import BYTE
from rlhf_ray.data.spaces import WIDEST_SCALED, one_line, unscaled
from rlhf_ray.data.strays import without_strays
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.edits import Edit, check, edit_from_json, edited, validated
from rlhf_ray.reward.functions import RewardFunction

STEPS = 400
"""Steps per case."""
OTHER_IMAGES = (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""Suffixes of pictures that are not read."""


@dataclass(frozen=True)
class Counterfactual:
    """One case: edits of steps, applied one after another (none for the steps as they are), and the reward expected after them.

    The expected mean reward is a number; "unchanged", the true reward of the steps as they were; None if unknown, or if the true
    reward function tells. ``on`` are the steps it starts from.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}
    name: str
    edits: tuple[Edit, ...] = ()
    expected: FiniteFloat | Literal["unchanged"] | None = None
    on: Literal["all", "rewarded", "ordinary"] = "all"


@dataclass(frozen=True)
class CaseOutcome:
    """What came out of one case. Without steps, rewards are NaN."""

    case: Counterfactual
    steps: int  # those that the edits changed; steps that they left as they were don't count
    expected: float | None  # mean reward
    given: float  # mean reward after the edits
    deviation: float  # its standard deviation over steps
    before: float  # mean reward of the same steps before the edits
    after_steps: Transitions  # the first few of these steps after the edits, for drawing

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        case = {"name": self.case.name, "edits": [str(edit) for edit in self.case.edits], "on": self.case.on}
        figures = {name: getattr(self, name) if self.steps else None for name in ("given", "deviation", "before")}
        return case | {"steps": self.steps, "expected": self.expected} | figures


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
    """Edit steps of ``data``, at most ``most`` for each case, and compute their reward.

    ``rng`` draws the steps and the random places; ``grid`` are (rows, columns) if observations are grids; ``truth``, the true
    reward function, tells the expected reward of cases that don't give one.

    Raises:
        SettingError: an edit doesn't fit the observations.
    """
    high, found = rewarded(reward, data), []
    for case in cases:
        check(case.edits, data.observations.shape[1:], data.observations.dtype, grid, case.name)
        steps = data[{"all": np.ones(len(data), bool), "rewarded": high, "ordinary": ~high}[case.on]].sample(most, rng)
        after, changed = edited(steps, case.edits, rng)
        if case.edits:
            steps, after = steps[changed], after[changed]
        if not len(steps):
            found.append(CaseOutcome(case, 0, None, np.nan, 0.0, np.nan, after))
            continue
        given, expected = reward.of(after), case.expected
        if expected == "unchanged" or (expected is None and truth is None and not case.edits):
            expected = float(steps.rewards.mean())
        elif expected is None and truth is not None:
            expected = float(truth.of(after).mean())
        known = None if expected is None or not np.isfinite(expected) else float(expected)
        before = float(reward.of(steps).mean())
        found.append(CaseOutcome(case, len(steps), known, float(given.mean()), float(given.std()), before, after[:4]))
    return found


def rewarded(reward: RewardFunction, data: Transitions) -> BoolArray:
    """Return the steps of high true reward: above the middle of its range; of high given reward if the truth is unknown."""
    values = data.rewards if np.isfinite(data.rewards).all() and len(data) else reward.of(data)
    if not len(values) or np.ptp(values) == 0:
        return np.zeros(len(values), bool)
    return np.asarray(values > (values.min() + values.max()) / 2)


def read_edits(path: Path | str, objects: Mapping[str, int] | None = None) -> list[Counterfactual]:
    """Read cases from a JSON file; objects have names if ``objects`` tells their codes, else numbers.

    It holds a list of objects such as::

        {"name": "no goal", "edits": [{"edit": "remove", "object": "goal", "when": "next_state"}], "expected": 0, "on": "ordinary"}

    Raises:
        SettingError: the file can't be read, or a case is wrong.
    """
    try:
        value = json.loads(Path(path).read_text())
    except OSError as error:
        raise SettingError(f"Can't read the edits {path}: {error.strerror}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"The edits {path} are not valid JSON: {error}.") from error
    if not isinstance(value, list) or not value:
        raise SettingError(f"The edits {path} must be a list of cases, each with name, edits and, if known, expected.")
    cases = []
    for number, each in enumerate(value, 1):
        where = f"{path}, case {number}"
        if not isinstance(each, dict):
            raise SettingError(f"{where}: a case must be an object with name and edits; got {json.dumps(each)[:60]}.")
        edits = each.get("edits", [])
        if not isinstance(edits, list):
            raise SettingError(f"{where}: edits must be a list of edits.")
        found = tuple(edit_from_json(edit, where, objects or {}) for edit in edits)
        case = validated(Counterfactual, each | {"name": str(each.get("name", f"case {number}")), "edits": []}, where)
        cases.append(replace(case, edits=found))
    return cases


def check_edits(
    path: Path, reward: RewardFunction, objects: Mapping[str, int] | None = None, grid: tuple[int, int] | None = None
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


def evaluate_folder(reward: RewardFunction, folder: Path | str) -> list[tuple[str, str, float, float, int]]:
    """Compute the reward of hand-edited PNGs (see `read_folder`) for each action (the middle of a continuous one's range).

    Returns:
        Of each type and action: their names, the mean reward, its standard deviation, and the number of pictures.

    Raises:
        SettingError: there are no such pictures, or one does not fit the reward's observations.
    """
    rows = []
    for kind, before, after in read_folder(reward, folder):
        for name, action in _actions(reward.action_space):
            given = reward(before, np.stack([action] * len(before)), after, np.zeros(len(before), bool))
            rows.append((kind, name, float(given.mean()), float(given.std()), len(before)))
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
            ):  # the last one is a channel of the observations
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
