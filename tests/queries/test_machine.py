"""A machine as the teacher: what it is asked, what its answers become, and servers that fail."""

import io
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from examples import machine_server
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.envs import make_env
from rlhf_ray.queries import machine
from rlhf_ray.queries.machine import MachineGatherer, read, strip
from rlhf_ray.settings import MachineSettings
from tests.made_up import some_comparisons
from tests.queries.machines import Machine, chat, serving

PAIRS = some_comparisons(6).pairs


def brightness(fragments: Fragments) -> list[float]:
    """What the films of `filmed` show of fragments: any number that differs."""
    return [int(name[:6], 16) / 2**24 for name in fragments.ids()]


def filmed(fragments: Fragments) -> Sequence[Any]:
    return [np.full((5, 8, 8, 3), round(255 * of), np.uint8) for of in brightness(fragments)]


def brighter(body: Any, pngs: list[bytes]) -> Any:
    """Answers honestly."""
    first, second = (np.asarray(Image.open(io.BytesIO(png)).crop((0, 0, 8, 8))).mean() for png in pngs)
    return 200, {}, chat(json.dumps({"better": "A" if first > second else "B"}))


def gathering(
    url: str,
    folder: Path | None = None,
    refer: Callable[[Pairs], object] | None = None,
    answered: Callable[[], Any] = tuple,
    **settings: Any,
) -> tuple[MachineGatherer, list[Comparisons], list[str]]:
    """A gatherer, and where its answers and the ids of the pairs that it skips go."""
    answers: list[Comparisons] = []
    skipped: list[str] = []

    def skip(pairs: Pairs, annotators: Sequence[str]) -> None:
        assert list(annotators) == ["machine"] * len(pairs)
        skipped.extend(pairs.ids)

    of = MachineSettings(**{"url": url, "model": "m", "frames": 3} | settings)
    return (
        MachineGatherer(answers.append, skip, filmed, of, "Brighter is better.", folder, refer, answered),
        answers,
        skipped,
    )


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(machine, "LONGEST_WAIT", 0.02)


def test_answers_are_those_of_the_machine_and_it_is_asked_in_both_orders() -> None:
    with serving(brighter) as served:
        gatherer, answers, skipped = gathering(served.url)
        gatherer.ask(0, PAIRS)
    left, right = brightness(PAIRS.left), brightness(PAIRS.right)
    assert [float(each.preferences[0]) for each in answers] == [float(a > b) for a, b in zip(left, right, strict=True)]
    assert tuple(each.pairs.ids[0] for each in answers) == PAIRS.ids  # in their order, so that runs repeat
    assert all(each.annotators == ("machine",) for each in answers)
    assert not skipped
    assert len(served.bodies) == 2 * len(PAIRS) == gatherer.kept.requests
    assert gatherer.kept.tokens == 7 * len(served.bodies)
    assert all("Brighter is better." in body["messages"][0]["content"][0]["text"] for body in served.bodies)


@pytest.mark.parametrize("said", ['{"better": "A"}', '{"better": "neither"}', "I think it is the first one.", ""])
def test_what_contradicts_itself_or_says_nothing_is_no_answer(said: str) -> None:
    with serving(lambda body, pngs: (200, {}, chat(said))) as served:
        gatherer, answers, skipped = gathering(served.url)
        gatherer.ask(0, PAIRS)
    assert not answers
    assert tuple(skipped) == PAIRS.ids
    assert len(served.bodies) == len(PAIRS) * 2 * (1 if "{" in said else machine.TRIES)


def test_nothing_is_asked_twice_after_a_kill(tmp_path: Path) -> None:
    with serving(brighter) as served:
        first, answers, _ = gathering(served.url, tmp_path)
        first.ask(0, PAIRS[np.arange(3)])
        file = tmp_path / "machine.jsonl"
        whole = file.read_text().splitlines(keepends=True)
        file.write_text("".join(whole[:-1]) + whole[-1][:20])  # killed while it wrote
        again, later, _ = gathering(served.url, tmp_path)
        assert again.kept.requests == 5
        again.ask(0, PAIRS)
        assert len(served.bodies) == 6 + 1 + 6
        assert [each.preferences[0] for each in later[:3]] == [each.preferences[0] for each in answers]
        last, _, _ = gathering(served.url, tmp_path)
        last.ask(0, PAIRS)
        assert len(served.bodies) == 13
        assert last.kept.requests == 12
        other, _, _ = gathering(served.url, tmp_path, frames=2)  # another question
        other.ask(0, PAIRS[np.arange(1)])
        assert len(served.bodies) == 15


def test_it_stops_at_its_number_of_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(brighter) as served:
        gatherer, answers, skipped = gathering(served.url, tmp_path, questions=8)
        gatherer.ask(0, PAIRS)
        assert gatherer.deserted
        assert len(served.bodies) == gatherer.kept.requests == 8
        again, later, _ = gathering(served.url, tmp_path)  # with more questions
        again.ask(0, PAIRS)
        assert len(served.bodies) == 2 * len(PAIRS)
        assert len(answers) <= 4 <= len(later) == len(PAIRS)
        referred: list[str] = []
        both, _, _ = gathering(served.url, None, lambda pairs: referred.extend(pairs.ids), questions=1, checks=0.0)
        both.ask(0, PAIRS)
        assert tuple(referred) == PAIRS.ids  # people are there, and asked in its place
        assert not both.deserted
        assert not skipped
        assert caplog.text.count("machine.questions is 8.") == caplog.text.count("machine.questions is 1.") == 1


def test_people_get_what_it_cannot_tell_and_a_share_of_what_it_can(tmp_path: Path) -> None:
    unsure = set(PAIRS.ids[:2])
    names = dict(zip(brightness(PAIRS.left), PAIRS.ids, strict=True))
    assert len(names) == len(PAIRS)
    shown = {round(255 * of): name for of, name in names.items()}

    def reply(body: Any, pngs: list[bytes]) -> Any:
        values = [round(float(np.asarray(Image.open(io.BytesIO(png)).crop((0, 0, 8, 8))).mean())) for png in pngs]
        if {shown.get(value) for value in values} & unsure:
            return 200, {}, chat('{"better": "neither"}')
        return brighter(body, pngs)

    referred: list[str] = []
    refer = lambda pairs: referred.extend(pairs.ids)  # noqa: E731
    with serving(reply) as served:
        gatherer, answers, skipped = gathering(served.url, tmp_path, refer, people=4, checks=1.0)
        gatherer.ask(0, PAIRS)
        assert set(referred[:2]) == unsure
        assert len(referred) == 4  # two that it can tell: checks
        assert len(answers) == 4
        assert not skipped
        # Killed, and resumed: people had answered the first.
        again, _, skipped = gathering(served.url, tmp_path, refer, lambda: {PAIRS.ids[0]}, people=4, checks=0.0)
        again.ask(0, PAIRS)
        assert referred[4:] == [PAIRS.ids[1]]
        assert not skipped
        few, _, skipped = gathering(served.url, None, refer, people=1, checks=0.0)
        few.ask(0, PAIRS)
        assert len(referred) == 6
        assert skipped == [PAIRS.ids[1]]


def test_a_third_of_people_s_questions_is_for_checks() -> None:
    referred: list[str] = []
    unsure = set(PAIRS.ids[:5])
    shown = {round(255 * of) for of in brightness(PAIRS.left)[:5]}

    def reply(body: Any, pngs: list[bytes]) -> Any:
        values = {round(float(np.asarray(Image.open(io.BytesIO(png)).crop((0, 0, 8, 8))).mean())) for png in pngs}
        return (200, {}, chat('{"better": "neither"}')) if values & shown else brighter(body, pngs)

    with serving(reply) as served:
        gatherer, _, skipped = gathering(served.url, None, lambda of: referred.extend(of.ids), people=3, checks=1.0)
        gatherer.ask(0, PAIRS)
    assert len(unsure & set(referred)) == 2
    assert len(skipped) == 3
    assert len(referred) == 3


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "WRITE_AGAIN_AFTER", 0.01)
    full, sync = iter(range(2)), os.fsync

    def fsync(number: int) -> None:
        if next(full, None) is not None:
            raise OSError(28, "No space left on device")
        sync(number)

    monkeypatch.setattr(machine.os, "fsync", fsync)
    with serving(brighter) as served:
        gatherer, answers, _ = gathering(served.url, tmp_path)
        gatherer.ask(0, PAIRS)
        assert len(answers) == len(PAIRS)
        again, _, _ = gathering(served.url, tmp_path)
        again.ask(0, PAIRS)
        assert len(served.bodies) == 2 * len(PAIRS)


def test_the_key_is_sent_and_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_RAY_MACHINE_KEY", "secret-1")
    with serving(brighter) as served:
        gatherer, _, _ = gathering(served.url, tmp_path)
        gatherer.ask(0, PAIRS[np.arange(1)])
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        gatherer.ask(0, PAIRS[np.arange(1, 2)])
    assert set(served.keys) == {"Bearer secret-1"}
    assert "secret-1" not in "".join(path.read_text() for path in tmp_path.iterdir())


class Slowly(bytes):
    """Content that a server sends byte by byte."""


FAULTS: dict[str, tuple[Any, str]] = {
    "bad request": ((400, {}, b"image too large"), "status 400: image too large"),
    "refused key": ((401, {}, b"no"), "RLHF_RAY_MACHINE_KEY"),
    "no money": ((402, {}, b"pay"), "status 402: pay"),
    "forbidden": ((403, {}, b"no"), "RLHF_RAY_MACHINE_KEY"),
    "no such model": ((404, {}, b"model m not found"), "machine.model): model m not found"),
    "too large": ((413, {}, b""), "status 413"),
    "schema unprocessable": ((422, {}, b"what?"), "status 422"),
    "too many requests": ((429, {}, b"slow down"), "status 429: slow down"),
    "later, please": ((429, {"Retry-After": "1"}, b"slow down"), "status 429"),
    "later, at a date": ((503, {"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"}, b""), "status 503"),
    "its fault": ((500, {}, b"Traceback"), "status 500: Traceback"),
    "bad gateway": ((502, {}, b"<html>"), "status 502"),
    "gateway's timeout": ((504, {}, b""), "status 504"),
    "hangs up": (None, "breaks the connection off"),
    "cut short": ((200, {"Content-Length": "999"}, b"{"), "breaks the connection off"),
    "empty": ((200, {}, b""), "no chat completion"),
    "a page": ((200, {}, b"<html>login</html>"), "no chat completion"),
    "no choices": ((200, {}, b'{"error": "overloaded"}'), "no chat completion"),
    "a list": ((200, {}, b"[]"), "no chat completion"),
    "elsewhere": ((302, {"Location": "http://127.0.0.1:9/v1"}, b""), "sends us on to http://127.0.0.1:9/v1"),
    "too slow": ("slow", "machine.timeout"),
    "a byte at a time": ("trickles", "machine.timeout"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_is_one_line_and_costs_no_answer(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    said, line = FAULTS[fault]
    failures = iter(range(3))

    def reply(body: Any, pngs: list[bytes]) -> Any:
        if next(failures, None) is None:
            return brighter(body, pngs)
        if said == "slow":
            time.sleep(0.6)
        if said == "trickles":
            return 200, {"Content-Length": "100"}, Slowly(chat("A"))
        return brighter(body, pngs) if said == "slow" else said

    with serving(reply) as served, caplog.at_level(logging.WARNING):
        gatherer, answers, skipped = gathering(served.url, timeout=0.2 if "timeout" in line else 30.0)
        gatherer.ask(0, PAIRS[np.arange(1)])
    assert len(answers) == 1
    assert not skipped
    lines = [record.getMessage() for record in caplog.records if record.name == machine.__name__]
    assert len(lines) == 2, lines
    assert line in lines[0]
    assert "answers again" in lines[1]
    assert all("\n" not in each and "Traceback (" not in each for each in lines)


def test_a_server_that_is_gone_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with serving(brighter) as served:
        url, port = served.url, served.server.server_port
    gatherer, answers, _ = gathering(url)
    thread = threading.Thread(target=gatherer.ask, args=(0, PAIRS), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while "can't be reached" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    back = Machine(brighter)
    back.server.server_close()
    back.server = ThreadingHTTPServer(("127.0.0.1", port), back.server.RequestHandlerClass)
    serve = threading.Thread(target=back.server.serve_forever, kwargs={"poll_interval": 0.01})
    serve.start()
    thread.join(20)
    back.server.shutdown()
    serve.join()
    back.server.server_close()
    assert len(answers) == len(PAIRS)
    assert 1 <= caplog.text.count("can't be reached") <= 2  # a thread may have tried while another was answered


def test_a_server_without_schemas_is_asked_without() -> None:
    def reply(body: Any, pngs: list[bytes]) -> Any:
        return (400, {}, b"response_format?") if "response_format" in body else brighter(body, pngs)

    with serving(reply) as served:
        gatherer, answers, _ = gathering(served.url)
        gatherer.ask(0, PAIRS)
    assert len(answers) == len(PAIRS)
    assert sum("response_format" in body for body in served.bodies) <= machine.AT_ONCE


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"better": "A"}', "A"),
        ('```json\n{"better": "B"}\n```', "B"),
        ('I see {both}. So: {"why": "it falls", "better": "neither"}', "neither"),
        ('Maybe {"better": "A"}. But it falls later: {"better": "B"}', "B"),
        ('{"better": "C"}', None),
        ('{"better": 1}', None),
        ("A", None),
        ("{", None),
    ],
)
def test_answers_are_read_from_what_models_write(text: str, answer: str | None) -> None:
    assert read(text) == answer


def test_a_strip_has_the_first_the_last_and_frames_at_equal_distances() -> None:
    film = np.arange(9, dtype=np.uint8)[:, None, None, None] * np.ones((9, 4, 6, 3), np.uint8)
    image = np.asarray(Image.open(io.BytesIO(strip(film, 5))))
    assert image.shape == (4, 5 * 6 + 4 * machine.GAP, 3)
    assert [int(image[0, at, 0]) for at in range(0, image.shape[1], 6 + machine.GAP)] == [0, 2, 4, 6, 8]
    assert image[0, 6, 0] == 255
    assert np.asarray(Image.open(io.BytesIO(strip(film[:2], 5)))).shape[1] == 2 * 6 + machine.GAP


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": ""}, "--machine.url"),
        ({"model": ""}, "--machine.model"),
        ({"url": "127.0.0.1:8000"}, "machine.url is '127.0.0.1:8000'"),
        ({"frames": 1}, "machine.frames is 1"),
        ({"questions": 0}, "machine.questions is 0"),
    ],
)
def test_settings_that_name_no_machine_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        gathering(**{"url": "http://127.0.0.1:9/v1"} | settings)


def test_the_example_finds_the_pendulum_s_angle_in_its_picture() -> None:
    env = make_env("Pendulum-v1", render_mode="rgb_array")
    env.reset(seed=0)
    for wanted in np.linspace(-3.1, 3.1, 13):
        env.unwrapped.state = np.array([wanted, 0.0])  # type: ignore[attr-defined]
        found = machine_server.angle(np.asarray(env.render()).astype(int))
        assert abs(found) == pytest.approx(abs(wanted), abs=0.12)
    env.close()  # type: ignore[no-untyped-call]
