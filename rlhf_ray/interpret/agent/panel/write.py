"""Writing a panel: the page's files, the numbers as scripts (a page on ``file://`` may not fetch files), the frames as images."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.special import softmax

from rlhf_ray import __version__
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.strays import without_strays
from rlhf_ray.interpret.agent.panel.data import PanelData, PanelPair, PanelSaliency
from rlhf_ray.interpret.attribution.drawing import CROSS, LOWERS, ON_DARK, RAISES
from rlhf_ray.study.plots import rgb

STATIC = Path(__file__).parent / "static"
PAGES = Path(__file__).parents[3] / "pages"
COLOURS, KEYBOARD = PAGES / "page.css", PAGES / "keyboard.js"

FRAMES_BUDGET = 20 << 20
"""Bytes for the samples' frames, together; their quality adapts."""
PAIRS_BUDGET = 4 << 20
"""Bytes for the pairs' frames, together."""
BLOCK = 16
"""Samples whose saliency maps share a file."""
LARGEST_MAP = 32
"""Largest side of a saliency map; larger ones are averaged down."""
SATURATES_AT = 0.995
"""Quantile of the saliency's magnitude at which its colours saturate, over all maps of a quantity."""
LARGEST_HALF = 65504.0
"""Largest float16."""
SIGNED = 127
"""Levels of each sign of an int8."""
MISSING = -128
"""NaN as an int8."""
SIDE = 1600
"""Sides of a sheet come close to this, in pixels: small enough to load and decode within a frame."""
QUALITIES = (None, 90, 75, 50, 30, 10)
"""WebP qualities, tried in this order until the frames fit; None is lossless."""
LOSSLESS_EFFORT = 20
"""WebP "quality" of lossless images, which is the compression effort, 0 to 100."""


def write_panel(data: PanelData, folder: Path | str) -> Path:
    """Write the panel to ``folder`` (created if missing; an older panel in it is replaced).

    Returns:
        the page, ``index.html``. It opens from the file system, without server or network.
    """
    out = Path(folder)
    for part in ("data", "frames"):
        shutil.rmtree(out / part, ignore_errors=True)
        (out / part).mkdir(parents=True)
    for file in without_strays(STATIC.iterdir()):
        if file.is_file():
            shutil.copyfile(file, out / file.name)
    (out / "colours.css").write_text(_colours())
    # A page on file:// may not load modules.
    (out / "keyboard.js").write_text(re.sub(r"^export ", "", KEYBOARD.read_text(), flags=re.MULTILINE))
    core = _core(data)
    if data.observations.ndim == 5:
        core["frames"] = write_sheets(data.observations, out / "frames", "s", FRAMES_BUDGET)
    core["pairs"] = [_pair(data, one, number, out) for number, one in enumerate(data.pairs)]
    for number, one in enumerate(data.gradients.values()):
        _script(out, f"gradients_{number}", {"gradients": packed("curved", *curved_levels(_real(data, one)))})
    core["saliency"] = [_saliency(one, name, number, out) for number, (name, one) in enumerate(data.saliency.items())]
    _script(out, "core", core)
    return out / "index.html"


def _script(out: Path, name: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    write_text(out / "data" / f"{name}.js", f"panelTakes({json.dumps(name)},{text});\n")


def _colours() -> str:
    """The reports' colours (pages/page.css, attribution) for the page's switch: as the system wants them, light, or dark."""
    light, dark = re.findall(r":root \{([^}]*)\}", COLOURS.read_text())
    light += f" --raises: {RAISES}; --lowers: {LOWERS}; --cross: {CROSS};"
    dark += "".join(f" --{name}: {value};" for name, value in ON_DARK.items())
    return (
        f":root {{{light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{{dark}}} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{{dark}}} }}\n"
    )


def _real(data: PanelData, values: Array) -> FloatArray:
    """``values`` ``[n, T, …]`` with NaN for padding."""
    shaped = data.real.reshape(*data.real.shape, *(1,) * (values.ndim - 2))
    return np.asarray(np.where(shaped, np.asarray(values, np.float64), np.nan))


def _core(data: PanelData) -> dict[str, Any]:
    """What the page needs at once."""
    discrete = data.actions.ndim == 2
    probabilities = None
    if data.logits is not None:
        likely = np.nan_to_num(softmax(data.logits, -1))
        probabilities = packed("share", np.round(np.clip(likely, 0.0, 1.0) * 255).astype(np.uint8))
    number_of = {name: number for number, name in enumerate(data.outcome_names)}
    vector = data.observations.ndim != 5
    flat = data.observations.reshape(*data.observations.shape[:2], -1)
    return {
        "version": __version__,
        "title": data.title,
        "count": len(data),
        "steps": int(data.loadings.shape[1]),
        "lengths": small(data.lengths),
        "components": list(data.components),
        "loadings": half(data.loadings),
        "actions": small(data.actions) if discrete else half(data.actions),
        "discrete": discrete,
        "actionNames": list(data.action_names),
        "probabilities": probabilities,
        "values": half(data.values),
        "rewards": half(data.rewards),
        "quantities": list(data.gradients),
        "gradientScales": [_scale(one, 0.99) for one in data.gradients.values()],
        "paths": {name: half(_real(data, one)) for name, one in data.paths.items()},
        "pathNames": list(data.path_names),
        "labels": [{"name": name, "names": data.names_of(name), "of": small(one)} for name, one in data.labels.items()],
        "outcomes": data.outcome_names,
        "outcomeOf": small(np.array([number_of.get(one, -1) for one in data.outcomes or [""] * len(data)])),
        "levels": [] if data.levels is None else [int(level) for level in data.levels],
        "base": half(data.background),
        "maps": [{"name": name, "base": half(base), "of": half(own)} for name, (base, own) in data.maps.items()],
        "features": half(flat) if vector else None,
        "featureNames": (list(data.feature_names) or [f"feature {i}" for i in range(flat.shape[-1])]) if vector else [],
        "horizon": data.horizon,
        "simulated": data.simulated,
        "notes": dict(data.notes),
    }


def _scale(values: FloatArray, quantile: float) -> float:
    """Where colours saturate: a quantile of the magnitude."""
    finite = np.abs(values[np.isfinite(values)])
    return float(np.quantile(finite, quantile)) or 1.0 if finite.size else 1.0


def _saliency(saliency: PanelSaliency, name: str, number: int, out: Path) -> dict[str, Any]:
    maps = np.asarray(saliency.maps, np.float64)
    if maps.ndim == 3:  # a vector is an image of one row
        maps = maps[:, :, None]
    by = max(1, -(-max(maps.shape[2:]) // LARGEST_MAP))
    if by > 1 and maps.shape[2] % by == 0 and maps.shape[3] % by == 0:
        m, steps, height, width = maps.shape
        maps = maps.reshape(m, steps, height // by, by, width // by, by).mean((3, 5))
    limit = _scale(maps, SATURATES_AT)
    for block in range(0, len(maps), BLOCK):
        content = {"maps": saturated(maps[block : block + BLOCK], limit)}
        _script(out, f"saliency_{number}_{block // BLOCK}", content)
    return {
        "name": name,
        "rows": [int(row) for row in saliency.rows],
        "height": maps.shape[2],
        "width": maps.shape[3],
        "block": BLOCK,
        "doubt": saliency.doubt,
    }


def _pair(data: PanelData, pair: PanelPair, number: int, out: Path) -> dict[str, Any]:
    sides, frames = (pair.a, pair.b), None
    steps = max(len(side.values) for side in sides)
    if data.observations.ndim == 5:
        kept = [np.minimum(np.arange(steps), len(side.observations) - 1) for side in sides]
        observations = np.stack([side.observations[at] for side, at in zip(sides, kept, strict=True)])
        frames = write_sheets(observations, out / "frames", f"p{number}_", PAIRS_BUDGET // len(data.pairs))
    return {
        "name": pair.name,
        "about": pair.about,
        "simulated": pair.simulated,
        "sample": pair.sample,
        "steps": steps,
        "frames": frames,
        "sides": [
            {
                "length": len(side.values),
                "actions": _numbers(side.actions),
                "values": _numbers(side.values),
                "features": _numbers(side.observations) if frames is None else None,
                "outcome": side.outcome,
            }
            for side in sides
        ],
    }


def _numbers(values: Array) -> Any:
    """``values`` as lists; None for what is no number."""
    rounded = np.asarray(values, float).round(4)
    numbers = rounded.astype(object)
    numbers[~np.isfinite(rounded)] = None
    return numbers.tolist()


def packed(kind: str, values: Array, scale: float = 1.0) -> dict[str, Any]:
    """Return ``values`` as JSON: kind (how to read the bytes), shape, scale and data."""
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
    data = base64.b64encode(zlib.compress(little.tobytes(), 6)).decode()
    return {"kind": kind, "shape": list(values.shape), "scale": scale, "data": data}


def half(values: Array) -> dict[str, Any]:
    """Pack as float16: about three digits."""
    return packed("half", np.clip(np.asarray(values, np.float64), -LARGEST_HALF, LARGEST_HALF).astype(np.float16))


def curved_levels(values: Array) -> tuple[Array, float]:
    """Return int8 levels and their scale: ``value = sign(level) * (level / 127) ** 2 * scale``, finer near 0.

    For gradients, which have heavy tails.
    """
    values = np.asarray(values, np.float64)
    scale = float(np.abs(values).max(initial=0.0, where=np.isfinite(values))) or 1.0
    share = np.clip(np.nan_to_num(values) / scale, -1.0, 1.0)
    levels = np.round(np.sign(share) * np.sqrt(np.abs(share)) * SIGNED)
    return np.where(np.isnan(values), MISSING, levels).astype(np.int8), scale


def saturated(values: Array, limit: float) -> dict[str, Any]:
    """Pack as int8 of equal steps up to ``limit``; larger values saturate."""
    values = np.asarray(values, np.float64)
    levels = np.round(np.clip(np.nan_to_num(values, posinf=limit, neginf=-limit) / limit, -1.0, 1.0) * SIGNED)
    return packed("linear", np.where(np.isnan(values), MISSING, levels).astype(np.int8), limit)


def small(values: Array) -> dict[str, Any]:
    """Pack whole numbers as int16."""
    return packed("small", np.asarray(values).astype(np.int16))


def plan_for(groups: int, steps: int, height: int, width: int) -> dict[str, int]:
    """Return how ``groups`` groups (samples, or sides of a pair) of ``steps`` tiles of ``height`` x ``width`` lie in sheets.

    The plan has the tiles' sizes, columns and rows of tiles in each sheet, and how many groups are ``together`` in one.
    """
    columns = max(1, min(steps, SIDE // width))
    together = max(1, min(groups, SIDE // (math.ceil(steps / columns) * height)))
    rows = math.ceil(together * steps / columns)
    return {"height": height, "width": width, "steps": steps, "columns": columns, "rows": rows, "together": together}


def sheet_image(plan: Mapping[str, int], groups: Array) -> Image.Image:
    """Return the sheet of ``groups``, ``[groups, steps, h, w, c]``."""
    rows, columns, height, width = (plan[name] for name in ("rows", "columns", "height", "width"))
    tiles = np.zeros((rows * columns, height, width, 3), np.uint8)
    tiles[: len(groups) * plan["steps"]] = rgb(groups).reshape(-1, height, width, 3)
    grid = tiles.reshape(rows, columns, height, width, 3).swapaxes(1, 2)
    return Image.fromarray(grid.reshape(rows * height, columns * width, 3))


def encoded(image: Image.Image, quality: int | None) -> bytes:
    """Return ``image`` as WebP."""
    sink, how = io.BytesIO(), LOSSLESS_EFFORT if quality is None else quality
    image.save(sink, "WEBP", lossless=quality is None, quality=how, method=2)
    return sink.getvalue()


def write_sheets(observations: Array, folder: Path, prefix: str, budget: int) -> dict[str, Any]:
    """Write the sheets of ``observations`` ``[groups, steps, h, w, c]`` in at most about ``budget`` bytes.

    The page reads the plan that is returned, and the quality (None: lossless).
    """
    plan = plan_for(*observations.shape[:4])
    starts = range(0, len(observations), plan["together"])
    sheets = (sheet_image(plan, observations[start : start + plan["together"]]) for start in starts)
    trial, most = sheet_image(plan, observations[: plan["together"]]), 0.9 * budget / len(starts)
    quality = next((one for one in QUALITIES[:-1] if len(encoded(trial, one)) <= most), QUALITIES[-1])
    for number, sheet in enumerate(sheets):
        (folder / f"{prefix}{number}.webp").write_bytes(encoded(sheet, quality))
    return {"prefix": prefix, "quality": quality, **plan}
