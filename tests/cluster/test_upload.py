"""What a job uploads is looked at first."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from ray._private.runtime_env import packaging

from rlhf_ray.cluster.upload import check_upload
from rlhf_ray.runs.folder import FORMAT
from rlhf_ray.settings import SettingError
from rlhf_ray.sweeps.results import FORMAT as SWEEP


def project(folder: Path) -> Path:
    for name, size in {
        "env.py": 10,
        "runs/a/weights": 3000,
        "runs/b": 2000,
        "data.bin": 1500,
        ".git/objects": 9000,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(size))
    return folder


def test_a_folder_above_the_limit_is_refused_with_its_largest_parts(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as error:
        check_upload(project(tmp_path), limit=4000)
    said = str(error.value)
    assert "\n" not in said
    for part in (
        "6 KiB",
        "less than 4 KiB",
        "runs/ 5 KiB, data.bin 1 KiB",
        ".gitignore",
        ".rayignore",
    ):
        assert part in said
    assert ".git/" not in said  # Ray leaves it out


@pytest.mark.parametrize("ignores", [".gitignore", ".rayignore"])
def test_what_is_ignored_does_not_count(tmp_path: Path, ignores: str) -> None:
    (project(tmp_path) / ignores).write_text("runs/\n")
    assert check_upload(tmp_path, limit=4000) == []


def test_folders_of_runs_and_sweeps_stay_behind(tmp_path: Path) -> None:
    """Those that `rlhf-ray` made, wherever they lie; another program's run.json makes no run."""
    folder = project(tmp_path)
    (folder / "runs" / "a" / "run.json").write_text(json.dumps({"format": FORMAT}))
    (folder / "runs" / "s" / "trial").mkdir(parents=True)
    (folder / "runs" / "s" / "sweep.json").write_text(json.dumps({"format": SWEEP}))
    (folder / "runs" / "s" / "trial" / "weights").write_bytes(bytes(9000))
    (folder / "mine").mkdir()
    (folder / "mine" / "run.json").write_text("{}")
    excluded = check_upload(folder, limit=4000)
    assert excluded == ["/runs/a", "/runs/s"]
    left_out = packaging._get_excludes(folder, [*excluded, ".git"])
    kept: list[Path] = []
    packaging._dir_travel(folder, [left_out], kept.append, include_gitignore=True)
    names = sorted(str(path.relative_to(folder)) for path in kept if path.is_file())
    assert names == ["data.bin", "env.py", "mine/run.json", "runs/b"]


def test_pipes_sockets_and_links_to_nothing_stay_behind_and_nothing_hangs(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "runs" / "a b[1]").mkdir()
    os.mkfifo(folder / "runs" / "a b[1]" / "pipe!")
    (folder / "gone").symlink_to(folder / "nothing")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        excluded = check_upload(folder)
        assert len(excluded) == 3
        # Ray reads every other file to name the package.
        uri = packaging.get_uri_for_directory(str(folder), include_gitignore=True, excludes=[*excluded, ".git"])
    assert uri.startswith("gcs://_ray_pkg_")
