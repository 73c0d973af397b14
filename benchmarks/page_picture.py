"""docs/labelling.png: the labelling page of a run, as a browser shows it.

rlhf-ray train pendulum --teacher human --labelling.annotators ada      # prints the link
python benchmarks/page_picture.py 'http://127.0.0.1:8765/#token=…'      # answers three pairs; needs playwright and Chromium
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent.parent / "docs" / "labelling.png"
SHOWN = """besides => {
    const { state, lease } = document.querySelector("#pair").dataset;
    return state === "asking" && lease !== besides;
}"""


def main(link: str) -> None:
    """Answer three pairs, and take the picture of the fourth in the middle of its clips."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(link)
        page.wait_for_function(SHOWN, arg="")
        for key in ("ArrowLeft", "ArrowRight", "ArrowLeft"):
            lease = page.locator("#pair").get_attribute("data-lease")
            page.wait_for_timeout(400)
            page.keyboard.press(key)
            page.wait_for_function(SHOWN, arg=lease)
        page.wait_for_selector("#episode:not([hidden])")
        page.wait_for_timeout(11_000)  # the numbers beside the clips are at most ten seconds old
        page.locator("#scrub").evaluate("at => { at.value = at.max / 2; at.dispatchEvent(new Event('input')); }")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
