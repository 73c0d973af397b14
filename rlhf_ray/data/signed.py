"""Signatures of folders whose files run code when they are opened: RLlib's checkpoints and Tune's states, which are pickles.

What a run of this user writes gets a signature: an HMAC over the names and hashes of its files, with a key that lies in the user's
configuration folder. A folder without one, with files changed or added since, or from another user or machine, is opened only if
the user allows it once: by ``--allow-pickle FOLDER``, or `trust` in Python. It is signed then.
"""

import contextlib
import functools
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import config_folder
from rlhf_ray.data.strays import stray

FLAG = "--allow-pickle"

SIGNATURE = "signed.json"

_ADDED = (SIGNATURE, "manifest.json", ".metadata.json")
"""Files that come after the signature: ours and Tune's, of JSON, which runs nothing."""

_PLAIN = (".npz", ".safetensors", ".arrow", ".parquet")
"""Arrays and tables, which are read without pickle. They are large, so that hashing them would take long."""

_BYTES = 32

_own = secrets.token_bytes(_BYTES)
"""The key of this process, where none can be kept."""

_trusted: set[Path] = set()


def trust(folder: Path | str) -> None:
    """Allow opening the pickles in ``folder`` and below it. Those that this process opens are signed, for later ones."""
    _trusted.add(Path(folder).resolve())


def sign(folder: Path, skip: Collection[str] = ()) -> None:
    """Sign the files in ``folder``.

    Args:
        folder: the folder.
        skip: names of its subfolders that hold nothing that runs code.
    """
    write_text(folder / SIGNATURE, json.dumps({"hmac": _hmac(_key(), folder, skip)}) + "\n")


def digest(folder: Path, skip: Collection[str] = ()) -> str:
    """Return a hash of what `sign` would sign."""
    return _hmac(b"", folder, skip)


def check(folder: Path, source: Path, skip: Collection[str] = ()) -> None:
    """Check that a process of this user has signed ``folder``, or a folder around it, and that nothing has changed since.

    Args:
        folder: the folder.
        source: what the user calls it: the run, the checkpoint or the sweep.
        skip: as for `sign`.

    Raises:
        SettingError: it is not signed, or not by this user, or files have changed; and nobody allowed it.
    """
    folder = folder.absolute()
    around = next((above for above in (folder, *folder.parents) if (above / SIGNATURE).exists()), folder)
    if folder.relative_to(around).parts[:1] not in [(name,) for name in skip]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            given = json.loads((around / SIGNATURE).read_text())["hmac"]
            if hmac.compare_digest(str(given), _hmac(_key(), around, skip)):
                return
    if any(folder.resolve().is_relative_to(trusted) for trusted in _trusted):
        with contextlib.suppress(OSError, ValueError):  # it can't be written, or has links: the next command asks again
            sign(folder, skip)
        return
    raise SettingError(
        f"{source} has pickles, which run code when they are opened, and they are not known to be yours: somebody else made them, "
        f"another machine did, or they have changed. If you trust them, add {FLAG} {source} (in Python, call "
        "rlhf_ray.data.signed.trust first)."
    )


def _hmac(key: bytes, folder: Path, skip: Collection[str]) -> str:
    """Return the HMAC of the files in ``folder``.

    Raises:
        ValueError: there is something else than files and folders, such as a link to what can change.
    """
    content = hmac.new(key, digestmod="sha256")
    for place, folders, names in os.walk(folder):
        left_out = skip if place == str(folder) else ()
        folders[:] = sorted(name for name in folders if name not in left_out and not stray(name))
        for name in folders + sorted(name for name in names if not stray(name)):
            path = Path(place, name)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise ValueError(f"{path} is no file")
            if path.suffix in _PLAIN or (place == str(folder) and name in _ADDED):
                continue
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            content.update(f"{path.relative_to(folder)}\0{digest}\n".encode(errors="surrogateescape"))
    return content.hexdigest()


def _key() -> bytes:
    """Return this user's key; where the home folder can't be written, one for this machine; else one for this process."""
    for folder, private in ((config_folder(), False), (Path(tempfile.gettempdir(), f"rlhf_ray-{os.getuid()}"), True)):
        with contextlib.suppress(OSError):
            return _kept_key(folder, private)
    return _own


@functools.lru_cache
def _kept_key(folder: Path, private: bool) -> bytes:
    """Return the key in ``folder``, made if missing. A ``private`` folder must be this user's, who alone may look into it.

    Raises:
        OSError: there is none, and none can be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.lstat()
    if private and not (stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077):
        raise PermissionError(folder)
    file = folder / "key"
    with (
        contextlib.suppress(FileExistsError),
        open(file, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as made,
    ):
        made.write(secrets.token_bytes(_BYTES))
    for _ in range(20):
        if len(key := file.read_bytes()) == _BYTES:
            return key
        time.sleep(0.05)  # another process is just writing it
    raise OSError(f"{file} is no key")
