"""How Sphinx builds the documentation site (`make docs`). The pages are the Markdown that GitHub shows."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

from rlhf_ray import __version__

project = "rlhf_ray"
author = "the rlhf_ray authors"
release = version = __version__
html_title = "rlhf_ray"

SOURCE = "https://github.com/rlhf-ray/rlhf-ray/blob/main/"
"""Where links to files that are no pages lead, such as ../rlhf_ray/teachers.py."""

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns: list[str] = []
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # bash with … in it

# The reference: docstrings are Google's style, a single backtick is a name of the project, defaults are shown as written.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
python_use_unqualified_type_names = True
# Not on the site: other libraries' names, type aliases, and what docstrings mention of the package's inside.
nitpick_ignore_regex = [(r"py:.*", r".*")]

# One prompt is no part of a command.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00598f", "color-brand-content": "#00598f"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f5", "color-brand-content": "#7cc4f5"},
}


def _point_at_source(app: Sphinx, document: str, text: list[str]) -> None:
    """Turn links to files outside of docs/, which GitHub finds, into links to the repository."""
    depth = document.count("/") + 1
    text[0] = re.sub(r"\]\((?:\.\./){" + str(depth) + r"}([^)\s]+)\)", rf"]({SOURCE}\1)", text[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _point_at_source)
