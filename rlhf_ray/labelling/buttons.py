"""The answers on the page: their buttons, and what its scripts know of them (`rlhf_ray.data.answers.ANSWERS`)."""

from __future__ import annotations

import json
from dataclasses import asdict

from rlhf_ray.data.answers import ANSWERS, AnswerKind

SIDES, OTHERS = "<!-- answers: sides -->", "<!-- answers: others -->"
"""Where the page has the three large buttons, and the others."""


def with_buttons(html: str) -> str:
    """Return a page with a button for each answer."""
    for mark, large in ((SIDES, True), (OTHERS, False)):
        html = html.replace(mark, "\n".join(_button(kind) for kind in ANSWERS.values() if kind.side == large))
    return html


def answers_script() -> str:
    """Return the answers as a JavaScript module."""
    kinds = [asdict(kind) | {"side": kind.side} for kind in ANSWERS.values()]
    return f"export const ANSWERS = {json.dumps(kinds)};\n"


def _button(kind: AnswerKind) -> str:
    look = {True: ' class="main"', False: ""}[kind.side] if kind.name != "equal" else ' class="main even"'
    return (
        f'<button type="button"{look} data-answer="{kind.name}"><span>{kind.button}</span>'
        f'<kbd data-key="{kind.name}"></kbd></button>'
    )
