"""docs/agent_report.png and docs/agent_panel.png: the top of an agent's report, and its panel, as a browser shows them.

rlhf-ray train worlds/cuerun.json --allow-import worlds --true-reward --seed 6 --run-dir runs/cuerun
rlhf-ray interpret agent runs/cuerun --out cuerun_report      # both in examples/
python benchmarks/agent_picture.py cuerun_report      # needs playwright and Chromium
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"agent_report.png": ("report.html", 700), "agent_panel.png": ("panel/index.html", 900)}


def main(report: str) -> None:
    """Take the pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for picture, (page, height) in PAGES.items():
            view = browser.new_page(viewport={"width": 1200, "height": height}, color_scheme="light")
            view.goto((Path(report) / page).absolute().as_uri())
            view.wait_for_timeout(3000)  # drawings
            view.screenshot(path=DOCS / picture)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
