"""Errors that are the user's to mend: a setting, their environment, or their callback."""

from __future__ import annotations


class SettingError(ValueError):
    """A setting has a value that cannot work. The message names the setting, the value and the remedy."""


class FaultyEnvironmentError(RuntimeError):
    """An environment raised, or gave what cannot be trained on. The message names environment, step and what was wrong."""


class CallbackError(RuntimeError):
    """A callback raised. The message names the callback, the hook and what was raised."""
