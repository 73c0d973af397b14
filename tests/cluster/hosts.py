"""Hosts on this machine: namespaces with an address, processes, /tmp, a home folder and an sshd of their own.

The file system is otherwise shared, and with it Python and its packages. Processes of a host are seen by that host alone, so that
`ray stop` there ends nothing else; all of them end with the host.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.whole_runs import with_path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("unshare", "nsenter", "ip", "sshd", "ssh", "ssh-keygen", "rsync", "git")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"

START = """
set -eu
folder=$1; shift
mount --make-rprivate /
mount --bind "$folder" /mnt
i=0; for path; do i=$((i+1)); mkdir -p "/mnt/kept/$i"; mount --bind "$path" "/mnt/kept/$i"; done
mount --bind /mnt/passwd /etc/passwd
mount --bind /mnt/tmp /tmp
i=0; for path; do i=$((i+1)); mkdir -p "$path"; mount --bind "/mnt/kept/$i" "$path"; done
mount -t tmpfs -o size=3g tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
ip link set lo up
exec "$(command -v sshd)" -D -e -f /mnt/sshd_config 2>/mnt/sshd.log
"""
SSHD = f"""
HostKey /mnt/host_key
AuthorizedKeysFile /mnt/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
MaxStartups 100
MaxSessions 100
SetEnv PYTHONPATH={ROOT}
"""


def missing() -> str | None:
    """What this machine lacks to have hosts; None where it lacks nothing."""
    if os.geteuid() != 0:
        return "namespaces and sshd need root"
    tools = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if tools:
        return f"not installed: {', '.join(tools)} (Debian's openssh-server, openssh-client, rsync, iproute2, util-linux, git)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
    )
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


class Host:
    """One host, whose files are in `folder`, its /mnt; whoever has `key` may log in as root. `connect` gives it a network."""

    def __init__(self, folder: Path, key: str):
        self.folder, self.home = folder, folder / "home"
        for each in (self.home, folder / "tmp"):
            each.mkdir(parents=True)
        (self.home / ".bashrc").touch()
        (folder / "authorized_keys").write_text(key)
        (folder / "sshd_config").write_text(SSHD)
        lines = Path("/etc/passwd").read_text().splitlines()
        (folder / "passwd").write_text(
            "".join(
                "root:x:0:0:root:/mnt/home:/bin/bash\n" if line.startswith("root:") else f"{line}\n" for line in lines
            )
        )
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")], check=True)
        # What lies below the machine's /tmp and is needed under its name.
        kept = {str(ROOT), sys.prefix, sys.base_prefix}
        namespaces = [
            *("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("bash", "-c", START, "host", str(folder), *sorted(path for path in kept if path.startswith("/tmp/"))),
        ]
        self.process = subprocess.Popen(namespaces, env=os.environ | {"PATH": PATH}, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while "Server listening" not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def log(self) -> str:
        """What its sshd has said."""
        file = self.folder / "sshd.log"
        return file.read_text() if file.exists() else ""

    @property
    def init(self) -> int:
        """Its first process, by its number on the machine."""
        (child,) = psutil.Process(self.process.pid).children()
        return child.pid

    def command(self, *words: str, **environment: str) -> tuple[list[str], dict[str, str]]:
        """What runs ``words`` on the host, in its home folder, as somebody who has logged in."""
        kept = {name: value for name, value in with_path(ROOT).items() if not name.startswith("RAY_")}
        own = {"HOME": "/mnt/home", "PATH": f"{Path(sys.executable).parent}:{PATH}"}
        into = ["nsenter", f"--target={self.init}", "--net", "--mount", "--uts", "--ipc", "--pid"]
        return [*into, "--", "bash", "-c", 'cd && exec "$@"', "login", *words], kept | own | environment

    def run(self, *words: str, within: float = 240.0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``words`` on the host."""
        command, variables = self.command(*words, **environment)
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=within)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start ``words`` on the host; they end with it at the latest."""
        command, variables = self.command(*words)
        return subprocess.Popen(command, env=variables, text=True, **options)

    def names(self) -> list[str]:
        """The names of all processes that it sees."""
        return self.run("ps", "-e", "-o", "comm=").stdout.split()

    def net(self, *words: str) -> None:
        """Run `ip` with its network."""
        subprocess.run(
            ["nsenter", f"--target={self.process.pid}", "--net", "ip", *words],
            check=True,
            env=os.environ | {"PATH": PATH},
        )

    def close(self) -> None:
        """End it and all that runs on it."""
        if self.process.poll() is None:
            os.kill(self.init, signal.SIGKILL)  # the first of a host's processes takes the others with it
            self.process.wait(30)


@contextlib.contextmanager
def connected(folder: Path, *names: str) -> Iterator[list[Host]]:
    """Hosts of these names on one network: 10.77.0.1, 10.77.0.2, … Whoever has the key ``folder/key`` may log in."""
    if (lacks := missing()) is not None:
        pytest.skip(lacks)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    made: list[Host] = []
    try:
        made += (Host(folder / name, (folder / "key.pub").read_text()) for name in names)
        _connect(*made)
        yield made
    finally:
        for host in made:
            host.close()


def _connect(first: Host, *others: Host) -> None:
    first.net("link", "add", "switch", "type", "bridge")
    first.net("address", "add", "10.77.0.1/24", "dev", "switch")
    first.net("link", "set", "switch", "up")
    for number, host in enumerate(others, start=2):
        link = f"link{number}"
        first.net("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(host.process.pid))
        first.net("link", "set", link, "master", "switch", "up")
        host.net("address", "add", f"10.77.0.{number}/24", "dev", "eth0")
        host.net("link", "set", "eth0", "up")
        host.net("route", "add", "default", "via", "10.77.0.1")  # leads nowhere; Ray finds its own address by it


def wait(what: Callable[[], Any], within: float = 60.0) -> Any:
    """What ``what`` returns, as soon as that is true."""
    deadline = time.monotonic() + within
    while not (found := what()):
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.2)
    return found


BIN = Path(sys.executable).parent


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
    """A head node with a home folder, a token and ports of its own. Its processes may have its dashboard's address in
    RAY_API_SERVER_ADDRESS, as on nodes set up for people (`names_itself`).
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
