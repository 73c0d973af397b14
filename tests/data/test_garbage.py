"""Work without a search for garbage: what was switched on before is on afterwards."""

import gc

import pytest

from rlhf_ray.data.garbage import uncollected


def test_there_is_no_search_inside_and_one_outside() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_switches_it_on_again() -> None:
    with pytest.raises(ZeroDivisionError), uncollected():
        1 / 0  # noqa: B018
    assert gc.isenabled()
