"""Access to a cluster: Ray's token, and why nobody is let in. Importing it imports no Ray, which looks for the token once, then."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from rlhf_ray.data.errors import SettingError

REMEDY = "Copy ~/.ray/auth_token here from the machine that started the cluster, or name a copy: RAY_AUTH_TOKEN_PATH."


class NoAccessError(SettingError):
    """There is no way into a cluster. ``seen`` says why, ``remedy`` what to do."""

    def __init__(self, seen: str, remedy: str):
        super().__init__(f"{seen}. {remedy}")
        self.seen, self.remedy = seen, remedy

    def __reduce__(self) -> tuple[type[NoAccessError], tuple[str, str]]:
        return NoAccessError, (self.seen, self.remedy)


def token_source() -> str | None:
    """Where this process has Ray's token from, in Ray's order; None where it has none."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return str(path) if path.is_file() else None


def show_token() -> None:
    """Have this process show Ray's token where there is one and nothing was said about tokens."""
    if token_source() is not None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def shows_token() -> bool:
    """Whether this process shows a token."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token" and token_source() is not None


def refused(address: str) -> NoAccessError:
    """What to say where the cluster at ``address`` did not take the token that this process shows, or does not."""
    source = token_source()
    if source is None:
        path = os.environ.get("RAY_AUTH_TOKEN_PATH")
        none = "this machine has none" if path is None else f"RAY_AUTH_TOKEN_PATH is {path}, where no file is"
        return NoAccessError(f"The cluster at {address} asks for a token, and {none}", REMEDY)
    if not shows_token():
        return NoAccessError(
            f"The cluster at {address} asks for a token, and RAY_AUTH_MODE={os.environ.get('RAY_AUTH_MODE')} keeps this machine "
            f"from showing its own ({source})",
            "Set RAY_AUTH_MODE=token.",
        )
    return NoAccessError(
        f"The cluster at {address} refuses the token of this machine ({source}): it has another", REMEDY
    )


def silent(address: str, why: object) -> NoAccessError:
    """What to say where nothing answers at ``address``."""
    remedy = "Bring the cluster there (`ray dashboard cluster.yaml` brings its dashboard), or name another address: --address."
    return NoAccessError(f"Nothing answers at {address} ({why})", remedy)


def reach(address: str) -> None:
    """Fail at once where nobody listens, which Ray takes minutes to find out.

    Args:
        address: ``HOST:PORT``. Of any other form, as ``auto``, nothing is known.

    Raises:
        NoAccessError: nobody listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and "://" not in host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10.0).close()
        except OSError as error:
            raise silent(address, error.strerror or error) from error
