"""The first pair: seconds from `rlhf-ray train PRESET --teacher human` to the link, and to the first pair that somebody can answer.

python benchmarks/first_pair.py hopper      # prints a line of JSON; the run is stopped then, and its folder deleted
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx


def first_pair(preset: str, settings: list[str], folder: Path) -> dict[str, Any]:
    """Train until the first pair is asked about."""
    program = str(Path(sys.executable).with_name("rlhf-ray"))
    fixed = ["--teacher", "human", "--labelling.port", "0", "--run-dir", str(folder / "run")]
    began = time.monotonic()
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen([program, "train", preset, *fixed, *settings], stdout=log, stderr=subprocess.STDOUT)
        try:
            while not (found := re.search(r"(http://\S+)/#token=(\S+)", Path(log.name).read_text())):
                if process.poll() is not None:
                    raise RuntimeError(f"the run ended: {Path(log.name).read_text()}")
                time.sleep(0.2)
            link = time.monotonic() - began
            with httpx.Client(base_url=found[1], headers={"origin": found[1]}, timeout=60.0) as page:
                page.post("/api/session", json={"token": found[2]}).raise_for_status()
                reasons: list[str] = []
                while True:
                    reply = page.post("/api/questions", json={"count": 1, "holding": []}).json()
                    if reply["questions"]:
                        break
                    if reply["progress"]["reason"] not in reasons:
                        reasons.append(reply["progress"]["reason"])
                    time.sleep(0.2)
            pair = time.monotonic() - began
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60.0)
            except subprocess.TimeoutExpired:
                process.kill()
    return {
        "command": " ".join(["python benchmarks/first_pair.py", *sys.argv[1:]]),
        "link_seconds": round(link, 1),
        "first_pair_seconds": round(pair, 1),
        "said_meanwhile": reasons,
        "machine": {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", nargs="?", default="hopper")
    options, settings = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="first_pair") as folder:
        print(json.dumps(first_pair(options.preset, settings, Path(folder))))


if __name__ == "__main__":
    main()
