"""Serve the page with uvicorn in the current event loop."""

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
"""Number of ports to try, starting with the configured one."""


class Server:
    """A server for ``app`` on ``socket``, or at the address in ``settings``. Serves after `start`."""

    def __init__(self, app: Any, settings: LabellingSettings, socket: socket.socket | None = None):
        # Imported late: runs without annotators import this module too and need no server.
        import uvicorn

        from rlhf_ray.labelling.guard import LARGEST_HEAD, Connection

        self.socket = socket or listen(settings.host, settings.port)
        self.port: int = self.socket.getsockname()[1]
        # uvicorn trusts X-Forwarded-For and -Proto from proxies on this machine and from those in FORWARDED_ALLOW_IPS.
        config = uvicorn.Config(
            app,
            http=Connection,
            h11_max_incomplete_event_size=LARGEST_HEAD,
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            loop="none",
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start serving; returns when browsers can connect."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self.socket]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)

    @property
    def serving(self) -> bool:
        """Whether the server is running: started, and neither stopped nor interrupted by Ctrl-C."""
        return self._task is not None and not self._task.done() and not self._server.should_exit

    async def stop(self) -> None:
        """Stop the server."""
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._task, 5.0)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the first free port from ``port`` upwards; 0 means any port.

    Raises:
        SettingError: no port is free, or this machine does not have the address.
    """
    for candidate in [port] if port == 0 else range(port, min(port + TRIES, 65536)):
        try:
            return listen_at(host, candidate)
        except OSError as error:
            problem = error
    raise SettingError(
        f"Can't serve the page at labelling.host {host!r}, labelling.port {port} ({problem}): set labelling.port to a free port "
        "or labelling.host to an address of this machine."
    )


def listen_at(host: str, port: int) -> socket.socket:
    """A socket that listens on exactly ``port``.

    Raises:
        OSError: the port is in use or not permitted.
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
    """The port that `remember_port` wrote to ``file``; None if it was for another configured port than ``asked``."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        return int(kept["port"]) if kept["asked"] == asked else None
    return None


def remember_port(file: Path, asked: int, port: int) -> None:
    """Store ``port`` in ``file``, to reuse it next time if the configured port is still ``asked``."""
    with contextlib.suppress(OSError):  # next time the search starts over
        file.write_text(json.dumps({"asked": asked, "port": port}))


def listen_as_before(settings: LabellingSettings, file: Path) -> socket.socket:
    """A socket on the last used port, to which links and unsent answers in browsers belong; another one if it is in use.

    Raises:
        SettingError: no port is free.
    """
    before, listening = remembered_port(file, settings.port), None
    if before is not None:
        with contextlib.suppress(OSError):
            listening = listen_at(settings.host, before)
    listening = listening or listen(settings.host, settings.port)
    port = listening.getsockname()[1]
    if before not in (None, port):
        logger.warning("Another process uses port %s, the page's last port. The page is now at port %s.", before, port)
    remember_port(file, settings.port, port)
    return listening


def allowed_hosts(settings: LabellingSettings) -> list[str]:
    """The host names under which browsers may reach the server, without port."""
    names = ["127.0.0.1", "localhost", "[::1]", *settings.hosts]
    if settings.host not in LOOPBACK:
        names += [settings.host, socket.gethostname(), socket.getfqdn()]
    return list(dict.fromkeys(names))


def links(sessions: Sessions, settings: LabellingSettings, port: int) -> dict[str, str]:
    """The links by annotator, except revoked ones. A link holds the annotator's token: anyone who has it labels in their name."""
    host = socket.gethostname() if settings.host in ("0.0.0.0", "::") else settings.host
    host = f"[{host}]" if ":" in host else host
    sessions.served_at(f"http://{host}:{port}")
    return {
        name: sessions.link(name, f"http://{host}:{port}") for name, person in sessions.people.items() if person.until
    }


def warn_of_readers(settings: LabellingSettings) -> None:
    """Warn if links and answers cross a network unencrypted."""
    if settings.host not in LOOPBACK:
        logger.warning(
            "labelling.host is %s and the page uses HTTP without TLS: anyone on that network can read links and answers. "
            "Keep 127.0.0.1 and use SSH or a TLS proxy (docs/labelling.md).",
            settings.host,
        )
