"""Each check of the doctor, on facts that deserve each status, and all of them on this machine."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlhf_ray.cluster import doctor
from rlhf_ray.cluster.doctor import GB, Finding

REQUIREMENTS = [Requirement(line) for line in ("ray[tune]==2.60.0", "numpy<2.5,>=2.0")]
OF_EXTRAS = [
    Requirement(line)
    for line in (
        "imitation==1.0.1; extra == 'games'",
        "setuptools<81; extra == 'games'",
        "rlhf-ray[games]; extra == 'all'",
    )
]
RIGHT = {"Python": "3.11.7", "ray": "2.60.0"}


def test_what_this_python_needs_anyway_and_what_another_python_needs_are_no_part_of_an_extra() -> None:
    lines = [
        "pygame>=2; python_version >= '3'",
        "imitation==1.0.1; extra == 'games'",
        "procgen>=1; python_version < '3' and extra == 'levels'",
    ]
    requirements = [Requirement(line) for line in lines]
    games, levels = doctor.extras(["games", "levels"], requirements, {"pygame": "2.6"}.get)
    assert (games.status, levels.status) == ("ok", "ok")
    assert "not installed" in games.seen
    assert "not installed" in levels.seen


def test_packages_that_came_with_others_are_no_extra() -> None:
    """As after a plain pip install: Ray brings some of the packages that tests and documentation need too."""
    tools = [f"{name}>=1; extra == 'tools'" for name in ("pytest", "httpx", "pyyaml", "ruff", "mypy")]
    lines = [*tools, "mujoco>=3; extra == 'physics'", "imageio>=2; extra == 'physics'"]
    requirements = [Requirement(line) for line in lines]

    def seen(*there: str) -> list[str]:
        return [f.status for f in doctor.extras(["tools", "physics"], requirements, dict.fromkeys(there, "9").get)]

    assert seen("httpx", "pyyaml", "ruff", "imageio") == ["ok", "ok"]
    assert seen("pytest", "httpx") == ["ok", "ok"]  # a user's own pytest
    assert seen("pytest", "httpx", "pyyaml", "ruff") == ["warning", "ok"]
    assert seen("mujoco") == ["ok", "warning"]


def extra(versions: dict[str, str]) -> Finding:
    return doctor.extras(["games"], OF_EXTRAS, versions.get)[0]


@pytest.mark.parametrize(
    ("finding", "status", "words"),
    [
        (doctor.python("3.12.1", ">=3.11,<3.13"), "ok", "3.12.1"),
        (doctor.python("3.13.0", ">=3.11,<3.13"), "problem", "3.13.0 needs make setup"),
        (doctor.packages(REQUIREMENTS, {"ray": "2.60.0", "numpy": "2.4.6"}.get), "ok", "numpy 2.4.6"),
        (
            doctor.packages(REQUIREMENTS, {"ray": "2.59.0", "numpy": "2.4.6"}.get),
            "problem",
            "ray 2.59.0 ==2.60.0 make setup",
        ),
        (doctor.packages(REQUIREMENTS, {"ray": "2.60.0"}.get), "problem", "numpy missing"),
        (extra({"imitation": "1.0.1", "setuptools": "80.1"}), "ok", "installed"),
        (extra({}), "ok", "not installed optional"),
        (extra({"imitation": "1.0.0", "setuptools": "80.1"}), "warning", "imitation 1.0.0 EXTRAS=games"),
        (doctor.threads(1), "ok", "1"),
        (doctor.threads(8), "warning", "8 OMP_NUM_THREADS"),
        (doctor.cpus(2), "ok", "2"),
        (doctor.cpus(1), "warning", "1"),
        (doctor.memory(16 * 10**9), "ok", "16.0 GB"),
        (doctor.memory(10**9), "warning", "1.0 GB ppo.num_envs"),
        (doctor.memory(None), "ok", "unknown"),
        (doctor.disk(Path("/runs"), 50 * 10**9, writable=True), "ok", "/runs 50.0 GB"),
        (doctor.disk(Path("/runs"), 10**9, writable=True), "warning", "1.0 GB --run-dir"),
        (doctor.disk(Path("/runs"), 50 * 10**9, writable=False), "problem", "/runs not writable --run-dir"),
        (doctor.temp_folder("a", "/tmp/ray", 50 * 10**9, 10**11), "ok", "/tmp/ray 50.0 GB"),
        (doctor.temp_folder("a", "/tmp/ray", 10**9, 10**10), "warning", "1.0 GB --temp-dir"),
        (doctor.temp_folder("a", "/tmp/ray", 4 * 10**9, 10**11), "problem", "95% --temp-dir"),
        (doctor.object_store("a", 2 * GB, 8 * 10**9), "ok", "2.0 GB 8.0 GB"),
        (doctor.object_store("a", 2 * GB, None), "ok", "2.0 GB"),  # macOS
        (doctor.object_store("a", 2 * GB, 64 * 10**6), "warning", "0.1 GB --shm-size"),
        (doctor.object_store("a", 0.1 * GB, 8 * 10**9), "warning", "--object-store-memory=200000000"),
        (doctor.gpus("a", 0.0, 0, 0), "ok", "none CPU"),
        (doctor.gpus("a", 2.0, 2, 2), "ok", "2 Ray"),
        (doctor.gpus("a", 1.0, 0, 1), "problem", "0 visible torch CUDA build --num-gpus=0"),
        (doctor.gpus("a", 0.0, 1, 1), "warning", "1 visible torch --num-gpus=1"),
        (doctor.gpus("a", 0.0, 0, 1), "warning", "1 in the machine CUDA build"),
        (doctor.versions("a", RIGHT, RIGHT), "ok", "ray 2.60.0"),
        (doctor.versions("a", RIGHT | {"Python": "3.12.1"}, RIGHT), "problem", "Python 3.12.1 (here 3.11.7)"),
        (doctor.token(["token", "token"]), "ok", "token"),
        (doctor.token(["disabled"]), "warning", "1 of 1 RAY_AUTH_MODE=token"),
        (doctor.token(["token", "disabled"]), "problem", "1 of 2 get-auth-token"),
        (doctor.dashboard(None), "ok", "not started"),
        (doctor.dashboard("127.0.0.1:8265"), "ok", "127.0.0.1:8265"),
        (doctor.dashboard("http://[::1]:8265"), "ok", "::1"),
        (doctor.dashboard("10.0.0.4:8265"), "problem", "10.0.0.4:8265 --dashboard-host=127.0.0.1 ssh"),
        (doctor.ports([]), "ok", "free"),
        (doctor.ports([6379, 8265]), "warning", "6379, 8265 RAY_ADDRESS --dashboard-port"),
        (doctor.cluster_cpus(2.0), "ok", "2"),
        (doctor.cluster_cpus(1.0), "problem", "1 --num-cpus=2"),
    ],
)
def test_a_check_says_what_is_wrong_and_what_to_do(finding: Finding, status: str, words: str) -> None:
    assert finding.status == status, finding
    assert bool(finding.remedy) == (status != "ok")
    for word in words.split():
        assert word in f"{finding.seen} {finding.remedy}"


def test_a_token_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "auth_token"
    assert doctor.token_file(path).status == "ok"
    path.touch(mode=0o600)
    assert doctor.token_file(path).status == "ok"
    path.chmod(0o644)
    finding = doctor.token_file(path)
    assert finding.status == "warning"
    assert f"chmod 600 {path}" in finding.remedy


def test_this_machine_is_fit_to_run_these_tests() -> None:
    findings = {finding.check: finding for finding in doctor.examine_machine()}
    assert {"Python", "packages", "extra dev", "torch threads", "CPUs", "memory", "disk for runs"} <= findings.keys()
    assert not [finding for finding in findings.values() if finding.status == "problem"]
    assert "ray 2.60.0" in findings["packages"].seen
