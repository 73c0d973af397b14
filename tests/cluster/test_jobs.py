"""Jobs on a real head that asks for a token: submitted, followed, stopped, refused, and resumed on another head."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from rlhf_ray.interpret.reward.steps import NAMES
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.store import PreferenceStore
from tests.cluster.hosts import BIN, Head, wait

SMALL = [
    *("--total-env-steps", "2000", "--fragments.initial-env-steps", "400", "--preferences.comparisons", "40"),
    *("--preferences.initial-comparisons", "20", "--preferences.rounds", "1", "--checkpoint-every", "1"),
    *("--ppo.num-envs", "4", "--ppo.epochs", "2", "--evaluation-episodes", "2"),
]
ENDLESS = [*SMALL, "--total-env-steps", "1000000"]
PATIENCE = 500.0

pytestmark = [pytest.mark.cluster, pytest.mark.soak]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def head(home: Path) -> Iterator[Head]:
    head = Head(home, names_itself=True)
    yield head
    head.close()


class Somebody:
    """Types commands, with a token or without one."""

    def __init__(self, head: Head, **environment: str):
        self.head, self.environment = head, head.environment(RAY_API_SERVER_ADDRESS=head.address, **environment)

    def types(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        program = [str(BIN / words[0]), *words[1:]]
        return subprocess.run(
            program, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, **options
        )

    def succeeds(self, *words: str, **options: Any) -> str:
        done = self.types(*words, **options)
        assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def submits(self, *words: str) -> str:
        (job, *_) = re.findall(r"raysubmit_\w+", self.succeeds("rlhf-ray", "submit", "--no-follow", "--", *words))
        return str(job)


def run_of(job: str, home: Path) -> RunFolder:
    """The run that a job trains, as soon as it has metrics."""
    (path,) = wait(lambda: list((home / "runs").glob(f"*-{job[-4:]}/metrics.jsonl")), PATIENCE)
    wait(lambda: path.stat().st_size, PATIENCE)
    return RunFolder(path.parent)


def test_a_job_is_submitted_followed_and_leaves_its_run_in_the_home_folder(head, home, tmp_path):
    # As Ray's handbook says, with a folder that is sent along.
    somebody = Somebody(head)
    (tmp_path / "sent_along.py").write_text("import actors, gymnasium\n")
    (tmp_path / "actors").mkdir()  # the user's own, not the repository's
    (tmp_path / "actors" / "__init__.py").touch()
    printed = somebody.succeeds(
        *("ray", "job", "submit", "--working-dir", str(tmp_path), "--runtime-env-json"),
        *('{"env_vars": {"OMP_NUM_THREADS": "1"}}', "--", "rlhf-ray", "train", "sent_along:Pendulum-v1", *SMALL),
        *("--run-dir", "runs/by-hand"),
    )
    assert "env steps" in printed
    result = json.loads((home / "runs" / "by-hand" / "result.json").read_text())
    assert (result["env_steps"], result["comparisons"]) == (2000, 40)

    # Its tools run as tasks of the cluster.
    printed = somebody.succeeds(
        *("rlhf-ray", "submit", "--working-dir", str(tmp_path), "--", "interpret", "reward", "runs/by-hand"),
        *("--allow-import", "sent_along", "--effort", "0.1"),
    )
    assert "report: " in printed
    report = json.loads((home / "runs" / "by-hand" / "interpret" / "reward" / "report.json").read_text())
    assert report["about"]["environment"] == "sent_along:Pendulum-v1"
    assert {section["name"] for section in report["sections"]} == set(NAMES)

    failed = somebody.types("rlhf-ray", "submit", "--", "train", "pendulm")
    assert failed.returncode == 1
    assert "'pendulm' is not a preset; did you mean pendulum?" in failed.stdout


def test_two_runs_of_one_cluster_see_nothing_of_each_other_and_are_stopped(head: Head, home: Path) -> None:
    somebody = Somebody(head)
    people = ["--teacher", "human", "--labelling.port", "18765"]
    first = somebody.submits("train", "pendulum", *ENDLESS, "--preferences.mode", "asynchronous")  # with actors
    second = somebody.submits("train", "pendulum", *ENDLESS, *people)
    run = run_of(first, home)
    (port,) = wait(lambda: list((home / "runs").glob(f"*-{second[-4:]}/labelling.port")), PATIENCE)
    page = f"http://127.0.0.1:{json.loads(port.read_text())['port']}/"
    assert requests.get(page, timeout=10).status_code == 200
    assert requests.get(f"{page}api/me", timeout=10).status_code == 401
    # A shared process and the reward trainer; with people, collector and page too.
    assert actors_by_job(somebody) == [2, 4]

    # One folder can't be trained twice at a time.
    refused = somebody.types("rlhf-ray", "submit", "--", "train", "--resume", f"runs/{run.path.name}")
    assert refused.returncode == 1

    for job in (first, second):  # with the time to end well, and without a trace in the other
        somebody.succeeds("ray", "job", "stop", job)
        (path,) = (home / "runs").glob(f"*-{job[-4:]}")
        stopped = RunFolder(path)
        result = json.loads(stopped.result.read_text())
        assert result["interrupted"]
        assert result["comparisons"] == len(PreferenceStore(stopped.preferences))
    assert len(PreferenceStore(run.preferences)) >= 20
    assert run.checkpoint()


def actors_by_job(somebody: Somebody) -> list[int]:
    """How many of the rings' actors each driver's namespace holds."""
    program = (
        "import collections, json, ray; ray.init(logging_level='ERROR');"
        "named = ray.util.list_named_actors(all_namespaces=True);"
        "own = [actor['namespace'] for actor in named if actor['name'].startswith('ring-')];"
        "print(json.dumps(sorted(collections.Counter(own).values())))"
    )
    environment = somebody.environment | {"RAY_ADDRESS": somebody.head.ray}
    done = subprocess.run(
        [str(BIN / "python"), "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    counts: list[int] = json.loads(done.stdout)
    return counts


def test_who_has_no_token_is_refused(head: Head, tmp_path: Path) -> None:
    jobs = f"{head.address}/api/jobs/"
    body = {"entrypoint": f"touch {tmp_path}/ran"}
    for headers, status in (({}, 401), ({"Authorization": "Bearer wrong"}, 403)):
        assert requests.get(jobs, headers=headers, timeout=10).status_code == status
        assert requests.post(jobs, json=body, headers=headers, timeout=10).status_code == status
        for path in ("/nodes?view=summary", "/api/v0/actors", "/api/cluster_status", "/api/serve/applications/"):
            assert requests.get(head.address + path, headers=headers, timeout=10).status_code == status, path
    stranger = Somebody(head, HOME=str(tmp_path))  # the same machine, another home folder
    del stranger.environment["RAY_AUTH_MODE"]
    for token, words, message in (
        (None, ("submit", "--", "store", "info", "x"), "requires a token, but this machine has none. Copy"),
        ("wrong", ("submit", "--", "store", "info", "x"), "auth_token): it has another one. Copy"),
        ("wrong", ("doctor", "--address", head.ray), "auth_token): it has another"),
    ):
        if token is not None:
            (tmp_path / ".ray").mkdir(exist_ok=True)
            (tmp_path / ".ray" / "auth_token").write_text(token)
        refused = stranger.types("rlhf-ray", *words)
        assert refused.returncode != 0
        (line,) = [
            line for line in (refused.stdout + refused.stderr).splitlines() if head.address in line or head.ray in line
        ]
        assert message in line, words
        assert words[0] == "doctor" or refused.stderr == f"{line}\n"
    assert not (tmp_path / "ran").exists()
    (listening,) = {
        of.laddr.ip
        for of in psutil.net_connections("tcp")
        if of.status == psutil.CONN_LISTEN
        and f"{of.laddr.ip}:{of.laddr.port}".endswith(head.address.rpartition(":")[2])
    }
    assert listening == "127.0.0.1"


def test_a_run_whose_cluster_died_goes_on_in_another(head: Head, home: Path) -> None:
    first = Head(home)
    try:
        somebody = Somebody(first)
        words = [*SMALL, "--total-env-steps", "3600"]
        follower = subprocess.Popen(
            [str(BIN / "rlhf-ray"), "submit", "--", "train", "pendulum", *words, "--run-dir", "runs/dies"],
            env=somebody.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        run = RunFolder(home / "runs" / "dies")
        wait(lambda: list(run.checkpoints.glob("[0-9]*")), PATIENCE)
        first.kill()
        before = PreferenceStore(run.preferences).load()
        printed, _ = follower.communicate(timeout=PATIENCE)
        assert follower.returncode == 1
        assert "train --resume" in printed
        assert not run.finished()
        Somebody(head).succeeds("rlhf-ray", "submit", "--", "train", "--resume", "runs/dies")
        result = json.loads(run.result.read_text())
        assert (result["env_steps"], result["comparisons"], result["interrupted"]) == (3600, 40, False)
        after = PreferenceStore(run.preferences).load()
        assert set(before.pairs.ids) <= set(after.pairs.ids)
    finally:
        first.close()
