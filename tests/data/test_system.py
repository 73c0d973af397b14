"""What depends on the system, on this one and as on macOS."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rlhf_ray.data import system
from rlhf_ray.data.errors import SettingError


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module as macOS's Python has it: without affinity and /proc."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert system.__file__
    spec = importlib.util.spec_from_file_location("system_on_macos", system.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MEMORY", tmp_path / "absent")
    return module


def test_macos_has_cores_and_opengl_and_no_word_on_memory(macos, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    assert macos.usable_cores() == 8
    assert macos.available_memory() is None
    macos.draw_offscreen()
    macos.load_opengl()
    assert "MUJOCO_GL" not in os.environ  # "egl" is an error there
    assert macos.opengl_loaded()


@pytest.mark.skipif(not system.LINUX, reason="Linux's own files")
def test_linux_tells_cores_and_memory(monkeypatch, tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       4 kB\nMemAvailable:   3 kB\n")
    monkeypatch.setattr(system, "MEMORY", meminfo)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert system.available_memory() == 3 * 1024
    assert system.usable_cores() == 3
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    system.draw_offscreen()
    assert os.environ.pop("MUJOCO_GL") == "egl"


def test_without_opengl_on_linux_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(system, "LINUX", True)
    monkeypatch.setattr(system, "_loaded", set())
    monkeypatch.setattr(system, "OPENGL", "libNoSuch.so.1")
    system.load_opengl()
    assert not system.opengl_loaded()


def test_cores_are_bounded_here_and_in_processes_of_this_one(monkeypatch):
    monkeypatch.setenv(system.CORES, "9")  # restored at the end
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    for bound, cores in ((2, 2), (None, 2), (64, 3)):
        system.bound_cores(bound)
        assert system.usable_cores() == cores
    assert os.environ[system.CORES] == "64"
    for word in ("all", "0", "-1"):  # somebody else's
        monkeypatch.setenv(system.CORES, word)
        assert system.usable_cores() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    system.bound_cores(2)
    with pytest.raises(SettingError, match="--cores is 1, but OMP_NUM_THREADS gives torch 2 threads: unset"):
        system.bound_cores(1)
    assert os.environ[system.CORES] == "2"


@pytest.mark.parametrize(
    ("told", "threads"),
    [
        *((None, None), (" ", None), ("4", 4), ("2, 1", 2)),
        *((odd, "no number") for odd in ("abc", "0", "-3", "2.5", "2,x", ",")),
    ],
)
def test_torch_threads_are_told_by_openmps_variable(monkeypatch, told, threads):
    monkeypatch.delenv("OMP_NUM_THREADS")
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    if threads == "no number":
        with pytest.raises(
            SettingError, match=r"OMP_NUM_THREADS is .*; it must be a whole number, 1 or more: unset it, or"
        ):
            system.torch_threads()
    else:
        assert system.torch_threads() == threads
