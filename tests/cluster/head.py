"""Real Ray heads that ask for a token, on this machine beside whatever else runs here."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import requests

from tests.whole_runs import with_path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at. Below those that the system gives away by itself."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Head:
    """A head node with a home folder, a token and ports of its own.

    Args:
        home: its home folder.
        cpus: that Ray shall think it has.
        names_itself: whether its processes have its dashboard's address in RAY_API_SERVER_ADDRESS, as on nodes set up for people.
    """

    def __init__(self, home: Path, cpus: int = 4, *, names_itself: bool = False):
        self.home = home
        token = home / ".ray" / "auth_token"
        token.parent.mkdir(parents=True, exist_ok=True)
        if not token.exists():
            token.write_text(secrets.token_hex(32))
        self.folder = Path(tempfile.mkdtemp(prefix="head", dir="/tmp"))  # a Unix socket's path may have 107 characters
        gcs, dashboard, agent, agent_grpc, metrics, client = free_ports(6)
        self.address, self.ray = f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}"
        self.dashboard = f"127.0.0.1:{dashboard}"
        words = [
            *("start", "--head", "--block", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"),
            *(f"--port={gcs}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
            *(f"--dashboard-agent-grpc-port={agent_grpc}", f"--metrics-export-port={metrics}"),
            *(f"--ray-client-server-port={client}", f"--temp-dir={self.folder}", f"--num-cpus={cpus}"),
            *("--object-store-memory=150000000", "--disable-usage-stats"),
        ]
        environment = self.environment(**({"RAY_API_SERVER_ADDRESS": self.address} if names_itself else {}))
        for _ in range(3):  # Ray gives a node 30 s to start, which a busy machine may exceed
            self.log = (self.folder / "start.log").open("w")
            self.process = subprocess.Popen(
                [str(BIN / "ray"), *words], env=environment, stdout=self.log, stderr=subprocess.STDOUT
            )
            if self._wait():
                return
            self.log.close()
        raise TimeoutError((self.folder / "start.log").read_text())

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of somebody on this node."""
        kept = {name: value for name, value in with_path(ROOT).items() if not name.startswith("RAY_")}
        own = {
            "HOME": str(self.home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_worker_niceness": "0",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }
        return kept | own | more

    def _wait(self) -> bool:
        """Whether it has started; false where Ray has given up."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            printed = (self.folder / "start.log").read_text()
            if self.process.poll() is not None:
                assert "timed out during startup" in printed, printed
                return False
            try:
                token = (self.home / ".ray" / "auth_token").read_text()
                agents = requests.get(
                    f"{self.address}/api/jobs/", headers={"Authorization": f"Bearer {token}"}, timeout=5
                )
                if agents.status_code == 200 and "Ray runtime started" in printed:
                    return True
            except requests.RequestException:
                pass
            time.sleep(0.5)
        raise TimeoutError((self.folder / "start.log").read_text())

    def kill(self) -> None:
        """End it and all that it started, as when the machine goes down."""
        family = [self.process, *psutil.Process(self.process.pid).children(recursive=True)]
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()

    def close(self) -> None:
        """End it, and leave nothing behind."""
        if self.process.poll() is None:
            self.kill()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
