"""Writing a panel: the page's files, the numbers as scripts (a page on ``file://`` may not fetch files), the frames as images."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray import __version__
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.strays import without_strays
from rlhf_ray.interpret.agent.panel import packing
from rlhf_ray.interpret.agent.panel.data import PanelData, PanelPair, PanelSaliency
from rlhf_ray.interpret.agent.panel.sheets import write_sheets
from rlhf_ray.interpret.attribution.drawing import CROSS, LOWERS, ON_DARK, RAISES

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
        _script(out, f"gradients_{number}", {"gradients": packing.curved(_real(data, one))})
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
    real: FloatArray = np.where(shaped, np.asarray(values, np.float64), np.nan)
    return real


def _core(data: PanelData) -> dict[str, Any]:
    """What the page needs at once."""
    discrete = data.actions.ndim == 2
    probabilities = None
    if data.logits is not None:
        shifted = np.exp(data.logits - data.logits.max(-1, keepdims=True))
        probabilities = packing.shares(np.nan_to_num(shifted / shifted.sum(-1, keepdims=True)))
    outcomes = data.outcome_names
    number_of = {name: number for number, name in enumerate(outcomes)}
    vector = data.observations.ndim != 5
    flat = data.observations.reshape(*data.observations.shape[:2], -1)
    return {
        "version": __version__,
        "title": data.title,
        "count": len(data),
        "steps": int(data.loadings.shape[1]),
        "lengths": packing.small(data.lengths),
        "components": list(data.components),
        "loadings": packing.half(data.loadings),
        "actions": packing.small(data.actions) if discrete else packing.half(data.actions),
        "discrete": discrete,
        "actionNames": list(data.action_names),
        "probabilities": probabilities,
        "values": packing.half(data.values),
        "rewards": packing.half(data.rewards),
        "quantities": list(data.gradients),
        "gradientScales": [_scale(one) for one in data.gradients.values()],
        "paths": {name: packing.half(_real(data, one)) for name, one in data.paths.items()},
        "pathNames": list(data.path_names),
        "labels": [
            {"name": name, "names": data.names_of(name), "of": packing.small(one)} for name, one in data.labels.items()
        ],
        "outcomes": outcomes,
        "outcomeOf": packing.small(np.array([number_of.get(one, -1) for one in data.outcomes or [""] * len(data)])),
        "levels": [] if data.levels is None else [int(level) for level in data.levels],
        "base": packing.half(data.background),
        "maps": [
            {"name": name, "base": packing.half(base), "of": packing.half(own)}
            for name, (base, own) in data.maps.items()
        ],
        "features": packing.half(flat) if vector else None,
        "featureNames": (list(data.feature_names) or [f"feature {i}" for i in range(flat.shape[-1])]) if vector else [],
        "horizon": data.horizon,
        "simulated": data.simulated,
        "notes": dict(data.notes),
    }


def _scale(values: FloatArray) -> float:
    """Where the colours of gradients saturate: the 99 % quantile of their magnitude."""
    finite = np.abs(values[np.isfinite(values)])
    return float(np.quantile(finite, 0.99)) or 1.0 if finite.size else 1.0


def _saliency(saliency: PanelSaliency, name: str, number: int, out: Path) -> dict[str, Any]:
    maps = np.asarray(saliency.maps, np.float64)
    if maps.ndim == 3:  # a vector is an image of one row
        maps = maps[:, :, None]
    by = max(1, -(-max(maps.shape[2:]) // LARGEST_MAP))
    if by > 1 and maps.shape[2] % by == 0 and maps.shape[3] % by == 0:
        m, steps, height, width = maps.shape
        maps = maps.reshape(m, steps, height // by, by, width // by, by).mean((3, 5))
    magnitude = np.abs(maps[np.isfinite(maps)])
    limit = (float(np.quantile(magnitude, SATURATES_AT)) if magnitude.size else 0.0) or 1.0
    for block in range(0, len(maps), BLOCK):
        content = {"maps": packing.saturated(maps[block : block + BLOCK], limit)}
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
    sides = (pair.a, pair.b)
    steps = max(len(side.values) for side in sides)
    frames = None
    if data.observations.ndim == 5:
        observations = np.stack(
            [side.observations[np.minimum(np.arange(steps), len(side.observations) - 1)] for side in sides]
        )
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
