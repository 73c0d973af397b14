"""The pictures of README and docs/, made anew: `make pictures`. Takes some minutes; needs playwright and Chromium.

docs/labelling.png is a run's labelling page, docs/report.png another run's report, docs/results.png, docs/audits.png,
docs/parts.png and docs/speed.png what is in benchmarks/results, as are the tables of docs/results.md and docs/results_archive.md.
docs/agent_report.png and docs/agent_panel.png, the top of an agent's report and its panel, take longer; the first two commands are
run in examples/:

    rlhf-ray train worlds/cuerun.json --allow-import worlds --true-reward --seed 6 --run-dir runs/cuerun
    rlhf-ray interpret agent runs/cuerun --out cuerun_report
    python benchmarks/pictures.py cuerun_report      # these two alone
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import method_tables
import page_tables
import speed
from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parent.parent / "docs"
TRAIN = [str(Path(sys.executable).parent / "rlhf-ray"), "train", "pendulum", "--run-dir"]
ASKING = ["--teacher", "human", "--labelling.annotators", "ada", "--labelling.port", "0"]
SHOWN = """besides => {
    const { state, lease } = document.querySelector("#pair").dataset;
    return state === "asking" && lease !== besides;
}"""


@contextlib.contextmanager
def opened(address: str, width: int, height: int) -> Iterator[Page]:
    """A page in a browser window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        page.goto(address)
        yield page
        browser.close()


@contextlib.contextmanager
def asking(folder: Path) -> Iterator[str]:
    """A run that asks somebody, until the picture is taken: the link to its page."""
    run = subprocess.Popen([*TRAIN, folder, *ASKING], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    try:
        yield next(link[0] for line in run.stdout if (link := re.search(r"http://\S+#token=\S+", line)))
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate()


def picture_of_labelling(link: str) -> None:
    """Answer three pairs, and take the picture of the fourth in the middle of its clips."""
    with opened(link, 1280, 800) as page:
        page.wait_for_function(SHOWN, arg="")
        for key in ("ArrowLeft", "ArrowRight", "ArrowLeft"):
            lease = page.locator("#pair").get_attribute("data-lease")
            page.wait_for_timeout(400)
            page.keyboard.press(key)
            page.wait_for_function(SHOWN, arg=lease)
        page.wait_for_selector("#episode:not([hidden])")
        page.wait_for_timeout(11_000)  # the numbers beside the clips are at most ten seconds old
        page.locator("#scrub").evaluate("at => { at.value = at.max / 2; at.dispatchEvent(new Event('input')); }")
        page.screenshot(path=DOCS / "labelling.png")


def picture_of(file: Path, name: str, width: int, height: int) -> None:
    """Take the picture of the top of a page that is a file."""
    with opened(file.absolute().as_uri(), width, height) as page:
        page.wait_for_timeout(3000)  # drawings
        page.screenshot(path=DOCS / name)


def main() -> None:
    """Make those of an agent's report, or all others."""
    if reports := sys.argv[1:]:
        picture_of(Path(reports[0], "report.html"), "agent_report.png", 1200, 700)
        picture_of(Path(reports[0], "panel/index.html"), "agent_panel.png", 1200, 900)
        return
    page_tables.main()
    method_tables.main()
    speed.write_page()
    with tempfile.TemporaryDirectory() as folder:
        with asking(Path(folder, "people")) as link:
            picture_of_labelling(link)
        subprocess.run([*TRAIN, Path(folder, "first")], check=True)
        picture_of(Path(folder, "first/report.html"), "report.png", 1100, 900)


if __name__ == "__main__":
    main()
