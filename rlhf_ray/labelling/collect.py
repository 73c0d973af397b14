"""Collect labels without training: serves the labelling page in this process until there are enough comparisons."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.strays import is_empty
from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.desk import Desk
from rlhf_ray.labelling.films import Episode, Film
from rlhf_ray.labelling.serve import Server, links, listen_as_before, warn_of_readers
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.labelling.situation import OPEN_FOR, Ending, Situation
from rlhf_ray.labelling.texts import load_texts
from rlhf_ray.labelling.waiting import PeopleWait, Waiting
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.files import lock_store

AT_A_TIME = 20
"""Maximum number of questions made at once. With fewer than half as many unanswered, more are made."""

LOOK_EVERY = 0.5
"""Seconds between two checks of how many questions are unanswered."""

STOPPED_WITHIN = 3.0
"""Seconds in which open pages are told that labelling was stopped: those in the foreground ask every two seconds."""

P = ParamSpec("P")
T = TypeVar("T")
Propose = Callable[[int, int], tuple[Pairs, Sequence[Film]] | None]


class LocalStore:
    """A preference store for a `Desk`, in this process. One thread executes the calls one by one."""

    def __init__(self, store: PreferenceStore):
        self.store = store
        self._thread = ThreadPoolExecutor(1, "store")

    async def call(
        self, method: Callable[Concatenate[PreferenceStore, P], T], *arguments: P.args, **keywords: P.kwargs
    ) -> T:
        """Call a method of the store in its thread."""
        call = partial(method, self.store, *arguments, **keywords)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def collect(
    propose: Propose,
    store: PreferenceStore | Path | str,
    settings: LabellingSettings,
    *,
    comparisons: int,
    fps: float = 15.0,
    title: str = "clips",
    film_episode: Callable[[], Episode | None] = lambda: None,
    invite: Callable[[dict[str, str]], None] = lambda links: print(*links.values(), sep="\n"),
    stop: Callable[[], bool] = lambda: False,
    on_wait: Callable[[PeopleWait], None] = lambda wait: None,
    on_end: Callable[[int], None] = lambda pages: None,
) -> int:
    """Collect labels at the page until the store holds ``comparisons`` comparisons.

    Args:
        propose: makes the questions. ``propose(n, number)`` returns at most ``n`` pairs for round ``number`` (0, 1, …), together
            with films of the clips that have none yet (clips of images need none); None when there are no more.
        store: receives the answers; each is on disk before it is acknowledged.
        settings: settings of the page. Links are kept in `sessions_file` and stay valid across restarts; so does the port if it is
            free.
        comparisons: number of comparisons to stop at. Ctrl-C stops earlier and loses nothing.
        fps: frames per second of the clips at the environment's own speed.
        title: title of the page.
        film_episode: films a full episode to show beside the questions. Called once enough questions are open.
        invite: called with each annotator's link, by name.
        stop: polled; True stops earlier.
        on_wait: called about once a second with the progress.
        on_end: called with the number of open pages that don't show yet that labelling is over. The server waits for them, up to
            `OPEN_FOR` seconds.

    Returns:
        Number of comparisons in the store.

    Raises:
        LockedError: another process asks questions about the store.
    """
    kept = store if isinstance(store, PreferenceStore) else PreferenceStore(store)
    file = sessions_file(kept)
    films = file.with_suffix(".films")  # for undo after a restart
    texts, sessions = load_texts(settings.language), Sessions.keep(file, settings.annotators)
    desk = Desk(LocalStore(kept), sessions.key("leases"), settings, fps=fps, films=films, texts=texts)
    app = create_app(desk, sessions, settings, title)

    async def serve() -> None:
        warn_of_readers(settings)
        server = Server(app, settings, listen_as_before(settings, file.with_suffix(".port")))
        await server.start()
        invite(links(sessions, settings, server.port))
        try:
            await work(lambda: server.serving and not stop())
            if stop() and server.serving:
                desk.tell(Situation(wanted=comparisons, ending="stopped"))
                deadline = time.monotonic() + STOPPED_WITHIN
                while desk.pages.uninformed and time.monotonic() < deadline:
                    await asyncio.sleep(LOOK_EVERY)
        finally:
            await server.stop()

    async def work(wanted: Callable[[], bool]) -> None:
        waiting, number, more = Waiting(on_wait), 0, True
        filmed, deadline = False, math.inf
        while wanted():
            stored, unanswered = await desk.store.call(PreferenceStore.__len__), desk.queue.left()
            ended = stored >= comparisons or not (more or desk.queue.open())
            ending: Ending | None = "complete" if ended else None
            desk.tell(Situation(wanted=comparisons, ending=ending, waiting_for="new clips, which are being recorded"))
            if ended:  # until every open page shows it, or somebody takes an answer back
                deadline = min(deadline, time.monotonic() + OPEN_FOR)
                uninformed = desk.pages.uninformed
                if not uninformed or time.monotonic() > deadline:
                    return
                on_end(uninformed)
                await asyncio.sleep(LOOK_EVERY)
                continue
            deadline = math.inf
            waiting.look(stored, comparisons, desk.pages.open)
            # Start with one pair, which needs two clips only, then make more each time: the first pair shows up soon.
            most = min(AT_A_TIME, 2 ** min(number, 5), comparisons - stored - unanswered)
            if more and most > 0 and unanswered < AT_A_TIME // 2:
                made = await asyncio.to_thread(propose, most, number)
                if made is not None:
                    desk.show(made[1])
                    await desk.ask(number, made[0])
                number, more = number + 1, made is not None
                continue
            if not filmed:
                desk.tell(None, await asyncio.to_thread(film_episode))
                filmed = True
            await asyncio.sleep(LOOK_EVERY)

    with lock_store(kept.path), contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
    if len(kept) >= comparisons or is_empty(films):
        shutil.rmtree(films, ignore_errors=True)
    return len(kept)


def sessions_file(store: PreferenceStore) -> Path:
    """The file with the annotators' links for ``store``: beside its folder, never in it, because stores are shared.

    For a store at a URL, or if the folder beside it is not writable: a file in ``$XDG_STATE_HOME/rlhf_ray`` (default
    ``~/.local/state/rlhf_ray``).
    """
    path = store.path
    if isinstance(path, Path) and os.access(path.absolute().parent, os.W_OK):
        return path.absolute().with_name(f"{path.absolute().name}.labelling.json")
    states = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = hashlib.sha256(str(path.absolute() if isinstance(path, Path) else path).encode()).hexdigest()[:16]
    return states / "rlhf_ray" / f"{name}.labelling.json"
