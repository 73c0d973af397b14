"""How Sphinx builds the documentation site (`make docs`). The pages are the Markdown that GitHub shows."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

from rlhf_ray import __version__

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))
from generated import for_the_site  # noqa: E402

logger = logging.getLogger(__name__)

project = "rlhf_ray"
author = "the rlhf_ray authors"
release = version = __version__
html_title = "rlhf_ray"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns: list[str] = []
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # bash with … in it

# The reference. Docstrings are Google's style; a single backtick is a name; types and defaults are shown as written.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # or an attribute with a docstring is there twice
add_module_names = False

# One prompt is no part of a command.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_favicon = "../rlhf_ray/labelling/static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {  # the labelling page's colours
    "light_css_variables": {"color-brand-primary": "#1d6a64", "color-brand-content": "#1d6a64"},
    "dark_css_variables": {"color-brand-primary": "#63bdb4", "color-brand-content": "#63bdb4"},
}


def _name_source(app: Sphinx, document: str, text: list[str]) -> None:
    """Show links to files outside of docs/, which work in a checkout, as the files' names: the site has no such files."""
    up = "../" * (document.count("/") + 1)

    def named(link: re.Match[str]) -> str:
        said, path = link.groups()
        if not (ROOT / path).exists():
            logger.warning("there is no %s to link to", path, location=document)
        return f"`{path}`" if said.strip("`/") in path else f"{said} (`{path}`)"

    text[0] = re.sub(rf"\[([^\]]+)\]\({re.escape(up)}([^)#\s]+)\)", named, text[0])


def _no_long_signature(app: Sphinx, what: str, name: str, found: Any, *rest: Any) -> tuple[str, None] | None:
    """Leave out the arguments of settings, each of which is explained below its class."""
    return ("", None) if what == "class" and dataclasses.is_dataclass(found) else None


def _whole_sentence(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from taking what stands before the first colon for a type: put an empty comment before it."""
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]


def _fields(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Add the fields of a dataclass that comments beside or above them describe."""
    if what == "class" and dataclasses.is_dataclass(found) and (described := fields_of(inspect.getsource(found))):
        lines += ["", "Attributes:", *described, ""]


def fields_of(source: str) -> list[str]:
    """Return what the comments of a dataclass say of its fields, as Google's docstrings do; one above several names them."""
    described, above = [], list[str]()
    for line in source.splitlines():
        if comment := re.fullmatch(r"    # (.*)", line):
            above.append(comment[1])
            continue
        if field := re.match(r"    (\w+): [^#]*(?:  # (.*))?$", line):
            text = field[2] or " ".join(above)
            named = re.match(rf"{field[1]}(, \w+)+: ", text)
            described += [f"    {text}" if named else f"    {field[1]}: {text}"] if text else []
        above = []
    return described


def _exists(app: Sphinx, env: Any, node: Any, text: Any) -> Any:
    """Show names that are not on the site as they are; only a name of the package's that does not exist is an error."""
    name = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    if name.startswith("rlhf_ray."):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            return None
    return text


def _site_parts(app: Sphinx, document: str, text: list[str]) -> None:
    """Show whole docstrings where GitHub shows tables (`generated.py`)."""
    text[0] = for_the_site(text[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _site_parts, priority=100)
    app.connect("source-read", _name_source)
    app.connect("autodoc-process-signature", _no_long_signature)
    app.connect("autodoc-process-docstring", _whole_sentence, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", _fields, priority=100)
    app.connect("missing-reference", _exists)
