"""Render report pages from templates; each page is one self-contained file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from rlhf_ray import __version__
from rlhf_ray.runs.report import summary


def render(template: str, **values: Any) -> str:
    """Render a template of this folder. A missing value is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": summary.number, "setting": summary.setting}
    return environment.get_template(template).render(version=__version__, **values)
