"""Report pages: rendered from templates, each one self-contained file without scripts that loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from rlhf_ray import __version__


def render(
    template: Path, filters: Mapping[str, Callable[..., Any]] | None = None, beside: Path | None = None, **values: Any
) -> str:
    """Render ``template``, which extends ``page.html`` of this package. A missing value is an error; values are escaped.

    ``beside`` is another folder with templates that it extends.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, *([beside] if beside else []), Path(__file__).parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters or {}
    return environment.get_template(template.name).render(version=__version__, **values)
