"""Access to a cluster: Ray's token, and errors about it. Doesn't import Ray, which looks for the token once, when imported."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from rlhf_ray.data.errors import SettingError

REMEDY = "Copy ~/.ray/auth_token here from the machine that started the cluster, or name a copy: RAY_AUTH_TOKEN_PATH."


class NoAccessError(SettingError):
    """A cluster can't be reached or rejects the token. ``seen`` is the problem, ``remedy`` the remedy."""

    def __init__(self, seen: str, remedy: str):
        super().__init__(f"{seen}. {remedy}")
        self.seen, self.remedy = seen, remedy

    def __reduce__(self) -> tuple[type[NoAccessError], tuple[str, str]]:
        return NoAccessError, (self.seen, self.remedy)


def token_source() -> str | None:
    """Return where this process has Ray's token from, in Ray's order of precedence; None if it has none."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return str(path) if path.is_file() else None


def make_token() -> None:
    """Make a token that this user alone can read, if there is none: in the home folder, or for this process if that can't keep it.

    Ray makes one that others on the machine can read.
    """
    if token_source() is not None:
        return
    token = secrets.token_hex(32)
    try:
        folder = Path.home() / ".ray"
        folder.mkdir(0o700, exist_ok=True)
        with open(folder / "auth_token", "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(token)
    except FileExistsError:  # another process was faster
        pass
    except (OSError, RuntimeError):  # the user may have no home
        os.environ["RAY_AUTH_TOKEN"] = token


def show_token() -> None:
    """Send Ray's token from this process, if there is one and RAY_AUTH_MODE is not set."""
    if token_source() is not None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def refused(address: str) -> NoAccessError:
    """Build the error for a cluster at ``address`` that rejects this process's token, or doesn't get one."""
    source = token_source()
    if source is None:
        path = os.environ.get("RAY_AUTH_TOKEN_PATH")
        none = "this machine has none" if path is None else f"RAY_AUTH_TOKEN_PATH is {path}, which is not a file"
        return NoAccessError(f"The cluster at {address} requires a token, but {none}", REMEDY)
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return NoAccessError(
            f"The cluster at {address} requires a token, but RAY_AUTH_MODE={os.environ.get('RAY_AUTH_MODE')} prevents this machine "
            f"from sending its own ({source})",
            "Set RAY_AUTH_MODE=token.",
        )
    return NoAccessError(
        f"The cluster at {address} rejects this machine's token ({source}): it has another one", REMEDY
    )


def silent(address: str, why: object) -> NoAccessError:
    """Build the error for an address where nothing answers."""
    remedy = "Forward the cluster's port (`ray dashboard cluster.yaml` forwards its dashboard), or name another address: --address."
    return NoAccessError(f"Nothing answers at {address} ({why})", remedy)


def reach(address: str) -> None:
    """Fail at once if nothing listens at ``address``; Ray takes minutes to notice.

    Args:
        address: ``HOST:PORT``. Other forms, such as ``auto``, are not checked.

    Raises:
        NoAccessError: nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and "://" not in host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10.0).close()
        except OSError as error:
            raise silent(address, error.strerror or error) from error
