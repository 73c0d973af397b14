"""The page's server gets what its schema allows, what it does not, and no session: it fails at none of it, and lets nobody in."""

from collections.abc import Iterator

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from starlette.types import Receive, Scope, Send

from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.settings import LabellingSettings
from tests.labelling.fake_desk import FakeDesk

URL = "http://127.0.0.1:8000"
SESSIONS = Sessions.create(["ada"])
COOKIE = {SESSIONS.cookie_name: SESSIONS.sign(SESSIONS.people["ada"])}


class Boundless:
    """Every request gets through, so that what is behind the limits is tried."""

    def __init__(self, **_: float):
        pass

    def wait(self, key: str, cost: float = 1.0) -> float:
        return 0.0


def make_app() -> FastAPI:
    return create_app(FakeDesk(pairs=3), SESSIONS, LabellingSettings(), "T")


class AtOnce:
    """The app of the running test. Schemathesis wants one when the tests are collected."""

    app: FastAPI | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        await self.app(scope, receive, send)


SCHEMA = schemathesis.openapi.from_dict(make_app().openapi())
SCHEMA.app = AtOnce()
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
some = settings(max_examples=settings().max_examples // 4, suppress_health_check=list(HealthCheck))  # of each operation


@pytest.fixture(autouse=True)
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("rlhf_ray.labelling.guard.Limiter", Boundless)
    monkeypatch.setattr("rlhf_ray.labelling.app.Limiter", Boundless)
    SCHEMA.app.app = make_app()
    yield
    SCHEMA.app.app = None


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not allowed"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_nothing_sent_with_a_session_is_a_server_error(operation, mode):
    try:
        strategy = operation.as_strategy(generation_mode=mode)

        @some
        @given(case=strategy)
        def send(case):
            reply = case.call(base_url=URL, cookies=COOKIE)
            assert reply.status_code < 500, reply.text
            seen.add(reply.status_code)

        seen: set[int] = set()
        send()
    except (schemathesis.errors.InvalidSchema, Unsatisfiable) as error:
        if mode is GenerationMode.POSITIVE:
            raise
        pytest.skip(str(error))  # nothing is wrong about a call without parameters
    if mode is GenerationMode.POSITIVE:
        assert seen & {200, 400, 404, 422} or operation.path == "/api/session"
