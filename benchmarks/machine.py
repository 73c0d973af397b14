"""Pendulum taught by a machine that looks at pixels, alone and with a scripted person at the page.

    python benchmarks/machine.py [--seeds 5]     # writes benchmarks/results/machine.json

The machine is `examples/machine_server.py`, asked over HTTP. Each arm trains the preset `pendulum` by the command line. The person
answers what the page asks by the true returns, 30 answers at most. Runs of the arms alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import ROOT, record
from examples.machine_server import Handler
from rlhf_ray.queries.machine import NAME, Kept
from rlhf_ray.runs.report.steps.outcome import contradicted
from rlhf_ray.store import PreferenceStore
from tests.labelling.person import Person

FIRST_SEED = 5000
ARMS = {
    "true reward": None,
    "10 % wrong": (0.1, False),
    "30 % wrong": (0.3, False),
    "30 % wrong, with people": (0.3, True),
}
"""Share of the machine's wrong answers, and whether people help."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    runs: dict[str, Any] = {}
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        for name, arm in ARMS.items():
            with tempfile.TemporaryDirectory() as folder:
                runs[f"{name}, seed {seed}"] = row = run(Path(folder) / "run", seed, arm)
            print(name, seed, row, flush=True)
            record("machine", {"runs": runs})


def run(folder: Path, seed: int, arm: tuple[float, bool] | None) -> dict[str, Any]:
    """Train, and return what came of it."""
    words = ["pendulum", "--seed", str(seed), "--evaluation-episodes", "50", "--run-dir", str(folder)]
    if arm is None:
        return {"return": _trained([*words, "--true-reward"], folder, people=False)["reference"]["true_return_mean"]}
    kind = type("Handler", (Handler,), {"wrong": arm[0], "log_message": lambda *arguments: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    teacher = "machine+human" if arm[1] else "machine"
    try:
        words += ["--teacher", teacher, "--machine.url", url, "--machine.model", "tip"]
        result = _trained([*words, "--labelling.port", "0"], folder, people=arm[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    stored = PreferenceStore(folder / "preferences", create=False).load()
    assert stored is not None
    by_machine = np.array(stored.annotators) == NAME
    better = stored.pairs.left.returns() - stored.pairs.right.returns()
    wrong = ((better > 0) != (stored.preferences > 0.5))[by_machine & (better != 0) & (stored.preferences != 0.5)]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(rows) if f"error_rate/{NAME}" in row)
    kept = Kept(folder / "machine.jsonl")
    against, both = contradicted(stored)
    return {
        "return": result["trained"]["true_return_mean"],
        "comparisons": len(stored),
        "of people": int((~by_machine).sum()),
        "asked of people": len(kept.referred),
        "requests": kept.requests,
        "wrong": round(float(wrong.mean()), 3),
        "estimated": [round(last[f"error_rate{bound}/{NAME}"], 3) for bound in ("", "_low", "_high")],
        "contradicted by people": [len(against), both],
    }


def _trained(words: list[str], folder: Path, *, people: bool) -> dict[str, Any]:
    """Train by the command line, with a scripted person at the page if ``people``."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    log = folder.with_suffix(".txt")
    with log.open("w") as out:
        command = [sys.executable, "-m", "rlhf_ray", "train", *words]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
    if people:
        while not (found := re.findall(r"http://\S+/#token=\S+", log.read_text())) and process.poll() is None:
            time.sleep(0.2)
        Person(found[0], folder / "preferences").start(lambda: process.poll() is not None)
    if process.wait():
        raise SystemExit(log.read_text()[-2000:])
    found_: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found_


if __name__ == "__main__":
    main()
