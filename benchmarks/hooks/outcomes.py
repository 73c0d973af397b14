"""A pytest plugin (-p outcomes): which tests a changed arithmetic can reach, and what came of them.

With OUTCOMES=file it writes, as JSON, ``{test: {"failed": last lines or null, "fired": initials}}``. ``fired`` has the initials of
what `sitecustomize.py` can change while the test runs, its fixtures included, in this process and in those it starts.
With ONLY=file it runs only the tests that this JSON list names.
"""

import functools
import json
import os
import tempfile
from pathlib import Path

import pytest


def pytest_configure(config):
    # Under xdist, each worker starts processes of its own and has a file of its own; the controller collects their reports.
    file, os.environ["FIRED"] = tempfile.mkstemp(prefix="fired-")
    os.close(file)
    config.pluginmanager.register(_Outcomes(config))


class _Outcomes:
    def __init__(self, config):
        self.fired = Path(os.environ["FIRED"])
        self.out = None if hasattr(config, "workerinput") else os.environ.get("OUTCOMES")
        self.tests, self.fixtures, self.modules = {}, {}, set()
        self.before = 0

    def since(self, start):
        return set(self.fired.read_bytes()[start:].decode())

    def size(self):
        return self.fired.stat().st_size

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        assert not self.size(), (
            "a weight is drawn when a module of tests is imported: it reaches tests that are not counted"
        )
        if only := os.environ.get("ONLY"):
            named = set(json.loads(Path(only).read_text()))
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in named])
            items[:] = [item for item in items if item.nodeid in named]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        for kept in vars(getattr(item, "module", item)).values():
            if isinstance(kept, functools._lru_cache_wrapper) and kept.__module__ == item.module.__name__:
                kept.cache_clear()  # what one test makes would reach others unseen
        self.before = self.size()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef):
        """What a wider fixture does in the first test that takes it reaches all that take it."""
        before = self.size()
        try:
            return (yield)
        finally:
            self.fixtures.setdefault(fixturedef, set()).update(self.since(before))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            taken = [of for name in item.fixturenames for of in item._fixtureinfo.name2fixturedefs.get(name, ())]
            fired = self.since(self.before).union(*(self.fixtures.get(of, ()) for of in taken))
            item.user_properties.append(("fired", "".join(sorted(fired))))
        return (yield)

    def pytest_runtest_logreport(self, report):
        test = self.tests.setdefault(report.nodeid, {"failed": None, "fired": ""})
        if report.failed:
            test["failed"] = (test["failed"] or "") + str(report.longrepr)[-400:]
        test["fired"] = dict(report.user_properties).get("fired", "")

    def pytest_sessionfinish(self):
        self.fired.unlink(missing_ok=True)
        if self.out:
            Path(self.out).write_text(json.dumps(self.tests))
