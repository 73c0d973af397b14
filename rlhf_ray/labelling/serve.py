"""Serving the page with uvicorn, in the event loop that is running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from pathlib import Path
from typing import Any

from rlhf_ray.data.errors import SettingError
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import LabellingSettings

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TRIES = 20
"""Ports that are tried, from the one that was asked for."""


class Server:
    """A server for ``app``, listening at ``socket`` or else where ``settings`` say. It serves once `start` was waited for."""

    def __init__(self, app: Any, settings: LabellingSettings, socket: socket.socket | None = None):
        # A run that asks nobody has no use for a server, and imports what is here all the same.
        import uvicorn

        from rlhf_ray.labelling import connections

        self.socket = socket or listen(settings.host, settings.port)
        self.port: int = self.socket.getsockname()[1]
        # uvicorn believes X-Forwarded-For and -Proto of proxies on this machine, and of those FORWARDED_ALLOW_IPS names.
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", ws="none", loop="none", **connections.limits()
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when browsers can connect."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self.socket]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)

    @property
    def serving(self) -> bool:
        """Whether it was started, and neither stopped nor ended by Ctrl-C."""
        return self._task is not None and not self._task.done() and not self._server.should_exit

    async def stop(self) -> None:
        """End it."""
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._task, 5.0)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at the first free port from ``port`` on; 0 stands for any.

    Raises:
        SettingError: there is none, or no such address on this machine.
    """
    for candidate in [port] if port == 0 else range(port, min(port + TRIES, 65536)):
        try:
            return listen_at(host, candidate)
        except OSError as error:
            problem = error
    raise SettingError(
        f"labelling.host is {host!r} and labelling.port {port}, where the page cannot be served ({problem}): set "
        "labelling.port to a free one, or labelling.host to an address of this machine."
    )


def listen_at(host: str, port: int) -> socket.socket:
    """A socket that listens at ``port`` and no other.

    Raises:
        OSError: it is taken, or may not be had.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def remembered_port(file: Path, asked: int) -> int | None:
    """The port that `remember_port` has written to ``file``, unless the settings ask for another one than ``asked`` then."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        return int(kept["port"]) if kept["asked"] == asked else None
    return None


def remember_port(file: Path, asked: int, port: int) -> None:
    """Have the page served at ``port`` the next time too, where the settings ask for ``asked`` again."""
    with contextlib.suppress(OSError):  # the next time it looks for a port anew
        file.write_text(json.dumps({"asked": asked, "port": port}))


def listen_as_before(settings: LabellingSettings, file: Path) -> socket.socket:
    """A socket at the port of the last time, which links and the answers that browsers keep are of; another where it is taken.

    Raises:
        SettingError: there is none.
    """
    before, listening = remembered_port(file, settings.port), None
    if before is not None:
        with contextlib.suppress(OSError):
            listening = listen_at(settings.host, before)
    listening = listening or listen(settings.host, settings.port)
    port = listening.getsockname()[1]
    if before not in (None, port):
        logger.warning("Another process has port %s, where the page was last time. It is at port %s now.", before, port)
    remember_port(file, settings.port, port)
    return listening


def allowed_hosts(settings: LabellingSettings) -> list[str]:
    """The names that browsers may call the server by, without port."""
    names = ["127.0.0.1", "localhost", "[::1]", *settings.hosts]
    if settings.host not in LOOPBACK:
        names += [settings.host, socket.gethostname(), socket.getfqdn()]
    return list(dict.fromkeys(names))


def links(sessions: Sessions, settings: LabellingSettings, port: int) -> dict[str, str]:
    """Each person's link, but for people who are shut out. It holds their token: whoever has it labels in their name."""
    host = socket.gethostname() if settings.host in ("0.0.0.0", "::") else settings.host
    host = f"[{host}]" if ":" in host else host
    sessions.served_at(f"http://{host}:{port}")
    return {name: sessions.link(name, f"http://{host}:{port}") for name, of in sessions.people.items() if of.until}


def warn_of_readers(settings: LabellingSettings) -> None:
    """Say so where links and answers would cross a network unencrypted."""
    if settings.host not in LOOPBACK:
        logger.warning(
            "labelling.host is %s, and the page speaks HTTP without TLS: whoever can listen in that network can read links and "
            "answers. Keep 127.0.0.1, and use SSH or a proxy with TLS (docs/labelling.md).",
            settings.host,
        )
