"""Collecting labels without training: the page, in this process, until people have answered enough."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.desk import Desk, Situation
from rlhf_ray.labelling.films import Episode, Film
from rlhf_ray.labelling.questions import QuestionQueue
from rlhf_ray.labelling.serve import Server, allowed_hosts, links, listen_as_before, warn_of_readers
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import Event, PreferenceStore

AT_A_TIME = 20
"""Questions that are made at a time, and the open ones below which there are more made."""

LOOK_EVERY = 0.5
"""Seconds between two looks at how many questions are open."""

_T = TypeVar("_T")


class LocalStore:
    """A preference store in this process, for a `Desk`. One thread does what is asked, one thing after the other."""

    def __init__(self, store: PreferenceStore):
        self.store = store
        self._thread = ThreadPoolExecutor(1, "store")

    async def record(self, events: Sequence[Event], clips: Fragments | None = None) -> int:
        """See `PreferenceStore.record`."""
        return await self._do(self.store.record, events, clips)

    async def events(self) -> pa.Table:
        """See `PreferenceStore.events`."""
        return await self._do(self.store.events)

    async def count(self) -> int:
        """How many comparisons hold."""
        return await self._do(self.store.__len__)

    async def weights(self) -> dict[str, float]:
        """See `PreferenceStore.weights`."""
        return await self._do(self.store.weights)

    async def weigh(self, annotator: str, weight: float) -> None:
        """See `PreferenceStore.weigh`."""
        await self._do(self.store.weigh, annotator, weight)

    async def _do(self, what: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(what, *arguments))


def collect(
    propose: Callable[[int, int], tuple[Pairs, Sequence[Film]] | None],
    store: PreferenceStore | Path | str,
    settings: LabellingSettings,
    *,
    comparisons: int,
    fps: float = 15.0,
    title: str = "clips",
    film_episode: Callable[[], Episode | None] = lambda: None,
    invite: Callable[[dict[str, str]], None] = lambda links: print(*links.values(), sep="\n"),
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Have people answer at the page until the store holds ``comparisons`` comparisons.

    Args:
        propose: makes the questions. Given how many and the number of the asking (0, 1, …), it gives at most so many pairs, with
            films of clips that had none before (of images none are needed), and None when there are no more.
        store: where the answers go, each on the disk before it is acknowledged.
        settings: of the page. People's links are kept in `sessions_file` and stay as they are, and the page's port too where it
            is free.
        comparisons: to stop at. Ctrl-C stops earlier, and nothing is lost.
        fps: frames per second of the clips at their own pace.
        title: what the clips are of.
        film_episode: films a whole episode, to be shown beside the questions. It is called once there are enough of those.
        invite: is told each person's link.
        stop: says whether to stop earlier.

    Returns:
        How many comparisons the store holds.
    """
    kept = store if isinstance(store, PreferenceStore) else PreferenceStore(store)
    file = sessions_file(kept)
    sessions = Sessions.keep(file, settings.annotators)

    async def serve() -> None:
        queue = QuestionQueue(
            lease_seconds=settings.lease_seconds,
            overlap_share=settings.overlap_share,
            catch_share=settings.catch_share,
            catch_by_reward=settings.catch_by_reward,
        )
        local = LocalStore(kept)
        desk = Desk(local, queue, sessions.key("leases"), fps=fps)
        app = create_app(desk, sessions, hosts=allowed_hosts(settings), title=title, instructions=settings.instructions)
        warn_of_readers(settings)
        server = Server(app, settings, listen_as_before(settings, file.with_suffix(".port")))
        await server.start()
        invite(links(sessions, settings, server.port))
        number, more, filmed = 0, True, False
        try:
            while not stop() and server.serving:
                held = await local.count()
                open_now = queue.open()
                situation = Situation(
                    wanted=comparisons, finished=held >= comparisons, waiting_for="clips, which are being made"
                )
                desk.tell(situation)
                if held >= comparisons or not (more or open_now):
                    break
                # One pair at first, for which two clips do, then more each time: nobody waits for many.
                wanted = min(AT_A_TIME, 2 ** min(number, 5), comparisons - held - open_now)
                if more and wanted > 0 and open_now < AT_A_TIME // 2:
                    made = await asyncio.to_thread(propose, wanted, number)
                    more = made is not None
                    if made is not None:
                        desk.show(made[1])
                        await desk.ask(number, made[0])
                    number += 1
                    continue
                if not filmed:
                    desk.tell(situation, await asyncio.to_thread(film_episode))
                    filmed = True
                await asyncio.sleep(LOOK_EVERY)
            await asyncio.sleep(2 * LOOK_EVERY if server.serving else 0)  # for the pages to see that it is done
        finally:
            await server.stop()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
    return len(kept)


def sessions_file(store: PreferenceStore) -> Path:
    """Where the links of those who label for ``store`` are kept: beside its folder, and never in it, because stores are shared.

    For a store at a URL, or where nothing can be written beside it: in ``$XDG_STATE_HOME/rlhf_ray`` (``~/.local/state`` unless
    set).
    """
    path = store.path
    if isinstance(path, Path) and os.access(path.absolute().parent, os.W_OK):
        return path.absolute().with_name(f"{path.absolute().name}.labelling.json")
    states = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = hashlib.sha256(str(path.absolute() if isinstance(path, Path) else path).encode()).hexdigest()[:16]
    return states / "rlhf_ray" / f"{name}.labelling.json"
