"""Dots and distances: images of pairs of circles, rewarded by the distance between the circles of a pair."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.formula import Formula, FormulaReward, checked_option

RADIUS = 3
COLOURS = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255)], np.uint8)
"""Of the pairs."""
NEAR = 0.22
"""Mean distance below which the binary reward is 1: true of about 1 % of the images with three pairs."""

DotsReward: TypeAlias = Literal["distance", "near"]

_AXIS = np.arange(-RADIUS, RADIUS + 1)
_DISC = np.argwhere(_AXIS[:, None] ** 2 + _AXIS**2 <= RADIUS**2) - RADIUS
"""Pixels of a circle around its centre, ``[pixels, 2]``."""


class DotsAndDistances(gymnasium.Env[Array, np.int64]):
    """Independent images of ``pairs`` pairs of circles; registered as ``rlhf_ray/DotsAndDistances-v0``, with episodes of 100 steps.

    Each step draws a new image; actions change nothing. It is a data set for probes and attributions whose answer is known: the
    reward depends on the circles' centres alone, which `describe` gives.

    * Observation: uint8 ``[side, side, 3]``: circles of radius 3 on black, a colour for each pair. No two circles overlap.
    * Action: Discrete(2), without effect.
    * Reward: of the next image, the mean over the pairs of the distance between a pair's centres, in units of ``side``. With
      ``reward="near"``, 1 where that is below 0.22, else 0: about 1 % of the images with three pairs.

    Args:
        pairs: number of pairs, 1 to 6.
        side: side of the image in pixels, at least 40.
        reward: distance or near.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self, pairs: int = 3, side: int = 64, reward: DotsReward = "distance", render_mode: str | None = None
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode of DotsAndDistances is {render_mode!r}; it must be None or 'rgb_array'.")
        if not 1 <= pairs <= len(COLOURS):
            raise SettingError(f"pairs of DotsAndDistances is {pairs}; it must be 1 to {len(COLOURS)}.")
        if side < 40:
            raise SettingError(f"side of DotsAndDistances is {side}; it must be at least 40.")
        checked_option("reward", reward, DotsReward, "DotsAndDistances")
        self.render_mode, self.pairs, self.side = render_mode, pairs, side
        self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.action_space = spaces.Discrete(2)

        def base(observations: Any, actions: Any, next_observations: Any) -> Any:
            mean = distances(next_observations, pairs).mean(1) / side
            return mean if reward == "distance" else 1.0 * (mean < NEAR)

        self.formula = Formula(f"{reward} of {pairs} pairs", base, inputs=("next_state",))
        self._centres: IntArray = np.zeros((pairs, 2, 2), np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Draw an image."""
        super().reset(seed=seed, options=options)
        self._draw()
        return self.observe(self._centres), {}

    def step(self, action: int | np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Draw an image. Never terminates."""
        self._draw()
        after = self.observe(self._centres)
        return after, self.formula.step(after, action, after, False), False, False, {}

    def render(self) -> Array | None:  # type: ignore[override]
        """Return the image in render_mode "rgb_array"; else None."""
        return self.observe(self._centres) if self.render_mode == "rgb_array" else None

    def observe(self, centres: Any) -> Array:
        """Build the image with circles at ``centres``.

        Args:
            centres: ``[pairs, circles, 2]`` (row, column), integers; a pair may have more or fewer than two circles, and what
                leaves the image is cut off.
        """
        image = np.zeros((self.side, self.side, 3), np.uint8)
        for pair, colour in zip(centres, COLOURS, strict=False):
            for centre in pair:
                rows, columns = _DISC[:, 0] + int(centre[0]), _DISC[:, 1] + int(centre[1])
                seen = (rows >= 0) & (rows < self.side) & (columns >= 0) & (columns < self.side)
                image[rows[seen], columns[seen]] = colour
        return image

    def describe(self) -> dict[str, Array]:
        """Return the distances of the pairs in units of ``side``, their mean, and the centres in pixels, ``[pairs, 2, 2]``."""
        apart = np.linalg.norm(self._centres[:, 0] - self._centres[:, 1], axis=1) / self.side
        return {
            "distances": apart,
            "mean_distance": np.array(apart.mean()),
            "centres": self._centres.astype(np.float64),
        }

    def ground_truth(self) -> FormulaReward:
        """Return the reward of this environment as a reward function."""
        return FormulaReward(self.formula, self.observation_space, self.action_space)

    def _draw(self) -> None:
        """Draw centres of circles that don't overlap."""
        places: list[list[int]] = []
        while len(places) < 2 * self.pairs:
            for row, column in self.np_random.integers(RADIUS, self.side - RADIUS, (2 * self.pairs, 2)).tolist():
                if all((row - a) ** 2 + (column - b) ** 2 > (2 * RADIUS + 1) ** 2 for a, b in places):
                    places.append([row, column])
        self._centres = np.array(places[: 2 * self.pairs]).reshape(self.pairs, 2, 2)


def distances(images: Array, pairs: int) -> FloatArray:
    """Measure the distance between the two circles of each colour, in pixels, ``[n, pairs]``: exact for whole circles.

    The pixels of two circles have a variance around their common centre of (distance / 2)^2 plus that of one circle. One
    circle, or none, gives 0.

    Args:
        images: ``[n, side, side, 3]``. A pixel belongs to the pair whose colour it has, from half the brightness.
        pairs: number of pairs.
    """
    lit = np.asarray(images) > 127
    codes = lit[..., 0] + 2 * lit[..., 1].view(np.uint8) + 4 * lit[..., 2].view(np.uint8)
    columns = []
    for code in (COLOURS[:pairs] > 127) @ np.array([1, 2, 4]):
        mask = codes == code
        apart = sum(_variance(mask.sum(axis)) for axis in (1, 2)) - _OWN_VARIANCE
        columns.append(2.0 * np.sqrt(np.where(apart > 1e-9, apart, 0.0)))  # not the rounding of a single circle
    return np.stack(columns, 1)


def _variance(counts: IntArray) -> FloatArray:
    """The variance of places 0, 1, … that occur ``counts`` ``[n, places]`` times, ``[n]``; 0 where none does."""
    places = np.arange(counts.shape[1], dtype=np.float64)
    total = np.maximum(counts.sum(1), 1)
    variance: FloatArray = counts @ places**2 / total - (counts @ places / total) ** 2
    return variance


_OWN_VARIANCE = float((_DISC.astype(np.float64) ** 2).sum() / len(_DISC))
"""Of one circle's pixels."""
