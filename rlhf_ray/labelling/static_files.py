"""The page's files: HTML in the page's language, scripts, styles, and what its scripts know of answers and texts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response

from rlhf_ray import pages
from rlhf_ray.data.answers import ANSWERS
from rlhf_ray.data.strays import stray
from rlhf_ray.labelling.texts import Texts

STATIC = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGES = {
    "/": ("index.html", "main.js"),
    "/again": ("index.html", "again.js"),  # the same page with another script: for answers that were given before
    "/statistics": ("statistics.html", "statistics.js"),
}
"""Template and script of each page, by its path."""


def page_files(texts: Texts) -> dict[str, bytes]:
    """Return the content of each file by its name, and of each page by its path."""
    own = [*STATIC.iterdir(), Path(pages.__file__).with_name("keyboard.js")]
    content = {file.name: file.read_bytes() for file in own if file.suffix in TYPES and not stray(file.name)}
    answers = list(ANSWERS.values())
    kinds = json.dumps([asdict(kind) | {"side": kind.side} for kind in answers])
    language, words = json.dumps(texts.language), json.dumps(dict(texts.texts))
    content["answers.js"] = f"export const ANSWERS = {kinds};\n".encode()
    content["texts.js"] = f"export const LANGUAGE = {language};\nexport const TEXTS = {words};\n".encode()
    for path, (template, script) in PAGES.items():
        content[path] = pages.render(STATIC / template, t=texts, answers=answers, script=script).encode()
    return content


def add_pages(app: FastAPI, texts: Texts) -> None:
    """Serve pages and files. They are read once and looked up by name in a dict: no request can name a path."""
    content = page_files(texts)

    async def send(request: Request, name: str = "") -> Response:
        name = name or request.scope["route"].path
        if name not in content:
            raise HTTPException(404, "no such file")
        # Browsers revalidate each time (mostly a 304), so that after an update no browser mixes old and new modules.
        headers = {"etag": f'"{hashlib.sha256(content[name]).hexdigest()[:32]}"', "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content[name], media_type=TYPES.get(Path(name).suffix, "text/html"), headers=headers)

    for path in (*PAGES, "/static/{name}"):
        app.get(path, include_in_schema=False)(send)
