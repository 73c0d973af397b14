"""What somebody at the page does and sees."""

import base64
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect

from tests.labelling.fake_desk import FakeDesk

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


def wait_for_pair(page: Page, besides: str = "") -> str:
    """The lease of the pair on screen, once it is another than `besides` and the page takes an answer to it."""
    page.wait_for_function(
        """besides => {
            const { takes, busy, lease } = document.querySelector("#pair")?.dataset ?? {};
            return takes === "true" && !busy && lease !== besides;
        }""",
        arg=besides,
    )
    return lease_of(page)


def lease_of(page: Page) -> str:
    return str(page.evaluate("document.querySelector('#pair').dataset.lease"))


def wait_until(true: Callable[[], Any], page: Page, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        page.wait_for_timeout(50)


def wait_saved(page: Page) -> None:
    expect(page.locator("#saved")).to_have_attribute("data-waiting", "0", timeout=30_000)
    expect(page.locator("#saved")).to_have_text("All saved")


def press(page: Page, key: str) -> str:
    """Press a key that answers; returns the lease it answered."""
    return answer(page, lambda: page.keyboard.press(key))


def answer(page: Page, act: Callable[[], Any]) -> str:
    """Answer the pair on screen by what `act` does, and wait for the next; returns the lease that it answered."""
    lease = wait_for_pair(page)
    act()
    wait_for_pair(page, lease)
    return lease


def wait_fetched_ahead(page: Page, desk: FakeDesk, ahead: int = 3) -> None:
    """Wait until the page has the films of the pair on screen and of `ahead` others."""
    fetched = (
        "performance.getEntriesByType('resource').filter(({ responseEnd }) => responseEnd).map(({ name }) => name)"
    )

    def all_are_here() -> bool:
        names = {name.rpartition("/")[2] for name in page.evaluate(fetched)}
        leased = [lease.question for lease in desk.leases.values()]
        return len(leased) > ahead and names >= {
            film.id for question in leased for film in (question.left, question.right)
        }

    wait_until(all_are_here, page)


def frames(page: Page) -> list[int]:
    return [int(page.locator(f"#{side}").get_attribute("data-frame") or -1) for side in ("left", "right")]


def swipe(page: Page, start: tuple[float, float], by: tuple[float, float]) -> None:
    touch = page.context.new_cdp_session(page)
    x, y = start
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for k in range(1, 6):
        point = {"x": x + by[0] * k / 5, "y": y + by[1] * k / 5}
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def pixels(page: Page) -> dict[str, np.ndarray]:
    """``[height, width, 3]`` of each side: what its canvas holds."""
    got = page.evaluate(
        """() => Object.fromEntries(["left", "right"].map((side) => {
            const canvas = document.getElementById(side);
            const { width, height, data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return [side, { width, height, data: btoa(String.fromCharCode(...data)) }];
        }))"""
    )
    return {
        side: np.frombuffer(base64.b64decode(one["data"]), np.uint8).reshape(one["height"], one["width"], 4)[..., :3]
        for side, one in got.items()
    }


def covered(page: Page, over: str, under: str) -> list[str]:
    """What of the elements `under` lies behind the element `over`, on screen, in HTML."""
    return list(
        page.evaluate(
            """([over, under]) => {
                const a = document.querySelector(over).getBoundingClientRect();
                return [...document.querySelectorAll(under)].filter((element) => {
                    const b = element.getBoundingClientRect();
                    return a.width && b.width && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
                }).map((element) => element.outerHTML);
            }""",
            [over, under],
        )
    )
