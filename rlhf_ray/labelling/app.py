"""The labelling page's web app: HTTP routes, request bodies and permissions, and the page's files. `Desk` does the work."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response, Security
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyCookie, APIKeyHeader

from rlhf_ray import pages
from rlhf_ray.data.answers import ANSWERS
from rlhf_ray.data.strays import stray
from rlhf_ray.labelling.answers import of_one
from rlhf_ray.labelling.desk import Desk
from rlhf_ray.labelling.guard import Guard, Limiter, parse_hosts, too_fast
from rlhf_ray.labelling.messages import (
    AnswerRequest,
    LeasesRequest,
    PageId,
    QuestionsRequest,
    ReviewRequest,
    TokenRequest,
    UndoRequest,
    WeightRequest,
)
from rlhf_ray.labelling.serve import allowed_hosts
from rlhf_ray.labelling.sessions import HEADER, LASTS_S, Person, Sessions
from rlhf_ray.labelling.texts import Texts
from rlhf_ray.settings import LabellingSettings

OPEN = frozenset({("POST", "/api/session")})
"""Calls under /api that need no session."""

STATIC = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGES = {
    "/": ("index.html", "main.js"),
    "/again": ("index.html", "again.js"),  # the same page with another script: for answers that were given before
    "/statistics": ("statistics.html", "statistics.js"),
}
"""Template and script of each page, by its path."""


async def the_desk(request: Request) -> Desk:
    """The desk of this app."""
    desk: Desk = request.app.state.desk
    return desk


async def signed_in(request: Request) -> Person:
    """The annotator of this session. `Guard` checks it already; this second check holds even if the guard has a bug."""
    person: Person | None = getattr(request.state, "person", None)
    if person is None:
        raise HTTPException(401, "this needs a session")
    return person


Me = Annotated[Person, Depends(signed_in)]


async def owner(me: Me) -> None:
    """Reject anyone but the owner of the run."""
    if not me.owner:
        raise HTTPException(403, "Only the owner (the first annotator) may do that.")


async def answering(request: Request, me: Me) -> Person:
    """Like `signed_in`, with a rate limit for calls that a person can't make faster."""
    if seconds := request.app.state.answers.wait(me.name):
        raise too_fast(seconds)
    return me


TheDesk = Annotated[Desk, Depends(the_desk)]
Answering = Annotated[Person, Depends(answering)]
entrance, api = APIRouter(prefix="/api"), APIRouter(prefix="/api")


@entrance.post("/session")
async def enter(body: TokenRequest, request: Request, response: Response) -> dict[str, Any]:
    """Exchange a token for a session, which is also set as a cookie for new tabs.

    Rate-limits wrong tokens only: behind a proxy, all clients may share one address.
    """
    state, caller = request.app.state, request.client.host if request.client else ""
    if (person := state.sessions.exchange(body.token)) is None:
        if seconds := state.failures.wait(caller):
            raise too_fast(seconds)
        raise HTTPException(
            401, "This link is invalid, expired or revoked. Ask the person who started the run for a new one."
        )
    session = state.sessions.sign(person)
    response.set_cookie(
        state.sessions.cookie_name,
        session,
        max_age=int(LASTS_S),
        path=request.scope.get("root_path") or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return {"name": person.name, "owner": person.owner, "session": session}


@api.delete("/session")
async def leave(me: Me, request: Request, response: Response) -> dict[str, bool]:
    """Sign out: delete the cookie, unless it is another annotator's."""
    sessions, path = request.app.state.sessions, request.scope.get("root_path") or "/"
    if sessions.who(request.cookies.get(sessions.cookie_name)) in (None, me):
        response.delete_cookie(sessions.cookie_name, path=path, httponly=True, samesite="strict")
    return {"left": True}


@api.get("/me")
async def who_am_i(me: Me, request: Request) -> dict[str, Any]:
    """The signed-in annotator, their session and the task."""
    return {"name": me.name, "owner": me.owner, "session": request.state.session, **request.app.state.task}


@api.post("/questions")
async def questions(body: QuestionsRequest, me: Me, desk: TheDesk) -> dict[str, Any]:
    """The next questions, and the labelling progress."""
    shown = await desk.next(me.name, body.count, body.holding, body.page)
    over = await desk.over(body.page, len(body.holding) + len(shown))
    return {"questions": [asdict(question) for question in shown], "progress": await progress_of(me, desk) | over}


@api.post("/answers")
async def answer(body: AnswerRequest, me: Answering, desk: TheDesk) -> dict[str, bool]:
    """Store an answer; responds once it is durable."""
    await desk.answer(me.name, body)
    return {"saved": True}


@api.post("/undo")
async def undo(body: UndoRequest, me: Answering, desk: TheDesk) -> dict[str, Any]:
    """Undo an answer; returns the pair to show again, or null."""
    question = await desk.undo(me.name, body.event_id, body.target, body.page)
    return {"question": asdict(question) if question else None}


@api.post("/leases/renew")
async def renew(body: LeasesRequest, me: Me, desk: TheDesk) -> dict[str, Any]:
    """Renew leases and report that the page is open; returns the leases that this page has lost, and whether labelling is over."""
    lost = await desk.renew(me.name, body.leases, body.page)
    return {"lost": lost} | await desk.over(body.page, len(body.leases))


@api.post("/leases/release")
async def release(body: LeasesRequest, me: Me, desk: TheDesk) -> dict[str, bool]:
    """Release leases; a page that closes sends its id."""
    await desk.release(me.name, body.leases, body.page)
    return {"released": True}


@api.get("/films/{film_id}", response_class=Response)
async def film(
    film_id: Annotated[str, PathParameter(pattern="^[0-9a-f]{64}$")], desk: TheDesk, page: PageId | None = None
) -> Response:
    """A clip's sprite sheet (WebP). Named by its content, so browsers may cache it forever. ``page`` is the page's id."""
    sheet = await desk.film(film_id, page)
    if sheet is None:
        raise HTTPException(404, "no clip has this id")
    return Response(sheet, media_type="image/webp", headers={"cache-control": "private, max-age=31536000, immutable"})


@api.get("/episode")
async def episode(desk: TheDesk) -> dict[str, Any] | None:
    """The agent's latest full episode, or null."""
    return await desk.episode()


@api.get("/progress")
async def progress(me: Me, desk: TheDesk) -> dict[str, Any]:
    """Labelling progress."""
    return await progress_of(me, desk) | await desk.over()


async def progress_of(me: Person, desk: Desk) -> dict[str, Any]:
    """`Desk.progress`, and for the owner ``doubts``: the number of answers to look at again."""
    return await desk.progress(me.name) | {"doubts": len(await desk.doubts()) if me.owner else 0}


@api.get("/doubts", dependencies=[Depends(owner)])
async def doubts(desk: TheDesk) -> dict[str, Any]:
    """The answers that are more likely wrong than right; owner only."""
    return {"doubts": [asdict(doubt) for doubt in await desk.doubts()]}


@api.post("/reviews", dependencies=[Depends(owner)])
async def review(body: ReviewRequest, me: Answering, desk: TheDesk) -> dict[str, bool]:
    """Keep or change an answer; owner only. Responds once it is durable."""
    await desk.review(me.name, body.event_id, body.target, body.answer)
    return {"saved": True}


@api.get("/statistics")
async def statistics(me: Me, desk: TheDesk) -> dict[str, Any]:
    """Annotator statistics: of everyone for the owner, their own for anyone else."""
    values = await desk.statistics()
    return values if me.owner else of_one(values, me.name)


@api.post("/weights", dependencies=[Depends(owner)])
async def weigh(body: WeightRequest, desk: TheDesk, request: Request) -> dict[str, bool]:
    """Set the weight of an annotator's labels; owner only."""
    if body.annotator not in request.app.state.sessions.people and not await desk.knows(body.annotator):
        raise HTTPException(404, f"there is no annotator {body.annotator!r}")
    await desk.weigh(body.annotator, body.weight)
    return {"saved": True}


def create_app(desk: Desk, sessions: Sessions, settings: LabellingSettings, title: str) -> FastAPI:
    """The labelling page, with the task's ``title`` at its top.

    Raises:
        ValueError: an entry of ``labelling.hosts`` is not a valid host name.
    """
    # Off, because the schema would be served without a session; `app.openapi()` still makes it.
    app = FastAPI(title="rlhf_ray labelling", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.desk, app.state.sessions = desk, sessions
    app.state.task = {"title": title, "instructions": settings.instructions}
    app.state.answers, app.state.failures = Limiter(rate=10, burst=20), Limiter(rate=0.5, burst=10)
    app.add_middleware(Guard, sessions=sessions, hosts=parse_hosts(allowed_hosts(settings)), open_calls=OPEN)
    app.add_exception_handler(RequestValidationError, explain)
    app.add_exception_handler(ValueError, on_mistake)
    app.add_exception_handler(OSError, on_failure)
    app.include_router(entrance)
    keys: list[Any] = [
        APIKeyHeader(name=HEADER, auto_error=False),
        APIKeyCookie(name=sessions.cookie_name, auto_error=False),
    ]
    # The keys are for the schema.
    app.include_router(api, dependencies=[Depends(signed_in), *(Security(key) for key in keys)])
    add_pages(app, desk.texts)
    return app


async def explain(request: Request, error: Exception) -> Response:
    """Report what is wrong with a request's JSON. Leaves its values out: FastAPI's own handler fails on NaN."""
    assert isinstance(error, RequestValidationError)
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}" for problem in error.errors()[:5]
    ]
    content = json.dumps({"detail": "; ".join(problems)})  # ASCII, so that no lone surrogate can break it
    return Response(content, 422, media_type="application/json")


async def on_mistake(request: Request, error: Exception) -> Response:
    """Respond to a `ValueError` of the desk: the request is wrong."""
    # Only the last line: an error from another process may contain its whole traceback.
    return JSONResponse({"detail": (str(error).strip().splitlines() or ["invalid request"])[-1]}, 400)


async def on_failure(request: Request, error: Exception) -> Response:
    """Respond to an `OSError` of the store: the client should retry."""
    return JSONResponse({"detail": "not saved; try again"}, 503, {"retry-after": "2"})


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
