"""Signatures: what their owner wrote is known, what anybody changed or added is not."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlhf_ray.data import signed
from rlhf_ray.data.errors import SettingError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A signed folder, of which a subfolder and arrays are left out."""
    monkeypatch.setattr(signed, "_trusted", set())
    folder = tmp_path / "checkpoint"
    (folder / "inner").mkdir(parents=True)
    (folder / "store").mkdir()
    for name in ("a.pkl", "inner/state.pkl", "inner/about.json", "arrays.npz"):
        (folder / name).write_bytes(name.encode())
    signed.sign(folder, ("store",))
    return folder


def check(folder: Path) -> None:
    signed.check(folder, folder, ("store",))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.pkl").write_bytes(b"other"),
        lambda folder: (folder / "inner/about.json").write_text("{}"),
        lambda folder: (folder / "inner/state.pkl").unlink(),
        lambda folder: (folder / "a.pkl").rename(folder / "b.pkl"),
        lambda folder: (folder / "state.msgpack").touch(),
        lambda folder: (folder / "inner/manifest.json").touch(),
        lambda folder: os.symlink("/tmp", folder / "more"),
        lambda folder: (folder / signed.SIGNATURE).write_text("[]"),
        lambda folder: (folder / signed.SIGNATURE).unlink(),
    ],
)
def test_any_change_is_noticed_and_asked_about_once(folder, change, monkeypatch):
    check(folder)
    check(folder / "inner")
    change(folder)
    with pytest.raises(SettingError, match=f"add --allow-pickle {folder} "):
        check(folder)
    signed.trust(folder.parent)
    check(folder)
    monkeypatch.setattr(signed, "_trusted", set())
    if (folder / "more").is_symlink():
        (folder / "more").unlink()
    else:
        check(folder)


def test_what_is_left_out_may_change_but_is_not_known(folder):
    for name in ("store/event", "arrays.npz", "manifest.json", "inner/._state.pkl"):
        (folder / name).write_text("new")
    check(folder)
    with pytest.raises(SettingError):
        check(folder / "store")


def test_a_copy_keeps_its_signature_and_another_key_does_not_know_it(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "copy")
    check(tmp_path / "copy")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    with pytest.raises(SettingError):
        check(folder)
    key = tmp_path / "another" / "rlhf_ray" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_without_a_home_that_can_be_written_the_key_is_this_machines(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = tmp_path / f"rlhf_ray-{os.getuid()}"
    signed.sign(folder, ("store",))
    check(folder)
    assert (mine / "key").exists()
    signed._kept_key.cache_clear()  # as in another process
    check(folder)
    mine.chmod(0o777)  # anybody could have put the key there
    signed._kept_key.cache_clear()
    with pytest.raises(SettingError):
        check(folder)
    signed.sign(folder, ("store",))  # with a key of this process
    check(folder)


def test_processes_that_make_the_key_at_the_same_time_agree(tmp_path):
    program = "from rlhf_ray.data.signed import _key; print(_key().hex())"
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) for _ in range(6)
    ]
    assert len({process.communicate()[0] for process in started}) == 1
