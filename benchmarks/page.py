"""The labelling page under load: how long an answer takes to be acknowledged, which is when it is on the disk.

`rlhf-ray label` serves clips of the moving dot (64x64 pixels) in a process of its own; ten annotators in this one each ask for a
question, fetch both films, and answer, twice a second, as browsers would over HTTP. Timed is the answer's request. A person waits
for none of it: the page shows the next pair, which it fetched before, at once.

    python benchmarks/page.py             # two minutes; writes benchmarks/results/page.json
    python benchmarks/page.py --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record

ANNOTATORS, PER_SECOND = 10, 2.0


async def annotator(link: str, seconds: float, took: dict[str, list[float]]) -> None:
    """Label for some time at the given pace."""
    base, token = link.split("/#token=")
    async with httpx.AsyncClient(base_url=base, headers={"origin": base}, timeout=30) as client:

        async def call(what: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
            started = time.perf_counter()
            reply = await (client.get(path) if body is None else client.post(path, json=body))
            took[what].append(time.perf_counter() - started)
            reply.raise_for_status()
            return reply

        await call("session", "/api/session", {"token": token})
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            questions = (await call("question", "/api/questions", {"count": 1, "holding": []})).json()["questions"]
            for question in questions:
                for side in ("left", "right"):
                    await call("film", f"/api/films/{question[side]['id']}")
                answer = {
                    "event_id": secrets.token_hex(16),
                    "lease": question["lease"],
                    "answer": "left",
                    "view_ms": 400,
                }
                await call("answer", "/api/answers", answer)
            await asyncio.sleep(max(0.0, 1 / PER_SECOND - (time.perf_counter() - began)))


def summary(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "median_ms": 1e3 * statistics.median(ordered),
        "p95_ms": 1e3 * ordered[int(0.95 * len(ordered))],
        "p99_ms": 1e3 * ordered[int(0.99 * len(ordered))],
        "max_ms": 1e3 * ordered[-1],
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    names = [f"annotator{i}" for i in range(ANNOTATORS)]
    took: dict[str, list[float]] = {what: [] for what in ("session", "question", "film", "answer")}

    async def all_of_them(links: list[str]) -> None:
        await asyncio.gather(*(annotator(link, options.seconds, took) for link in links))

    with tempfile.TemporaryDirectory() as folder:
        command = [Path(sys.executable).with_name("rlhf-ray"), "label", "moving_dot", "--store", f"{folder}/store"]
        arguments = ["--comparisons", "100000", "--labelling.port", "0", "--labelling.annotators", *names]
        server = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            links: list[str] = []
            while len(links) < ANNOTATORS:
                links += re.findall(r"http://\S+", server.stdout.readline())
            asyncio.run(all_of_them(links))
        finally:
            server.terminate()
            server.wait()
    outcome = {
        "annotators": ANNOTATORS,
        "answers_per_second_each": PER_SECOND,
        "requests": {what: summary(seconds) for what, seconds in took.items() if seconds},
    }
    if options.seconds >= 60:
        record("page", outcome)
    print(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
