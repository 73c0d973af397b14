"""What an environment sets for the whole process holds while its own code runs, and nowhere else."""

import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data import defaults
from rlhf_ray.data.defaults import making, own_defaults, stepping


def state() -> Any:
    """What is to stay."""
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_deterministic_debug_mode(),
        torch.get_default_device(),
        torch.get_num_threads(),
        np.geterr(),
        os.getcwd(),
        [each for each in warnings.filters if each[0] == "error"],
        signal.getsignal(signal.SIGINT),
    )


def set_all() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    np.seterr(all="raise")
    os.chdir("/")
    warnings.simplefilter("error")
    signal.signal(signal.SIGINT, lambda *_: None)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(defaults, "_theirs", None)
    with warnings.catch_warnings():
        yield


def test_what_a_constructor_sets_holds_in_later_steps_alone():
    before = state()
    with making:
        set_all()
    assert state() == before
    for _ in range(2):
        with stepping, making:  # also one in the other
            assert torch.zeros(1).dtype == torch.float64
            assert str(torch.get_default_device()) == "meta"
            assert (torch.is_grad_enabled(), np.geterr()["over"], os.getcwd()) == (False, "raise", "/")
            assert torch.get_deterministic_debug_mode() == 1
        assert state() == before


def test_what_a_step_sets_is_noticed_too():
    before = state()
    with stepping:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        warnings.simplefilter("error")
    assert state() == before
    with stepping:
        assert torch.get_default_dtype() == torch.float64
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    assert defaults._theirs is None  # as everywhere again


def test_a_script_that_sets_defaults_has_them_outside_of_the_product_and_its_environments_inside():
    before = state()
    torch.set_default_dtype(torch.float64)
    np.seterr(all="raise")
    try:
        with own_defaults():
            assert state() == before
            with stepping:
                assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_dtype() == torch.float64
        assert np.geterr()["under"] == "raise"
    finally:
        torch.set_default_dtype(torch.float32)
        np.seterr(**defaults.PLAIN_ERRORS)
