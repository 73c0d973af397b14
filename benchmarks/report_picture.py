"""docs/report.png: the top of a run's report, as a browser shows it.

rlhf-ray train pendulum --run-dir runs/picture
python benchmarks/report_picture.py runs/picture      # needs playwright and Chromium
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent.parent / "docs" / "report.png"


def main(run: str) -> None:
    """Take the picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light")
        page.goto((Path(run) / "report.html").absolute().as_uri())
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
