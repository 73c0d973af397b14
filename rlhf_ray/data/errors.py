"""Errors whose message is all a user needs: about a setting, an environment, a callback or lost fragments."""

from __future__ import annotations


class SettingError(ValueError):
    """A setting has an invalid value. The message names the setting, the value and the remedy."""


class Fault(RuntimeError):  # noqa: N818 - only its subclasses are raised
    """A failure that restarting a process doesn't fix."""


class FaultyEnvironmentError(Fault):
    """An environment raised, or returned invalid data. The message names environment, step and problem."""


class BrokenAgentError(Fault):
    """An agent returns NaN or infinite numbers. The message names agent and place."""


class PartError(Fault):
    """A part of the user's own (gatherer, teacher, …) raised. The message names the setting, the part, its error and the place."""


class LostFragmentsError(Fault):
    """Fragments were lost in the synchronous mode, where losing any changes the run."""

    @staticmethod
    def because(why: str) -> LostFragmentsError:
        """Build the error with cause and remedy."""
        return LostFragmentsError(
            f"A rollout's fragments are lost ({why}), and preferences.mode is 'synchronous', which needs all of them: "
            "continue from the last checkpoint with `rlhf-ray train --resume RUN`, or set preferences.mode to asynchronous, which "
            "drops them."
        )


class CallbackError(RuntimeError):
    """A callback raised. The message names the callback, the hook and the original error."""
