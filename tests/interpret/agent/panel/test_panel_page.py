"""The panel in a real browser: from the file system, without network."""

import io

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from rlhf_ray.interpret.agent.panel import write_panel
from tests.interpret.agent.panel.filters import OneOf, Within, matching
from tests.interpret.agent.panel.made_up import made_up

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 1}


CUT_OFF = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  const wide = (one, text) => ((pen.font = getComputedStyle(one).font), pen.measureText(text).width);
  const arrow = 34; // padding, border and arrow of a list
  const lists = ["x", "y", "add", "at"].map(byId).filter((one) => wide(one, one.selectedOptions[0].text) + arrow > one.offsetWidth);
  const names = [...document.querySelectorAll("#bars .name")].filter((one) => one.scrollWidth > one.clientWidth);
  return [...lists, ...names].map((one) => one.id || one.textContent);
}"""


def kept(page: Page) -> list[list[int]]:
    """The samples that the page keeps, each with its first matching step."""
    return page.evaluate("derived.kept.map(({ sample, step }) => [sample, step])")


def in_page(data, condition) -> str:
    """The condition as a word of the address."""
    if isinstance(condition, OneOf):
        short, every, of = {
            "action": ("a", data.action_names, ""),
            "outcome": ("o", data.outcome_names, ""),
            "label": ("b", data.names_of("Behaviour"), "0"),
        }[condition.what]
        return f"{short}~{of}~{'.'.join(str(list(every).index(name)) for name in condition.names)}"
    k = list(data.components).index(condition.component) if condition.component else ""
    of = list(data.gradients).index(condition.quantity) if condition.quantity else ""
    bounds = "~".join("" if np.isinf(bound) else repr(float(bound)) for bound in (condition.low, condition.high))
    return f"{condition.what[0]}~{of}~{k}~{bounds}"


def some_conditions(data, rng):
    """One to four conditions whose bounds are numbers of the data, where rounding would show."""
    loadings, values = (of.astype(np.float16).astype(float) for of in (data.loadings, data.values))
    offered = []
    for _ in range(2):
        k = rng.integers(len(data.components))
        low = float(rng.choice(loadings[:, :, k].ravel()))
        offered.append(Within("loading", data.components[k], low=low))
        quantity = str(rng.choice(list(data.gradients)))
        offered.append(Within("gradient", data.components[k], quantity, high=float(rng.normal(0, 0.1))))
    offered.append(Within("value", high=float(rng.choice(values.ravel()))))
    offered.append(OneOf("action", list(rng.choice(data.action_names, 2, replace=False))))
    offered.append(OneOf("label", [str(rng.choice(data.label_names["Behaviour"]))], "Behaviour"))
    offered.append(OneOf("outcome", list(rng.choice(data.outcome_names, 2, replace=False))))
    return [offered[number] for number in rng.choice(len(offered), rng.integers(1, 5), replace=False)]


@pytest.mark.slow
def test_filters_keep_the_samples_that_python_keeps(opened, data):
    page = opened()
    rng = np.random.default_rng(0)
    sizes = []
    for turn in range(25):
        conditions = some_conditions(data, rng)
        at = None if turn % 3 else int(rng.integers(12))
        words = "&".join(f"f={in_page(data, one)}" for one in conditions) + (f"&at={at}" if at is not None else "")
        page.evaluate("async (hash) => { history.replaceState(null, '', hash); await follow(); }", f"#{words}")
        holds = matching(data, conditions)
        if at is not None:
            holds &= np.arange(12) == at
        wanted = [[int(sample), int(holds[sample].argmax())] for sample in np.flatnonzero(holds.any(1))]
        assert kept(page) == wanted, conditions
        sizes.append(len(wanted))
        expect(page.locator("#count")).to_have_text(f"{len(wanted)} of 120 match")
    assert sum(0 < size < 120 for size in sizes) >= 15  # the conditions divide


@pytest.mark.slow
def test_a_filter_is_made_and_reset_by_hand(opened, data):
    page = opened()
    page.keyboard.press("/")
    page.select_option("#add", label="Action")
    page.get_by_label("jump right").check()
    page.get_by_role("button", name="component 1", exact=True).click()  # a bar's name filters by it
    page.get_by_label("component 1 at least").fill("1.5")
    holds = matching(data, [OneOf("action", ["jump right"]), Within("loading", "component 1", low=1.5)])
    expect(page.locator("#count")).to_have_text(f"{holds.any(1).sum()} of 120 match")
    assert 0 < holds.any(1).sum() < 120
    first = int(holds.any(1).argmax())
    page.get_by_role("button", name=f"Sample {first}, step {holds[first].argmax()}").click()
    expect(page.locator("#step")).to_have_text(f"step {holds[first].argmax()} of {data.lengths[first] - 1}")
    page.get_by_role("button", name="Remove the filter Action").click()
    expect(page.locator("#conditions li")).to_have_count(1)
    page.get_by_role("button", name="Reset all filters").click()
    expect(page.locator("#count")).to_have_text("120 of 120")


def test_frames_saliency_and_numbers_are_those_of_the_step(opened, data):
    page = opened("#s=110&t=7&o=0")  # on the second sheet
    page.wait_for_function("() => document.getElementById('frame').dataset.tile === 's110.7'")
    frame = np.asarray(Image.open(io.BytesIO(page.locator("#frame").screenshot())).convert("RGB"))
    side = frame.shape[0] // 16
    left = (frame.shape[1] - frame.shape[0]) // 2  # the box is wider than the frame
    seen = frame[side // 2 :: side, left + side // 2 :: side][:16, :16]
    np.testing.assert_array_equal(seen, data.observations[110, 7])
    page.evaluate("set({ sample: 0, step: 3, opacity: 100 })")
    page.wait_for_function("() => document.getElementById('overlay').width === 16")
    overlay = page.evaluate("[...overlay.getContext('2d').getImageData(0, 0, 16, 16).data]")
    overlay = np.array(overlay).reshape(16, 16, 4)
    saw = (data.observations[0, 3] == (200, 40, 40)).all(-1)
    hero = (data.observations[0, 3] == (40, 60, 160)).all(-1)
    assert saw.any()
    assert (overlay[saw][:, 2] > overlay[saw][:, 0]).all()  # lowers: blue
    assert (overlay[hero][:, 0] > overlay[hero][:, 2]).all()  # raises: red
    assert overlay[saw][:, 3].min() > 200  # saturates
    bars = page.locator("#bars output").all_inner_texts()
    np.testing.assert_allclose([float(text.replace("−", "-")) for text in bars], data.loadings[0, 3], atol=0.006)
    shares = page.locator("#paths output").all_inner_texts()
    np.testing.assert_allclose([float(one.replace("−", "-")) for one in shares], data.paths["value"][0, 3], atol=0.006)
    page.evaluate("set({ sample: 3 })")  # whose gradients of the value were not computed
    assert "gradient" not in page.get_by_role("button", name="component 2", exact=True).get_attribute("data-tip")


@pytest.mark.slow
def test_keys_tool_tips_and_the_address(opened):
    page = opened("#s=0&t=2")
    expect(page.locator("#step")).to_have_text("step 2 of 11")
    for key in ("ArrowRight", "ArrowRight", "]", "q", "s"):
        page.keyboard.press(key)
    assert page.evaluate("[state.sample, state.step, state.quantity, state.opacity]") == [1, 4, "jump log-odds", 0]
    send = "([key, code]) => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, code, bubbles: true }))"
    page.evaluate(send, ["ы", "KeyS"])  # on a Cyrillic keyboard
    page.evaluate(send, ["х", "BracketLeft"])
    assert page.evaluate("[state.sample, state.opacity]") == [0, 80]
    page.keyboard.press("Control+s")
    assert page.evaluate("state.opacity") == 80
    page.keyboard.press("End")
    expect(page.locator("#step")).to_have_text("step 11 of 11")
    page.keyboard.press(" ")
    page.wait_for_function("() => state.step < 3")  # goes on from the start
    page.keyboard.press(" ")
    page.keyboard.press("Home")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("ArrowRight")  # not behind the dialog
    page.keyboard.press("Escape")
    assert page.evaluate("state.step") == 0

    about = page.get_by_role("button", name="About the frame")
    page.locator("#help-open").focus()
    for _ in range(3):
        page.keyboard.press("Tab")
        if about.evaluate("element => element === document.activeElement"):
            break
    expect(page.get_by_role("tooltip")).to_contain_text("red pixels raise")
    expect(about).to_have_attribute("aria-describedby", "tip")
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    page.locator("#link").hover()
    expect(page.get_by_role("tooltip")).to_contain_text("address of exactly this view")

    page.keyboard.press("t")
    page.keyboard.press("t")
    page.locator("#x").select_option(label="t-SNE 1")
    page.locator("#at").select_option("5")
    page.locator("#pair").select_option(index=1)
    page.locator("#pair-scrub").fill("8")
    expect(page.locator("#frame-b + .beyond")).to_be_visible()  # simulated, and the horizon is 6
    page.evaluate(
        "async () => { await addCondition({ what: 'gradient', of: 1, k: 2, low: -0.0312, high: null });"
        " await addCondition({ what: 'label', of: 0, is: [0, 1] }); await set({ sample: 77, step: 6, opacity: 35 }); }"
    )
    page.wait_for_function("() => location.hash === addressOf()")
    restored = opened(page.evaluate("location.hash"))
    what = "[state, derived.kept, document.documentElement.dataset.theme, step.textContent, y.value, pair.value]"
    assert restored.evaluate(what) == page.evaluate(what)
    assert restored.evaluate("[state.y, state.conditions.length, state.theme, state.pairStep]") == [9, 2, "dark", 8]
    expect(restored.locator("#conditions li")).to_have_count(2)
    restored.goto(restored.url.split("#")[0] + "#s=9999&x=-1&q=nothing&f=l~~99~~&f=z&at=x&p=7.9")  # not of this panel
    restored.wait_for_function("() => state.sample === 0 && !state.conditions.length && state.at === null")


@pytest.mark.slow
def test_it_fits_a_phone_and_everybody_can_read_it(opened):
    from axe_playwright_python.sync_playwright import Axe

    views = (("#t=4&f=l~~0~0~&f=a~~1", {"viewport": {"width": 1200, "height": 900}}), ("#theme=dark&p=1.8", PHONE))
    for hash_, options in views:
        page = opened(hash_, **options)
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
        assert page.evaluate(CUT_OFF) == []
        page.locator(".tip").first.focus()
        found = Axe().run(page, options={"preload": False}).response["violations"]
        assert not [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]


@pytest.mark.soak
def test_4000_samples_open_within_5_s_and_50_mb(opened, tmp_path):
    data = made_up(
        4000, 16, 16, quantities=("value", "jump log-odds", *(f"component {number + 1}" for number in range(16)))
    )
    index = write_panel(data, tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert size < 50e6
    page = opened("#f=l~~0~1~&f=g~1~3~0~", index)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    # Of the page's process: other processes on the machine take time, too.
    took = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}["ProcessTime"]
    print(f"{size / 1e6:.1f} MB, {took:.2f} s")
    assert took < 5
    holds = matching(
        data, [Within("loading", "component 1", low=1), Within("gradient", "component 4", "jump log-odds", low=0)]
    )
    assert len(kept(page)) == holds.any(1).sum()
