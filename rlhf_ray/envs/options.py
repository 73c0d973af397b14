"""Options of environments' constructors."""

from __future__ import annotations

from typing import Any, get_args

from rlhf_ray.data.errors import SettingError


def checked_option(name: str, value: str, kind: Any, of: str) -> str:
    """Return ``value`` if it is one of the literals in ``kind``.

    Raises:
        SettingError: it is not.
    """
    if value not in get_args(kind):
        allowed = ", ".join(repr(choice) for choice in get_args(kind))
        raise SettingError(f"{name} of {of} is {value!r}; it must be one of {allowed}.")
    return value
