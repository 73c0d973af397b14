"""A vision-language model as the teacher: which of two clips is better, by a server that speaks OpenAI's chat completions.

A pair is asked about in both orders, because these models often prefer the first or the last picture. Two answers that agree are
one comparison; any others are none, and with machine+human the pair goes to people. What was asked is kept beside the store, so
that a resumed run asks nothing twice. A server that fails is asked again, later and later: nothing is lost, and training goes on or
waits as it does for slow people.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons, Pairs, stable_uniform
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.settings.machine import KEY_VARIABLE, MachineSettings

logger = logging.getLogger(__name__)

NAME = "machine"
"""The annotator's name in the store."""
AT_ONCE = 4
"""Pairs that the server is asked about at the same time."""
TRIES = 2
"""Requests about two clips in one order until their answer can be read."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before a failed request is sent again; twice as many each time."""
LONGEST_ASKED = 3600.0
"""Most seconds that a server may ask to be left alone."""
WRITE_AGAIN_AFTER = 5.0
"""Seconds before a row that could not be kept is written again."""
CHECKS = 3
"""One in so many of people's questions is for checks, whatever the machine can't tell."""
GAP = 4
"""Pixels between two frames of a strip."""

QUESTION = (
    "You compare two clips of an agent's behaviour. Each clip is shown as one strip of frames in the order of time, from left to "
    'right. The question: "{task}" Look at what changes from frame to frame in each clip. Then answer by JSON alone: {{"better": '
    '"A"}} if clip A shows it better, {{"better": "B"}} if clip B does, or {{"better": "neither"}} if you can\'t tell.'
)
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"better": {"type": "string", "enum": ["A", "B", "neither"]}},
            "required": ["better"],
            "additionalProperties": False,
        },
    },
}


class Spent(Exception):  # noqa: N818 - no error: it ends a batch
    """No more requests are allowed."""


class MachineServer:
    """Sends requests until one is answered.

    Args:
        tell: tells the user a line.
    """

    def __init__(self, settings: MachineSettings, tell: Callable[[str], object]):
        import requests  # most runs have no machine

        self.settings, self._tell, self._requests = settings, tell, requests
        self._session = requests.Session()
        self._schema = True
        """Whether answers are asked for by `SCHEMA`: not every server knows it."""
        self._told: str | None = None
        """The fault that was last told; None once the server has answered again."""
        self._lock = threading.Lock()

    def ask(self, content: list[dict[str, Any]]) -> tuple[str, int, float]:
        """Return the answer's text, the tokens that it took (0 where the server doesn't say), and its seconds."""
        pause = FIRST_WAIT
        while True:
            body: dict[str, Any] = {"model": self.settings.model, "messages": [{"role": "user", "content": content}]}
            try:
                found = self._sent(body | ({"response_format": SCHEMA} if self._schema else {}))
            except (self._requests.RequestException, ValueError, LookupError, TypeError) as error:
                if self._schema and getattr(getattr(error, "response", None), "status_code", None) in (400, 422):
                    self._schema = False  # tried without; another fault comes again
                    continue
                pause = self._pause(error, pause)
                continue
            self._now(None, "answers again")
            return found

    def _sent(self, body: dict[str, Any]) -> tuple[str, int, float]:
        started = time.monotonic()
        address = f"{self.settings.url.rstrip('/')}/chat/completions"
        # A redirect could take clips and key elsewhere. With `auth`, no other key is taken from ~/.netrc.
        with self._session.post(
            address, json=body, auth=_with_key, timeout=self.settings.timeout, allow_redirects=False, stream=True
        ) as response:
            content = b""
            for part in response.iter_content(1):
                content += part
                if time.monotonic() - started > self.settings.timeout:
                    raise self._requests.ReadTimeout
            response._content = content  # for what is told of it
        response.raise_for_status()
        if response.is_redirect:
            raise ValueError(f"it sends us on to {response.headers.get('location')}")
        said = json.loads(content)
        text = said["choices"][0]["message"]["content"]
        tokens = int((said.get("usage") or {}).get("total_tokens") or 0)
        return str(text or ""), tokens, time.monotonic() - started

    def _pause(self, error: Exception, pause: float) -> float:
        """Tell a fault once, and wait. Return the next pause."""
        response = getattr(error, "response", None)
        fault = _in_words(error, response)
        self._now(fault, f"{fault}. It is asked again until it answers")
        asked = "" if response is None else response.headers.get("retry-after", "")
        time.sleep(max(pause, min(float(asked), LONGEST_ASKED) if asked.isdigit() else 0.0))
        return min(LONGEST_WAIT, 2 * pause)

    def _now(self, fault: str | None, words: str) -> None:
        """Tell a fault, or that there is none any more, unless that was told last: by any of the threads that ask."""
        with self._lock:
            if fault != self._told:
                self._tell(f"The machine at {self.settings.url} {words}.")
            self._told = fault


def _with_key(request: Any) -> Any:
    """Add the key to a request, if there is one."""
    if key := os.environ.get(KEY_VARIABLE):
        request.headers["Authorization"] = f"Bearer {key}"
    return request


def _in_words(error: Exception, response: Any) -> str:
    """Return a fault of the server as the end of a sentence."""
    kind, said = type(error).__name__, " ".join(str(error).split())
    if response is None and "Timeout" in kind:
        return "takes longer than machine.timeout for an answer"
    if response is None and kind == "ConnectionError" and "NewConnectionError" in said:
        return "can't be reached: it isn't running, or machine.url is another"
    if response is None and kind in ("ConnectionError", "ChunkedEncodingError"):
        return "breaks the connection off"
    if response is None:
        return f"sent what is no chat completion ({said[:100] or kind})"
    said, status = " ".join(response.text.split())[:200], response.status_code
    if status in (401, 403):
        return f"refuses the key ({status}), which is the environment variable {KEY_VARIABLE}: stop the run, set it, and resume"
    if status == 404:
        return f"has no such address or model (404; machine.url, machine.model): {said}"
    return f"answers with status {status}: {said}"


FILE = "machine.jsonl"
"""What a run's machine was asked and said, in the run's folder."""


class Kept:
    """What the machine was asked and said, one JSON object in each line of a file; in memory only without one.

    Attributes:
        answers: by a key of the question.
        referred: ids of the pairs that went to people.
        requests, tokens, seconds: what all of it cost.
    """

    def __init__(self, file: Path | None):
        self._file, self._lock = file, threading.Lock()
        self._under_way = 0
        self.answers: dict[str, str] = {}
        self.referred: set[str] = set()
        self.requests, self.tokens, self.seconds = 0, 0, 0.0
        text = file.read_text() if file is not None and file.exists() else ""
        self._torn = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                self._count(json.loads(line))
            except (ValueError, TypeError, LookupError):  # the last line of a killed run
                continue

    def _count(self, row: dict[str, Any]) -> None:
        if "referred" in row:
            self.referred.update(row["referred"])
            return
        self.requests, self.tokens, self.seconds = (
            self.requests + 1,
            self.tokens + row["tokens"],
            self.seconds + row["seconds"],
        )
        if row["answer"] is not None:
            self.answers[row["question"]] = row["answer"]

    def begin(self, most: int) -> None:
        """Note that a request begins, one of ``most`` in all; `end` ends it.

        Raises:
            Spent: it would be one too many.
        """
        with self._lock:
            if self.requests + self._under_way >= most:
                raise Spent
            self._under_way += 1

    def end(self, **row: Any) -> None:
        """Note that a request has ended, and keep its row."""
        self._keep(row, ended=1)

    def add(self, **row: Any) -> None:
        """Keep a row of no request."""
        self._keep(row, ended=0)

    def _keep(self, row: dict[str, Any], ended: int) -> None:
        """Keep a row, durably: with a full disk, once there is room."""
        with self._lock:
            self._under_way -= ended
            self._count(row)
            while self._file is not None:
                try:
                    self._file.parent.mkdir(parents=True, exist_ok=True)
                    with self._file.open("a") as file:
                        file.write("\n" * self._torn + json.dumps(row) + "\n")
                        file.flush()
                        os.fsync(file.fileno())
                    self._torn = False
                    return
                except OSError as error:
                    logger.error("Can't write %s; trying again in %.0f s: %s", self._file, WRITE_AGAIN_AFTER, error)
                    self._torn = True
                    time.sleep(WRITE_AGAIN_AFTER)


class MachineGatherer:
    """Asks a vision-language model. See `rlhf_ray.queries.gatherers.Gatherer`.

    Args:
        commit, skip, films: see there.
        machine: the settings.
        instructions: the task in words.
        folder: where to keep what was asked; None: in memory only.
        refer: asks people about pairs; None if there are none.
        answered: returns the ids of the pairs that people have answered.
        tell: tells the user a line.

    Raises:
        SettingError: the settings name no server or model.
    """

    wants_films = True

    def __init__(
        self,
        commit: Callable[[Comparisons], object],
        skip: Callable[[Pairs, Sequence[str]], object],
        films: Callable[[Fragments], Sequence[Array]],
        machine: MachineSettings,
        instructions: str,
        folder: Path | None = None,
        refer: Callable[[Pairs], object] | None = None,
        answered: Callable[[], Collection[str]] = tuple,
        tell: Callable[[str], object] = logger.warning,
    ):
        check(machine)
        self.commit, self.skip, self.films, self.settings, self.refer = commit, skip, films, machine, refer
        self.question = QUESTION.format(task=instructions)
        self.server, self._tell, self._answered = MachineServer(machine, tell), tell, answered
        self.kept = Kept(None if folder is None else folder / FILE)
        self.deserted = False
        """Whether all requests are used up, and people are asked no more either."""
        self._is_spent = False
        self._begins, self._unsure = bool(self.kept.referred), 0

    def ask(self, number: int, pairs: Pairs) -> None:
        """See `Gatherer.ask`."""
        if self._begins:  # a resumed run: people are asked again about what they have not answered
            self.kept.referred &= set(self._answered())
            self._begins = False
        strips = [
            [strip(film, self.settings.frames) for film in self.films(side)] for side in (pairs.left, pairs.right)
        ]
        names = [side.ids() for side in (pairs.left, pairs.right)]
        said = side_by_side(self._compared, list(zip(*names, *strips, strict=True)))
        for row, result in enumerate(said):
            pair = pairs[np.array([row])]
            try:
                self._store(pair, result.result())
            except Spent:
                self._spent(pair)

    def _compared(self, left: str, right: str, of_left: bytes, of_right: bytes) -> float | None:
        """Return the preference for the left clip: 1 or 0; None if the machine can't tell, or contradicts itself."""
        there = self._answer(left, right, of_left, of_right)
        back = self._answer(right, left, of_right, of_left)
        return {("A", "B"): 1.0, ("B", "A"): 0.0}.get((there, back))

    def _answer(self, first: str, second: str, of_first: bytes, of_second: bytes) -> str:
        """Return A, B or neither: the machine's answer about two clips in this order.

        Raises:
            Spent: it would take a request too many.
        """
        asked = f"{self.settings.model}\n{self.settings.frames}\n{self.question}\n{first}\n{second}"
        key = hashlib.sha256(asked.encode()).hexdigest()
        for _ in range(TRIES):
            if key in self.kept.answers:
                break
            self.kept.begin(self.settings.questions)
            content = [_text(self.question), _text("Clip A:"), _image(of_first), _text("Clip B:"), _image(of_second)]
            text, tokens, seconds = self.server.ask(content)
            self.kept.end(question=key, answer=read(text), tokens=tokens, seconds=round(seconds, 3))
        return self.kept.answers.get(key, "neither")

    def _store(self, pair: Pairs, preference: float | None) -> None:
        """Commit an answer, or skip the pair; ask people about it if it is theirs."""
        (name,) = pair.ids
        sure = preference is not None
        asks = not sure or bool(stable_uniform([name], "machine.checks")[0] < self.settings.checks)
        theirs = asks and self._referred(pair, check=sure)
        if not sure and not theirs and name not in self.kept.referred:
            self.skip(pair, [NAME])
        if sure:
            self.commit(Comparisons(pair, np.array([preference], np.float32), (NAME,)))

    def _referred(self, pair: Pairs, *, check: bool) -> bool:
        """Ask people about a pair if there are any, and they are to be asked more; return whether. A third is for checks."""
        (name,) = pair.ids
        most = self.settings.people
        full = len(self.kept.referred) >= most or (not check and self._unsure >= most - most // CHECKS)
        if self.refer is None or full or name in self.kept.referred:
            return False
        self._unsure += not check
        self.kept.add(referred=[name])
        self.refer(pair)
        return True

    def _spent(self, pair: Pairs) -> None:
        """Ask people about a pair in the machine's place, if they are still to be asked; else nobody answers it."""
        if not self._is_spent:
            self._tell(f"The machine is asked no more: machine.questions is {self.settings.questions}.")
        self._is_spent = True
        self.deserted = not self._referred(pair, check=False)


def check(settings: MachineSettings) -> None:
    """Check that there is a machine to ask.

    Raises:
        SettingError: there is none.
    """
    for name, example in (("url", "http://127.0.0.1:8000/v1"), ("model", "the model's name at the server")):
        if not getattr(settings, name):
            raise SettingError(
                f"preferences.teacher is machine, but machine.{name} is not set: give --machine.{name} ({example})."
            )


def read(text: str) -> str | None:
    """Return A, B or neither, as an answer says, at its end if it thinks aloud; None if it can't be read."""
    for found in reversed(re.findall(r"\{[^{}]*\}", text)):
        try:
            better = str(json.loads(found).get("better")).strip()
        except (ValueError, AttributeError):
            continue
        if better in ("A", "B", "neither"):
            return better
    return None


def side_by_side(work: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> Iterator[Future[Any]]:
    """Yield the results of ``work(*item)`` in the order of the items; `AT_ONCE` threads work, which keep no process from ending."""
    results: list[Future[Any]] = [Future() for _ in items]
    waiting = iter(list(zip(results, items, strict=True)))
    lock = threading.Lock()

    def take() -> None:
        while True:
            with lock:
                if (task := next(waiting, None)) is None:
                    return
            result, item = task
            try:
                result.set_result(work(*item))
            except BaseException as error:
                result.set_exception(error)

    for _ in range(min(AT_ONCE, len(items))):
        threading.Thread(target=take, name="machine", daemon=True).start()
    return iter(results)


def strip(film: Array, frames: int) -> bytes:
    """Return frames of a film ``[n, height, width, 3]`` side by side, as a PNG: first, last and those at equal distances."""
    at = np.unique(np.linspace(0, len(film) - 1, frames).round().astype(int))
    height, width = film.shape[1:3]
    sheet = Image.new("RGB", (len(at) * (width + GAP) - GAP, height), "white")
    for column, frame in enumerate(at):
        sheet.paste(Image.fromarray(np.ascontiguousarray(film[frame])), (column * (width + GAP), 0))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(png: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png).decode()}"}}
