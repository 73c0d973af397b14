"""The pictures of README and docs/, made anew: `make pictures`. Takes some minutes; needs playwright and Chromium.

docs/labelling.png is a run's labelling page, docs/report.png another run's report, docs/learning.png, docs/parts.png and
docs/speed.png what is in benchmarks/results, as are the tables of docs/results.md.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import method_tables
import page_picture
import report_picture
import speed

TRAIN = [str(Path(sys.executable).parent / "rlhf-ray"), "train", "pendulum"]


@contextlib.contextmanager
def asking(folder: Path) -> Iterator[str]:
    """A run that asks somebody, until the picture is taken: the link to its page."""
    command = [
        *TRAIN,
        "--teacher",
        "human",
        "--labelling.annotators",
        "ada",
        "--labelling.port",
        "0",
        "--run-dir",
        folder,
    ]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    try:
        yield next(link[0] for line in run.stdout if (link := re.search(r"http://\S+#token=\S+", line)))
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate()


def main() -> None:
    """Make all of them."""
    method_tables.main()
    speed.write_page()
    with tempfile.TemporaryDirectory() as folder:
        with asking(Path(folder) / "people") as link:
            page_picture.main(link)
        run = Path(folder) / "first"
        subprocess.run([*TRAIN, "--run-dir", run], check=True)
        report_picture.main(str(run))


if __name__ == "__main__":
    main()
