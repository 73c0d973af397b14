"""What every test shares: a quiet environment, markers, one local Ray, one trained run, and no actors left behind."""

import os
import tempfile

# Ray and torch read these when they are imported or started, so they come before everything else.
os.environ.update(
    OMP_NUM_THREADS="1",  # many small processes on few cores
    RAY_AUTH_MODE="disabled",  # or ray.init() writes a token to the home folder and turns the whole process to it
    RAY_USAGE_STATS_ENABLED="0",  # no telemetry
    RAY_worker_niceness="0",  # on a busy machine, workers at Ray's 15 starve until time limits are met
    RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",  # under `uv run`, workers would each resolve their own environment
    XDG_CONFIG_HOME=tempfile.mkdtemp(
        prefix="rlhf_ray-config-"
    ),  # what is remembered of users is not of whoever runs the tests
)

import atexit
import shutil
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import hypothesis
import pytest

from rlhf_ray.data import metrics, places

metrics.strict = True  # a number that nobody declared is an error
places.RUNS = os.path.join(os.environ["XDG_CONFIG_HOME"], "runs")  # not in the working folder

VANISH_WITHIN_S = 10.0

# How many examples properties are tried on: HYPOTHESIS_PROFILE=ci, or soak as `make soak` does.
for profile, examples in (("dev", 25), ("ci", 100), ("soak", 300)):
    hypothesis.settings.register_profile(profile, max_examples=examples, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from rlhf_ray.runs.folder import RunFolder

MARKED_BY = {"ray_session": "ray", "browser": "browser"}
"""Fixtures, and the marker of each test that takes them."""

SLOW = ("ray", "cluster", "learning", "browser")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKED_BY:
                item.add_marker(MARKED_BY[fixture])
    # The slowest files first, and the smallest last, so that of two processes none has a slow one left when the other is done.
    slow = {
        item.path for item in items if any(map(item.get_closest_marker, SLOW)) and not item.get_closest_marker("soak")
    }
    size = {path: 0 if path in slow else path.stat().st_size for path in {item.path for item in items}}
    items.sort(key=lambda item: (item.path not in slow, -size[item.path]))


def named_actors() -> set[tuple[str, str]]:
    """(namespace, name) of every living named actor."""
    import ray

    return {(actor["namespace"], actor["name"]) for actor in ray.util.list_named_actors(all_namespaces=True)}


def wait_for_actors_to_vanish(before: set[tuple[str, str]], within_s: float = VANISH_WITHIN_S) -> list[str]:
    """The named actors that were not there before and are still there after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while left := named_actors() - before:
        if time.monotonic() > deadline:
            return sorted("/".join(actor) for actor in left)
        time.sleep(0.1)
    return []


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray for all tests that ask for it. It ends by `ray.shutdown()`: `ray stop` would end strangers' too."""
    import ray

    from rlhf_ray.actors.ray_internals import started_for_a_run

    # Ray's sockets lie some 60 characters below, and a Unix socket's path may have 107: no long $TMPDIR here.
    folder = tempfile.mkdtemp(prefix="rlhf", dir="/tmp")
    for left_over in (2, 1, 0):
        try:
            with started_for_a_run(workers=1):
                ray.init(
                    address="local",
                    num_cpus=4,
                    include_dashboard=False,
                    object_store_memory=200 << 20,
                    _temp_dir=folder,
                    namespace="test",
                    log_to_driver=False,
                    configure_logging=False,
                    # Each of Ray's processes reports as often, for as long as the tests take; one test waits for a report.
                    _system_config={"metrics_report_interval_ms": 4000},
                )
            break
        except Exception as error:
            # Ray gives its processes half a minute to start, which a busy machine may not.
            if not left_over or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    yield
    try:
        # Those of wider fixtures (a module's, say), which the check below does not count against a single test.
        left = wait_for_actors_to_vanish(set()) if ray.is_initialized() else []
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"named actors left over by the whole run: {left}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What `time.monotonic` tells: its ``now``, in seconds."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture(scope="module")  # no two of playwright's loops in one process
def browser() -> Iterator["Browser"]:
    from tests.browsers import chromium

    with chromium() as browser:
        yield browser


def put_rings_in_process(patch: pytest.MonkeyPatch) -> None:
    from rlhf_ray.actors.executor import LocalExecutor

    patch.setattr("rlhf_ray.rllib.rings.RayExecutor", LocalExecutor)


@pytest.fixture
def ring_in_process(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asynchronous rings run in this process too, not in processes that take seconds to start."""
    put_rings_in_process(monkeypatch)


@pytest.fixture(scope="session")
def trained_run(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> "RunFolder":
    """The folder of a run of `whole_runs.small`, evaluated on two episodes. Copy it before you change it."""
    from rlhf_ray.runs.new_run import new_run
    from rlhf_ray.runs.train import train
    from tests.whole_runs import small

    folder = new_run(tmp_path_factory.mktemp("trained") / "run", small())
    with pytest.MonkeyPatch.context() as patch:
        put_rings_in_process(patch)
        train(folder, evaluation_episodes=2)
    return folder


@pytest.fixture(autouse=True)
def no_leaked_actors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test with `ray_session` that leaves a named actor behind.

    Made before a test's own fixtures and so torn down after them. What a wider fixture made before is not counted.
    """
    if "ray_session" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("ray_session")
    import ray

    before = named_actors()
    yield
    left = wait_for_actors_to_vanish(before) if ray.is_initialized() else []
    assert not left, f"named actors left over: {left}; end them with ray.kill(), or drop the last handle"
