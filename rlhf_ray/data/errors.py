"""Errors that one line tells: a setting, an environment or a callback that is the user's to mend, and clips that are lost."""

from __future__ import annotations


class SettingError(ValueError):
    """A setting has a value that cannot work. The message names the setting, the value and the remedy."""


class Fault(RuntimeError):  # noqa: N818 - what is raised are its kinds
    """What no restart of a process mends."""


class FaultyEnvironmentError(Fault):
    """An environment raised, or gave what cannot be trained on. The message names environment, step and what was wrong."""


class LostClipsError(Fault):
    """Clips are lost in the synchronous mode, which without them would make another run of it."""

    @staticmethod
    def because(why: str) -> LostClipsError:
        """The error, with the remedy."""
        return LostClipsError(
            f"Clips of a rollout are lost ({why}), and preferences.mode is 'synchronous', which uses all of them: continue from "
            "the last checkpoint with `rlhf-ray train --resume RUN`, or set preferences.mode to asynchronous, which drops them."
        )


class CallbackError(RuntimeError):
    """A callback raised. The message names the callback, the hook and what was raised."""
