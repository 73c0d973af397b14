"""The process's defaults, such as torch's default dtype, as the product needs them and as environments leave them.

A simulator written in torch may set float64 as the default dtype, or switch gradients off, for the whole process: networks
made later would be float64, or not learn. So an environment's code runs with the defaults that it has set, and everything else
without them.

=====================================================================================  ===========================================
default                                                                                what an environment's change of it does
=====================================================================================  ===========================================
torch's dtype, gradients, deterministic algorithms, device; numpy's errors; folder     holds while the environment's code runs
warnings as errors; number of torch's threads; handlers of Ctrl-C and SIGTERM          is undone
=====================================================================================  ===========================================
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

PLAIN_ERRORS: Any = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
"""Numpy's own."""

PLAIN_DEVICE = "cpu"


def _torch() -> Any:
    """Torch if it is imported, which takes a second; until then, its defaults are its own."""
    return sys.modules.get("torch")


@dataclass(frozen=True)
class _State:
    """Defaults. ``dtype`` is None for float32; ``deterministic`` is torch's ``get_deterministic_debug_mode``."""

    dtype: Any
    gradients: bool
    deterministic: int
    device: str
    errors: Any
    folder: str

    @staticmethod
    def now() -> _State:
        torch, numpy = _torch(), sys.modules.get("numpy")
        device = PLAIN_DEVICE if torch is None else str(torch.get_default_device())
        return _State(*_quick(), device, PLAIN_ERRORS if numpy is None else numpy.geterr(), os.getcwd())

    def apply(self, before: _State) -> None:
        """Set what differs from ``before``, the state of now."""
        torch = _torch()
        if self.dtype is not before.dtype:
            torch.set_default_dtype(self.dtype or torch.float32)
        if self.gradients != before.gradients:
            torch.set_grad_enabled(self.gradients)
        if self.deterministic != before.deterministic:
            torch.use_deterministic_algorithms(self.deterministic > 0, warn_only=self.deterministic == 1)
        if self.device != before.device:
            torch.set_default_device(None if self.device == PLAIN_DEVICE else self.device)
        if self.errors != before.errors:
            sys.modules["numpy"].seterr(**self.errors)
        if self.folder != before.folder:
            os.chdir(self.folder)


class _Here(threading.local):
    """Where a thread is: how deep in environments' code, and what to restore after it."""

    depth = 0
    whole = False
    own: Any = None
    filters: Any = ()
    others: Any = None


_here = _Here()
_theirs: _State | None = None
"""What environments have set; None if that is what everything else has."""


def _quick() -> tuple[Any, bool, int]:
    """What takes no time to read: dtype, gradients, deterministic."""
    if (torch := _torch()) is None:
        return None, True, 0
    dtype = None if (dtype := torch.get_default_dtype()) is torch.float32 else dtype
    return dtype, torch.is_grad_enabled(), torch.get_deterministic_debug_mode()


class _Theirs(contextlib.ContextDecorator):
    """Context manager, or decorator, around an environment's code.

    Args:
        whole: whether to look at all defaults afterwards; otherwise, until some were changed, at those that take no time to read.
    """

    def __init__(self, whole: bool):
        self.whole = whole

    def __enter__(self) -> None:
        here = _here
        here.depth += 1
        if here.depth > 1:
            return
        here.filters, here.whole = list(warnings.filters), self.whole or _theirs is not None
        here.own = _State.now() if here.whole else _quick()
        here.others = _others() if self.whole else None
        if _theirs is not None:
            _theirs.apply(here.own)

    def __exit__(self, *exception: object) -> None:
        global _theirs
        here = _here
        here.depth -= 1
        if here.depth:
            return
        if here.filters != warnings.filters:
            _tolerate_warnings(here.filters)
        if here.others is not None:
            _restore(*here.others)
        if not here.whole and here.own == _quick():
            return
        after = _State.now()
        own = here.own if here.whole else _State(*(*here.own, after.device, after.errors, after.folder))
        own.apply(after)
        _theirs = None if own == after else after


making, stepping = _Theirs(whole=True), _Theirs(whole=False)
"""Context managers around an environment's import, constructor and reset; and around each of its steps."""


@contextlib.contextmanager
def own_defaults() -> Iterator[None]:
    """Context manager around code of the product that a user's script calls: the script, too, may have changed the defaults."""
    before = take_own_defaults()
    try:
        yield
    finally:
        before.apply(_State.now())


def take_own_defaults() -> _State:
    """Set the product's own defaults for good, in a process of its own. Returns those before, which environments keep."""
    global _theirs
    before = _State.now()
    plain = replace(before, dtype=None, gradients=True, device=PLAIN_DEVICE, errors=PLAIN_ERRORS)
    plain.apply(before)
    if before != plain and _theirs is None:
        _theirs = before
    return before


def _tolerate_warnings(before: list[Any]) -> None:
    """Remove filters that turn warnings into errors and that ``before`` lacks."""
    kept = [each for each in warnings.filters if each[0] != "error" or each in before]
    if len(kept) != len(warnings.filters):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tells Python's cache of filters about the change
        warnings.filters[:] = kept  # type: ignore[index]


def _others() -> tuple[int | None, dict[Any, Any]]:
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    return (torch := _torch()) and torch.get_num_threads(), handlers


def _restore(threads: int | None, handlers: dict[Any, Any]) -> None:
    if threads not in (None, (torch := _torch()) and torch.get_num_threads()):
        torch.set_num_threads(threads)
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
