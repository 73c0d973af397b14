import pytest

from rlhf_ray.data.strays import is_empty, stray


@pytest.mark.parametrize(
    "name",
    [".DS_Store", "._a.png", "desktop.ini", "Thumbs.db", "ehthumbs.db", "Icon\r", ".nfs000000a1", "@eaDir",
     "a (conflicted copy 2026-11-28).csv", "a (Ada's conflicted copy).csv", "a.sync-conflict-20261128-1-ABC.csv"],
)  # fmt: skip
def test_strays(name):
    assert stray(name)


@pytest.mark.parametrize(
    "name", ["a.csv", ".tmp-host-1-0a", ".git", ".env", "_a", "x._y", "thumbs.dbx", "conflict.csv"]
)
def test_files_of_people(name, tmp_path):
    assert not stray(name)
    (tmp_path / "Thumbs.db").touch()
    assert is_empty(tmp_path)
    (tmp_path / name).touch()
    assert not is_empty(tmp_path)
